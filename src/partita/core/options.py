"""Records of options: each written down once, as a field with its type, default and meaning.

A record is a frozen dataclass of keyword fields, annotated with ``Annotated[type, "meaning"]``, with the
:class:`Range` of numbers, and with a function that reads the value from a text where the command line cannot.
:func:`takes` makes its fields the keyword arguments of a function, and :mod:`partita.cli.options` makes them options of
a verb.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
    runtime_checkable,
)

from partita.core.errors import ConfigError, nearest

Size = int | str
"""Bytes, or text such as ``"512MiB"``."""

OLD_NAMES = {"deal": "seed_split", "products": "matmul"}
"""Settings of runs by the names that they had before, which are taken too."""

HEARTBEAT_SECONDS = 60.0
"""How long a worker may give no sign of life, where nothing else is said."""

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9}


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that an option takes: from ``low`` to ``high``, both included, but neither NaN nor infinite ones."""

    low: float
    high: float

    def require(self, value: object, where: str, text: str) -> None:
        """See that a value is one of them; anything but a number passes.

        Raises:
            ConfigError: it is none; the message calls it ``where`` and ends in ``text``.
        """
        if isinstance(value, (int, float)) and not self.low <= value <= self.high:
            raise ConfigError(f"{value} is not between {self.low:,} and {self.high:,}", where=where, fix=text)


MOST_SEED, MOST_BYTES, MOST_NEIGHBORS, MOST_TIME = 2**63 - 1, 2**60, 10**9, 2**60
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
"""In units of spans of time."""
"""The largest seed, size, and entry of a fanout or of a layer budget."""

SEEDS, SIZES = Range(0, MOST_SEED), Range(0, MOST_BYTES)
"""Random seeds, and sizes in bytes. Most sizes are limits, which may be above what there is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all records of options."""


@dataclasses.dataclass(frozen=True)
class OptionField:
    """One option of a record.

    Attributes:
        type: of its values.
        default: :data:`dataclasses.MISSING` where it must be given.
        text: what it means.
        range: of its values, where these are numbers.
        read: gives its value from a text, or from several; ``None`` where the type says how.
    """

    type: Any
    default: Any
    text: str
    range: Range | None
    read: Callable[[Any], Any] | None

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is dataclasses.MISSING

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that a value may have, ``None`` apart."""
        union = isinstance(self.type, types.UnionType) or get_origin(self.type) is Union
        return tuple(each for each in get_args(self.type) if each is not type(None)) if union else (self.type,)

    @property
    def choices(self) -> tuple[Any, ...]:
        """All values, where the type lists them."""
        return get_args(self.kinds[0]) if get_origin(self.kinds[0]) is Literal else ()


def fields_of(record: type[Options]) -> Mapping[str, OptionField]:
    """The options of a record by name, its own before those of its base."""
    hints = get_type_hints(record, include_extras=True)
    own = inspect.get_annotations(record)
    found = {}
    for field in sorted(dataclasses.fields(record), key=lambda field: field.name not in own):  # type: ignore[arg-type]
        kind, text, *others = get_args(hints[field.name])
        numbers = next((each for each in others if isinstance(each, Range)), None)
        read = next((each for each in others if not isinstance(each, Range)), None)
        found[field.name] = OptionField(kind, field.default, text, numbers, read)
    return found


Record = TypeVar("Record", bound=Options)


def record_of(kind: type[Record], values: Mapping[str, Any], where: str) -> Record:
    """Make a record of keyword arguments.

    Args:
        kind: of the record.
        values: by the names of fields.
        where: what takes them, for messages.

    Raises:
        ConfigError: an unknown name (with the nearest known one), a missing one, no choice of a literal type, or a
            number out of range.
    """
    known = fields_of(kind)
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"there is no option '{name}'", where=where, fix=nearest(name, known))
        choices = known[name].choices
        if choices and value is not None and value not in choices:
            raise ConfigError(f"'{value}' is not a choice", where=name, fix=nearest(str(value), choices))
        if (numbers := known[name].range) is not None:
            numbers.require(value, name, known[name].text)
    for name, field in known.items():
        if field.required and name not in values:
            raise ConfigError(f"{name} is missing", where=where, fix=field.text)
    return kind(**values)


P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
Result = TypeVar("Result")
Record_co = TypeVar("Record_co", bound=Options, covariant=True)


@runtime_checkable
class _Taking(Protocol[P, Record_co]):
    @overload
    def __call__(self, function: Callable[[A, Record_co], Result], /) -> Callable[Concatenate[A, P], Result]: ...
    @overload
    def __call__(self, function: Callable[[A, B, Record_co], Result], /) -> Callable[Concatenate[A, B, P], Result]: ...


def takes(record: Callable[P, Record_co]) -> _Taking[P, Record_co]:
    """Make the fields of a record the keyword arguments of a function, whose last parameter the record is."""
    kind = cast(type[Record_co], record)

    def decorate(function: Callable[..., Any]) -> Any:
        signature = inspect.signature(function)
        *first, last = signature.parameters.values()

        @wraps(function)
        def called(*args: Any, **values: Any) -> Any:
            given = {each.name: values.pop(each.name) for each in first if each.name in values}
            return function(*args, **given, **{last.name: record_of(kind, values, function.__name__)})

        fields = fields_of(kind).items()
        keywords = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.required else field.default,
                annotation=field.type,
            )
            for name, field in fields
        ]
        called.__signature__ = signature.replace(parameters=[*first, *keywords])  # type: ignore[attr-defined]
        # An asterisk would begin emphasis in the pages made of docstrings.
        meanings = "".join(f"\n    {name}: {field.text}" for name, field in fields).replace("*", r"\*")
        called.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nKeyword arguments:{meanings}\n"
        return called

    return cast(_Taking[P, Record_co], decorate)


def parse_bytes(value: object) -> object:
    """Turn ``"512MiB"``, ``"2 GiB"`` or ``"1000000"`` into a number of bytes; anything else is passed through."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
    if match is None or match.group(2).lower() not in _UNITS:
        raise ValueError(f"'{value}' is not a size; write for instance 512MiB or 2GiB")
    count = float(match.group(1)) * _UNITS[match.group(2).lower()]
    if count > MOST_BYTES:
        raise ValueError(f"'{value}' is more than {format_bytes(MOST_BYTES)}")
    return int(count)


