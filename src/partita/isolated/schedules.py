"""Schedules: which parts each worker trains on in which epoch, where workers train on views of their own.

A position is a pure function of the epoch, and of the list of switches that were decided on the way, so a checkpoint
needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from partita.core.errors import ConfigError
from partita.core.registry import Registry

Phase = tuple[tuple[int, ...] | None, ...]
"""For each worker the parts of its view, ascending; ``None`` where it has nothing to do."""

Assignment = tuple[Phase, ...]
"""The phases of an epoch, one after the other."""


@runtime_checkable
class Schedule(Protocol):
    """Which views are in memory when. Every part is in exactly one view of one phase of every epoch.

    Attributes:
        num_parts: of the store.
        num_workers: who train.
        num_rounds: of a sweep, in which every round has other views; 0: epochs make no rounds.
    """

    num_parts: int
    num_workers: int
    num_rounds: int

    def round_at(self, epoch: int, switches: Sequence[int] = ()) -> Round | None:
        """The round that an epoch belongs to; ``None`` where there are none.

        Args:
            epoch: 0-based.
            switches: see :meth:`assignment`.
        """
        ...

    def assignment(self, epoch: int, switches: Sequence[int] = ()) -> Assignment:
        """The views of an epoch.

        Args:
            epoch: 0-based.
            switches: ascending epochs before which a round was ended early, as decided by a
                :class:`~partita.isolated.controller.Controller`; schedules without rounds do not look at them.
        """
        ...


class Steady:
    """What schedules have in common whose epochs are all alike.

    Args:
        num_parts: P.
        num_workers: W.
        epochs: of the run; not looked at.

    Raises:
        ConfigError: there is no part, or no worker.
    """

    num_rounds = 0

    def __init__(self, num_parts: int, num_workers: int, epochs: int = 0) -> None:
        _check(num_parts, num_workers)
        self.num_parts, self.num_workers = num_parts, num_workers

    def round_at(self, epoch: int, switches: Sequence[int] = ()) -> None:
        """There are no rounds."""


class All(Steady):
    """Every part is in memory all the time: worker w holds the parts p with ``p mod W = w`` as one view."""

    def assignment(self, epoch: int, switches: Sequence[int] = ()) -> Assignment:
        """One phase, the same in every epoch."""
        dealt = [tuple(range(worker, self.num_parts, self.num_workers)) for worker in range(self.num_workers)]
        return (tuple(parts or None for parts in dealt),)


class Cyclic(Steady):
    """P parts over W workers, one at a time: worker w trains on part w, then on part w + W, and so on.

    SDT-GNN, section III-C: every part is visited once an epoch, and models are joined after all were.
    """

    def assignment(self, epoch: int, switches: Sequence[int] = ()) -> Assignment:
        """``ceil(P / W)`` phases, the same in every epoch."""
        return _phases([(part,) for part in range(self.num_parts)], self.num_workers)


@dataclass(frozen=True, slots=True)
class Round:
    """Some epochs with the same views: a super-epoch.

    Attributes:
        number: of rounds before it.
        pairing: which of the sweep's rounds it repeats, ``number`` modulo their count.
        start: its first epoch.
        stop: one more than its last.
        planned: epochs it would have without a switch.
    """

    number: int
    pairing: int
    start: int
    stop: int
    planned: int


class Tournament:
    """Chunks are trained on in pairs, every two of them once a sweep (Grappa, section 3.3).

    A chunk is a part of the store. The rounds of a sweep are those of a round-robin tournament by the circle method:
    one chunk stays where it is, the others move on by one place a round. With c even there are c - 1 rounds of c / 2
    disjoint pairs; with c odd c rounds of (c - 1) / 2 pairs, and one chunk alone, which changes. With e epochs and R
    rounds a round takes ``max(1, e // R)`` epochs, and the first ``e mod R`` rounds of a sweep one more where
    ``e >= R``. After a sweep comes the next.

    Fewer workers than pairs take a round in ``ceil(c / (2 W))`` phases (*phase-parallel*, section 3.6), whose order
    moves on by one an epoch, because what is trained last weighs most.

    Args:
        num_parts: c.
        num_workers: W.
        epochs: planned, e. A run that is resumed keeps the number that it began with.

    Attributes:
        num_rounds: of a sweep, R.
        lengths: planned epochs of every round of a sweep.

    Raises:
        ConfigError: there are less than two parts, no worker, or more workers than views in a round.
    """

    def __init__(self, num_parts: int, num_workers: int, epochs: int) -> None:
        _check(num_parts, num_workers)
        fix = f"Run partita partition STORE OUT --parts {2 * num_workers}, then train OUT"
        if num_parts < 2:
            raise ConfigError("one partition gives no pair", where="schedule 'tournament'", fix=fix)
        views = -(-num_parts // 2)
        if num_workers > views:
            raise ConfigError(
                f"{num_parts} partitions give only {views} pair{'' if views == 1 else 's'} per round; "
                f"{num_workers} workers need at least {2 * num_workers} partitions",
                where="schedule 'tournament'",
                fix=f"{fix}; or use at most {views} worker{'' if views == 1 else 's'}",
            )
        self.num_parts, self.num_workers = num_parts, num_workers
        self.num_rounds = 2 * views - 1
        length, left = divmod(epochs, self.num_rounds)
        extra = left if length else 0
        self.lengths = tuple(max(1, length) + (pairing < extra) for pairing in range(self.num_rounds))

    def pairs(self, pairing: int) -> tuple[tuple[int, ...], ...]:
        """The views of a round: disjoint pairs, and with an odd number of chunks one chunk alone (the first).

        Args:
            pairing: 0 to R - 1.
        """
        seats = self.num_rounds  # those that move; the last chunk stays, or the place that stays is empty
        first = (pairing,) if self.num_parts % 2 else (pairing, seats)
        others = [((pairing + step) % seats, (pairing - step) % seats) for step in range(1, (seats + 1) // 2)]
        return (first, *((min(pair), max(pair)) for pair in others))

    def round_at(self, epoch: int, switches: Sequence[int] = ()) -> Round:
        """The round that an epoch belongs to.

        Args:
            epoch: 0-based.
            switches: ascending epochs before which a round was ended early.
        """
        number, start = 0, 0
        while True:
            planned = self.lengths[number % self.num_rounds]
            stop = min((at for at in switches if start < at < start + planned), default=start + planned)
            if epoch < stop:
                return Round(number, number % self.num_rounds, start, stop, planned)
            number, start = number + 1, stop

    def assignment(self, epoch: int, switches: Sequence[int] = ()) -> Assignment:
        """The pairs of the epoch's round, over the workers and in phases."""
        phases = _phases(self.pairs(self.round_at(epoch, switches).pairing), self.num_workers)
        turn = epoch % len(phases)
        return phases[turn:] + phases[:turn]


def _phases(views: Sequence[tuple[int, ...]], num_workers: int) -> Assignment:
    """Views in their order, as many at a time as there are workers."""
    idle = (None,) * (-len(views) % num_workers)
    padded = (*views, *idle)
    return tuple(padded[at : at + num_workers] for at in range(0, len(padded), num_workers))


def _check(num_parts: int, num_workers: int) -> None:
    if num_parts < 1 or num_workers < 1:
        raise ConfigError(
            f"{num_parts} parts cannot be divided among {num_workers} workers", where="schedule", fix="Give at least 1"
        )


VIEW_SCHEDULES: Registry[Callable[[int, int, int], Schedule]] = Registry(
    "schedule", {"all": All, "cyclic": Cyclic, "tournament": Tournament}, setting="views", also=("whole",)
)
"""By name: what makes a schedule of (parts, workers, planned epochs). ``VIEW_SCHEDULES.register`` adds one's own."""
