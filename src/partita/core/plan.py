"""What a planner hands on: how long an epoch takes with each strategy, by what it is spent on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from partita.core.adding import Adding
from partita.core.errors import ConfigError
from partita.core.files import read_object
from partita.core.options import OLD_NAMES
from partita.core.trust import refuse_code
from partita.core.typed import number, problem, typed

PLAN_FORMAT = 2
STAGES = {
    "sample": "sampling",
    "exchange": "sending rows",
    "load": "reading rows",
    "compute": "computing",
    "gradients": "summing gradients",
}
"""What a step is spent on, the fields of :class:`Seconds`, and how that reads in a sentence."""


@dataclass(frozen=True)
class Seconds(Adding):
    """Time of one worker by what it does; adds up with ``+``.

    Attributes:
        sample: drawing neighbors and numbering them.
        exchange: sending ids, rows and their gradients.
        load: reading input rows, where that is done apart from the first layer.
        compute: the layers, forward and backward, and the optimizer.
        gradients: summing the gradients of the parameters over the workers.
    """

    sample: float = 0.0
    exchange: float = 0.0
    load: float = 0.0
    compute: float = 0.0
    gradients: float = 0.0

    def scaled(self, factor: float) -> Seconds:
        """All of it times a factor."""
        return Seconds(*(factor * each for each in self.values()))

    def times(self, factors: Mapping[str, float]) -> Seconds:
        """Each of it times its own factor; 1 where there is none."""
        return Seconds(**{name: factors.get(name, 1.0) * each for name, each in self.to_json().items()})

    @property
    def total(self) -> float:
        """Of everything, one after the other."""
        return sum(self.values())


@dataclass(frozen=True)
class Candidate:
    """A strategy, and what an epoch takes with it.

    Attributes:
        strategy: the input placement, a placement per layer, and the axis, as
            :func:`partita.parallel.strategies.parse_strategy`
            reads it; of isolated training its preset.
        name: what users call it: its name, or the same.
        epoch: seconds of an epoch, so divided that they add up to the whole of it.
        epoch_bytes: that all workers together send, by kind.
        epoch_links: the same by link; what is sent to sample edges of others, to all other workers alike.
        epoch_rows: bytes of input rows by where all workers together read them, ``memory`` and ``files``, and by
            where those come from that arrive once more, from other ``workers`` of the host and other ``hosts``.
        counts: edges and rows of the sampled steps, all workers together.
        foreseen: seconds of an epoch, as they were estimated before the strategy was tried out.
        tried_steps: steps that it was tried out for.
        memory_bytes: private memory of a worker, above what it takes to be there at all, as it is estimated.
        settings: of a run that takes it, beside ``strategy``: for isolated training, which trains another model.
    """

    strategy: str
    name: str
    epoch: Seconds
    epoch_bytes: Mapping[str, int] = field(default_factory=dict)
    epoch_links: Mapping[str, int] = field(default_factory=dict)
    epoch_rows: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, Any] = field(default_factory=dict)
    foreseen: float = 0.0
    tried_steps: int = 0
    memory_bytes: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_named(self) -> bool:
        """Whether it has a name; a list of placements has commas, which no name may have."""
        return "," not in self.name

    @property
    def exact(self) -> bool:
        """Whether it trains the model that one process does."""
        return not self.settings


@dataclass(frozen=True)
class Plan:
    """What every strategy would take for an epoch.

    Attributes:
        candidates: at least one: the one to take, then the others, the fastest first.
        refused: why other strategies cannot be used.
        steps: of an epoch.
        sampled_steps: of the dry run; 0 where there was none, because the run is too short for it.
        made_for: settings that a run must share for the plan to hold for it.
        rates: what was measured of the model.
        links: what was measured between workers.
        approximate: candidates that are shown only: they train another model, and nobody has allowed that.
        notes: what the user should know of how rows were foreseen that come and go.
        error: what estimates of strategies that were not tried out are off by, as a part of them; ``None``: not known.
        machine: as a file describes the one that the plan is for, with where each value is from; ``None``: the rates
            of layers were measured.
    """

    candidates: tuple[Candidate, ...]
    refused: Mapping[str, str]
    steps: int
    sampled_steps: int
    made_for: Mapping[str, Any]
    rates: Mapping[str, Any] | None = None
    links: Mapping[str, Any] | None = None
    approximate: tuple[Candidate, ...] = ()
    notes: tuple[str, ...] = ()
    error: float | None = None
    machine: Mapping[str, Any] | None = None

    @property
    def best(self) -> Candidate:
        """The one to take: the fastest, or as fast, as far as one can tell, and sending less."""
        return self.candidates[0]

    def to_json(self) -> dict[str, Any]:
        """As a file holds it."""
        lists = {name: [_to_json(each) for each in getattr(self, name)] for name in _LISTS}
        return {"format": PLAN_FORMAT, "strategy": self.best.name, **asdict(self), **lists}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "plan") -> Plan:
        """The inverse of :meth:`to_json`.

        Raises:
            ConfigError: it is something else.
        """
        try:
            if values["format"] != PLAN_FORMAT:
                raise ConfigError(
                    f"format {values['format']}, this version reads {PLAN_FORMAT}", where=where, fix=_AGAIN
                )
            lists = {name: tuple(map(_from_json, values[name])) for name in _LISTS}
            rest = {name: values[name] for name in ("refused", "steps", "sampled_steps", "made_for", "rates", "links")}
            made_for = {OLD_NAMES.get(name, name): value for name, value in rest["made_for"].items()}
            more = {
                "notes": tuple(values.get("notes", ())),
                "error": values.get("error"),
                "machine": values.get("machine"),
            }
            plan = typed(cls, {**rest, **lists, "made_for": made_for, **more})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ConfigError(f"not a plan: {problem(error)}", where=where, fix=_AGAIN) from None
        if not lists["candidates"]:
            raise ConfigError("it contains no strategy", where=where, fix=_AGAIN)
        return plan

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, trust: str | None = None) -> Plan:
        """Read a file.

        Args:
            path: of the file.
            trust: ``"imports"``: it may name code to import, such as a placement of one's own.

        Raises:
            ConfigError: there is none, it holds something else, or names code that it must not name.
        """
        values = read_object(path, ConfigError, _AGAIN)
        refuse_code(_without_machines(values), str(path), trust)
        return cls.from_json(values, str(path))

    def check(self, made_for: Mapping[str, Any], where: str = "plan") -> None:
        """See that the plan is one for a run.

        Args:
            made_for: of the run.
            where: the plan is from.

        Raises:
            ConfigError: it was made for other settings; naming the first.
        """
        for name, value in self.made_for.items():
            if made_for.get(name) != value:
                raise ConfigError(
                    f"was made for {name.replace('_', ' ')} {value}, this run has {made_for.get(name)}",
                    where=where,
                    fix="Plan again with the settings of the run, or leave out the plan",
                )


def _without_machines(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says but where it was made: the command that made it is nothing that anybody runs."""
    return {
        name: _without_machines(each) if isinstance(each, dict) else each
        for name, each in values.items()
        if name != "machine"
    }


def _to_json(candidate: Candidate) -> dict[str, Any]:
    return {**asdict(candidate), "epoch": {**candidate.epoch.to_json(), "total": candidate.epoch.total}}


def _from_json(values: Mapping[str, Any]) -> Candidate:
    return typed(Candidate, {**values, "epoch": Seconds(**{name: number(values["epoch"][name]) for name in STAGES})})


_LISTS = ("candidates", "approximate")
_AGAIN = "Make it with: partita plan STORE --out FILE"
