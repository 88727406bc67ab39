"""The whole graph as what all workers train on: every epoch is one phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from partita.comm.cuda_streams import Streams
from partita.config import Config
from partita.core.keys import StepKey
from partita.features.tiers import NO_CACHE, CacheSettings
from partita.graph.store import GraphStore
from partita.isolated.coverage import Covered
from partita.isolated.syncs import GradientSum, Sync, SyncSettings
from partita.nn.model import Model
from partita.parallel.caching import fill_caches
from partita.parallel.engine import Engine
from partita.parallel.graph_placement import place_on_device, place_topology
from partita.parallel.strategies import Strategy, build_engine
from partita.runs.checkpoint import TrainState
from partita.sample.seeds import SeedOrder
from partita.sample.topology import ArrayTopology, as_tensor
from partita.setup.inputs import DTYPES, open_rows, open_topology
from partita.setup.sampler import make_sampler, sampler_type
from partita.tasks.task import Task
from partita.train.phase import EpochEnd, TrainPhase
from partita.train.team import Team


@dataclass
class WholeGraph:
    """Implements :class:`partita.train.phase.Views`: any strategy, one model, gradients summed in every step.

    Attributes:
        config: the settings.
        store: the graph store.
        team: the workers.
        strategy: who computes what.
        task: what is learned.
        seed_order: which seeds make up the batch of a step.
        engine: samples and computes batches.
        sync: the plain sum.
        streams: of the worker's device.
        cache: which input rows are copied to a worker's own memory.
        notes: what to say at the start.
    """

    config: Config
    store: GraphStore
    team: Team
    strategy: Strategy
    task: Task
    seed_order: SeedOrder
    engine: Engine
    sync: Sync
    streams: Streams
    cache: CacheSettings = NO_CACHE
    notes: list[str] = field(default_factory=list)

    @classmethod
    def make(
        cls, config: Config, store: GraphStore, team: Team, strategy: Strategy, task: Task, model: Model
    ) -> WholeGraph:
        """Open what is to be read, and build the engine. All workers call this.

        Args:
            config: the settings.
            store: the graph store.
            team: the workers.
            strategy: who computes what.
            task: what is learned.
            model: in the dtype of the run.

        Raises:
            ConfigError: the strategy, the model, the store and the workers do not fit each other.
        """
        seeds = task.seeds("train")
        rows, context, cache, notes = open_rows(store, config), team.context, _cache(config, team), list[str]()
        local: ArrayTopology = open_topology(store, config)
        if context.device.type != "cpu":
            placed = place_on_device(
                local, rows, context.device, workers=context.mesh.workers, edges=config.topology_cache,
                cache=config.cache, draws=sampler_type(config).draws_on_device,
            )  # fmt: skip
            local, rows, notes, seeds = placed.topology, placed.rows, placed.notes, seeds.to(context.device)
            cache = replace(cache, bytes=placed.cache)
        topology = place_topology(local, config.topology, store, context)
        sampler = make_sampler(config, context.group("all", "sample"))
        part_offsets = as_tensor(store.part_offsets)
        engine = build_engine(
            strategy, model, topology, rows, sampler, DTYPES[config.precision], context, part_offsets, cache
        )
        team.share(seeds[:0])  # complains where seeds cannot be dealt out so
        order = SeedOrder(seeds, config.seed, config.batch_size or len(seeds))
        sync = GradientSum(SyncSettings(coverage="none"))
        return cls(config, store, team, strategy, task, order, engine, sync, Streams(context.device), cache, notes)

    def start(self) -> list[str]:
        """Choose the feature rows to cache, and read them."""
        fill_caches(
            self.engine, self.strategy, self.team.context, self.cache, self.store,
            as_tensor(self.store.part_offsets), self.seed_order,
            lambda seeds: self.task.requests(self.team.share(seeds)), self.config.seed,
        )  # fmt: skip
        return self.notes

    def steps(self, state: TrainState) -> int:
        """The same in every epoch."""
        return self.seed_order.num_steps

    def phases(self, state: TrainState) -> Iterable[None]:
        """A single one."""
        return (None,)

    def enter(self, phase: None, state: TrainState) -> TrainPhase:
        """All steps of the epoch."""
        order, epoch, seed = self.seed_order, state.epoch, self.config.seed
        in_order = self.team.size > 1 and self.engine.collective
        return TrainPhase(
            engine=self.engine,
            first=0,
            steps=order.num_steps,
            own_steps=order.num_steps,
            joint=True,
            size=order.size,
            task=self.task,
            seeds=lambda step: self.team.share(order.batch(epoch, step)),
            key=lambda step: StepKey(seed, epoch, step),
            progress=lambda step: (epoch * order.num_steps + step, self.config.epochs * order.num_steps),
            in_order=in_order,
            communicators=self.team.context.communicators("sample"),
            streams=self.streams,
            # What occupies a device until all workers have come to it must begin in the same order on all devices.
            apart=not (in_order and self.team.group.occupies),
        )

    def leave(self) -> None:
        """Nothing is to be kept."""

    def observe(self, epoch: int, covered: Covered) -> None:
        """Everything is in view."""

    def end_epoch(self, epoch: int, *, model_wanted: bool) -> EpochEnd:
        """There is one model all the time."""
        return EpochEnd()

    def saving(self, state: TrainState) -> AbstractContextManager[tuple[dict[str, Any], dict[str, Tensor]]]:
        """Epoch and step say it all."""
        return nullcontext(({}, {}))

    def restore(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Nothing is to be done."""

    def record(self) -> dict[str, Any]:
        """Nothing is to be said."""
        return {}

    def close(self) -> None:
        """Nothing is to be done."""


def _cache(config: Config, team: Team) -> CacheSettings:
    """What every worker keeps copies of."""
    return CacheSettings(config.cache, config.cache_policy, config.cache_layout, team.context.device)
