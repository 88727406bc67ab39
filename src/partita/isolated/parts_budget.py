"""How many parts a graph needs so that each fits a worker's memory (SDT-GNN, section III-C)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from partita.core.errors import ConfigError
from partita.core.options import format_bytes


@dataclass(frozen=True, slots=True)
class PartsPlan:
    """A number of parts, and why.

    Attributes:
        parts: p.
        graph_bytes: S, of the graph and its features.
        memory: M, of a worker, bytes.
        workers: q.
        replication: nodes over all parts, halos included, over N: estimated, or measured by :meth:`recheck`.
        share: of M that computing takes.
        measured_part: bytes of the largest part, where that was measured; else ``None``.
    """

    parts: int
    graph_bytes: int
    memory: int
    workers: int
    replication: float
    share: float
    measured_part: int | None = None

    @property
    def room(self) -> int:
        """Bytes of a worker that are left for its part, M - T."""
        return math.floor(self.memory * (1 - self.share))

    @property
    def all_bytes(self) -> int:
        """Bytes of all parts together, if all were as the one that was measured."""
        if self.measured_part is not None:
            return self.parts * self.measured_part
        return math.floor(self.replication * self.graph_bytes)

    @property
    def part_bytes(self) -> int:
        """Bytes of a part: of the largest where measured, else of the mean."""
        return -(-self.all_bytes // self.parts) if self.measured_part is None else self.measured_part

    @property
    def fits(self) -> bool:
        """Whether a part fits the room."""
        return self.part_bytes <= self.room

    @property
    def parts_per_worker(self) -> int:
        """Parts that the busiest worker takes in turn."""
        return -(-self.parts // self.workers)

    def recheck(self, replication: float, largest: int | None = None) -> PartsPlan:
        """The same parts with what the partition turned out to be.

        Args:
            replication: measured, :attr:`partita.partitioning.quality.Quality.replication_factor`.
            largest: bytes of the largest part, for instance from :meth:`partita.isolated.views.PartView.measure`.

        Returns:
            A plan whose :attr:`fits` says whether the partition may be used as it is.
        """
        return replace(self, replication=replication, measured_part=largest)

    def again(self) -> PartsPlan:
        """A plan for as many parts as are needed by what is known now; the same plan where it fits.

        A measured part stands for its excess over the mean: parts are taken to be as uneven as these.
        """
        if self.fits:
            return self
        if self.room <= 0:
            raise _no_room(self.memory, self.share)
        return replace(self, parts=-(-self.all_bytes // self.room), measured_part=None)

    def explain(self) -> str:
        """One sentence with all numbers."""
        kind = "the largest part takes" if self.measured_part is not None else "a part takes about"
        turns = self.parts_per_worker
        return (
            f"{self.parts} part{'' if self.parts == 1 else 's'} for {self.workers} "
            f"worker{'' if self.workers == 1 else 's'}: {kind} {format_bytes(self.part_bytes)} (graph and "
            f"features {format_bytes(self.graph_bytes)}, replication {self.replication:.3g}), and "
            f"{format_bytes(self.room)} of {format_bytes(self.memory)} are left for it, "
            f"which is {'enough' if self.fits else 'too little'}"
            + (f"; a worker takes up to {turns} parts in turn" if self.fits and turns > 1 else "")
        )

    def to_json(self) -> dict[str, Any]:
        """All numbers as values that JSON can hold."""
        derived = {name: getattr(self, name) for name in ("room", "part_bytes", "parts_per_worker", "fits")}
        return {**asdict(self), **derived, "explanation": self.explain()}


def parts_for(
    graph_bytes: int, memory: int, workers: int, *, replication: float = 2.0, share: float = 2 / 3
) -> PartsPlan:
    """The smallest number of parts p >= q with ``replication * S / p <= M - T``.

    The paper has no replication in its formula; its published code has a factor of 2 in this place.

    Args:
        graph_bytes: S, of the graph and its features.
        memory: M, of a worker, bytes.
        workers: q.
        replication: estimate of the replication factor.
        share: T / M, the share of the memory that computing takes.

    Raises:
        ConfigError: a number is out of range, or the memory leaves no room at all.
    """
    if graph_bytes < 0 or workers < 1 or not replication > 0 or not math.isfinite(replication):
        raise ConfigError(
            f"{graph_bytes:,} bytes, {workers} workers, replication {replication}: out of range",
            where="workers",
            fix="Give at least 1 worker and a replication factor above 0",
        )
    if not 0 <= share < 1:
        raise ConfigError(f"a share of {share}", where="compute_share", fix="Give at least 0 and less than 1")
    plan = PartsPlan(workers, graph_bytes, memory, workers, replication, share)
    if plan.room <= 0:
        raise _no_room(memory, share)
    return replace(plan, parts=max(workers, -(-plan.all_bytes // plan.room)))


def _no_room(memory: int, share: float) -> ConfigError:
    return ConfigError(
        f"of {memory:,} bytes, {share:.0%} are reserved for computation, which leaves no memory for a part",
        where="memory_per_worker",
        fix="Give the workers more memory, or computing a smaller share",
    )
