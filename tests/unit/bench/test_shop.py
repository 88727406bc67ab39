"""The benchmark of a generated shop: what it reads, what its columns may know, and what its sampler draws."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from partita.sources.shop.generate import generate_shop
from partita.sources.shop.tables import TABLES

BENCH = Path(__file__).parents[3] / "bench"
SMALL = {"num_customers": 60, "num_products": 20, "days": 180}


@pytest.fixture(scope="module")
def bench():
    """The modules, which are in no package."""
    sys.path.insert(0, str(BENCH))
    try:
        import shop_data
        import shop_flat
        import shop_items
        import shop_items_peer
        import shop_peer
    finally:
        sys.path.remove(str(BENCH))
    return SimpleNamespace(data=shop_data, flat=shop_flat, items=shop_items, items_peer=shop_items_peer, peer=shop_peer)


@pytest.fixture(scope="module")
def tables(bench, tmp_path_factory):
    return bench.data.read(generate_shop(tmp_path_factory.mktemp("shop") / "shop.db", **SMALL).path)


@pytest.fixture(scope="module")
def questions(bench, tables):
    return bench.data.Questions.of(tables["churn"])


@pytest.fixture(scope="module")
def graph(bench, tables, questions):
    return bench.peer.Graph(tables, questions)


@pytest.mark.parametrize("name", ["shop.duckdb", "shop"])
def test_all_databases_are_read_alike(bench, tables, tmp_path, name):
    if name == "shop.duckdb":
        pytest.importorskip("duckdb")
    found = bench.data.read(generate_shop(tmp_path / name, **SMALL).path)
    for table, columns in tables.items():
        for column, values in columns.items():
            assert found[table][column].dtype.kind == values.dtype.kind, (table, column)
            np.testing.assert_array_equal(found[table][column], values)


def test_flat_columns_know_nothing_of_the_future(bench, tables, questions):
    first = questions.asked == questions.asked.min()
    cut = {name: dict(columns) for name, columns in tables.items()}
    for name in ("purchases", "reviews"):
        known = tables[name][TABLES[name].time] <= questions.asked.min()
        cut[name] = {column: values[known] for column, values in tables[name].items()}
    for columns in (bench.flat.flat_columns, bench.flat.neighbors_columns):
        whole, of_cut = columns(tables, questions), columns(cut, questions)
        for name, values in whole.items():
            np.testing.assert_allclose(values[first], of_cut[name][first], err_msg=name)


def test_flat_columns_count_what_was_bought(bench, tables, questions):
    found, sold = bench.flat.flat_columns(tables, questions), tables["purchases"]
    for row in range(0, len(questions.asked), 7):
        mine = sold["bought_at"][sold["customer_id"] == questions.customer[row]]
        days = (questions.asked[row] - mine[mine <= questions.asked[row]]) / 86_400
        assert found["days since purchase 1 before"][row] == days.min()
        for window in (7, 30, 90):
            assert found[f"purchases in {window} days"][row] == (days < window).sum()


def test_the_area_under_the_curve(bench):
    scores, labels = np.array([0.1, 0.5, 0.5, 0.9, 0.2]), np.array([0, 1, 0, 1, 0])
    assert bench.flat.area(scores, labels) == pytest.approx((2.5 + 3) / 6)


def test_mean_precision(bench):
    scores = -np.arange(12.0)[None].repeat(2, 0)
    wanted = np.zeros((2, 12), bool)
    wanted[0, [0, 2, 11]] = True
    wanted[1, 3] = True
    assert bench.items.mean_precision(scores, wanted) == pytest.approx(((1 + 2 / 3) / 3 + 1 / 4) / 2)


def test_neighbors_are_distinct_of_the_past_and_as_many_as_there_are(bench, graph, questions):
    rows, fanout = np.arange(0, len(questions.asked), 3), 3
    asked = questions.asked[rows]
    batch = bench.peer.sample(graph, {"churn": rows}, asked, [fanout] * 4, np.random.default_rng(0))
    for name, nodes in batch.nodes.items():
        assert len(np.unique(np.stack([batch.seeds[name], nodes]), axis=1).T) == len(nodes)  # once in a subgraph
        if name != "churn":
            assert (graph.times[name][nodes] <= asked[batch.seeds[name]]).all()
    for hop, edges in enumerate(batch.edges):
        for number, (src, dst) in edges.items():
            relation = graph.relations[number]
            sources, targets = batch.nodes[relation.source], batch.nodes[relation.target]
            assert (batch.seeds[relation.source][src] == batch.seeds[relation.target][dst]).all()
            begin = 0 if hop == 0 else batch.reached[relation.target][hop - 1]
            end = batch.reached[relation.target][hop]
            drawn = [set() for _ in range(end - begin)]
            for one, other in zip(src, dst):
                assert sources[one] not in drawn[other - begin]
                drawn[other - begin].add(sources[one])
            for at, chosen in zip(range(begin, end), drawn):
                edge = slice(*relation.begins[targets[at] : targets[at] + 2])
                all_of_it = relation.sources[edge]
                known = all_of_it[graph.times[relation.source][all_of_it] <= asked[batch.seeds[relation.target][at]]]
                assert chosen <= set(known)
                assert len(chosen) == min(fanout, len(known))


def test_the_last_neighbors(bench):
    rows, edges = bench.peer._draw(np.array([3, 10, 20]), np.array([9, 12, 20]), 4, None)
    assert sorted(zip(rows.tolist(), edges.tolist())) == [(0, 5), (0, 6), (0, 7), (0, 8), (1, 10), (1, 11)]


def test_every_neighbor_is_as_likely(bench):
    random, counts = np.random.default_rng(0), np.zeros(7)
    begins, ends = np.zeros(4000, np.int64), np.full(4000, 7)
    rows, edges = bench.peer._draw(begins, ends, 3, random)
    np.add.at(counts, edges, 1)
    assert (np.bincount(rows) == 3).all()
    assert abs(counts / 4000 - 3 / 7).max() < 0.04


def test_a_seed_has_the_same_score_whatever_else_is_in_the_batch(bench, graph, questions):
    torch.manual_seed(0)
    model = bench.peer.Peer(graph, 3, 8).eval()

    def scores(rows):
        asked = questions.asked[rows]
        every = bench.peer.sample(graph, {"churn": rows}, asked, [1000] * 3, np.random.default_rng(0))
        with torch.no_grad():
            return model(graph, every, asked)["churn"]

    rows = np.arange(0, len(questions.asked), 5)
    torch.testing.assert_close(torch.cat([scores(rows[at : at + 1]) for at in range(6)]), scores(rows)[:6])


def test_batches_of_links_are_of_one_time(bench):
    random = np.random.default_rng(0)
    questions, products, asked = np.arange(50) % 20, np.arange(50), np.arange(20) // 7
    batches = list(bench.items_peer.of_one_time((questions, products), asked, 8, random))
    assert all(len(set(asked[mine])) == 1 and len(mine) <= 8 for mine, _ in batches)
    assert sorted(each for _, items in batches for each in items.tolist()) == list(range(50))


def test_the_plain_model_learns_next_purchases(bench, tables):
    torch.manual_seed(0)
    found = bench.items_peer.trained_items(
        tables, fanouts=[8, 8, 4], last=True, width=8, epochs=2, batch_size=64, negatives=4, lr=0.01, embed_lr=0.02,
        seed=0, say=lambda _: None,
    )  # fmt: skip
    assert len(found["epoch_seconds"]) == len(found["links_per_second"]) == 2
    assert 0 < found["map_val"] <= 1
    assert 0 < found["map_test"] <= 1
