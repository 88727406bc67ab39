"""When seeds are asked about: at the times that nodes have, or at those that the seeds of a task say themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from jaxtyping import Int, Int64
from torch import Tensor

from partita.core.errors import ConfigError
from partita.core.keys import StepKey
from partita.sample.seeds import SeedOrder
from partita.sample.temporal import SeedTimes
from partita.tasks.task import Task


@runtime_checkable
class TimedTask(Task, Protocol):
    """A task whose seeds say when they are asked about, such as edges; those of others are nodes, which have a time."""

    def time_notes(self) -> list[str]:
        """What the user should know of what is asked about, and when."""
        ...

    def times(self, seeds: Int[Tensor, "B ..."]) -> Int64[Tensor, "B"]:
        """When each seed is asked about, with or without what was drawn for it."""
        ...

    def request_times(self, seeds: Int[Tensor, "B ..."]) -> Int64[Tensor, "R"]:
        """Of each of :meth:`Task.requests`, at what time it is wanted: one of :meth:`times`. A node may be among them
        at several times; pairs are distinct."""
        ...


@dataclass(frozen=True)
class TaskTimes:
    """When the seeds of a run are asked about, and with them the nodes that are requested for them.

    Attributes:
        task: what is learned.
        of_nodes: when nodes are asked about, where the task does not say it of its seeds.
        timed: the task, where it does.
    """

    task: Task
    of_nodes: SeedTimes
    timed: TimedTask | None = None

    @classmethod
    def of_run(cls, task: Task, of_nodes: SeedTimes | None) -> TaskTimes | None:
        """``None``: they are asked about at no time in particular.

        Raises:
            ConfigError: all seeds of a step are to be asked about at once, and the task says of each when it is.
        """
        if of_nodes is None:
            return None
        timed = task if isinstance(task, TimedTask) else None
        if of_nodes.at_once and timed is not None:
            from partita.tasks.links.task import LinkTask

            if not isinstance(task, LinkTask):
                raise ConfigError(
                    "a task of one's own says of each seed when it is asked about, and not of a batch",
                    where="time_cutoff",
                    fix="Leave time_cutoff out, or derive the task from partita.tasks.links.task.LinkTask",
                )
        return cls(task, of_nodes, timed)

    def each(self, seeds: Int[Tensor, "S ..."]) -> Int64[Tensor, "S"]:
        """When every seed is asked about."""
        return self.of_nodes.each(seeds) if self.timed is None else self.timed.times(seeds)

    def of(self, seeds: Int[Tensor, "B ..."]) -> Int64[Tensor, "T"]:
        """The distinct times at which the seeds of a batch are asked about, ascending."""
        if self.timed is not None:
            times = self.timed.times(seeds)
            return self.of_nodes.earliest(times) if self.of_nodes.at_once else times.unique()
        return self.of_nodes.of(seeds)

    def at(self, key: StepKey, order: SeedOrder) -> StepKey:
        """The key of a step with the times of its seeds, without what is drawn for them, which has the same times."""
        start = key.step * order.batch_size
        return replace(key, times=self.of(order.between(key.epoch, start, start + order.size(key.step))))

    def requests(self, seeds: Int[Tensor, "B ..."], times: Int64[Tensor, "T"]) -> Int64[Tensor, "R"]:
        """What is requested for seeds: nodes at times of the batch, see :mod:`partita.sample.temporal`."""
        nodes = self.task.requests(seeds)
        if self.timed is not None:
            return self.of_nodes.requests_at(nodes, self.timed.request_times(seeds), times)
        return self.of_nodes.requests(nodes, times)
