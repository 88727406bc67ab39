"""Samples some steps once, and foresees from them what every worker of every strategy will do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Int32, Int64, UInt64

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
from partita.kernels import Relabeller, rank_masks
from partita.kernels.rank_masks import MOST_WORKERS
from partita.nn.model import Model
from partita.parallel.caching import assume_caches, assume_contents, assume_workers, forget_workers, needs_dry_run
from partita.parallel.engine import Engine
from partita.parallel.forecast import StepEstimate, WorkerEstimate, estimate_step, estimate_steps
from partita.parallel.graph_placement import place_topology
from partita.parallel.seed_split import seed_split_of, share_of
from partita.parallel.strategies import Strategy, build_engine
from partita.sample.blocks import sample_block
from partita.sample.topology import ArrayTopology, as_tensor
from partita.setup.inputs import DTYPES, dealt_rows, open_rows, require_features
from partita.setup.learnt import table_bytes
from partita.setup.model import named_model
from partita.setup.sampler import WHOLE, make_sampler
from partita.setup.temporal import check_temporal, require_no_times, training_times, with_times
from partita.setup.tiers import (
    cache_settings,
    check_look_ahead,
    keeps_rows_of_hosts,
    looks_ahead,
    measured_look_ahead,
    row_bytes,
)
from partita.setup.topology import check_topology_memory, mapped_topology
from partita.tasks.task import EdgeTask, SampledTask, key_of, make_task, seed_order, training_seeds
from partita.tasks.times import TaskTimes, TimedTask

CACHE_STEPS = 64
"""Steps from which follows how often rows are read, at most."""
LEAST_AHEAD = 9
KEPT_BYTES = 512 * 2**20
"""Of sampled steps that are kept to foresee them together: how many at least, and bytes at most, about."""
_DEALT = "hosts hold shards without hot rows, as partita shard makes them"
_MASKS = 16
"""So many times its id a source takes, about: masks of who asks for it, at every layer and tier."""


_Shared = dict[tuple[Any, ...], tuple[list[Engine], list[UInt64[np.ndarray, "_"]]]]
"""By how strategies read input rows: engines of all workers but the first, and who will keep each row."""


class DryRun:
    """A run that samples in one process, for workers that need not be there.

    Args:
        store: a whole graph store; of an untyped graph also the shard of any host, with all edges.
        config: the settings of the run.
        mesh: of any of its workers.
        strategies: that come into question.
        model: a user's own; ``None``: the one that the settings name.
        shards: every host has the feature rows of its own parts only, and not those of all nodes. So it is in any case
            with a cache of rows of other hosts that come and go, and if the store is a shard.
        cache_device: where workers keep caches. On a CPU a cache on shards has no use for rows of the worker's own
            host; on any other device it may keep them. Nothing is kept there: ``meta`` stands for any device.
        hot: where the store is a shard, of every host ascending store ids of its hot rows, ``None`` if it has none.

    Attributes:
        engines: of the strategies that can be used, as the worker of ``mesh`` would have them.
        refused: why the others cannot.
        num_steps: of an epoch.
        config: the settings.
        notes: what is to be said of the estimates, once there are some.
        row_bytes: of an input row of each node type, as it is computed with; an untyped graph has one.
        looks_ahead: which rows are kept follows from the batches known ahead.
        learnt_bytes: of learnt rows, with what their optimizer remembers, on the worker with most of them.

    Raises:
        ConfigError: the settings are of a run that cannot be planned, for too many workers, or no strategy can be used.
    """

    def __init__(
        self,
        store: GraphStore,
        config: Config,
        mesh: Mesh,
        strategies: list[Strategy],
        model: Model | None = None,
        *,
        shards: bool = False,
        cache_device: str = "cpu",
        hot: Sequence[Int64[torch.Tensor, "_"] | None] = (),
    ) -> None:
        _check(store, config, mesh)
        self._store, self.config, self._mesh = store, config, mesh
        self._deals = mesh.hosts > 1 and (shards or store.shard is not None or keeps_rows_of_hosts(config))
        self._hot = hot or [None] * mesh.hosts
        widths = store.type_widths if store.schema is not None else (store.num_features if store.has("x") else 0,)
        self.row_bytes = [width * DTYPES[config.precision].itemsize for width in widths]
        self.learnt_bytes = _learnt_bytes(store, config, mesh)
        self._task = task = make_task(config, store)
        model = named_model(config, store, task.width) if model is None else deepcopy(model)
        self.model: Model = model.to(DTYPES[config.precision])
        seeds = training_seeds(task)
        self._times = TaskTimes.of_run(task, training_times(config, store))
        if self._times is not None:
            self._check_times(seeds)
        self._local: ArrayTopology = with_times(mapped_topology(store, config), config, store)
        if isinstance(task, EdgeTask) and (supervision := task.supervision) is not None:
            self._local = self._local.without(supervision)
        self._sampler = make_sampler(config, Group.alone(), store.schema)
        times = None if self._times is None else self._times.each(seeds)
        self._order = seed_order(task, seeds, config, times)
        self.num_steps = self._order.num_steps
        self._part_offsets = as_tensor(store.part_offsets)
        self._cache = cache_settings(config, cache_device)
        self._assumed = config.cache == 0 and not self._deals
        self.looks_ahead = looks_ahead(config)
        self._keeps = CACHE_STEPS if needs_dry_run(self._cache) else 0
        self._kept: dict[int, list[SampledLayer]] = {}
        self.notes = [_DEALT] if self._deals and all(each is None for each in self._hot) else list[str]()
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

    def _check_times(self, seeds: Int[torch.Tensor, "S ..."]) -> None:
        """Refuse what no run samples by time, and what is not priced then."""
        check_temporal(self.config, self._store, self.config.device, self.model)
        if not isinstance(self._task, TimedTask) and (isinstance(self._task, SampledTask) or seeds.ndim > 1):
            require_no_times(self.config, self._store)
        if self._deals:
            raise ConfigError(
                "shards are not sampled by time, so far",
                where="shards, cache_policy",
                fix="Plan for whole stores: leave shards and the cache policy look-ahead out",
            )

    def _engine(self, strategy: Strategy, context: FakeContext, window: int | None = None) -> Engine:
        config, rows = self.config, open_rows(self._store, self.config)
        if self._deals:
            rows = dealt_rows(rows, self._store, context.mesh, self._hot[context.mesh.host])
        cache = self._cache if window is None else replace(self._cache, window=window)
        return build_engine(
            strategy, self.model, place_topology(self._local, config.topology, self._store, context), rows,
            make_sampler(config, context.group("all", "sample"), self._store.schema), DTYPES[config.precision],
            context, self._part_offsets, cache,
        )  # fmt: skip

    def _assume(self) -> None:
        """Let all engines know what hosts hold, and what caches will."""
        shared: _Shared = {}
        with progress.task("choose what to cache", total=len(self.engines), unit="strategies") as task:
            for strategy, engine in self.engines.items():
                self._fill(strategy, engine, shared)
                task.advance()
        self._assumed = True

    @cached_property
    def _contexts(self) -> list[FakeContext]:
        mesh = self._mesh
        return [FakeContext(Mesh.of(rank, mesh.size, mesh.workers)) for rank in range(mesh.size)]

    def _fill(self, strategy: Strategy, engine: Engine, shared: _Shared, window: int | None = None) -> None:
        """Let the first worker's engine know what the tiers of all workers are, and what their caches will hold.

        Workers that read other columns have room for other numbers of rows.

        Args:
            strategy: of the engine.
            engine: of the first worker.
            shared: what was found out for strategies that read input rows alike.
            window: batches that are looked ahead.
        """
        policy_asks = needs_dry_run(self._cache)
        alike = (strategy.inputs, strategy.axis, strategy.cache_rule, window, strategy if policy_asks else None)
        others, kept = shared.get(alike, (None, None))
        if others is None:
            others = [self._engine(strategy, context, window) for context in self._contexts[1:]]
        assume_workers([engine, *others])
        if kept is None:
            reads = self._reads(strategy, engine, CACHE_STEPS if policy_asks else 0)
            kept = assume_caches(
                [engine, *others], strategy, self._contexts, self._cache, self._store, self._order.seeds, reads
            )
        else:
            assume_contents(engine, kept)
        shared[alike] = others, kept

    def _reads(self, strategy: Strategy, engine: Engine, steps: int) -> Int32[torch.Tensor, "W n"]:
        """In how many of the first steps each worker reads each row; without steps of no row."""
        size = self._mesh.size
        found = torch.zeros(size, self._store.num_nodes if steps else 0, dtype=torch.int32)
        for step in range(min(self.num_steps, steps)):
            drawn = self._drawn(step)
            reads = estimate_step(engine, drawn, self._dealt(step, strategy), self._mesh).reads
            for rank in range(size):
                own = torch.from_numpy((reads & np.uint64(1 << rank)) != 0)
                found[rank, drawn[0].nodes[0][own].long()] += 1
        return found

    def steps(self, *, seconds: float) -> Iterator[dict[Strategy, list[WorkerEstimate]]]:
        """Steps of epoch 0, until so much wall-clock time has passed; at least one: what each worker will do in it.

        Where rows come and go, the first step is foreseen for all strategies; then some steps are sampled, as many as
        are foreseen in about that time, but :data:`LEAST_AHEAD` in any case, and foreseen together. Where all steps of
        epoch 0 are, those of epoch 1 follow: most of the rows that they use may be kept since then.
        """
        if self.looks_ahead:
            yield from self._foreseen_ahead(seconds)
            return
        if not self._assumed:
            self._assume()
        begun = time.monotonic()
        with progress.task("dry run", total=self.num_steps, unit="steps") as task:
            for step in range(self.num_steps):
                yield self._foreseen(step)
                task.advance()
                if time.monotonic() - begun > seconds:
                    return

    def keep(self, strategies: Collection[Strategy]) -> None:
        """Foresee no others in steps to come."""
        self.engines = {strategy: engine for strategy, engine in self.engines.items() if strategy in strategies}

    def _foreseen(self, step: int) -> dict[Strategy, list[WorkerEstimate]]:
        drawn = self._drawn(step)
        return {
            strategy: estimate_step(engine, drawn, self._dealt(step, strategy), self._mesh).shares
            for strategy, engine in self.engines.items()
        }

    def _foreseen_ahead(self, seconds: float) -> Iterator[dict[Strategy, list[WorkerEstimate]]]:
        """The first step, for which no rows are kept whatever is known ahead; then more of them, foreseen together."""
        takes, windows = list[float](), dict[Strategy, int]()
        self._keeps = max(1, self._keeps)
        first, shared = dict[Strategy, list[WorkerEstimate]](), _Shared()
        for strategy, engine in self.engines.items():
            self._fill(strategy, engine, shared)
            drawn, dealt, now = self._drawn(0), self._dealt(0, strategy), time.monotonic()
            found = estimate_step(engine, drawn, dealt, self._mesh)
            takes.append(time.monotonic() - now)
            forget_workers(engine)
            first[strategy], windows[strategy] = found.shares, self._window(found.reads)
        self.notes = [*_notes_ahead(self.config, 1, self.num_steps, max(windows.values())), *self.notes]
        yield first
        windows = {strategy: windows[strategy] for strategy in self.engines}
        steps = self._sampled_ahead(seconds, statistics.median(takes) * len(windows))
        self.notes[0] = _notes_ahead(self.config, steps, self.num_steps, max(windows.values()))[0]
        if steps == 1:
            return
        together = dict[Strategy, list[StepEstimate]]()
        with progress.task("foresee what is kept", total=len(windows), unit="strategies") as task:
            shared.clear()
            for strategy, window in windows.items():
                engine = self._engine(strategy, self._contexts[0], window)
                self._fill(strategy, engine, shared, window)
                sampled = [(self._drawn(step), self._dealt(step, strategy)) for step in range(steps)]
                together[strategy] = estimate_steps(engine, sampled, self._mesh, self.num_steps)
                forget_workers(engine)
                task.advance()
        for number in range(1, steps):
            yield {strategy: estimates[number].shares for strategy, estimates in together.items()}

    def _sampled_ahead(self, seconds: float, takes: float) -> int:
        """Sample the first steps of two epochs: as many as are foreseen in about so many seconds, where one takes
        others, and some in any case, as it takes some to see which rows are kept."""
        fit = int(KEPT_BYTES / _bytes_of(self._drawn(0)))
        steps = max(1, min(2 * self.num_steps, fit, max(LEAST_AHEAD, int(seconds / takes))))
        self._keeps = max(steps, self._keeps)
        with progress.task("dry run", total=steps, unit="steps") as task:
            for step in range(steps):
                self._drawn(step)
                task.advance()
        return steps

    def _window(self, reads: UInt64[np.ndarray, "n"]) -> int:
        """How many batches a run looks ahead that reads these rows for its first step."""
        rows = int(rank_masks.count(reads, self._mesh.size)[0])
        measured = measured_look_ahead(
            self.config, self._store, self._mesh.size, rows, row_bytes(self.config, self._store)
        )
        return self.config.look_ahead or measured

    def _drawn(self, step: int) -> list[SampledLayer]:
        """What all workers together draw, layer 1 first; of the first steps it is kept."""
        if step in self._kept:
            return self._kept[step]
        key, local = self._key(step), self._local
        requests = self._requests(self._order.batch(*divmod(step, self.num_steps)), key)
        drawn, scratch = list[SampledLayer](), Relabeller(local.num_nodes, "hash" if local.frugal else "auto")
        for layer in range(self.config.layers, 0, -1):
            block = sample_block(local, requests, key, layer, self._sampler, relabel=scratch)
            drawn.insert(0, SampledLayer(block, local.slots))
            requests = drawn[0].src
        if step < self._keeps:
            self._kept[step] = drawn
        return drawn

    def _key(self, step: int) -> StepKey:
        """The key of a step, with the edges that it leaves out, and the times of its seeds."""
        key = key_of(self._task, self._order, StepKey(self.config.seed, *divmod(step, self.num_steps)))
        return key if self._times is None else self._times.at(key, self._order)

    def _requests(self, seeds: Int[torch.Tensor, "S ..."], key: StepKey) -> Int[torch.Tensor, "R"]:
        """Nodes that are wanted for seeds of a step; where these have times, at these."""
        if self._times is None or key.times is None:
            return self._task.requests(seeds)
        return self._times.requests(seeds, key.times)

    def _dealt(self, step: int, strategy: Strategy) -> UInt64[np.ndarray, "B"]:
        """Which workers request each node of the last layer."""
        mesh, batch, key = self._mesh, self._order.batch(*divmod(step, self.num_steps)), self._key(step)
        requested = self._requests(batch, key)
        place = torch.argsort(requested)
        seed_split = seed_split_of(self.config.seed_split, strategy, self._store.num_parts, mesh)
        found = np.zeros(len(requested), np.uint64)
        for rank in range(mesh.size):
            share = share_of(batch, Mesh.of(rank, mesh.size, mesh.workers), seed_split, self._part_offsets)
            own = self._requests(share, key)
            found[place[torch.searchsorted(requested[place], own)].numpy()] |= np.uint64(1 << rank)
        return found


def _bytes_of(drawn: Sequence[SampledLayer]) -> int:
    """Of a sampled step, with the masks that a strategy takes for it."""
    return sum(each.block.indptr.nbytes + each.block.indices.nbytes + _MASKS * each.src.nbytes for each in drawn)


def _notes_ahead(config: Config, sampled: int, steps: int, window: int) -> list[str]:
    """How well it is known which rows are kept.

    Args:
        config: of the run.
        sampled: steps.
        steps: of an epoch.
        window: batches that are looked ahead.
    """
    what = "rows of other hosts" if keeps_rows_of_hosts(config) else "rows read from files"
    notes = [f"{what}: counted exactly for the first epoch, which begins with no rows kept"]
    if sampled < steps:
        exact = max(0, sampled - window)
        notes = [
            f"{what}: from the first {sampled:,} of {steps:,} steps, exact for {exact:,} of them; for the others, "
            f"fewer batches are known than the {window:,} that a run looks ahead"
        ]
    return notes


def _learnt_bytes(store: GraphStore, config: Config, mesh: Mesh) -> int:
    found = table_bytes(config, store, mesh.size)
    if found is None:
        raise ConfigError(
            "the planner does not price learnt rows in files",
            where="embed_memory",
            fix="Leave it out, or name a strategy: --strategy gdp, snp, dnp or gsplit",
        )
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
    if store.shard is not None:
        if store.shard.hosts != mesh.hosts:
            store.require_host(mesh.host, mesh.hosts)
        if store.edges_are_cut or store.schema is not None:
            store.require_whole("a plan")
    check_look_ahead(config, store, config.device, mesh.hosts, deals=True)
    check_topology_memory(config, store, config.device)
