"""What a dry run counts, and which rows every strategy then caches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from asking import neighbors
from steps import Step

from partita.comm.threads import ThreadContext, ThreadGroups
from partita.core.errors import ConfigError
from partita.core.keys import StepKey
from partita.features.tiers import CacheSettings
from partita.parallel.caching import fill_caches, input_frequencies
from partita.parallel.seed_split import share_of
from partita.parallel.strategies import build_engine, parse_strategy
from partita.sample.seeds import SeedOrder
from partita.testing.graphs import formula_store

PARTS = (0, 25, 60)
ROOM = 12 + 7 * 8 * 10  # ten rows of seven columns in float64
SEED = 5


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return formula_store(tmp_path_factory.mktemp("caching") / "g", num_nodes=60, num_features=7, shuffle_seed=3)


def made(
    step: Step, strategy: str, settings: CacheSettings, workers: int = 2
) -> list[tuple[list[int], list[int], Any]]:
    """The frequencies of every worker, what it caches, and its engine."""
    parsed = parse_strategy(strategy, len(step.fanouts))
    models = [step.model() for _ in range(workers)]

    def work(context: ThreadContext) -> tuple[list[int], list[int], Any]:
        offsets, mesh = step.part_offsets(), context.mesh
        engine = build_engine(
            parsed, models[mesh.rank], step.topology(), step.column(), step.fanouts, step.dtype, context, offsets,
            settings,
        )  # fmt: skip
        order = SeedOrder(step.batch_seeds(), SEED, 4)

        def share(seeds: torch.Tensor) -> torch.Tensor:
            return share_of(seeds, mesh, "owner", offsets)

        found = input_frequencies(
            engine, 60, order.num_steps, lambda at: share(order.batch(0, at)), lambda at: StepKey(SEED, 0, at)
        )
        fill_caches(
            engine, parsed, context, settings, step.store, offsets, order, share, lambda at: StepKey(SEED, 0, at)
        )
        (cache,) = engine.inputs.caches  # type: ignore[attr-defined]
        cached = []
        if cache is not None:
            own = getattr(cache, "_own", cache)
            ids = torch.arange(60)
            cached = ids[own._positions.contains(ids)].tolist() if own._positions else []
        return found.tolist(), cached, engine

    return ThreadGroups(workers).run(work)


def by_hand(step: Step, rank: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps in which a data-parallel worker needs each row, with Python sets."""
    order, counts = SeedOrder(step.batch_seeds(), SEED, 4), Counter[int]()
    for at in range(order.num_steps):
        monkeypatch.setattr("asking.KEY", StepKey(SEED, 0, at))
        needed = {v for v in order.batch(0, at).tolist() if (v >= PARTS[1]) == bool(rank)}
        for layer in range(len(step.fanouts), 0, -1):
            drawn = neighbors(step, layer)
            needed |= {u for v in needed for u in drawn[v]}
        counts.update(needed)
    return [counts[v] for v in range(60)]


@pytest.mark.parametrize("cached", [False, True])
def test_a_dry_run_counts_the_steps_that_read_a_row(store, monkeypatch, cached) -> None:
    """Also where rows are summed by id, and an id is listed for every access."""
    step = Step(store, parts=PARTS)
    found = made(step, "gdp", CacheSettings(ROOM if cached else 0))
    assert [counts for counts, _, _ in found] == [by_hand(step, rank, monkeypatch) for rank in range(2)]


def best(scores: torch.Tensor, nodes: range, count: int) -> list[int]:
    ranked = sorted((v for v in nodes if scores[v] > 0), key=lambda v: (-int(scores[v]), v))
    return sorted(ranked[:count])


@pytest.mark.parametrize("strategy", ["gdp", "nfp", "snp", "dnp", "gsplit"])
def test_apts_rules(store, strategy) -> None:
    step = Step(store, parts=PARTS)
    found = made(step, strategy, CacheSettings(ROOM, "strategy"))
    own = torch.tensor([counts for counts, _, _ in found])
    every, parts = own.sum(0), [range(25), range(25, 60)]
    wanted = {
        "gdp": [best(every, range(60), 10)] * 2,
        "nfp": [best(every, range(60), columns) for columns in (560 // (8 * 4), 560 // (8 * 3))],
        "snp": [best(every, part, 10) for part in parts],
        "dnp": [best(counts, range(60), 10) for counts in own],
        "gsplit": [best(every, part, 10) for part in parts],
    }[strategy]
    assert [cached for _, cached, _ in found] == wanted
    if strategy == "gsplit":  # the owner reads for both, once a step
        assert own.max() <= 4
        assert not any(own[rank][list(parts[1 - rank])].any() for rank in range(2))
    if strategy == "dnp":
        assert wanted[0] != wanted[1]


@pytest.mark.parametrize("policy", ["in-degree", "presample", "pagerank"])
@pytest.mark.parametrize("strategy", ["gdp", "snp", "dnp", "gsplit"])
def test_a_worker_caches_what_it_may_read(store, policy, strategy) -> None:
    step = Step(store, parts=PARTS)
    found = made(step, strategy, CacheSettings(ROOM, policy))
    own = torch.tensor([counts for counts, _, _ in found])
    degrees = torch.from_numpy(store.in_degree())
    for rank, (_, cached, _) in enumerate(found):
        assert len(cached) == 10
        nodes = (
            range(60) if parse_strategy(strategy, 3).cache_rule.reads == "any" else range(PARTS[rank], PARTS[rank + 1])
        )
        if policy != "pagerank":
            assert cached == best(own.sum(0) if policy == "presample" else degrees, nodes, 10)
        assert set(cached) <= set(nodes)


@pytest.mark.parametrize("policy", ["in-degree", "strategy"])
@pytest.mark.parametrize("strategy", ["gdp", "dnp", "gsplit"])
def test_a_partitioned_cache_holds_every_row_once(store, policy, strategy) -> None:
    room = CacheSettings(ROOM + 12, policy, "partitioned")
    found = made(Step(store, parts=PARTS), strategy, room)
    scores = torch.tensor([counts for counts, _, _ in found]).sum(0)
    if policy == "in-degree":
        scores = torch.from_numpy(store.in_degree())
    assert [cached for _, cached, _ in found] == [best(scores, part, 10) for part in (range(25), range(25, 60))]
    for *_, engine in found:
        assert engine.inputs.caches[0].num_bytes == ROOM + 12


def test_workers_that_read_different_columns_have_caches_of_their_own(store) -> None:
    found = made(Step(store, parts=PARTS), "nfp", CacheSettings(ROOM, "in-degree", "partitioned"))
    degrees = torch.from_numpy(store.in_degree())
    assert [cached for _, cached, _ in found] == [best(degrees, range(60), rows) for rows in (17, 23)]


def test_what_cannot_be_is_refused(store) -> None:
    step = Step(store, parts=PARTS)
    with pytest.raises(ConfigError, match=r"cache_policy: there is no cache policy 'presampel'.*'presample'"):
        made(step, "gdp", CacheSettings(ROOM, "presampel"))
    with pytest.raises(ConfigError, match=r"no room for a row"):
        made(step, "gdp", CacheSettings(67))
    with pytest.raises(ConfigError, match=r"cache_layout 'partitioned'.*the store has 1 part.*layout 'own'"):
        made(replace(step, parts=(0, 60)), "gdp", CacheSettings(ROOM, layout="partitioned"))


def test_without_a_cache_nothing_is_sampled(store) -> None:
    for _, cached, engine in made(Step(store, parts=PARTS), "gsplit", CacheSettings(0, "strategy")):
        assert cached == []
        assert engine.inputs.caches == (None,)
