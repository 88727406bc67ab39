"""Filtered ranks by brute force: blocks, ranges of workers, ties, types and filters change nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from link_queries import WIDTH, as_known, cases
from typed_graphs import typed_store

from partita.core.node_types import NodeTypes
from partita.graph.store import GraphStore
from partita.infer import known_answers as known_module
from partita.infer.known_answers import LinkQueries, known_answers
from partita.infer.ranking import count_better, type_ranges
from partita.nn.decoders import build_decoder
from partita.tasks.links.metrics import realistic_ranks
from partita.testing.graphs import formula_store


def brute_ranks(decoder, queries, given_rows, true_scores, rows, types, known) -> list[float]:
    """One query and one candidate at a time, in Python's numbers."""
    kinds = types.of(np.arange(len(rows)))
    ranks = []
    for i in range(len(queries)):
        higher = equal = 0
        relation = torch.tensor([queries.relations[i]])
        for node in range(len(rows)):
            if kinds[node] != queries.types[i] or node == queries.true[i] or (i, node) in known:
                continue
            ends = (given_rows[i : i + 1], rows[node : node + 1].to(given_rows))
            score = float(decoder.toward(queries.side, *(ends if queries.side == "tail" else ends[::-1]), relation))
            true = float(true_scores[i])
            if abs(score - true) <= 1e-5 * abs(true) + 1e-6:
                equal += 1
            elif score > true:
                higher += 1
        ranks.append(1 + higher + equal / 2)
    return ranks


@settings(max_examples=120)
@given(cases(), st.sampled_from(["distmult", "dot", "rotate", "mlp", "reciprocal distmult"]), st.booleans())
def test_ranks_by_brute_force(case, name, filtered) -> None:
    """Of one range, and of several that add up."""
    types, rows, queries, known, cuts, limit = case
    decoder = build_decoder(name.split()[-1], WIDTH, 3, reciprocal="reciprocal" in name)
    decoder.reset(5)
    given_rows, relations = rows[queries.given], torch.from_numpy(queries.relations)
    true_rows = rows[queries.true]
    ends = (given_rows, true_rows) if queries.side == "tail" else (true_rows, given_rows)
    with torch.no_grad():
        true_scores = decoder.toward(queries.side, *ends, relations)
        wanted = brute_ranks(decoder, queries, given_rows, true_scores, rows, types, known if filtered else set())
    answers = as_known(known, len(queries), len(rows)) if filtered else None
    counts = sum(
        count_better(
            decoder, queries, given_rows, true_scores, rows[low:high], low, types, known=answers, memory_limit=limit
        )
        for low, high in itertools.pairwise(cuts)
    )
    assert realistic_ranks(*counts).tolist() == wanted


def test_ranges_of_a_type_are_those_of_a_worker() -> None:
    types = NodeTypes(np.array([0, 3, 5, 5, 9]), 2)  # two parts, of which the second has none of the first type
    assert type_ranges(types, 0, 0, 9) == [(0, 3)]
    assert type_ranges(types, 1, 0, 9) == [(3, 5), (5, 9)]
    assert type_ranges(types, 1, 4, 7) == [(4, 5), (5, 7)]
    assert type_ranges(types, 0, 3, 9) == []


def test_scores_that_are_no_numbers_rank_last() -> None:
    decoder = build_decoder("dot", 1)
    types = NodeTypes(np.array([0, 4]), 1)
    none = np.zeros(2, np.int64)
    queries = LinkQueries("tail", none, none, np.array([1, 2]), none)
    rows = torch.tensor([[1.0], [torch.nan], [2.0], [torch.nan]])
    true = torch.tensor([torch.nan, 2.0])
    counts = count_better(decoder, queries, torch.ones(2, 1), true, rows, 0, types)
    assert realistic_ranks(*counts).tolist() == [4.0, 3.0]


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> list[GraphStore]:
    folder = tmp_path_factory.mktemp("stores")
    typed = typed_store(folder / "typed")
    held = {"held_val": np.array([[3, 4], [3, 9], [3, 4]]), "held_test": np.array([[50, 3], [4, 3]])}
    untyped = formula_store(folder / "untyped")
    return [untyped.with_(held), typed]


@pytest.mark.parametrize("side", ["tail", "head"])
@pytest.mark.parametrize("chunk", [7, 1 << 22])
def test_known_answers_by_brute_force(monkeypatch, stores, side, chunk) -> None:
    monkeypatch.setattr(known_module, "_CHUNK", chunk)
    for store in stores:
        target = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
        kinds = np.zeros(len(target)) if store.edge_type is None else store.edge_type
        edges = {(int(a), int(b), int(r)) for a, b, r in zip(store.indices, target, kinds, strict=True)}
        for held_out in (True, False):
            every = set(edges)
            for split in store.held_out if held_out else ():
                every |= {(int(a), int(b), 0) for a, b in store.held_out_edges(split)[0].T}
            links = torch.tensor(sorted(every)[::4] + sorted(every)[:3] + [(0, 0, 0)])
            queries = LinkQueries.of(store, links if store.schema else links[:, :2], side)
            found = known_answers(store, queries, held_out=held_out)
            for low, high in ((0, store.num_nodes), (5, 6), (17, 40)):
                places, ids = found.within(np.arange(len(queries)), low, high)
                wanted = [
                    (q, node)
                    for q in range(len(queries))
                    for node in range(low, high)
                    if ((queries.given[q], node) if side == "tail" else (node, queries.given[q]))
                    + (queries.relations[q],)
                    in every
                ]
                assert list(zip(places.tolist(), ids.tolist(), strict=True)) == wanted
            some = np.array([4, 2, 4])
            places, ids = found.within(some, 0, store.num_nodes)
            for place, q in enumerate(some):
                alone = found.within(np.array([q]), 0, store.num_nodes)[1]
                assert ids[places == place].tolist() == alone.tolist()


def test_questions_that_are_the_same_are_kept_once(stores) -> None:
    queries = LinkQueries.of(stores[0], torch.tensor([[0, 1], [7, 8], [0, 5]]), "tail")
    whole = known_answers(stores[0], queries)
    assert whole.question[0] == whole.question[2] != whole.question[1]
    counts = [len(whole.within(np.array([q]), 0, whole.num_nodes)[0]) for q in range(3)]
    assert whole.counts().tolist() == counts
    found = whole.has(np.repeat(np.arange(3), whole.num_nodes), np.tile(np.arange(whole.num_nodes), 3))
    assert found.reshape(3, -1).sum(axis=1).tolist() == counts
    assert whole.has(*whole.within(np.arange(3), 0, whole.num_nodes)).all()
