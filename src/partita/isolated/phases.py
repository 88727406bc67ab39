"""The steps of an epoch, where every worker trains on a view of its own: which seeds come when.

An epoch is some phases, one after the other; in each of them every worker has one view, or none. All of this is
arithmetic that every worker does alike, so nobody has to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from partita.isolated.schedules import Assignment


class Done(NamedTuple):
    """How much of a view's epoch is done: seeds, and steps that they took."""

    seeds: int = 0
    steps: int = 0


Progress = Mapping[str, Done]
"""By name of a view (:func:`view_name`); one that is missing was not begun."""


def view_name(parts: tuple[int, ...]) -> str:
    """The name of a view of some parts: ``0+3``."""
    return "+".join(map(str, parts))


@dataclass(frozen=True, slots=True)
class Share:
    """What a worker does in a phase.

    Attributes:
        parts: of its view, ascending; none where it has nothing to do.
        seeds: training nodes of the view.
        done: those that were trained on before the phase, and in how many steps.
    """

    parts: tuple[int, ...]
    seeds: int
    done: Done

    @property
    def left(self) -> int:
        """Seeds that are still to be trained on."""
        return self.seeds - self.done.seeds


@dataclass(frozen=True, slots=True)
class Phase:
    """Some steps in which no view changes.

    Where gradients are joined in every step (``joint``), a step takes ``batch_size`` seeds over all workers, of each
    worker's in proportion, so that all end together. Otherwise every worker takes ``batch_size`` of its own, and who
    has fewer rests in the last steps.

    Attributes:
        first: steps of the epoch before it.
        shares: of each worker.
        batch_size: seeds of a step; the last one may have fewer.
        joint: see above.
    """

    first: int
    shares: tuple[Share, ...]
    batch_size: int
    joint: bool

    @property
    def steps(self) -> int:
        """How many."""
        left = [share.left for share in self.shares]
        return -(-(sum(left) if self.joint else max(left)) // self.batch_size)

    def steps_of(self, worker: int) -> int:
        """Steps in which a worker takes part, from the first one on."""
        return self.steps if self.joint else -(-self.shares[worker].left // self.batch_size)

    def before(self, worker: int, step: int) -> int:
        """Seeds in the order of a worker's view that come before a step (0-based in the phase)."""
        share = self.shares[worker]
        if not self.joint:
            return share.done.seeds + min(step * self.batch_size, share.left)
        total = sum(other.left for other in self.shares)
        return share.done.seeds + (share.left * min(step * self.batch_size, total) // total if total else 0)

    def size(self, step: int) -> int:
        """Seeds of a step over all workers."""
        workers = range(len(self.shares))
        return sum(self.before(worker, step + 1) - self.before(worker, step) for worker in workers)

    def after(self, step: int) -> dict[str, Done]:
        """How far every view is when so many steps of the phase are done."""
        found = {}
        for worker, share in enumerate(self.shares):
            if share.parts:
                taken = share.done.steps + min(step, self.steps_of(worker))
                found[view_name(share.parts)] = Done(self.before(worker, step), taken)
        return found


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The phases of an epoch.

    Attributes:
        phases: one after the other.
        base: progress in the epoch before the first of them.
        first: steps of the epoch before the first of them. Not 0 where another number of workers goes on in the
            middle of an epoch.
    """

    phases: tuple[Phase, ...]
    base: Progress
    first: int

    @classmethod
    def make(
        cls,
        assignment: Assignment,
        num_seeds: Callable[[tuple[int, ...]], int],
        batch_size: int,
        joint: bool,
        base: Progress | None = None,
        first: int = 0,
    ) -> EpochPlan:
        """Lay the steps of an epoch out.

        Args:
            assignment: phases of an epoch, from a schedule.
            num_seeds: training nodes of a view, by its parts.
            batch_size: see :class:`Phase`.
            joint: see :class:`Phase`.
            base: what of the epoch is done already; views that do not occur in it begin anew.
            first: steps that this took.
        """
        base, phases, at = base or {}, [], first
        for views in assignment:
            shares = []
            for parts in views:
                parts = parts or ()
                done = base.get(view_name(parts), Done()) if parts else Done()
                shares.append(Share(parts, num_seeds(parts) if parts else 0, done))
            phases.append(Phase(at, tuple(shares), batch_size, joint))
            at += phases[-1].steps
        return cls(tuple(phases), base, first)

    @property
    def steps(self) -> int:
        """Of the epoch, those before :attr:`first` included."""
        return self.phases[-1].first + self.phases[-1].steps

    def from_step(self, step: int) -> list[Phase]:
        """The phases that are not over when so many steps of the epoch are done; none without steps."""
        return [phase for phase in self.phases if phase.steps and step < phase.first + phase.steps]

    def progress(self, step: int) -> dict[str, Done]:
        """How far every view is when so many steps of the epoch are done."""
        found: dict[str, Done] = dict(self.base)
        for phase in self.phases:
            if step >= phase.first:
                found |= phase.after(min(step - phase.first, phase.steps))
        return found

    def to_json(self) -> dict[str, Any]:
        """What :meth:`make` needs besides the schedule, as values that JSON can hold."""
        return {"first": self.first, "base": {name: list(done) for name, done in self.base.items()}}


def progress_from_json(values: Mapping[str, Any]) -> dict[str, Done]:
    """Progress that was written as JSON."""
    return {name: Done(*done) for name, done in values.items()}
