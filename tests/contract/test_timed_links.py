"""Links in time: every list of placements, on any number of workers, is what graphs that end at each time give."""

from __future__ import annotations

from itertools import product

import pytest
from steps import difference, distributed
from timed_links import TimedLinkStep, TypedTimedLinkStep, reference_at_times, timed_store, typed_timed_store

from partita.graph.store import GraphStore
from partita.parallel.placements.kinds import PLACEMENTS

PARTS = {1: (0, 60), 2: (0, 25, 60), 3: (0, 20, 20, 60)}
ABLE = [name for name in PLACEMENTS if not PLACEMENTS.find(name).first_layer_only]
PAIRS = [",".join(pair) for pair in product(ABLE, repeat=2)]
BY_OWNER = [f"by-owner,{pair}" for pair in PAIRS]
CASES = [
    {"decoder": "dot", "negative_sampler": "uniform"},
    {"decoder": "distmult", "negative_sampler": "degree", "corrupt": "both", "loss": "softmax"},
    {"decoder": "distmult", "negative_sampler": "uniform", "corrupt": "head", "loss": "margin"},
    {"decoder": "dot", "negative_sampler": "degree", "loss": "bpr"},
]
SAMPLING = [{"fanouts": (3, 2)}, {"last": True, "fanouts": (2, 2)}, {"fanouts": (-1, 2), "replace": True}]
ROUNDING = 1e-4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return timed_store(tmp_path_factory.mktemp("links") / "g", parts=2)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, GraphStore]:
    folder = tmp_path_factory.mktemp("links")
    return {parts: typed_timed_store(folder / f"g{parts}", parts) for parts in (1, 2, 3)}


def check(step, strategy: str, workers: int, seed_split: str = "owner") -> None:
    found, wanted = distributed(step, strategy, workers, seed_split=seed_split), reference_at_times(step)
    assert len(step.key().times) > 3
    assert sum(each.sampled_edges for each in found.counts) > 0
    assert difference(found, wanted, least=ROUNDING) < 1e-9


@pytest.mark.parametrize("strategy", [*PAIRS, *BY_OWNER])
@pytest.mark.parametrize("workers", PARTS)
def test_gradients_are_those_of_graphs_that_end_at_each_time(store, strategy, workers) -> None:
    for number, (kind, settings) in enumerate(zip(("sage", "gat", "gin", "sage-max"), CASES, strict=True)):
        step = TimedLinkStep(
            store, kind, parts=PARTS[workers], dropout=0.3, split_topology=number % 2 == 0,
            settings=tuple(settings.items()), **SAMPLING[number % 3],
        )  # fmt: skip
        check(step, strategy, workers, "even" if number % 2 else "owner")


@pytest.mark.parametrize("strategy", [*PAIRS, *BY_OWNER])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_typed_graphs(typed, strategy, workers) -> None:
    for number, (kind, settings) in enumerate(zip(("rgcn", "sage", "hetero-sage", "hgt"), CASES, strict=True)):
        step = TypedTimedLinkStep(
            typed[workers], kind, dropout=0.3, split_topology=number % 2 == 0, settings=tuple(settings.items()),
            learnt=(0, 0, 4) if number % 2 else (6, 4, 9), **SAMPLING[number % 3],
        )  # fmt: skip
        check(step, strategy, workers, "even" if number % 2 else "owner")


@pytest.mark.parametrize("strategy", ["data,data", "by-owner,destination,source"])
def test_some_strategies(store, typed, strategy) -> None:
    """Of the two tests of all of them, which take longer."""
    check(TimedLinkStep(store, fanouts=(3, 2), parts=PARTS[2], split_topology=True), strategy, 2)
    check(TypedTimedLinkStep(typed[2], "rgcn", fanouts=(2, 2), last=True), strategy, 2)
