"""The whole graph as what all workers train on: every epoch is one phase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from jaxtyping import Int
from torch import Tensor

from partita.comm.cuda_streams import Streams
from partita.config import NO_LAYERS, Config
from partita.core.keys import StepKey
from partita.core.records import DiskReads
from partita.features.learnt import LearntRows
from partita.graph.store import GraphStore
from partita.isolated.syncs import GradientSum, SyncSettings
from partita.kernels import checks
from partita.nn.model import Model
from partita.parallel.caching import fill_caches
from partita.parallel.graph_placement import place_on_device, place_topology
from partita.parallel.strategies import Strategy, build_engine
from partita.runs.checkpoint import TrainState
from partita.sample.disk import DiskTopology
from partita.sample.topology import as_tensor
from partita.setup.ages import attach_times
from partita.setup.inputs import DTYPES, open_rows
from partita.setup.sampler import make_sampler, sampler_type
from partita.setup.temporal import training_times, with_times
from partita.setup.tiers import cache_settings, looks_ahead, measured_look_ahead, memory_note, row_bytes
from partita.setup.topology import open_topology, topology_note
from partita.tasks.task import EdgeTask, Task, key_of, seed_order, weights_of
from partita.tasks.times import TaskTimes
from partita.train.phase import EpochEnd, TrainPhase, Views
from partita.train.team import Team


class WholeGraph(Views):
    """The whole graph with any strategy: one model, gradients summed in every step. All workers make one.

    Args:
        config, store, team, strategy, task, model, learnt: as of the :class:`~partita.train.job.Job`.

    Attributes:
        engine: samples and computes batches.
        seed_order: which seeds make up the batch of a step.

    Raises:
        ConfigError: the strategy, the model, the store and the workers do not fit each other.
    """

    def __init__(
        self, config: Config, store: GraphStore, team: Team, strategy: Strategy, task: Task, model: Model,
        learnt: LearntRows | None = None,
    ) -> None:  # fmt: skip
        context = team.context
        self._learnt, self._learnt_reads = learnt, DiskReads()
        self._config, self._team, self._strategy, self._task = config, team, strategy, task
        self._store, self._part_offsets = store, as_tensor(store.part_offsets)
        self.memory_bytes = 0  # the graph is mapped
        self._streams, self._notes = Streams(context.device), list[str]()
        self._cache = cache_settings(config, context.device)
        self.sync = GradientSum(SyncSettings(coverage="none"))
        seeds, rows = task.seeds("train"), open_rows(store, config)
        self._feature_bytes = rows.num_bytes
        local = open_topology(store, config)
        self._edges = local if isinstance(local, DiskTopology) else None
        self._edge_reads = DiskReads()
        if context.device.type != "cpu":
            if not isinstance(task, EdgeTask):  # whose negatives the host draws
                checks.within(f"the split 'train' of {store.path}", seeds, store.num_nodes)
                seeds = seeds.to(context.device)
            placed = place_on_device(
                local, rows, context.device, workers=context.mesh.workers, edges=config.topology_cache,
                cache=config.cache, draws=config.model != NO_LAYERS and sampler_type(config).draws_on_device,
            )  # fmt: skip
            local, rows, self._notes = placed.topology, placed.rows, placed.notes
            self._cache = replace(self._cache, bytes=placed.cache)
        self._times = TaskTimes.of_run(task, training_times(config, store))
        attach_times(model, store)
        topology = place_topology(with_times(local, config, store), config.topology, store, context)
        if isinstance(task, EdgeTask) and (supervision := task.supervision) is not None:
            topology = topology.without(supervision)
            topology.removed()  # workers exchange it, and steps that are sampled at once would ask in any order
        sampler = make_sampler(config, context.group("all", "sample"), store.schema)
        self._engine = lambda: build_engine(
            strategy, model, topology, rows, sampler, DTYPES[config.precision], context, self._part_offsets, self._cache
        )
        self.engine = self._engine()
        team.share(seeds[:0])  # complains where seeds cannot be dealt out so
        self._reads = DiskReads()
        self._weighs = weights_of(task, task.targets(seeds[:0])) is not None
        times = None if self._times is None else self._times.each(seeds)
        self.seed_order = seed_order(task, seeds, config, times)

    def _weight(self, seeds: Int[Tensor, "B ..."]) -> float:
        """The sum of the weights of seeds, which every worker computes for the whole batch."""
        weights = weights_of(self._task, self._task.targets(seeds))
        assert weights is not None
        return float(weights.sum())

    def _key(self, epoch: int, step: int) -> StepKey:
        """The key of a step, with what its batch leaves out, and the times of its seeds."""
        return self._at_times(key_of(self._task, self.seed_order, StepKey(self._config.seed, epoch, step)))

    def _at_times(self, key: StepKey) -> StepKey:
        return key if self._times is None else self._times.at(key, self.seed_order)

    def _requests(self, seeds: Int[Tensor, "B ..."]) -> Int[Tensor, "R"]:
        """Nodes whose rows this worker wants for a batch; where seeds have times, at these."""
        mine, times = self._team.share(seeds), self._times
        requests = self._task.requests(mine) if times is None else times.requests(mine, times.of(seeds))
        return requests.to(self._team.context.device)

    def start(self) -> list[str]:
        """Choose the feature rows to cache, and read them; find what steps leave out, before the first is timed."""
        key = self._key(0, 0)  # what steps leave out is found now
        if looks_ahead(self._config) or self._pages:
            self._look_ahead(key)
        fill_caches(
            self.engine, self._strategy, self._team.context, self._cache, self._store, self._part_offsets,
            self.seed_order, self._requests, lambda step: self._at_times(StepKey(self._config.seed, 0, step)),
        )  # fmt: skip
        workers = self._team.context.mesh.workers
        notes = [
            memory_note(self._config, self._feature_bytes, workers), topology_note(self._config, self._store, workers)
        ]  # fmt: skip
        timed = None if self._times is None else self._times.timed
        of_times = [] if timed is None else timed.time_notes()
        return [*self._notes, *of_times, *(note for note in notes if note is not None)]

    def _look_ahead(self, key: StepKey) -> None:
        """See how many batches there is memory to know ahead, where the settings leave it open."""
        window, learnt = self._config.look_ahead, self._learnt
        if not window:
            inputs: Any = self.engine.sample(self._requests(self.seed_order.batch(0, 0)), key).inputs
            rows, widest = len(inputs.reads), row_bytes(self._config, self._store)
            if learnt is not None and self._pages:
                rows += sum(len(inputs.numbers[kind]) for kind in learnt.tables)
                widest = max(widest, learnt.record_bytes)
            window = self._team.agree(
                lambda: measured_look_ahead(self._config, self._store, self._team.size, rows, widest)
            )
        if learnt is not None:
            learnt.look_at(window)
        self._cache = replace(self._cache, window=window)
        self.engine = self._engine()

    @property
    def _pages(self) -> bool:
        """Whether learnt rows are in files."""
        return self._learnt is not None and self._learnt.window > 0

    def steps(self, state: TrainState) -> int:
        """The same in every epoch."""
        return self.seed_order.num_steps

    def phases(self, state: TrainState) -> Iterable[None]:
        """A single one."""
        return (None,)

    def end_epoch(self, epoch: int, *, model_wanted: bool) -> EpochEnd:
        """What was read from files, or kept of rows of other hosts, if that is known ahead."""
        fields = dict[str, Any]()
        if looks_ahead(self._config):
            before, self._reads = self._reads, self.engine.inputs.disk_reads()
            fields["feature_reads"] = _since(before, self._reads)
        if self._edges is not None:
            before, self._edge_reads = self._edge_reads, self._edges.disk_reads()
            fields["edge_reads"] = _since(before, self._edge_reads)
        if self._learnt is not None and self._pages:
            before, self._learnt_reads = self._learnt_reads, self._learnt.disk_reads()
            fields["learnt_reads"] = _since(before, self._learnt_reads)
        return EpochEnd(fields=fields)

    def record(self) -> dict[str, Any]:
        """The same of every worker, so far."""
        found, gather = dict[str, Any](), self._team.group.gather
        if looks_ahead(self._config):
            source = "hosts" if self._config.feature_memory is None else "files"
            ahead = self._cache.window
            own = {"source": source, "look_ahead": ahead, **self.engine.inputs.disk_reads().to_json()}
            found["feature_reads"] = gather(own)
        if self._edges is not None:
            found["edge_reads"] = gather(self._edges.disk_reads().to_json())
        if self._learnt is not None and self._pages:
            own = {"source": "files", "look_ahead": self._learnt.window, **self._learnt.disk_reads().to_json()}
            found["learnt_reads"] = gather(own)
        return found

    def enter(self, phase: None, state: TrainState) -> TrainPhase:
        """All steps of the epoch."""
        order, epoch, team, config = self.seed_order, state.epoch, self._team, self._config
        in_order = team.size > 1 and self.engine.collective
        return TrainPhase(
            engine=self.engine,
            first=0,
            steps=order.num_steps,
            own_steps=order.num_steps,
            joint=True,
            size=order.size,
            task=self._task,
            seeds=lambda step: team.share(order.batch(epoch, step)),
            key=lambda step: self._key(epoch, step),
            times=self._times,
            progress=lambda step: (epoch * order.num_steps + step, config.epochs * order.num_steps),
            divisor=(lambda step, _: self._weight(order.batch(epoch, step))) if self._weighs else None,
            reductions=state.lr_reductions,
            in_order=in_order,
            communicators=team.context.communicators("sample"),
            streams=self._streams,
            # What occupies a device until all workers have come to it must begin in the same order on all devices.
            apart=not (in_order and team.group.occupies),
        )


def _since(before: DiskReads, now: DiskReads) -> dict[str, Any]:
    """What was read between two times."""
    was = before.to_json()
    return {name: value - was[name] for name, value in now.to_json().items()}
