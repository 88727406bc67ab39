"""What one process foresees of a step is what every worker then counts in it: rows, edges and bytes, exactly.

Over every placement of the table at every layer, every way of reading input rows, topology and sampler.
"""

from __future__ import annotations

from itertools import product

import pytest
from estimating import N, check, foreseen, parts
from steps import Step

from partita.core.errors import ConfigError
from partita.parallel.placements.kinds import INPUT_PLACEMENTS, PLACEMENTS
from partita.parallel.strategies import parse_strategy
from partita.testing.graphs import small_random_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return small_random_store(tmp_path_factory.mktemp("graph") / "store", N, 1800)


def all_lists(layers: int) -> list[str]:
    """Every list of placements with every way of reading input rows that goes with it."""
    lists = []
    for inputs, *placements in product(INPUT_PLACEMENTS, *[PLACEMENTS] * layers):
        try:
            parse_strategy(",".join([inputs, *placements]), layers)
        except ConfigError:
            continue
        if not any(PLACEMENTS.find(name).first_layer_only for name in placements[1:]):
            lists.append(",".join([inputs, *placements]))
    return lists


@pytest.mark.parametrize("strategy", all_lists(2))
def test_of_every_list_of_placements(store, strategy):
    for kind, workers in (("sage", 3), ("gcn", 2), ("gat", 3), ("sage", 1)):
        check(Step(store, kind, fanouts=(4, 3), parts=parts(workers)), strategy, workers)


@pytest.mark.parametrize("strategy", all_lists(2))
@pytest.mark.parametrize("axis", ["workers", "hosts"])
def test_along_an_axis_of_a_mesh(store, strategy, axis):
    other = "hosts" if axis == "workers" else "workers"
    for kind, workers in (("sage", 4), ("gat", 6)):
        step = Step(store, kind, fanouts=(4, 3), parts=parts(workers))
        check(step, f"{strategy}@{axis}+data@{other}", workers, hosts=2)


@pytest.mark.parametrize("strategy", ["gdp", "nfp", "snp", "dnp", "gsplit", "source,destination,data"])
@pytest.mark.parametrize("kind", ["sage-max", "gin"])
def test_of_other_layers(store, strategy, kind):
    check(Step(store, kind, parts=parts(3)), strategy, 3)


@pytest.mark.parametrize("strategy", ["gdp", "dnp", "gsplit"])
def test_of_a_convolution_of_others(store, strategy):
    """Those that split a layer's sum are refused; see the tests of placements."""
    check(Step(store, "pyg-sage", parts=parts(3)), strategy, 3)


@pytest.mark.parametrize("strategy", ["gdp", "nfp", "snp", "dnp", "gsplit", "by-owner,source,destination,data"])
@pytest.mark.parametrize(
    "options", [{"split_topology": True}, {"budgets": (60, 40, 20)}, {"weighted": True}, {"labor": (5, True)}]
)
def test_of_partitioned_topologies_and_other_samplers(tmp_path, strategy, options):
    store = small_random_store(tmp_path / "store", N, 1800, weighted=True)
    for more in ({}, {"split_topology": True}):
        for workers, hosts in ((3, 1), (4, 2)):
            check(Step(store, parts=parts(workers), **{**options, **more}), strategy, workers, hosts)


def test_of_rows_that_are_not_summed_by_id(store):
    for strategy in ("gdp", "snp", "dnp"):
        check(Step(store, input_dropout=0.3, parts=parts(3)), strategy, 3)


def test_of_64_workers(store):
    step = Step(store, parts=tuple(range(0, N, 4)) + (N,) * 5, seeds=tuple(range(N)))
    for strategy in ("gdp", "gsplit", "source,source,source", "nfp"):
        found = foreseen(step, strategy, 64, 4)
        assert len(found) == 64
        assert sum(counts.computed_destinations[-1] for counts, *_ in found) == N
