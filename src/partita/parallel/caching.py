"""Fills the feature caches of an engine, by the rule of a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int, Int32, Int64, Num, UInt64
from torch import Tensor

from partita.comm.axis import Workers, make_axis
from partita.comm.group import Group
from partita.core import progress
from partita.core.keys import StepKey
from partita.core.protocols import CacheTier
from partita.features.cache import owned
from partita.features.of_workers import OfWorkers
from partita.features.policies import (
    POLICIES,
    CacheStatistics,
    best_first,
    fit_by_bytes,
    in_degrees,
    pagerank,
    share_of_rows,
)
from partita.features.tiers import CACHE_LAYOUTS, CacheSettings
from partita.graph.store import GraphStore
from partita.parallel.engine import Engine
from partita.parallel.inputs import Direct, Tiered
from partita.parallel.placements.kinds import CacheRule
from partita.parallel.strategies import Strategy
from partita.parallel.typed_inputs import TypedInputs
from partita.sample.seeds import SeedOrder
from partita.sample.topology import as_tensor


def _caches_of(engine: Engine) -> tuple[CacheTier | None, ...]:
    """Of each node type the cache of its rows; an untyped graph has one type."""
    return cast(Direct | Tiered | TypedInputs, engine.inputs).caches


def fill_caches(
    engine: Engine,
    strategy: Strategy,
    context: Workers,
    settings: CacheSettings,
    store: GraphStore,
    part_offsets: Int64[Tensor, "P_1"],
    seed_order: SeedOrder,
    share: Callable[[Int[Tensor, "B"]], Int[Tensor, "b"]],
    key: Callable[[int], StepKey],
) -> None:
    """Choose rows and copy them into this worker's cache. All workers call this, before any batch is sampled.

    Nothing happens where the engine has no cache.

    Args:
        engine: of this worker, made by :func:`~partita.parallel.strategies.build_engine` with the same settings.
        strategy: of the engine.
        context: of this process.
        settings: of the cache.
        store: the graph, or the shard of this host.
        part_offsets: int64 (P+1) of the store.
        seed_order: the seeds; the dry run takes those of epoch 0.
        share: the nodes that this worker requests for a global batch.
        key: of a step of epoch 0: the dry run samples what that will.

    Raises:
        ConfigError: the policy is not known.
    """
    POLICIES.check(settings.policy)
    caches = _caches_of(engine)
    if all(cache is None for cache in caches):
        return
    found = _MeasuredStatistics(store, strategy.cache_rule, settings, engine, context, seed_order, share, key)
    scores = _score(settings, found)
    chosen = _chosen(caches, scores, strategy, context, part_offsets, store, settings.bytes)
    for cache, ids in zip(caches, chosen, strict=True):
        if cache is not None:
            cache.fill(ids)


def assume_workers(engines: Sequence[Engine]) -> None:
    """Let the first of some engines estimate what the tiers of every worker will do: what a host holds, how wide rows
    are, and what there is room for may differ.

    Args:
        engines: one for each worker, made by :func:`~partita.parallel.strategies.build_engine` with the same settings.
    """
    for of_all in zip(*map(_tiers_of, engines), strict=True):
        if isinstance(of_all[0], OfWorkers):
            of_all[0].assume_workers(of_all)


def forget_workers(engine: Engine) -> None:
    """Undo :func:`assume_workers`: the tiers of the other workers, and files that they have opened, are let go of."""
    for tier in _tiers_of(engine):
        if isinstance(tier, OfWorkers):
            tier.assume_workers(())


def _tiers_of(engine: Engine) -> list[Any]:
    """What reads the rows of each node type, and its tiers, from the highest down."""
    inputs, found = engine.inputs, list[Any]()
    for part in inputs.parts if isinstance(inputs, TypedInputs) else (inputs,):
        tier: Any = part
        while tier is not None:
            found.append(tier)
            tier = getattr(tier, "below", None) or getattr(tier, "host", None)
    return found


def assume_caches(
    engines: Sequence[Engine],
    strategy: Strategy,
    contexts: Sequence[Workers],
    settings: CacheSettings,
    store: GraphStore,
    seeds: Int[Tensor, "S"],
    reads: Int32[Tensor, "W N"],
) -> list[UInt64[np.ndarray, "_"]]:
    """Let the first of some engines estimate what caches will hold on every worker after :func:`fill_caches`.

    Args:
        engines: one for each worker, made by :func:`~partita.parallel.strategies.build_engine` with the same settings.
        strategy: of the engines.
        contexts: of the workers, who need not be there.
        settings: of the caches.
        store: the whole graph.
        seeds: store ids of the training nodes.
        reads: steps in which each worker reads each row; of no row unless :func:`needs_dry_run`.

    Returns:
        Who will keep each row, for each node type; nothing without caches.

    Raises:
        ConfigError: the policy is not known.
    """
    POLICIES.check(settings.policy)
    if all(cache is None for cache in _caches_of(engines[0])):
        return []
    types, part_offsets = store.node_types, as_tensor(store.part_offsets)
    kept = [np.zeros(types.size(kind), np.uint64) for kind in range(types.count)]
    for rank, (engine, context) in enumerate(zip(engines, contexts)):
        caches = _caches_of(engine)
        found = _AssumedStatistics(store, strategy.cache_rule, settings, seeds, reads, rank)
        scores = _score(settings, found)
        chosen = _chosen(caches, scores, strategy, context, part_offsets, store, settings.bytes)
        for of_type, ids in zip(kept, chosen, strict=True):
            of_type[ids.numpy()] |= np.uint64(1 << rank)
    assume_contents(engines[0], kept)
    return kept


def assume_contents(engine: Engine, kept: Sequence[UInt64[np.ndarray, "_"]]) -> None:
    """Let an engine estimate with caches that hold what :func:`assume_caches` has found for another one, whose input
    rows come through the same tiers."""
    if kept:
        for cache, of_type in zip(_caches_of(engine), kept, strict=True):
            if cache is not None:
                cache.assume_contents(of_type)


def needs_dry_run(settings: CacheSettings) -> bool:
    """Whether what caches hold depends on how often rows are read."""
    return settings.bytes > 0 and POLICIES.find(settings.policy).needs_dry_run


def _chosen(
    caches: Sequence[CacheTier | None], scores: Num[Tensor, "N"], strategy: Strategy, context: Workers,
    part_offsets: Int64[Tensor, "P_1"], store: GraphStore, budget: int,
) -> list[Int64[Tensor, "m"]]:  # fmt: skip
    """Of each node type the rows that a worker's cache keeps, best first: numbers among those of the type."""
    mine = None
    if strategy.cache_rule.reads == "owned":
        mine = owned(make_axis(context, strategy.axis, part_offsets), store.num_nodes)
    ranked, best = [], []
    for kind, cache in enumerate(caches):
        ids = torch.from_numpy(store.node_types.all_ids(kind))
        of_type = scores[ids] if len(caches) > 1 else scores
        allowed = None if cache is None else cache.allowed()
        if mine is not None:
            allowed = mine[ids] if allowed is None else mine[ids] & allowed
        ranked.append(best_first(of_type, 0 if cache is None else cache.capacity, allowed))
        best.append(of_type[ranked[-1]])
    made = [cache for cache in caches if cache is not None]
    room = budget - sum(cache.list_bytes for cache in made)
    row_bytes = [0 if cache is None else cache.row_bytes for cache in caches]
    return [rows[:count] for rows, count in zip(ranked, fit_by_bytes(best, row_bytes, room), strict=True)]


