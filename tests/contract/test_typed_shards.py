"""Typed graphs of which every host has a shard: every list of placements against one process on the whole store."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from estimating import check as check_estimate
from estimating import estimated
from steps import difference, distributed, reference
from typed_graphs import TypedStep, typed_store

import partita
from partita.core.errors import ConfigError
from partita.core.records import TIERS
from partita.features.tiers import CACHE_LAYOUTS, CacheSettings
from partita.graph.store import GraphStore
from partita.parallel.placements.kinds import PLACEMENTS
from partita.partitioning.shards import shard

ABLE = [name for name in PLACEMENTS if not PLACEMENTS.find(name).first_layer_only]
PAIRS = [",".join(pair) for pair in product(ABLE, repeat=2)]
STRATEGIES = [*PAIRS, *(f"by-owner,{pair}" for pair in PAIRS), "data@hosts+gsplit@workers", "snp@workers+data@hosts"]
KINDS = ("rgcn", "hgt", "gatv2", "graphconv+edge_weights")
MESHES = [(2, 2), (4, 2)]
HOT = 200


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[GraphStore, ...]]:
    """By number of workers the whole store, and by ``workers-topology-hot`` its shards for two hosts.

    All authors are on host 0, which so has all rows of their type, and host 1 has none.
    """
    folder = tmp_path_factory.mktemp("typed")
    typed_store(folder / "g")
    whole = GraphStore.open(folder / "g.whole")
    found = {}
    for workers in (2, 4):
        parts = np.arange(whole.num_nodes) % workers
        parts[whole.types(np.arange(whole.num_nodes)) == 1] %= workers // 2
        np.save(folder / "parts.npy", parts)
        partita.partition(whole, folder / f"{workers}", parts=workers, algorithm=str(folder / "parts.npy"))
        store = GraphStore.open(folder / f"{workers}")
        found[f"{workers}"] = (store,)
        for topology, hot in product(("partitioned", "replicated"), (0, HOT)):
            name = f"{workers}-{topology}-{hot}"
            found[name] = tuple(
                GraphStore.open(
                    shard(store, folder / name / f"{h}", host=h, hosts=2, topology=topology, hot_bytes=hot).path
                )
                for h in range(2)
            )
    return found


def step_of(stores, workers: int, kind: str, topology: str = "", hot: int = 0, **changes: object) -> TypedStep:
    shards = stores[f"{workers}-{topology}-{hot}"] if topology else ()
    seeds = tuple(range(0, 60, 4))
    return TypedStep(stores[f"{workers}"][0], kind, **{"fanouts": (3, 2), "seeds": seeds, "shards": shards, **changes})


def check(step: TypedStep, strategy: str, workers: int) -> list[int]:
    """Loss, gradients and bytes; returns how many rows came from each place."""
    found = distributed(step, strategy, workers, hosts=2, seed_split="even")
    assert difference(found, reference(step)) < 1e-9, (strategy, step.kind)
    assert {each: found.sent[each] for each in found.traffic.to_json()} == found.traffic.to_json(), step.kind
    return np.sum([counts.rows_from for counts in found.counts], axis=0).tolist()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("workers", "hosts"), MESHES)
def test_gradients_are_those_of_one_process_and_bytes_are_those_that_are_said(stores, strategy, workers, hosts) -> None:
    """Rows of other hosts come from them, and with hot rows fewer do."""
    for number, kind in enumerate(KINDS):
        options = {"dropout": 0.3, "input_dropout": 0.2 * (number % 2), "weighted": number == 1}
        topology = ("partitioned", "replicated")[number == 2]
        plain = check(step_of(stores, workers, kind, topology, **options), strategy, workers)
        hot = check(step_of(stores, workers, kind, topology, HOT, **options), strategy, workers)
        asked = [rows[TIERS.index("hosts")] for rows in (plain, hot)]
        assert asked[1] <= asked[0]
        if strategy.startswith(("data", "destination")):
            assert asked[1] < asked[0]


CACHES = [CacheSettings(350, policy, layout) for policy, layout in product(("presample", "pagerank"), CACHE_LAYOUTS)]


@pytest.mark.parametrize("strategy", ["data,data", "destination,data", "source,destination", "by-owner,data,data"])
@pytest.mark.parametrize(("workers", "hosts"), MESHES)
def test_caches_of_rows_of_other_hosts(stores, strategy, workers, hosts) -> None:
    for cache in CACHES:
        plain = step_of(stores, workers, "rgcn", "partitioned", cache=cache, input_dropout=0.2)
        rows = check(plain, strategy, workers)
        # An owner reads rows of its own nodes only, which its host has: there is nothing to be cached.
        assert (rows[TIERS.index("cache")] > 0) == strategy.startswith(("data", "destination")), cache


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("workers", "hosts"), MESHES)
def test_what_is_estimated_of_the_whole_store_on_hosts_is_what_is_counted(stores, strategy, workers, hosts) -> None:
    for number, kind in enumerate(("rgcn", "gatv2")):
        check_estimate(step_of(stores, workers, kind, split_topology=number == 0), strategy, workers, hosts)


def test_of_shards_nothing_is_estimated(stores) -> None:
    with pytest.raises(ConfigError, match="Plan with the whole store"):
        estimated(step_of(stores, 2, "rgcn", "partitioned"), "data,data", 2, 2, known=False)
