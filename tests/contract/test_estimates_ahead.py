"""Where rows come and go, what one process foresees of consecutive steps is what every worker then counts in them.

Rows that are kept, that come from other hosts, and that are read from files: exactly, of every worker and step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from estimating import N, estimated, parts
from estimating_ahead import FileStep, check, typed_in_files
from steps import Step
from typed_graphs import TypedStep, typed_store

import partita
from partita.core.errors import ConfigError
from partita.core.mesh import Mesh
from partita.core.records import TIERS
from partita.features.tiers import CacheSettings
from partita.features.typed import TypedColumns
from partita.graph.store import GraphStore
from partita.testing.graphs import small_random_store

CACHE, HOSTS = TIERS.index("cache"), TIERS.index("hosts")
STRATEGIES = [
    "gdp", "nfp@workers+data@hosts", "snp", "dnp", "gsplit", "by-owner,source,destination,data",
    "gsplit@workers+data@hosts", "dnp@hosts+data@workers",
]  # fmt: skip
OWNERS_READ = ("snp", "gsplit", "by-owner,source,destination,data")
"""An owner reads rows of its own nodes only, which its host has."""
LISTS, ROW = 9 * N, 16 + 8 * 7
"""Bytes to find rows, and of a row of seven float64 columns with what finds it."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return small_random_store(tmp_path_factory.mktemp("graph") / "store", N, 1800)


@pytest.fixture(scope="module")
def in_four(store, tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    folder = tmp_path_factory.mktemp("parts") / "four"
    partita.partition(store, folder, parts="2x2", algorithm="random")
    return GraphStore.open(folder)


def ahead(rows: int, window: int) -> CacheSettings:
    """A cache with room for so many rows of other hosts."""
    return CacheSettings(LISTS + rows * ROW, "look-ahead", window=window)


def total(found: list, tier: int) -> int:
    return sum(counts.rows_from[tier] for of_worker in found for counts, *_ in of_worker)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("workers", "hosts"), [(2, 2), (3, 3), (4, 2)])
def test_rows_of_other_hosts_that_come_and_go(store, strategy, workers, hosts) -> None:
    """With a few rows that every host has, so that some are neither its own nor far."""
    step = Step(store, parts=parts(workers), seeds=tuple(range(N)), split_features=True)
    asked = []
    for rows, window in ((15, 3), (N, 20)):
        found = check(replace(step, cache=ahead(rows, window)), strategy, workers, hosts)
        asked.append(total(found, HOSTS))
        assert (total(found, CACHE) > 0) == (strategy not in OWNERS_READ)
    assert (asked[1] < asked[0]) == (strategy not in OWNERS_READ)


@pytest.mark.parametrize("strategy", ["gdp", "dnp", "gsplit@workers+data@hosts"])
@pytest.mark.parametrize("topology", [False, True])
def test_with_edges_that_are_cut_or_not(store, strategy, topology) -> None:
    step = Step(
        store, "gcn", fanouts=(4, 3), parts=parts(4), seeds=tuple(range(N)), split_features=True,
        split_topology=topology, cache=ahead(20, 4),
    )  # fmt: skip
    assert total(check(step, strategy, 4, 2), CACHE) > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("workers", "hosts"), [(1, 1), (3, 1), (4, 2)])
def test_rows_that_are_read_from_files(store, strategy, workers, hosts) -> None:
    if hosts == 1:
        strategy = strategy.split("@")[0]
    step = FileStep(store, parts=parts(workers), seeds=tuple(range(N)))
    missed = []
    for rows, window in ((15, 4), (N, 20)):
        found = check(
            replace(step, cache=CacheSettings(memory=LISTS + rows * ROW, window=window)), strategy, workers, hosts
        )
        missed.append(sum(files for of_worker in found for *_, files in of_worker))
    assert missed[0] > missed[1] > 0


@pytest.mark.parametrize("strategy", ["gdp", "gsplit", "dnp@hosts+data@workers"])
def test_files_of_shards_and_below_caches(in_four, strategy) -> None:
    """Rows that others ask for are read from files, too; those that a cache holds are not."""
    memory = CacheSettings(memory=LISTS + 15 * ROW, window=4)
    step = FileStep(in_four, seeds=tuple(range(N)), cache=memory)
    check(replace(step, split_features=True), strategy, 4, 2)
    for layout in ("own", "partitioned"):
        cached = replace(memory, bytes=30 * 56, layout=layout)
        assert total(check(replace(step, cache=cached), strategy, 4, 2), CACHE) > 0
        check(replace(step, cache=cached, split_features=True), strategy, 4, 2)


@dataclass(frozen=True)
class TypedFileStep(TypedStep):
    """A step on a typed graph whose input rows are in files as well."""

    def rows(self, mesh: Mesh) -> TypedColumns:
        return typed_in_files(super().rows(mesh))


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> tuple[GraphStore, tuple[GraphStore, ...]]:
    """A typed graph, and its shards for two hosts, with some hot rows."""
    folder = tmp_path_factory.mktemp("typed")
    whole = typed_store(folder / "g", parts=2)
    hosts = [partita.shard(folder / "g", folder / f"{h}", host=h, hosts=2, hot_bytes=150).path for h in range(2)]
    return whole, tuple(map(GraphStore.open, hosts))


@pytest.mark.parametrize("strategy", ["data,data", "source,destination", "destination,data", "by-owner,data,data"])
def test_of_typed_graphs(typed, strategy) -> None:
    """Types share the room by the bytes of their rows."""
    whole, shards = typed
    settings = {"fanouts": (3, 2), "seeds": tuple(range(60))}
    cache = CacheSettings(9 * 60 + 700, "look-ahead", window=3)
    found = check(TypedStep(whole, "rgcn", shards=shards, cache=cache, **settings), strategy, 2, 2)
    assert (total(found, CACHE) > 0) == (strategy in ("data,data", "destination,data"))
    files = CacheSettings(memory=9 * 60 + 900, window=3)
    found = check(TypedFileStep(whole, "rgcn", cache=files, **settings), strategy, 2, 1)
    assert sum(missed for of_worker in found for *_, missed in of_worker) > 0


def test_what_other_workers_have_must_be_known(store) -> None:
    step = Step(store, parts=parts(2), split_features=True, cache=ahead(10, 2))
    with pytest.raises(ConfigError, match="Plan with the whole store"):
        estimated(step, "gdp", 2, 2, known=False)