def _score(settings: CacheSettings, statistics: CacheStatistics) -> Num[Tensor, "N"]:
    """Of every node, by the policy of the caches; one whose rows come and go makes no cache that is filled."""
    score = POLICIES.find(settings.policy).score
    assert score is not None
    return score(statistics)


def _restart(num_nodes: int, seeds: Int[Tensor, "S ..."]) -> Float[Tensor, "N"]:
    """Walks start at the seeds, each alike; at the first node of those that are rows."""
    restart = torch.zeros(num_nodes)
    restart[(seeds if seeds.ndim == 1 else seeds[:, 0]).long().cpu()] = 1
    return restart


@dataclass
class _Statistics:
    """What is common to the :class:`CacheStatistics` below."""

    store: GraphStore
    rule: CacheRule
    settings: CacheSettings

    def own_frequencies(self) -> Int32[Tensor, "N"]:
        """Steps in which the worker reads each row."""
        raise NotImplementedError

    def frequencies(self) -> Int32[Tensor, "N"]:
        """The same, summed over all workers."""
        raise NotImplementedError

    def by_rule(self) -> Int32[Tensor, "N"]:
        """Frequencies as the strategy's rule wants them; the holders of a partitioned cache serve all."""
        alone = self.rule.counts == "own" and not CACHE_LAYOUTS.find(self.settings.layout).shared
        return self.own_frequencies() if alone else self.frequencies()

    def degrees(self) -> Num[Tensor, "N"]:
        """In-degrees."""
        return in_degrees(as_tensor(self.store.indptr))


