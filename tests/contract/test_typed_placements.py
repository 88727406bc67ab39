"""Typed graphs: every list of placements, layer and number of workers against one process."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from estimating import check as check_estimate
from steps import difference, distributed, reference
from typed_graphs import WIDTHS, TypedStep, typed_store

from partita.core.errors import ConfigError
from partita.core.records import TIERS
from partita.features.tiers import CACHE_LAYOUTS, CacheSettings
from partita.graph.store import GraphStore
from partita.nn.layers import LAYERS
from partita.parallel.caching import needs_dry_run
from partita.parallel.placements.kinds import PLACEMENTS

KINDS = [
    *(name for name in LAYERS if LAYERS.find(name).reads_relations),
    "rgcn+bases", "hetero-sage+aggregator", "sage", "gat", "gin", "gatv2", "graphconv+edge_weights",
]  # fmt: skip
ABLE = [name for name in PLACEMENTS if not PLACEMENTS.find(name).first_layer_only]
PAIRS = [",".join(pair) for pair in product(ABLE, repeat=2)]
STRATEGIES = [*PAIRS, *(f"by-owner,{pair}" for pair in PAIRS)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, GraphStore]:
    folder = tmp_path_factory.mktemp("typed")
    return {parts: typed_store(folder / f"g{parts}", parts=parts) for parts in (1, 2, 3)}


def step_of(store: GraphStore, kind: str, **changes: object) -> TypedStep:
    return TypedStep(store, kind, **{"fanouts": (3, 2), "seeds": tuple(range(0, 60, 4)), **changes})


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_are_those_of_one_process_and_bytes_are_those_that_are_said(stores, strategy, workers) -> None:
    for number, kind in enumerate(KINDS):
        step = step_of(stores[workers], kind, dropout=0.3, input_dropout=0.2 * (number % 2))
        found = distributed(step, strategy, workers, seed_split="even")
        assert difference(found, reference(step)) < 1e-9, kind
        assert {each: found.sent[each] for each in found.traffic.to_json()} == found.traffic.to_json(), kind


LEARNT = [
    {"learnt": (0, 0, 4)},  # in place of the features of a type
    {"learnt": (6, 4, 9)},  # beside features, and as wide as the hidden layers, so that there is no map
    {"learnt": (9, 0, 5), "without": (0,)},
]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_of_learnt_rows_are_those_of_one_process(stores, strategy, workers) -> None:
    """Of every row; those of the parameters with them, and bytes are those that are said and estimated."""
    for number, (kind, learnt) in enumerate(zip(["rgcn", "hgt", "rgat", "sage"], [*LEARNT, LEARNT[1]])):
        changes = {"dropout": 0.3, "input_dropout": 0.2 * (number % 2), **learnt}
        step = step_of(stores[workers], kind, **changes)
        found, wanted = distributed(step, strategy, workers, seed_split="even"), reference(step)
        assert any(name.startswith("learnt/") and wanted.gradients[name].any() for name in wanted.gradients)
        assert difference(found, wanted) < 1e-9, (kind, learnt)
        assert {each: found.sent[each] for each in found.traffic.to_json()} == found.traffic.to_json(), kind
        check_estimate(step, strategy, workers)


@pytest.mark.parametrize("learnt", LEARNT)
def test_learnt_rows_are_dealt_out_equally_where_parts_are_others(stores, learnt) -> None:
    step = step_of(stores[2], "rgcn", **learnt)
    found = distributed(step, "data,data", 3, seed_split="even")
    assert difference(found, reference(step)) < 1e-9
    assert {each: found.sent[each] for each in found.traffic.to_json()} == found.traffic.to_json()


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("strategy", [each for each in STRATEGIES if "source" not in each])
def test_convolutions_of_pyg_for_every_relation_are_computed_where_whole_blocks_are(stores, strategy, workers) -> None:
    pytest.importorskip("torch_geometric")
    for kind in ("pyg:SAGEConv", "pyg:GATConv", "pyg:GATv2Conv+edge_dim"):
        step = step_of(stores[workers], kind, dropout=0.3)
        found = distributed(step, strategy, workers, seed_split="even")
        assert difference(found, reference(step)) < 1e-9, kind
        assert {each: found.sent[each] for each in found.traffic.to_json()} == found.traffic.to_json(), kind
        check_estimate(step_of(stores[workers], kind), strategy, workers)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_what_is_estimated_is_what_is_counted(stores, strategy, workers) -> None:
    for number, kind in enumerate(KINDS):
        check_estimate(step_of(stores[workers], kind, split_topology=number % 2 == 0), strategy, workers)


SAMPLERS = {
    "labor": {"labor": (5, False)},
    "labor, weighted": {"labor": (1, True), "weighted": True},
    "layer": {"budgets": (30, (12, 9, 0, 5, 7))},
    "layer, all edges": {"budgets": (10**4, 10**4)},
    "layer, weighted": {"budgets": ((12, 9, 4, 0, 7), 20), "weighted": True},
    "layer, weighted, with replacement": {"budgets": (40, 15), "weighted": True, "replace": True},
    "walk": {"metapath": (0, 0)},
    "walk, weighted": {"metapath": (0,), "weighted": True},
}
SOME = ["data,data", "destination,data", "source,destination", "by-owner,data,data", "by-owner,source,source"]


@pytest.mark.parametrize("strategy", SOME)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_other_samplers_are_placed_as_well(stores, sampler, workers, strategy) -> None:
    walks = "metapath" in SAMPLERS[sampler]
    kinds = [name for name in KINDS if name not in ("gatv2", "graphconv+edge_weights")]
    if walks:  # their neighbors need be no edges of the graph, so that they are of no relation
        kinds = ["sage", "gat", "gin"]
    for number, kind in enumerate(kinds):
        step = step_of(
            stores[workers], kind, dropout=0.3, input_dropout=0.2 * (number % 2),
            split_topology=(number + len(sampler)) % 2 == 0, **SAMPLERS[sampler],
        )  # fmt: skip
        found = distributed(step, strategy, workers, seed_split="even")
        assert difference(found, reference(replace(step, split_topology=False))) < 1e-9, kind
        assert {each: found.sent[each] for each in found.traffic.to_json()} == found.traffic.to_json(), kind
        if not (walks and step.split_topology):  # steps of walks are not known before they are taken
            check_estimate(step, strategy, workers)


@pytest.mark.parametrize("strategy", SOME)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("sampler", ["node", *SAMPLERS])
def test_edges_that_carry_no_messages_are_as_if_they_were_not_there(stores, sampler, workers, strategy) -> None:
    kinds = ["sage", "gat"] if sampler.startswith("walk") else ["rgcn", "hgt", "hetero-sage+aggregator", "gin"]
    for number, kind in enumerate(kinds):
        step = step_of(
            stores[workers], kind, split_topology=number % 2 == 0, lost=3 + number, **SAMPLERS.get(sampler, {})
        )  # fmt: skip
        found = distributed(step, strategy, workers, seed_split="even")
        whole = replace(step, split_topology=False)
        assert difference(found, reference(whole)) < 1e-9, kind
        assert difference(found, reference(replace(whole, lost=0))) > 1e-6, kind


CACHES = [
    CacheSettings(size, policy, layout)
    for (size, policy), layout in product(
        [(150, "in-degree"), (350, "presample"), (350, "strategy"), (600, "pagerank"), (10**6, "in-degree")],
        CACHE_LAYOUTS,
    )
]


@pytest.mark.parametrize("strategy", ["data,data", "destination,data", "source,destination", "by-owner,data,data"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_caches_change_no_gradient_and_bytes_are_those_that_are_said(stores, strategy, workers) -> None:
    for number, cache in enumerate(CACHES):
        step = step_of(stores[workers], ("rgcn", "hgt")[number % 2], cache=cache, input_dropout=0.2 * (number % 2))
        found = distributed(step, strategy, workers, seed_split="even")
        assert difference(found, reference(step)) < 1e-9, cache
        assert {each: found.sent[each] for each in found.traffic.to_json()} == found.traffic.to_json(), cache
        assert sum(counts.rows_from[TIERS.index("cache")] for counts in found.counts) > 0, cache
        held = [cache for cache in found.engine.inputs.caches if cache is not None]
        assert len(held) == 2  # one type has no features
        assert sum(each.num_bytes for each in held) <= cache.bytes


@pytest.mark.parametrize("strategy", ["data,data", "destination,data", "source,destination", "by-owner,data,data"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_what_caches_will_give_is_estimated(stores, strategy, workers) -> None:
    for cache in CACHES:
        if not needs_dry_run(cache):
            check_estimate(step_of(stores[workers], "rgcn", cache=cache), strategy, workers)


def test_a_cache_takes_the_rows_that_are_read_most_whatever_their_type(stores) -> None:
    """Rows of papers have five columns, those of authors three: one worker's choice against one by hand."""
    store = stores[1]
    degrees, types = store.in_degree(), store.types(np.arange(60))
    for room in range(24, 800, 37):
        step = step_of(store, "rgcn", cache=CacheSettings(room + 24, "in-degree"))
        engine = distributed(step, "data,data", 1).engine
        left, wanted = room, [set(), set()]
        for node in sorted(range(60), key=lambda node: (-degrees[node], types[node], node)):
            kind = types[node]
            if kind < 2 and degrees[node] and 8 * WIDTHS[kind] <= left:
                left -= 8 * WIDTHS[kind]
                wanted[kind].add(node)
        for kind in range(2):
            ids, rows = store.node_types.all_ids(kind), engine.inputs.caches[kind]._positions
            held = set() if rows is None else set(ids[rows.contains(torch.arange(len(ids))).numpy()].tolist())
            assert held == wanted[kind], room


