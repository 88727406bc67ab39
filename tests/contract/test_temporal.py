"""Seeds with times: every list of placements, on any number of workers, is what graphs that end at each time give."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from estimating import check as check_estimate
from steps import difference, distributed
from temporal_steps import TemporalStep, TypedTemporalStep, reference_at_times
from typed_graphs import typed_store

from partita.graph.store import GraphStore
from partita.nn.layers import LAYERS
from partita.parallel.placements.kinds import PLACEMENTS
from partita.testing.graphs import formula_store

PARTS = {1: (0, 60), 2: (0, 25, 60), 3: (0, 20, 20, 60)}
SECOND = [name for name in PLACEMENTS if not PLACEMENTS.find(name).first_layer_only]
PAIRS = [",".join(pair) for pair in product(PLACEMENTS, SECOND)]
TYPED_PAIRS = [",".join(pair) for pair in product(SECOND, repeat=2)]
BY_OWNER = [f"by-owner,{pair}" for pair in TYPED_PAIRS]
TYPED_KINDS = [
    *(name for name in LAYERS if LAYERS.find(name).reads_relations), "sage", "gat", "gatv2", "graphconv+edge_weights"
]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return formula_store(
        tmp_path_factory.mktemp("temporal") / "g", num_nodes=60, num_features=7, shuffle_seed=3, weighted=True
    )


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, GraphStore]:
    folder = tmp_path_factory.mktemp("temporal")
    return {parts: typed_store(folder / f"g{parts}", parts=parts) for parts in (1, 2, 3)}


def check(step: TemporalStep, strategy: str, workers: int) -> None:
    found, wanted = distributed(step, strategy, workers, seed_split="even"), reference_at_times(step)
    assert difference(found, wanted) < 1e-9
    assert sum(each.sampled_edges for each in found.counts) > 0
    check_estimate(step, strategy, workers)
    assert {kind: found.sent[kind] for kind in found.traffic.to_json()} == found.traffic.to_json()


SAMPLING = [{}, {"last": True, "fanouts": (2, 2)}, {"weighted": True}, {"fanouts": (-1, 2), "replace": True}]


@pytest.mark.parametrize("strategy", [*PAIRS, *BY_OWNER])
@pytest.mark.parametrize("workers", PARTS)
def test_gradients_are_those_of_graphs_that_end_at_each_time(store, strategy, workers) -> None:
    for number, kind in enumerate(("sage", "gat", "gin", "graphconv-weighted", "sage-max")):
        step = TemporalStep(
            store, kind, parts=PARTS[workers], dropout=0.3, split_topology=number % 2 == 0,
            **{"fanouts": (3, 2), **SAMPLING[number % 4]},
        )  # fmt: skip
        check(step, strategy, workers)


@pytest.mark.parametrize("strategy", ["data,data", "source,destination", "by-owner,destination,source"])
def test_some_strategies(store, typed, strategy) -> None:
    """Of the two tests of all of them, which take longer."""
    check(TemporalStep(store, "gat", fanouts=(3, 2), parts=PARTS[2], split_topology=True), strategy, 2)
    check(TypedTemporalStep(typed[2], "rgcn", fanouts=(2, 2), last=True), strategy, 2)


def test_time_makes_a_difference(store) -> None:
    step = TemporalStep(store, fanouts=(3, 2), parts=PARTS[2])
    at_times = reference_at_times(step)
    assert difference(reference_at_times(replace(step, seeds=tuple(range(1, 60, 4)))), at_times) > 1e-6
    assert difference(reference_at_times(replace(step, last=True)), at_times) > 1e-6


@pytest.mark.parametrize("strategy", [*TYPED_PAIRS, *BY_OWNER])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_typed_graphs(typed, strategy, workers) -> None:
    for number, kind in enumerate(TYPED_KINDS):
        step = TypedTemporalStep(
            typed[workers], kind, dropout=0.3, split_topology=number % 2 == 0,
            **{"fanouts": (3, 2), **SAMPLING[number % 3]},
        )  # fmt: skip
        check(step, strategy, workers)


@pytest.mark.parametrize("strategy", ["data,data", "destination,data", "source,destination", "by-owner,source,source"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_learnt_rows(typed, strategy, workers) -> None:
    for kind, learnt in (("rgcn", (0, 0, 4)), ("sage", (6, 4, 9))):
        check(TypedTemporalStep(typed[workers], kind, fanouts=(3, 2), learnt=learnt), strategy, workers)


WINDOWS = (4, -1, 0, 9, 100)


@pytest.mark.parametrize("strategy", ["data,data", "destination,data", "source,destination", "by-owner,source,source"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_edges_that_are_too_old(store, typed, strategy, workers) -> None:
    for sampling in SAMPLING[:3]:
        plain = TemporalStep(
            store, windows=(6,), parts=PARTS[workers], split_topology=True, **{"fanouts": (3, 2), **sampling}
        )
        check(plain, strategy, workers)
        step = TypedTemporalStep(typed[workers], "rgcn", windows=WINDOWS, **{"fanouts": (3, 2), **sampling})
        check(step, strategy, workers)
        assert difference(reference_at_times(step), reference_at_times(replace(step, windows=None))) > 1e-6


DATED = ("paper", "place")


@pytest.mark.parametrize("strategy", [*TYPED_PAIRS, *BY_OWNER])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_ages_of_rows(typed, strategy, workers) -> None:
    for number, kind in enumerate(TYPED_KINDS):
        step = TypedTemporalStep(
            typed[workers], kind, dated=DATED, dropout=0.3, split_topology=number % 2 == 0,
            learnt=(6, 4, 9) if number % 3 == 1 else (), **{"fanouts": (3, 2), **SAMPLING[number % 3]},
        )  # fmt: skip
        check(step, strategy, workers)


@pytest.mark.parametrize("strategy", ["data,data", "source,destination", "by-owner,destination,source"])
def test_ages_of_rows_by_some_strategies(typed, strategy) -> None:
    """Of the test of all of them, which takes longer."""
    step = TypedTemporalStep(typed[2], "rgcn", fanouts=(2, 2), dated=DATED)
    check(step, strategy, 2)
    assert difference(reference_at_times(step), reference_at_times(replace(step, dated=DATED[:1]))) > 1e-6