@dataclass
class _AssumedStatistics(_Statistics):
    """For a worker that is not there.

    Attributes:
        reads: (W, N) steps in which each worker reads each row; empty where no score is made of them.
        rank: of the worker.
    """

    seeds: Int[Tensor, "S"]
    reads: Int32[Tensor, "W N"]
    rank: int

    def own_frequencies(self) -> Int32[Tensor, "N"]:
        return self.reads[self.rank]

    def frequencies(self) -> Int32[Tensor, "N"]:
        return self.reads.sum(0, dtype=torch.int32)

    def visits(self) -> Num[Tensor, "N"]:
        nodes = self.store.num_nodes
        indptr, indices = as_tensor(self.store.indptr), as_tensor(self.store.indices)
        return pagerank(indptr, indices, 0, range(nodes), Group.alone(), _restart(nodes, self.seeds))


@dataclass
class _MeasuredStatistics(_Statistics):
    """For this worker, of epoch 0. All workers make them together."""

    engine: Engine
    context: Workers
    seed_order: SeedOrder
    share: Callable[[Int[Tensor, "B"]], Int[Tensor, "b"]]
    key: Callable[[int], StepKey]

    def own_frequencies(self) -> Int32[Tensor, "N"]:
        order = self.seed_order
        return input_frequencies(
            self.engine,
            self.store.num_nodes,
            order.num_steps,
            lambda step: self.share(order.batch(0, step)),
            self.key,
        )

    def frequencies(self) -> Int32[Tensor, "N"]:
        total = self.own_frequencies()
        self.context.group("all", "train").sum_([total], kind="metadata")
        return total

    def visits(self) -> Num[Tensor, "N"]:
        """Visits of walks from the seeds."""
        store, mesh = self.store, self.context.mesh
        indptr = as_tensor(store.indptr)
        indices, first_edge = store.held("indices")
        place = (mesh.worker, mesh.workers) if store.edges_are_cut else (mesh.rank, mesh.size)
        rows = share_of_rows(indptr, store.nodes_with_edges, *place)
        restart, group = _restart(store.num_nodes, self.seed_order.seeds), self.context.group("all", "train")
        return pagerank(indptr, as_tensor(indices), first_edge, rows, group, restart)


def input_frequencies(
    engine: Engine,
    num_nodes: int,
    steps: int,
    share: Callable[[int], Int[Tensor, "B"]],
    key: Callable[[int], StepKey],
) -> Int32[Tensor, "N"]:
    """Sample some steps without training, and count in how many of them this worker reads each input row.

    A row counts where it is looked up in a worker's own tiers: at who asks for it, or at its owner where that reads
    for all (``by-owner``). All workers call this with the same number of steps.

    Args:
        engine: of this worker.
        num_nodes: N.
        steps: how many.
        share: this worker's seeds of a step.
        key: names a step.

    Returns:
        int32 (N), of this worker alone.
    """
    counts = torch.zeros(num_nodes, dtype=torch.int32)
    with progress.task("dry run", total=steps, unit="steps") as task:
        for step in range(steps):
            work = engine.sample(share(step), key(step)).inputs
            counts[work.reads.long().cpu()] += 1  # a repeated id is written twice, not counted twice
            task.advance()
    return counts
