"""Fills the feature caches of an engine, by the rule of a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, cast

import torch
from jaxtyping import Int, Int32, Int64, Num
from torch import Tensor

from partita.core.errors import ConfigError, nearest
from partita.core.keys import StepKey
from partita.features.cache import owned
from partita.features.policies import POLICIES, best_first, in_degrees, pagerank, share_of_rows
from partita.features.tiers import Cache, CacheSettings
from partita.graph.store import GraphStore
from partita.parallel.engine import Engine
from partita.parallel.frequencies import input_frequencies
from partita.parallel.strategies import Strategy, Workers, make_axis
from partita.sample.seeds import SeedOrder
from partita.sample.topology import as_tensor


@dataclass(frozen=True)
class Rule:
    """What a worker reads, and so what is worth caching there.

    Attributes:
        reads: ``any`` node's row, or only rows of nodes that the worker ``owned``.
        counts: with the policy ``strategy``, whose reads count: those of ``all`` workers, or its ``own``.
    """

    reads: Literal["any", "owned"]
    counts: Literal["all", "own"]


RULES: dict[str, Rule] = {
    "by-owner": Rule("owned", "all"),
    "data": Rule("any", "all"),
    "feature": Rule("any", "all"),
    "source": Rule("owned", "all"),
    "destination": Rule("any", "own"),
}
"""By level 0 where that decides who reads, else by the placement of layer 1.

Kaihao Ma et al., "APT", section 3.2, "Cache configuration"; for ``by-owner``: Polisetty et al., "GSplit", whose caches
hold different nodes.
"""


class Cached(Protocol):
    """Level 0 that may have a cache."""

    cache: Cache | None


def rule_of(strategy: Strategy) -> Rule:
    """The rule of a strategy."""
    return next(RULES[name] for name in (strategy.inputs, strategy.placements[0]) if name in RULES)


def fill_caches(
    engine: Engine,
    strategy: Strategy,
    context: Workers,
    settings: CacheSettings,
    store: GraphStore,
    part_offsets: Int64[Tensor, "P_1"],
    seed_order: SeedOrder,
    share: Callable[[Int[Tensor, "B"]], Int[Tensor, "b"]],
    seed: int,
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
        share: this worker's seeds of a global batch.
        seed: of the run: the dry run samples what epoch 0 will.

    Raises:
        ConfigError: the policy is not known.
    """
    if settings.policy not in POLICIES:
        raise ConfigError(
            f"unknown cache policy '{settings.policy}'", where="cache_policy", fix=nearest(settings.policy, POLICIES)
        )
    cache = cast(Cached, engine.inputs).cache
    if cache is None:
        return
    rule = rule_of(strategy)
    scores = SCORES[settings.policy](_Survey(engine, context, store, seed_order, share, seed, rule, settings))
    allowed = cache.allowed()
    if rule.reads == "owned":
        mine = owned(make_axis(context, strategy.axis, part_offsets), store.num_nodes)
        allowed = mine if allowed is None else mine & allowed
    cache.fill(best_first(scores, cache.capacity, allowed))


@dataclass
class _Survey:
    """What scores are made of."""

    engine: Engine
    context: Workers
    store: GraphStore
    seed_order: SeedOrder
    share: Callable[[Int[Tensor, "B"]], Int[Tensor, "b"]]
    seed: int
    rule: Rule
    settings: CacheSettings

    def own_frequencies(self) -> Int32[Tensor, "N"]:
        """Steps of epoch 0 in which this worker reads each row."""
        order = self.seed_order
        return input_frequencies(
            self.engine,
            self.store.num_nodes,
            order.num_steps,
            lambda step: self.share(order.batch(0, step)),
            lambda step: StepKey(self.seed, 0, step),
        )

    def frequencies(self) -> Int32[Tensor, "N"]:
        """The same, summed over all workers."""
        total = self.own_frequencies()
        self.context.group("all", "train").sum_([total], kind="metadata")
        return total

    def by_rule(self) -> Int32[Tensor, "N"]:
        """Frequencies as the strategy's rule wants them; the holders of a partitioned cache serve all."""
        alone = self.rule.counts == "own" and self.settings.layout == "own"
        return self.own_frequencies() if alone else self.frequencies()

    def degrees(self) -> Num[Tensor, "N"]:
        """In-degrees."""
        return in_degrees(as_tensor(self.store.indptr))

    def visits(self) -> Num[Tensor, "N"]:
        """Visits of walks from the seeds."""
        store, mesh = self.store, self.context.mesh
        indptr = as_tensor(store.indptr)
        indices, first_edge = store.held("indices")
        cut = store.shard is not None and store.shard.topology == "partitioned"
        if cut:
            assert store.shard is not None
            rows = share_of_rows(indptr, store.shard.nodes, mesh.worker, mesh.workers)
        else:
            rows = share_of_rows(indptr, range(store.num_nodes), mesh.rank, mesh.size)
        restart = torch.zeros(store.num_nodes)
        restart[self.seed_order.seeds.long().cpu()] = 1
        return pagerank(
            indptr, as_tensor(indices), first_edge, rows, self.context.group("all", "train"), restart
        )  # fmt: skip


SCORES: dict[str, Callable[[_Survey], Num[Tensor, "N"]]] = {
    "in-degree": _Survey.degrees,
    "pagerank": _Survey.visits,
    "presample": _Survey.frequencies,
    "strategy": _Survey.by_rule,
}
"""Scores by policy."""
