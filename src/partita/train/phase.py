"""What a worker trains on for some steps: a view of the graph, an engine over it, and the seeds of every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Int, Int64, Num
from torch import Tensor

from partita import kernels
from partita.comm.cuda_streams import Streams
from partita.comm.device import current
from partita.comm.group import communicator
from partita.core.keys import StepKey
from partita.isolated.coverage import Covered
from partita.isolated.syncs import Sync
from partita.parallel.engine import Engine, MiniBatch
from partita.runs.checkpoint import TrainState
from partita.tasks.task import Task
from partita.tasks.times import TaskTimes
from partita.train.pipeline import PipelineStage

SETTLE_STEPS = 50
"""Where every worker has a model of its own, workers settle what they have done after so many steps."""


@dataclass(frozen=True)
class TrainPhase:
    """Some steps of an epoch on one view, counted from 0 here.

    Attributes:
        engine: over the view.
        first: steps of the epoch before.
        steps: how many, over all workers.
        own_steps: of these, from the first one on, those that this worker takes part in.
        joint: all workers make every step together, on one model: the loss is divided by the seeds of all.
        size: seeds of a step over all workers.
        task: what is learned.
        seeds: (B, ...) this worker's seeds of a step, in ids of the view.
        key: names a step.
        progress: how many steps of the run are done before a step, and how many it has; for the learning rate.
        divisor: what the losses of a step, summed over all workers if ``joint``, are divided by, from this worker's
            targets; all workers call it where the phase is ``joint``. ``None``: by the number of seeds.
        reductions: how often the learning rate was reduced so far.
        store_ids: (n) store ids by id of the view; ``None`` where they are the same.
        covered: what of a batch's neighborhoods is in the view; ``None`` where everything is.
        in_order: sampling exchanges something, so all workers sample the same steps in the same order.
        communicators: of the groups that sampling exchanges through: so many steps are sampled at once where it
            exchanges.
        streams: of the device that batches are made on.
        apart: sampling and loading may have streams of their own.
        times: when seeds are asked about; ``None``: at no time in particular.
    """

    engine: Engine
    first: int
    steps: int
    own_steps: int
    joint: bool
    size: Callable[[int], int]
    task: Task
    seeds: Callable[[int], Int[Tensor, "B ..."]]
    key: Callable[[int], StepKey]
    progress: Callable[[int], tuple[int, int]]
    divisor: Callable[[int, Num[Tensor, "B ..."] | None], float] | None = None
    reductions: int = 0
    store_ids: Int64[Tensor, "n"] | None = None
    covered: Callable[[MiniBatch], Covered] | None = None
    in_order: bool = False
    communicators: int = 1
    streams: Streams = field(default_factory=Streams)
    apart: bool = True
    times: TaskTimes | None = None

    def sample(self, step: int) -> MiniBatch | None:
        """This worker's share of the batch of a step; ``None`` where it has none."""
        if step >= self.own_steps:
            return None
        # Several steps are sampled side by side, so each of them needs no further threads.
        with communicator(step % self.communicators), current(self.streams.device), kernels.limited(1):
            seeds = self.seeds(step)
            key, times = self.key(step), self.times
            if times is None or key.times is None:
                requests = self.task.requests(seeds)
            else:
                requests = times.requests(seeds, key.times)
            return self.engine.sample(requests.to(self.streams.device), key, seeds=seeds)

    def outline(self, step: int) -> MiniBatch | None:
        """Of the batch of a step only which input rows it reads."""
        batch = self.sample(step)
        return None if batch is None else replace(batch, works=())

    def sample_again(self, step: int, outline: MiniBatch | None) -> MiniBatch | None:
        """The batch of a step whose outline was announced."""
        batch = self.sample(step)
        return None if batch is None or outline is None else replace(batch, inputs=outline.inputs)

    def load(self, batch: MiniBatch | None) -> MiniBatch | None:
        """The same with its input rows."""
        if batch is None:
            return None
        with torch.no_grad(), current(self.streams.device), kernels.limited(1):
            return self.engine.load(batch)

    def announce(self, batch: MiniBatch | None) -> MiniBatch | None:
        """The same, once it was said that its input rows will be read."""
        if batch is not None:
            self.engine.announce(batch)
        return batch

    def prepare(self, batch: MiniBatch | None) -> MiniBatch | None:
        """The same, once its input rows were seen to."""
        return None if batch is None else self.engine.prepare(batch)

    def stages(self) -> list[PipelineStage]:
        """What is done to a batch before the trainer gets it; those of an earlier call are over."""
        sampler = PipelineStage(
            "sample", lambda step, _: self.sample(step), self.in_order, self.communicators, self.apart
        )
        if not self.engine.inputs.prefetchable:
            return [sampler]
        loader = PipelineStage("load", lambda _, batch: self.load(batch), self.in_order, apart=self.apart)
        if not (look_ahead := self.engine.inputs.look_ahead):
            return [sampler, loader]
        self.engine.inputs.restart()
        announcer = PipelineStage("announce", lambda _, batch: self.announce(batch), self.in_order)
        if self.engine.inputs.exchanges_to_prepare:
            loader = replace(
                loader, work=lambda _, batch: self.load(self.prepare(batch)), after=look_ahead, early=look_ahead
            )
            return [sampler, announcer, loader]
        preparer = PipelineStage(
            "prepare", lambda _, batch: self.prepare(batch), self.in_order, after=look_ahead, early=look_ahead
        )
        draws = any(layer.reads_neighbors for layer in self.engine.worker.model.layers)
        if self.in_order or not draws:  # to draw again would exchange again; or there are no edges that would wait
            return [sampler, announcer, preparer, loader]
        # Of a batch that waits little is kept, and the rest drawn anew: its memory is worth more than that time.
        preview = PipelineStage("preview", lambda step, _: self.outline(step))
        return [preview, announcer, preparer, PipelineStage("sample", self.sample_again), loader]

    def targets(self, batch: MiniBatch) -> Num[Tensor, "B ..."]:
        """What is known of a batch's seeds."""
        seeds = batch.seeds
        return self.task.targets(seeds if self.store_ids is None else self.store_ids[seeds.long()])

    def syncs_stats_at(self, step: int) -> bool:
        """Whether workers settle what they have done in a step, or up to it."""
        return self.joint or (step + 1) % SETTLE_STEPS == 0 or step + 1 == self.steps


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """What views have to say when an epoch is over.

    Attributes:
        fields: more to log of the epoch.
        events: more to log.
        saves: a checkpoint is due: it costs no exchange, or was wanted.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    saves: bool = True


class Views:
    """What the workers of a run train on, phase by phase, and how they agree; as it is where one model is all there is.

    Attributes:
        sync: how they agree on one model.
        memory_bytes: of what is in memory to be trained on, at most.
    """

    sync: Sync
    memory_bytes: int

    def start(self) -> list[str]:
        """Make everything ready. All workers call this, before the first step of a process.

        Returns:
            What the user should know.
        """
        raise NotImplementedError

    def steps(self, state: TrainState) -> int:
        """Steps of the epoch that a run is in."""
        raise NotImplementedError

    def phases(self, state: TrainState) -> Iterable[Any]:
        """What is left of the epoch that a run is in, in the order in which it is to be entered."""
        raise NotImplementedError

    def enter(self, phase: Any, state: TrainState) -> TrainPhase:
        """Make a phase ready to be trained on; nobody may hold the one before any longer."""
        raise NotImplementedError

    def leave(self) -> None:
        """No further step will be made on what was entered."""

    def observe(self, epoch: int, covered: Covered) -> dict[str, Any] | None:
        """Take what all workers together have seen in a step.

        Returns:
            An event to log, if there is something remarkable.
        """
        return None

    def end_epoch(self, epoch: int, *, model_wanted: bool) -> EpochEnd:
        """After the last step of an epoch. All workers call this.

        Args:
            epoch: 0-based.
            model_wanted: somebody wants to evaluate or save the model.
        """
        return EpochEnd()

    def saving(self, state: TrainState) -> AbstractContextManager[tuple[dict[str, Any], dict[str, Tensor]]]:
        """Bring the model into the state that a checkpoint is to have, and afterwards back. All workers call this.

        Gives what the checkpoint must hold besides model, optimizer and ``state``: values that JSON can hold, and
        tensors by name, which only the first worker gets.
        """
        return nullcontext(({}, {}))

    def restore(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`saving` gave."""

    def record(self) -> dict[str, Any]:
        """What ``run.json`` says of it. All workers call this."""
        return {}

    def close(self) -> None:
        """Let go of everything; ends threads."""
