"""What the workers of a run settle with each other in every step; with one worker, nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from partita.comm.context import Context
from partita.comm.device import choose
from partita.comm.meter import KINDS, Meter, Snapshot
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.mesh import running
from partita.core.records import Counts
from partita.graph.store import GraphStore
from partita.isolated.coverage import NO_BATCHES, Covered
from partita.parallel.seed_split import SeedSplit, share_of
from partita.sample.topology import as_tensor
from partita.train.purposes import PURPOSES

PHASES = ("start", "training", "evaluation")
"""What bytes are sent for: what comes before the first step, training steps, evaluations."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class StepTotals:
    """One step, or several, summed over the workers.

    Attributes:
        loss_sum: over the seeds of the global batch.
        stop: some worker was asked to stop.
        counts: edges and rows.
        traffic: bytes sent since the step before, by kind.
        evaluation: bytes sent by evaluation since the step before, by kind.
        covered: what was seen of the neighborhoods.
        late: it is time for a checkpoint, by the clock of the first worker.
    """

    loss_sum: float
    stop: bool
    counts: Counts
    traffic: dict[str, int]
    evaluation: dict[str, int]
    covered: Covered = NO_BATCHES
    late: bool = False


@dataclass
class Tally:
    """What a worker has done since the workers last settled it.

    Attributes:
        counts: edges and rows.
        loss_sum: over its seeds.
        seeds: those of all workers.
        covered: what was seen of the neighborhoods.
    """

    counts: Counts
    loss_sum: float = 0.0
    seeds: int = 0
    covered: Covered = NO_BATCHES

    def add(self, loss_sum: float, counts: Counts, covered: Covered) -> None:
        """Add a step."""
        self.loss_sum += loss_sum
        self.counts = self.counts + counts
        self.covered = self.covered.plus(covered)


class Team:
    """The workers of a run, as the trainer sees them.

    Args:
        context: of this process.
        seed_split: how the seeds of a batch are dealt out.
        store: the graph store.

    Attributes:
        size: number of workers.
        seed_split: as given.
        leads: whether this worker writes the run folder.
        group: of all workers.
    """

    def __init__(self, context: Context, seed_split: SeedSplit, store: GraphStore) -> None:
        self.context = context
        self.size = context.mesh.size
        self.leads = context.mesh.rank == 0
        self.seed_split = seed_split
        self._part_offsets = as_tensor(store.part_offsets)
        self.group = context.group("all", "train")
        self._counts: Counts | None = None
        self._phase = "start"
        self._seen: Snapshot = context.meter.snapshot()
        # Bytes of this worker by what they were sent for, and how much of them begin_total() has reported, by kind.
        self._sent = {phase: Meter().snapshot() for phase in PHASES}
        self._reported = dict.fromkeys(PHASES, [0] * len(KINDS))

    def share(self, seeds: Int[Tensor, "B ..."]) -> Int[Tensor, "b ..."]:
        """This worker's part of a global batch."""
        return seeds if self.size == 1 else share_of(seeds, self.context.mesh, self.seed_split, self._part_offsets)

    def begin_total(
        self, loss_sum: float, stop: bool, counts: Counts, covered: Covered | None = None, *, late: bool = False
    ) -> Callable[[], StepTotals]:
        """Begin to sum what every worker says of its step; what is returned waits for the sums.

        All workers must call both, all with ``covered`` or all without.
        """
        if self.size == 1:
            alone = StepTotals(loss_sum, stop, counts, {}, {}, covered or NO_BATCHES, late)
            return lambda: alone
        self._book(self._phase)
        self._counts = counts if self._counts is None else self._counts + counts
        before = self._reported
        self._reported = {phase: [sum(by.values()) for by in sent.values()] for phase, sent in self._sent.items()}
        sent = [
            now - then
            for phase in ("training", "evaluation")
            for now, then in zip(self._reported[phase], before[phase], strict=True)
        ]
        numbers = [loss_sum, float(stop), float(late and self.leads), *counts.flat(), *sent, *(covered or ())]
        totals = torch.tensor(numbers, dtype=torch.float64)  # exact for counts up to 2^53
        wait = self.group.begin_sum([totals], kind="metadata")

        def finish() -> StepTotals:
            wait()
            loss, stops, late_by_leader, *rest = totals.tolist()
            whole = [int(number) for number in rest]
            n, k = len(counts.flat()), len(KINDS)
            training, evaluation = (dict(zip(KINDS, whole[at : at + k], strict=True)) for at in (n, n + k))
            seen = Covered(*rest[n + 2 * k :])
            found = Counts.from_flat(whole[:n])
            return StepTotals(loss, stops > 0, found, training, evaluation, seen, late_by_leader > 0)

        return finish

    @contextmanager
    def sending_for(self, phase: str) -> Iterator[None]:
        """Count what is sent within the block as one of :data:`PHASES`, and what is sent after it as training's."""
        self._book(self._phase)
        try:
            yield
        finally:
            self._book(phase)
            self._phase = "training"

    def _book(self, phase: str) -> None:
        """Put what was sent since the last time to a phase's account."""
        now = self.context.meter.snapshot()
        for kind, links in self._sent[phase].items():
            for link in links:
                links[link] += now[kind][link] - self._seen[kind][link]
        self._seen = now

    def agree(self, make: Callable[[], Value]) -> Value:
        """Let the leader do something and give its result (a JSON value), or its error, to all."""
        return make() if self.size == 1 else self.context.agree(make)

    def each(self) -> list[dict[str, Any]]:
        """What every worker has done and sent from its start to the last :meth:`begin_total`, for ``run.json``."""
        mine: dict[str, Any] = {
            "counts": None if self._counts is None else self._counts.to_json(),
            "traffic_bytes": {
                phase: {kind: links for kind, links in snapshot.items() if any(links.values())}
                for phase, snapshot in self._sent.items()
            },
        }
        return [mine] if self.size == 1 else self.group.gather(mine)


def join_team(context: Context | None, config: Config) -> tuple[Context, Config]:
    """The context of this process, and the settings with the number of workers that there are.

    Raises:
        ConfigError: the settings ask for another number of workers than were started.
    """
    device = config.device
    context = (
        context
        or Context.from_environment(device, purposes=PURPOSES, heartbeat=config.heartbeat)
        or Context.alone(device, purposes=PURPOSES)
    )
    if choose(device).type != context.device.type:
        raise ConfigError(
            f"device={device}, but this worker computes on {context.device.type}",
            where="device",
            fix=f'Make the context with device="{device}", or set device to {context.device.type}',
        )
    size = context.mesh.size
    if config.workers not in (1, size):
        raise ConfigError(
            f"workers={config.workers}, but {running(size)}",
            where="workers",
            fix="Use partita train --workers, Trainer.launch, or torchrun",
        )
    return context, config.model_copy(update={"workers": size})
