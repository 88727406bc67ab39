"""Candidates that are sampled: which they are, by definition, and ranks among them by brute force."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from link_queries import WIDTH, cases
from link_stores import edges_of, in_store, typed_stores, untyped_stores
from scipy import stats

import partita
from partita.cli.main import main
from partita.core.errors import ConfigError
from partita.graph.split_links import split_links
from partita.graph.store import GraphStore
from partita.infer.candidates import count_among, sampled
from partita.infer.known_answers import LinkQueries, known_answers
from partita.nn.decoders import build_decoder
from partita.report.page import write_report
from partita.tasks.links.metrics import realistic_ranks
from partita.testing.graphs import small_random_store

SIDES = pytest.mark.parametrize("side", ["tail", "head"])


@pytest.fixture(scope="module", params=["untyped", "typed"])
def stores(request, tmp_path_factory) -> list[GraphStore]:
    folder = tmp_path_factory.mktemp("stores")
    return (typed_stores if request.param == "typed" else untyped_stores)(folder)


def drawn(store: GraphStore, side, number: int, limit: int = 1 << 20):
    """Every seventh edge as a query, and its candidates, all in original ids."""
    links = in_store(store, edges_of(store)[::7])
    queries = LinkQueries.of(store, links, side)
    found: list[list[int]] = [[] for _ in range(len(queries))]
    for places, nodes in sampled(store, queries, known_answers(store, queries), number, limit):
        for place, node in zip(places.tolist(), store.to_original(nodes).tolist(), strict=True):
            found[place].append(node)
    return queries, found


def possible(store: GraphStore, queries: LinkQueries) -> list[set[int]]:
    """Nodes of the type of each answer that make no known link, in original ids."""
    edges = [tuple(edge) for edge in edges_of(store).tolist()]
    original = store.to_original(np.arange(store.num_nodes))
    types = np.zeros(store.num_nodes, int) if store.schema is None else store.types(np.arange(store.num_nodes))
    found = []
    for at in range(len(queries)):
        one, true = int(original[queries.given[at]]), int(original[queries.true[at]])
        kind = () if store.schema is None else (int(queries.relations[at]),)
        same = original[types == queries.types[at]].tolist()
        ends = [((one, node) if queries.side == "tail" else (node, one), node) for node in same]
        found.append({node for pair, node in ends if (*pair, *kind) not in edges and node != true})
    return found


@SIDES
def test_candidates_are_of_the_type_and_make_no_known_link(stores, side) -> None:
    """Different ones, as many as asked for, or all; the same ones for every partition and size of pieces."""
    first = None
    for store in stores:
        for number in (1, 5, 1000):
            queries, found = drawn(store, side, number)
            for mine, able in zip(found, possible(store, queries), strict=True):
                assert len(mine) == len(set(mine)) == min(number, len(able))
                assert set(mine) <= able
        assert drawn(store, side, 5, limit=1)[1] == drawn(store, side, 5)[1]
        first = first or drawn(store, side, 5)[1]
        assert drawn(store, side, 5)[1] == first


def test_sides_and_links_have_candidates_of_their_own(stores) -> None:
    tails, heads = (drawn(stores[0], side, 4)[1] for side in ("tail", "head"))
    assert len(set(map(tuple, tails))) > len(tails) / 2
    assert tails != heads


def test_all_nodes_are_alike_likely(tmp_path) -> None:
    store = small_random_store(tmp_path / "g", 40, 3000)
    links = torch.cartesian_prod(torch.arange(40), torch.arange(40))
    queries = LinkQueries.of(store, links, "tail")
    nothing = replace(known_answers(store, queries), pairs=np.empty(0, np.int64))
    counts = Counter[int]()
    for _, nodes in sampled(store, queries, nothing, 6, 1 << 20):
        counts.update(nodes.tolist())
    assert stats.chisquare([counts[node] for node in range(40)]).pvalue > 0.01


@settings(max_examples=80)
@given(cases(), st.sampled_from(["distmult", "dot", "rotate", "mlp", "reciprocal distmult"]), st.integers(0, 2**32))
def test_ranks_by_brute_force(case, name, seed) -> None:
    """Of one range of nodes, and of several that add up; scores that are no number count as higher."""
    _, rows, queries, _, cuts, limit = case
    generator = np.random.default_rng(seed)
    decoder = build_decoder(name.split()[-1], WIDTH, 3, reciprocal="reciprocal" in name)
    decoder.reset(5)
    rows = rows.clone()
    rows[generator.random(len(rows)) < 0.1] = torch.nan
    pairs = [(q, int(node)) for q in range(len(queries)) for node in generator.choice(len(rows), 3)]
    relations = torch.from_numpy(queries.relations)

    def scored(places, nodes) -> torch.Tensor:
        ends = rows[queries.given[places]], rows[nodes]
        with torch.no_grad():
            ends = ends if queries.side == "tail" else ends[::-1]
            return decoder.toward(queries.side, *ends, relations[places])

    true = scored(np.arange(len(queries)), queries.true)
    higher, equal = Counter[int](), Counter[int]()
    for place, node in pairs:
        one, other = float(true[place]), float(scored(np.array([place]), np.array([node]))[0])
        same = abs(one - other) <= 1e-5 * abs(one) + 1e-6
        equal[place] += same
        higher[place] += not same and not other < one
    places, nodes = np.array(pairs, np.int64).reshape(-1, 2).T
    cut = len(places) // 2
    counts = sum(
        count_among(
            decoder, queries, rows[queries.given], true, rows[low:high], low,
            iter([(places[:cut], nodes[:cut]), (places[cut:], nodes[cut:])]), memory_limit=limit,
        )
        for low, high in itertools.pairwise(cuts)
    )  # fmt: skip
    assert realistic_ranks(*counts).tolist() == [1 + higher[q] + equal[q] / 2 for q in range(len(queries))]


def test_a_run_says_among_what_it_ranks(tmp_path) -> None:
    split_links(small_random_store(tmp_path / "whole", 120, 700), tmp_path / "g", val=0.1, test=0.2)
    settings = {"task": "links", "epochs": 1, "layers": 1, "hidden": 6, "fanout": 4, "batch_size": 64, "threads": 1}
    run = partita.Trainer(tmp_path / "g", out=tmp_path / "run", eval_negatives=20, **settings).fit(progress=False)
    found = partita.evaluate(tmp_path / "run")
    assert found["candidates"] == 20
    assert {name: found[name] for name in run.metrics["test"]} == pytest.approx(run.metrics["test"])
    every = partita.evaluate(tmp_path / "run", eval_negatives=0)
    assert every["candidates"] == "all"
    assert every["mrr"] < found["mrr"]
    assert every["auc"] == found["auc"]
    whole = partita.evaluate(tmp_path / "run", eval_negatives=119)
    assert whole["candidates"] == 119
    assert {**whole, "candidates": 0} == pytest.approx({**every, "candidates": 0})
    page = write_report([tmp_path / "run"], tmp_path / "report.html")
    assert "among 20 sampled nodes of their type" in page.read_text()
    with pytest.raises(ConfigError, match="eval_negatives = -1"):
        partita.evaluate(tmp_path / "run", eval_negatives=-1)


def test_the_command(tmp_path, capsys) -> None:
    store = split_links(small_random_store(tmp_path / "whole", 60, 300), tmp_path / "g", val=0.1, test=0.2)
    settings = {"task": "links", "model": "none", "hidden": 4, "epochs": 1, "threads": 1}
    partita.Trainer(store, out=tmp_path / "run", **settings).fit(progress=False)
    for words, wanted in (([], "all"), (["--eval-negatives", "7"], 7)):
        with pytest.raises(SystemExit):
            main(["evaluate", str(tmp_path / "run"), *words, "--json"])
        assert json.loads(capsys.readouterr().out)["candidates"] == wanted


def test_other_tasks_have_no_negatives(tmp_path) -> None:
    store = small_random_store(tmp_path / "g", 60, 200, num_classes=3)
    partita.Trainer(store, out=tmp_path / "run", layers=1, epochs=1).fit(progress=False)
    with pytest.raises(ConfigError, match="only links have negatives"):
        partita.evaluate(tmp_path / "run", eval_negatives=0)