def test_a_cache_without_room_for_the_narrowest_row_is_refused(stores) -> None:
    with pytest.raises(ConfigError, match=r"no room for a row.* takes 24, and a row 24"):
        distributed(step_of(stores[1], "rgcn", cache=CacheSettings(47)), "data,data", 1)


@pytest.mark.parametrize("kind", ["rgcn", "hgt"])
def test_a_topology_in_parts_draws_the_same(stores, kind) -> None:
    step = step_of(stores[3], kind, split_topology=True)
    found = distributed(step, "source,destination", 3, seed_split="owner")
    assert difference(found, reference(step_of(stores[3], kind))) < 1e-9
    assert {each: found.sent[each] for each in found.traffic.to_json()} == found.traffic.to_json()


@pytest.mark.parametrize("kind", KINDS)
def test_types_that_a_batch_does_not_reach_have_gradients_of_zero(stores, kind) -> None:
    """Papers and the papers that they cite: no other type is reached, on no worker."""
    seeds = stores[2].to_original(stores[2].nodes_of("paper"))[:9]
    step = step_of(stores[2], kind, fanouts=((2, 0, 0, 0, 0), (3, 0, 0, 0, 0)), seeds=tuple(seeds.tolist()))
    found, wanted = distributed(step, "source,destination", 2, seed_split="even"), reference(step)
    assert found.gradients.keys() == wanted.gradients.keys()
    assert not any(found.gradients[f"encoder.lins.{kind}.weight"].any() for kind in (1, 2))
    assert found.gradients["encoder.lins.0.weight"].any()
    for batch_grads in (found.gradients, wanted.gradients):
        assert all(gradient.isfinite().all() for gradient in batch_grads.values())


def test_what_cannot_be_placed_is_refused(stores) -> None:
    with pytest.raises(ConfigError, match="other ones of"):
        distributed(step_of(stores[2], "rgcn"), "feature,data", 2)
    with pytest.raises(ConfigError, match=r"layer 2 \(pyg:SAGEConv\).*parts of its edges"):
        distributed(step_of(stores[2], "pyg:SAGEConv"), "data,source", 2)
    with pytest.raises(ConfigError, match="sampled by relation"):
        distributed(step_of(stores[2], "gcn"), "data,data", 2)
