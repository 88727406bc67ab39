"""Samples some steps once, and foresees from them what every worker of every strategy will do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import torch
from jaxtyping import Int32, UInt64

from partita.comm.device import choose
from partita.comm.fake import FakeContext
from partita.comm.group import Group
from partita.config import Config
from partita.core import progress
from partita.core.errors import ConfigError, PartitaError
from partita.core.estimates import SampledLayer
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.graph.store import GraphStore
from partita.kernels import Relabeller
from partita.kernels.rank_masks import MOST_WORKERS
from partita.nn.model import Model
from partita.parallel.caching import assume_caches, needs_dry_run
from partita.parallel.engine import Engine
from partita.parallel.forecast import WorkerEstimate, estimate_step
from partita.parallel.graph_placement import place_topology
from partita.parallel.seed_split import seed_split_of, share_of
from partita.parallel.strategies import Strategy, build_engine
from partita.sample.blocks import sample_block
from partita.sample.topology import ArrayTopology, as_tensor
from partita.setup.inputs import DTYPES, open_rows, open_topology, require_features
from partita.setup.model import named_model
from partita.setup.sampler import WHOLE, make_sampler
from partita.setup.tiers import cache_settings
from partita.tasks.task import EdgeTask, make_task, seed_order, training_seeds

CACHE_STEPS = 64
"""Steps from which follows how often rows are read, at most."""


class DryRun:
    """A run that samples in one process, for workers that need not be there.

    Args:
        store: a whole graph store.
        config: the settings of the run.
        mesh: of any of its workers.
        strategies: that come into question.
        model: a user's own; ``None``: the one that the settings name.

    Attributes:
        engines: of the strategies that can be used, as the worker of ``mesh`` would have them.
        refused: why the others cannot.
        num_steps: of an epoch.
        config: the settings.
        row_bytes: of an input row of each node type, as it is computed with; an untyped graph has one.

    Raises:
        ConfigError: the settings are of a run that cannot be planned, for too many workers, or no strategy can be used.
    """

    def __init__(
        self, store: GraphStore, config: Config, mesh: Mesh, strategies: list[Strategy], model: Model | None = None
    ) -> None:
        _check(store, config, mesh)
        self._store, self.config, self._mesh = store, config, mesh
        widths = store.type_widths if store.schema is not None else (store.num_features,)
        self.row_bytes = [width * DTYPES[config.precision].itemsize for width in widths]
        self._task = task = make_task(config, store)
        model = named_model(config, store, task.width) if model is None else deepcopy(model)
        self.model: Model = model.to(DTYPES[config.precision])
        self._local: ArrayTopology = open_topology(store, config)
        if isinstance(task, EdgeTask) and (supervision := task.supervision) is not None:
            self._local = self._local.without(supervision)
        self._sampler = make_sampler(config, Group.alone(), store.schema)
        seeds = training_seeds(task)
        self._order = seed_order(task, seeds, config)
        self.num_steps = self._order.num_steps
        self._part_offsets = as_tensor(store.part_offsets)
        self._cache = cache_settings(config)
        self._cached = config.cache == 0
        self._kept: dict[int, list[SampledLayer]] = {}
        self.engines: dict[Strategy, Engine] = {}
        self.refused: dict[Strategy, PartitaError] = {}
        for strategy in strategies:
            try:
                self.engines[strategy] = self._engine(strategy, FakeContext(mesh))
            except ConfigError as error:
                self.refused[strategy] = error
        if not self.engines:
            first = next(iter(self.refused.values()))
            raise ConfigError(f"no strategy can be used: {first}", where="plan")

    def _engine(self, strategy: Strategy, context: FakeContext) -> Engine:
        config = self.config
        return build_engine(
            strategy, self.model, place_topology(self._local, config.topology, self._store, context),
            open_rows(self._store, config), make_sampler(config, context.group("all", "sample"), self._store.schema),
            DTYPES[config.precision], context, self._part_offsets, self._cache,
        )  # fmt: skip

    def _fill_caches(self) -> None:
        """Let all engines know what caches will hold."""
        mesh = self._mesh
        contexts = [FakeContext(Mesh.of(rank, mesh.size, mesh.workers)) for rank in range(mesh.size)]
        with progress.task("choose what to cache", total=len(self.engines), unit="strategies") as task:
            for strategy, engine in self.engines.items():
                # Workers that read other columns have room for other numbers of rows.
                engines = [engine, *(self._engine(strategy, context) for context in contexts[1:])]
                reads = self._reads(strategy, CACHE_STEPS if needs_dry_run(self._cache) else 0)
                assume_caches(engines, strategy, contexts, self._cache, self._store, self._order.seeds, reads)
                task.advance()
        self._cached = True

    def _reads(self, strategy: Strategy, steps: int) -> Int32[torch.Tensor, "W n"]:
        """In how many of the first steps each worker reads each row; without steps of no row."""
        size = self._mesh.size
        found = torch.zeros(size, self._store.num_nodes if steps else 0, dtype=torch.int32)
        for step in range(min(self.num_steps, steps)):
            drawn = self._drawn(step)
            reads = estimate_step(self.engines[strategy], drawn, self._dealt(step, strategy), self._mesh).reads
            for rank in range(size):
                own = torch.from_numpy((reads & np.uint64(1 << rank)) != 0)
                found[rank, drawn[0].src[own].long()] += 1
        return found

    def steps(self, *, seconds: float) -> Iterator[dict[Strategy, list[WorkerEstimate]]]:
        """Steps of epoch 0, until so much wall-clock time has passed; at least one: what each worker will do in it."""
        if not self._cached:
            self._fill_caches()
        begun = time.monotonic()
        with progress.task("dry run", total=self.num_steps, unit="steps") as task:
            for step in range(self.num_steps):
                yield self._foreseen(step)
                task.advance()
                if time.monotonic() - begun > seconds:
                    return

    def _foreseen(self, step: int) -> dict[Strategy, list[WorkerEstimate]]:
        drawn = self._drawn(step)
        return {
            strategy: estimate_step(engine, drawn, self._dealt(step, strategy), self._mesh).shares
            for strategy, engine in self.engines.items()
        }

    def _drawn(self, step: int) -> list[SampledLayer]:
        """What all workers together draw, layer 1 first; of the first steps it is kept."""
        if step in self._kept:
            return self._kept[step]
        key = StepKey(self.config.seed, 0, step)
        drawn, scratch = list[SampledLayer](), Relabeller(self._store.num_nodes)
        requests = self._task.requests(self._order.batch(0, step))
        for layer in range(self.config.layers, 0, -1):
            block = sample_block(self._local, requests, key, layer, self._sampler, relabel=scratch)
            drawn.insert(0, SampledLayer(block))
            requests = drawn[0].src
        if needs_dry_run(self._cache) and step < CACHE_STEPS:
            self._kept[step] = drawn
        return drawn

    def _dealt(self, step: int, strategy: Strategy) -> UInt64[np.ndarray, "B"]:
        """Which workers request each node of the last layer."""
        mesh, batch = self._mesh, self._order.batch(0, step)
        requested = self._task.requests(batch)
        place = torch.argsort(requested)
        seed_split = seed_split_of(self.config.seed_split, strategy, self._store.num_parts, mesh)
        found = np.zeros(len(requested), np.uint64)
        for rank in range(mesh.size):
            share = share_of(batch, Mesh.of(rank, mesh.size, mesh.workers), seed_split, self._part_offsets)
            own = self._task.requests(share)
            found[place[torch.searchsorted(requested[place], own)].numpy()] |= np.uint64(1 << rank)
        return found


def _check(store: GraphStore, config: Config, mesh: Mesh) -> None:
    if mesh.size > MOST_WORKERS:
        raise ConfigError(f"{mesh.size} workers", where="workers", fix=f"Plan for {MOST_WORKERS} at most")
    if config.views != WHOLE:
        raise ConfigError(
            f"views '{config.views}' train a different model than a single process, so there is no strategy to choose",
            where="views",
            fix="Leave out views, and the presets grappa and sdt-gnn",
        )
    if choose(config.device).type != "cpu":
        raise ConfigError(
            "plans are for runs on the CPU, so far",
            where=f"device {config.device}",
            fix="Name a strategy, or use device cpu",
        )
    require_features(store, config)
    store.require_whole("a plan")