def size_of(value: Size, name: str) -> int:
    """A size above 0 in bytes.

    Raises:
        ConfigError: it is none; the message calls it ``name``.
    """
    try:
        size = parse_bytes(value)
    except ValueError as error:
        raise ConfigError(str(error), where=name) from None
    if not isinstance(size, int) or not 0 < size <= MOST_BYTES:
        raise ConfigError(
            f"{value} is not a size in bytes", where=name, fix=f"Give a number > 0, at most {format_bytes(MOST_BYTES)}"
        )
    return size


def format_bytes(count: float) -> str:
    """``1536`` -> ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def words(text: str) -> tuple[str, ...]:
    """``"cites wrote"`` as words."""
    return tuple(text.split())


def whole_numbers(text: str) -> tuple[int, ...]:
    """``"15,10,5"`` as numbers; a ``ValueError`` where it is none."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"'{text}' is not a list of whole numbers such as 15,10,5") from None


def layer_numbers(value: object) -> object:
    """``"15,10,5"``, or a single number, as numbers; anything else is passed through."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    return whole_numbers(value) if isinstance(value, str) else value


def numbers_by_relation(value: object) -> object:
    """As :func:`layer_numbers`; or, for a typed graph, by names of relations: ``cites=15,10 *=5``, or a mapping."""
    if isinstance(value, str) and "=" in value:
        pairs = [pair.rsplit("=", 1) for pair in value.split()]
        if not all(len(pair) == 2 and all(pair) for pair in pairs) or len(dict(pairs)) < len(pairs):
            raise ValueError("write NAME=NUMBERS for each relation once, separated by spaces: cites=15,10 *=5")
        value = dict(pairs)
    if isinstance(value, Mapping):
        return {name: layer_numbers(numbers) for name, numbers in value.items()}
    return layer_numbers(value)


def window_by_relation(value: object) -> object:
    """``"30d"`` or ``"100"`` as it is; or, by names of relations, ``bought=30d *=90d`` as a mapping."""
    if isinstance(value, str) and "=" in value:
        pairs = [pair.rsplit("=", 1) for pair in value.split()]
        if not all(len(pair) == 2 and all(pair) for pair in pairs) or len(dict(pairs)) < len(pairs):
            raise ValueError("write NAME=WINDOW for each relation once, separated by spaces: bought=30d *=90d")
        value = dict(pairs)
    if isinstance(value, Mapping):
        return {name: _window(each) for name, each in value.items()}
    return _window(value)


def _window(value: object) -> str:
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not re.fullmatch(r"\d{1,18}[smhdw]?", text, re.ASCII) or time_span(text) > MOST_TIME:
        raise ValueError("give a whole number in the unit of the store's times, or, of dates, 30d, 12h, 2w, 5m or 10s")
    return text


def time_span(text: str) -> int:
    """``"30d"`` in microseconds; a number without a unit as it is."""
    unit = SECONDS.get(text[-1])
    return int(text) if unit is None else int(text[:-1]) * unit * 10**6


def widths_by_type(value: object) -> object:
    """``"64"`` as a number; or, by names of node types, ``author=64 paper=32 *=16`` as a mapping."""
    if not isinstance(value, str):
        return value
    try:
        if "=" not in value:
            return int(value)
        pairs = [pair.split("=", 1) for pair in value.replace(",", " ").split()]
        found = {name: int(width) for name, width in pairs}
    except ValueError:
        raise ValueError("write a number of columns, or TYPE=COLUMNS separated by spaces: author=64 paper=32") from None
    if len(found) < len(pairs) or not all(found):
        raise ValueError("name every node type once: author=64 paper=32")
    return found


def fractions(text: str) -> tuple[float, ...]:
    """``"0.6,0.2,0.2"`` as numbers; a ``ValueError`` where it is none."""
    try:
        return tuple(_finite(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"'{text}' is not a list of fractions such as 0.6,0.2,0.2") from None


def _finite(text: str) -> float:
    """A number; a ``ValueError`` where it is none, NaN, or infinite."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"'{text}' is not finite")
    return number


def named_numbers(texts: Iterable[str]) -> dict[str, float]:
    """``["cap=0.1"]`` as numbers by name; a ``ValueError`` where it is none."""
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = _finite(value)
        except ValueError:
            raise ValueError(f"'{text}' is not an option; write for instance cap=0.1") from None
    return found
