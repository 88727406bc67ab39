"""A machine that is not here, as a file describes it: processors, links and memory, and where each value is from."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError

from partita.core.errors import ConfigError, nearest
from partita.core.files import parse_yaml, read_file

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_BYTES = {f"{prefix}B": factor for prefix, factor in {**_DECIMAL, **_BINARY}.items()}
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*(.*?)\s*")
_FIX = "See the page on plans for machines that are not here, and examples/machines"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value of a machine.

    Attributes:
        value: in ``unit``.
        unit: without a prefix: ``FLOP/s``, ``B/s``, ``B``, ``s``, ``edges/s``.
        given: as it was written.
        source: where it is from; ``None`` if nothing is said.
    """

    value: float
    unit: str
    given: str
    source: str | None = None


def _reader(units: Mapping[str, float], unit: str, *, zero: bool = False) -> Callable[[object], Quantity]:
    """Reads a value, or a mapping of ``value`` and ``source``."""

    def read(given: Any) -> Quantity:
        source = None
        if isinstance(given, Mapping):
            unknown = [key for key in given if key not in ("value", "source")]
            if unknown or "value" not in given:
                raise ValueError(f"unknown key '{unknown[0]}'" if unknown else "'value' is missing")
            given, source = given["value"], given.get("source")
            if source is not None and not isinstance(source, str):
                raise ValueError("'source' is not a text")
        number = _number(given, units, unit)
        if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
            raise ValueError(f"{given} is not a finite number above 0")
        return Quantity(number, unit, f"{given} {unit}" if isinstance(given, (int, float)) else str(given), source)

    return read


def _number(given: object, units: Mapping[str, float], unit: str) -> float:
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return float(given)
    match = _NUMBER.fullmatch(given) if isinstance(given, str) else None
    if match is None or match[2] not in {"", *units}:
        some = ", ".join(name for name in units if name != unit)
        raise ValueError(f"{given!r} is not in {unit}; write a number, or a number with one of {unit}, {some}")
    return float(match[1]) * units.get(match[2], 1.0)


def _rates(name: str) -> dict[str, float]:
    return {f"{prefix}{name}": factor for prefix, factor in _DECIMAL.items()}


_Quantity = InstanceOf[Quantity]
Flops = Annotated[_Quantity, BeforeValidator(_reader(_rates("FLOP/s"), "FLOP/s"))]
Edges = Annotated[_Quantity, BeforeValidator(_reader(_rates("edges/s"), "edges/s"))]
Bandwidth = Annotated[
    _Quantity,
    BeforeValidator(_reader({**{f"{each}/s": of for each, of in _BYTES.items()}, "Gbit/s": 1.25e8}, "B/s")),
]
Memory = Annotated[_Quantity, BeforeValidator(_reader(_BYTES, "B"))]
Duration = Annotated[_Quantity, BeforeValidator(_reader(_SECONDS, "s", zero=True))]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Processor(_Record):
    """A GPU, or what else a worker computes with."""

    products: Flops = Field(description="matrix products, as layers reach them")
    memory_bandwidth: Bandwidth = Field(description="of its own memory, reads and writes together")
    memory: Memory = Field(description="what a worker may take of its own memory")
    layer_time: Duration = Field(description="a layer in a step, sampling, forward and backward, however small it is")
    sampling: Edges = Field(description="drawing edges and numbering their sources")


class Link(_Record):
    """What joins workers."""

    latency: Duration = Field(description="of a message, however small")
    bandwidth: Bandwidth = Field(description="in each direction")


class HostLink(_Record):
    """What joins a processor to the memory of its host."""

    bandwidth: Bandwidth = Field(description="from the memory of the host to processors")
    shared_by: int = Field(1, ge=1, le=2**12, description="processors that share it")


class Machine(_Record):
    """Hosts that are all alike.

    Attributes:
        name: as a user calls it.
        processors: of each host; a worker uses one.
        processor: one of them.
        processor_link: between the processors of a host; the bandwidth is that of each processor.
        host_link: between the memory of a host and its processors.
        host_memory: bytes of each host.
        network: between hosts; the bandwidth is that of a host, whose workers share it. ``None``: there is one host.
    """

    name: str = Field(description="what the machine is called")
    processors: int = Field(ge=1, le=2**12, description="processors of a host")
    processor: Processor
    processor_link: Link
    host_link: HostLink
    host_memory: Memory = Field(description="of a host")
    network: Link | None = None

    @classmethod
    def make(cls, values: Mapping[str, Any], where: str = "machine") -> Machine:
        """Check values, as a file has them.

        Args:
            values: by key.
            where: they are from.

        Raises:
            ConfigError: a key is unknown or missing, or a value is not in the unit of its key; naming the key.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _readable(error, where) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Machine:
        """Read a YAML file.

        Raises:
            ConfigError: there is none, or it describes no machine; naming the file and the key.
        """
        try:
            values = parse_yaml(read_file(Path(path)).decode())
        except FileNotFoundError:
            raise ConfigError("there is no such file", where=str(path), fix=_FIX) from None
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror or error}", where=str(path), fix=_FIX) from None
        except ValueError:
            raise ConfigError("is not valid YAML", where=str(path), fix=_FIX) from None
        if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
            raise ConfigError("is not a mapping of the values of a machine", where=str(path), fix=_FIX)
        return cls.make(values, str(path))

    def quantities(self) -> dict[str, Quantity]:
        """All values by their keys, such as ``processor.memory``."""
        return dict(_quantities(self, ""))

    def to_json(self) -> dict[str, Any]:
        """As a plan states it: each value in its unit, as it was given, and where it is from."""
        values = {
            key: {"value": each.value, "unit": each.unit, "given": each.given, "source": each.source}
            for key, each in self.quantities().items()
        }
        shared = self.host_link.shared_by
        return {"name": self.name, "processors": self.processors, "host_link_shared_by": shared, "values": values}


def _quantities(record: BaseModel, prefix: str) -> list[tuple[str, Quantity]]:
    found = list[tuple[str, Quantity]]()
    for name, value in record:
        if isinstance(value, Quantity):
            found.append((prefix + name, value))
        elif isinstance(value, BaseModel):
            found += _quantities(value, f"{prefix}{name}.")
    return found


def _readable(error: ValidationError, where: str) -> ConfigError:
    """A problem that was found, with the key: an unknown one before one that is missing, as it may be misspelled."""
    problems = error.errors()
    first = next((each for each in problems if each["type"] == "extra_forbidden"), problems[0])
    path = [str(part) for part in first["loc"]]
    field, record = None, cast(type[BaseModel], Machine)
    for name in path:
        field = record.model_fields.get(name)
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
        record = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), record)
    place = f"{where}, {'.'.join(path)}" if path else where
    if first["type"] == "extra_forbidden":
        return ConfigError("unknown key", where=place, fix=nearest(path[-1], record.model_fields))
    meaning = f"It means: {field.description}" if field is not None and field.description else _FIX
    if first["type"] == "missing":
        return ConfigError("is missing", where=place, fix=meaning)
    message = first["msg"]
    message = message.removeprefix("Value error, ") if "Value error" in message else message[0].lower() + message[1:]
    return ConfigError(message, where=place, fix=meaning)
