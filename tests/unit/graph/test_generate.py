"""Generated graphs follow from parameters and seed only, and are what they say."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.core.errors import ConfigError
from partita.core.keys import fold
from partita.graph import generate, planted
from partita.graph.generate import generate_rmat, generate_sbm
from partita.graph.hashing import fold_array, normal, uniform
from partita.graph.splits import seeded_split
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.graph.writer import StoreWriter


@settings(deadline=None)
@given(key=st.integers(0, 2**64 - 1), values=st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_array_hash_equals_the_scalar_one(key, values):
    assert fold_array(key, np.array(values, dtype=np.int64)).tolist() == [fold(key, value) for value in values]


def test_draws_have_their_distributions():
    u, z = uniform(1, np.arange(100_000)), normal(1, np.arange(100_000))
    assert 0 <= u.min() < u.max() < 1
    assert abs(u.mean() - 0.5) < 0.005
    assert abs(z.mean()) < 0.015
    assert abs(z.std() - 1) < 0.01
    assert abs((np.abs(z) < 1.959964).mean() - 0.95) < 0.005


@pytest.mark.parametrize("scale", [1, 2, 5, 10, 17])
def test_scrambling_is_a_permutation(scale):
    scrambled = generate._scramble(99, np.arange(1 << scale), scale)
    assert (np.sort(scrambled) == np.arange(1 << scale)).all()
    if scale > 5:
        assert (scrambled == np.arange(1 << scale)).mean() < 0.1


def test_rmat_quarters_have_their_probabilities():
    src, dst = generate._rmat_endpoints(7, np.arange(200_000), 9, (0.57, 0.19, 0.19))
    for level in range(9):
        lower, right = (src >> level) & 1, (dst >> level) & 1
        shares = np.bincount(2 * lower + right, minlength=4) / len(src)
        assert np.abs(shares - [0.57, 0.19, 0.19, 0.05]).max() < 0.005
    first, second = (src >> 8) & 1, (src >> 7) & 1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.01


def test_results_do_not_depend_on_batches_or_memory(tmp_path, monkeypatch):
    made = {}
    for number, (edges, values, limit) in enumerate([(1 << 19, 1 << 20, 1 << 30), (77, 100, 10_000)]):
        monkeypatch.setattr(generate, "_EDGES_AT_ONCE", edges)
        monkeypatch.setattr(planted, "_VALUES_AT_ONCE", values)
        generate_rmat(
            tmp_path / f"r{number}", scale=8, num_features=5, num_classes=3, undirected=True, seed=4, memory_limit=limit
        )
        generate_sbm(tmp_path / f"s{number}", num_nodes=300, seed=4, memory_limit=limit)
        made[number] = [GraphStore.open(tmp_path / f"{kind}{number}").fingerprint for kind in "rs"]
    assert made[0] == made[1]
    generate_rmat(tmp_path / "other", scale=8, num_features=5, num_classes=3, undirected=True, seed=5)
    assert GraphStore.open(tmp_path / "other").fingerprint != made[0][0]


def test_rmat_store(tmp_path):
    store = GraphStore.open(
        generate_rmat(tmp_path / "a", scale=10, num_features=7, num_classes=5, dtype=np.float16, split=(0.5, 0.1, 0.1))
    )
    verify(store.path)
    assert (store.num_nodes, store.num_edges) == (1024, 16 * 1024)
    assert (store.x.dtype, store.x.shape) == (np.float16, (1024, 7))
    assert np.bincount(store.y).min() > 100
    assert {name: len(ids) for name, ids in store.splits.items()} == {"train": 512, "val": 102, "test": 103}
    degree = np.sort(store.in_degree())[::-1]
    assert degree[:51].sum() > 0.3 * store.num_edges  # the upper 5 % of the nodes hold a third of the edges
    assert np.argmax(store.in_degree()) != 0  # the ids are scrambled
    plain = GraphStore.open(generate_rmat(tmp_path / "b", scale=6, edge_factor=3, deduplicate=True))
    assert plain.task is None
    assert plain.x is None
    assert plain.num_edges < 3 * 64


def test_sbm_is_learned_from_neighbors_more_than_from_features(tmp_path):
    store = GraphStore.open(generate_sbm(tmp_path / "store", num_nodes=10_000, seed=3))
    verify(store.path)
    n = store.num_nodes
    adjacency = scipy.sparse.csr_matrix(
        (np.ones(store.num_edges), np.array(store.indices), np.array(store.indptr)), shape=(n, n)
    )
    assert (adjacency != adjacency.T).nnz == 0
    assert adjacency.max() == 1
    assert store.self_loops is None
    degree = store.in_degree()
    assert 13 < degree.mean() < 16
    assert degree.max() > 15 * degree.mean()
    rows = np.repeat(np.arange(n), degree)
    assert abs((store.y[store.indices] == store.y[rows]).mean() - 0.8) < 0.03
    x = np.array(store.x)
    around = (adjacency @ x) / np.maximum(degree, 1)[:, None]
    alone, together = (linear_accuracy(store, features) for features in (x, np.concatenate([x, around], axis=1)))
    assert 0.5 < alone < 0.7
    assert together > 0.9


@pytest.mark.parametrize("homophily", [0, 0.5, 1])
def test_sbm_homophily_is_exact_in_its_extremes(tmp_path, homophily):
    store = GraphStore.open(generate_sbm(tmp_path / "store", num_nodes=600, num_classes=3, homophily=homophily))
    rows = np.repeat(np.arange(600), store.in_degree())
    same = (store.y[store.indices] == store.y[rows]).mean()
    assert abs(same - homophily) < (0.08 if homophily == 0.5 else 1e-9)  # loops and repeats are more within a class


def linear_accuracy(store, x):
    """Of least squares on one-hot labels: a linear model without iterations."""
    train, test = store.split("train"), store.split("test")
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    solution = np.linalg.lstsq(x[train], np.eye(store.num_classes)[store.y[train]], rcond=None)[0]
    return ((x[test] @ solution).argmax(axis=1) == store.y[test]).mean()


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (generate_rmat, {"scale": 0}),
        (generate_rmat, {"scale": 41}),
        (generate_rmat, {"scale": 5, "a": 0.9}),
        (generate_rmat, {"scale": 5, "edge_factor": -1}),
        (generate_rmat, {"scale": 5, "dtype": np.float64}),
        (generate_rmat, {"scale": 5, "num_classes": 3, "split": (0.9, 0.9, 0.1)}),
        (generate_sbm, {"num_nodes": 5, "num_classes": 1}),
        (generate_sbm, {"num_nodes": 3, "num_classes": 4}),
        (generate_sbm, {"num_nodes": 30, "homophily": 1.5}),
        (generate_sbm, {"num_nodes": 30, "power_law": 2.0}),
        (generate_sbm, {"num_nodes": 30, "split": (0.5, 0.5)}),
    ],
)
def test_parameters_out_of_range_are_refused(tmp_path, function, options):
    with pytest.raises(ConfigError):
        function(tmp_path / "store", **options)
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None)
@given(n=st.integers(0, 200), cuts=st.lists(st.integers(0, 10), min_size=2, max_size=2), seed=st.integers(0, 5))
def test_seeded_split_is_exact_and_disjoint(n, cuts, seed):
    first, second = sorted(cuts)
    fractions = (first / 10, (second - first) / 10, 1 - second / 10)
    split = seeded_split(n, fractions, seed)
    together = np.concatenate(list(split.values()))
    assert sorted(together.tolist()) == list(range(n))
    assert len(split["train"]) == round(first / 10 * n)
    assert all((np.diff(ids) > 0).all() for ids in split.values())


def test_seeded_split_depends_on_the_set_of_candidates_only():
    ids = np.array([50, 7, 9, 1000, 3, 22, 81])
    once, again = seeded_split(ids, seed=2), seeded_split(ids[::-1].astype(np.int32), seed=2)
    assert all((once[name] == again[name]).all() for name in once)
    splits = {tuple(seeded_split(20, (0.5, 0.25, 0.25), seed)["train"]) for seed in range(10)}
    assert len(splits) > 5


def test_a_failure_while_generating_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(StoreWriter, "finish", lambda self, **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        generate_rmat(tmp_path / "store", scale=4)
    assert list(tmp_path.iterdir()) == []
