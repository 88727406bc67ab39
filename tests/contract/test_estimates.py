"""What one process foresees of a step is what every worker then counts in it: rows, edges and bytes, exactly.

Over every placement of the table at every layer, every way of reading input rows, topology and sampler.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from estimating import N, check, check_links, foreseen, parts, sampled
from learnt_steps import LearntStep
from steps import Step
from temporal_steps import TemporalStep, TypedTemporalStep
from typed_graphs import typed_store

import partita
from partita.core.errors import ConfigError
from partita.features.tiers import NO_CACHE, CacheSettings
from partita.parallel.placements.kinds import INPUT_PLACEMENTS, PLACEMENTS
from partita.parallel.strategies import parse_strategy
from partita.testing.graphs import small_random_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return small_random_store(tmp_path_factory.mktemp("graph") / "store", N, 1800)


@pytest.fixture(scope="module")
def in_four(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts") / "four"
    partita.partition(store, folder, parts="2x2", algorithm="random")
    return partita.open(folder)


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    return typed_store(tmp_path_factory.mktemp("typed") / "store", parts=2)


SEEDS = tuple(range(0, 60, 4))


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


@pytest.mark.parametrize("strategy", all_lists(2))
def test_what_goes_from_one_host_to_another(store, strategy):
    """Of every message of a step, forward and backward, what the meters of all workers have counted by link."""
    for kind, axis in (("sage", ""), ("gat", ""), ("gcn", "@hosts+data@workers"), ("sage", "@workers+data@hosts")):
        step = Step(store, kind, fanouts=(4, 3), parts=parts(4))
        check_links(step, strategy + axis, 4, 2)


@pytest.mark.parametrize("strategy", ["gdp", "by-owner,data,data", "dnp@hosts+data@workers", "gsplit", "snp"])
@pytest.mark.parametrize(
    "cache", [NO_CACHE, CacheSettings(900, "in-degree"), CacheSettings(900, "in-degree", "partitioned")]
)
def test_what_goes_from_one_host_to_another_on_shards(in_four, strategy, cache):
    step = Step(in_four, fanouts=(4, 3), split_features=True, cache=cache)
    check_links(step, strategy, 4, 2)
    check_links(step, strategy.split("@")[0], 4, 4)


@pytest.mark.parametrize("strategy", ["gdp", "by-owner,data,data", "dnp@hosts+data@workers", "gsplit", "snp"])
def test_learnt_rows_that_go_from_one_host_to_another(store, strategy):
    step = LearntStep(store, fanouts=(4, 3), parts=parts(4))
    check(step, strategy, 4, 2)
    check_links(step, strategy, 4, 2)


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


@pytest.mark.parametrize("strategy", all_lists(2))
def test_of_seeds_with_times(store, typed, strategy):
    """On hosts, over split topologies and caches; the tests of steps with times do it of more layers."""
    near, far = CacheSettings(900, "in-degree"), CacheSettings(900, "in-degree", "partitioned")
    check(TemporalStep(store, fanouts=(4, 3), parts=parts(3)), strategy, 3)
    step = TemporalStep(store, "gat", fanouts=(3, 3), last=True, parts=parts(4), split_topology=True)
    check(step, strategy, 4, hosts=2)
    check(TemporalStep(store, fanouts=(4, 3), seeds=(7,)), strategy, 1)
    if "feature" not in strategy and "columns" not in strategy:
        step = TypedTemporalStep(typed, "rgcn", fanouts=(3, 2), dated=("paper", "place"), cache=far, seeds=SEEDS)
        check(step, strategy, 2)
        check(replace(step, windows=(4, -1, 0, 9, 100), split_topology=True, cache=near), strategy, 2)


@pytest.mark.parametrize("strategy", ["gdp", "snp", "gsplit", "nfp", "by-owner,source,destination"])
def test_of_seeds_with_times_by_some_strategies(store, typed, strategy):
    """Of the test of all of them, which takes longer."""
    check(TemporalStep(store, fanouts=(4, 3), parts=parts(3), split_topology=True), strategy, 3)
    if strategy != "nfp":
        check(TypedTemporalStep(typed, "rgcn", fanouts=(3, 2), dated=("paper",), seeds=SEEDS), strategy, 2)


def test_the_same_node_at_two_times_is_read_once(store):
    """Of a graph in which seeds reach the same nodes at other times."""
    step = TemporalStep(store, fanouts=(6, 6), parts=parts(2), seeds=tuple(range(120)))
    counts = [counts for counts, *_ in foreseen(step, "gdp", 2, 1)]
    nodes, places = sampled(step)[0].nodes
    assert len(places) > 2 * len(nodes)
    assert max(each.input_rows_read for each in counts) <= N < sum(each.computed_destinations[0] for each in counts)


def test_of_rows_that_are_not_summed_by_id(store):
    for strategy in ("gdp", "snp", "dnp"):
        check(Step(store, input_dropout=0.3, parts=parts(3)), strategy, 3)


def test_of_64_workers(store):
    step = Step(store, parts=tuple(range(0, N, 4)) + (N,) * 5, seeds=tuple(range(N)))
    for strategy in ("gdp", "gsplit", "source,source,source", "nfp"):
        found = foreseen(step, strategy, 64, 4)
        assert len(found) == 64
        assert sum(counts.computed_destinations[-1] for counts, *_ in found) == N
