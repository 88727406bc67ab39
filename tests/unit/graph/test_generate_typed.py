"""Typed graphs from a seed: sizes, bytes, planted classes."""

from __future__ import annotations

import numpy as np
import pytest

from partita.core.errors import ConfigError
from partita.graph.generate_typed import SHAPES, generate_typed
from partita.graph.store import GraphStore
from partita.graph.verify import verify

SMALL = {"scale": 0.02, "num_features": 16, "num_classes": 5}


def made(path, **options) -> GraphStore:
    return GraphStore.open(generate_typed(path, **{**SMALL, **options}))


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    return made(tmp_path_factory.mktemp("typed") / "graph")


def edges_of(store: GraphStore, name: str):
    (number,) = store.schema.relation_numbers(name)
    mine = np.flatnonzero(store.edge_type == number)
    rows = np.searchsorted(store.indptr, mine, side="right") - 1
    return store.indices[mine], rows


def test_sizes_are_those_of_the_shape(store):
    shape = SHAPES["tiny"]
    assert dict(zip(store.schema.node_types, store.schema.num_nodes)) == {
        name: round(0.02 * count) for name, count in shape.num_nodes.items()
    }
    for relation, count in shape.num_edges.items():
        for each in (relation, relation.reverse):
            assert store.schema.num_edges[store.schema.relations.index(each)] == round(0.02 * count)
    papers = store.schema.num_nodes[0]
    assert {name: len(ids) for name, ids in store.splits.items()} == {
        "train": round(0.6 * papers), "val": round(0.2 * papers), "test": round(0.2 * papers),
    }  # fmt: skip
    assert (store.y[papers:] == -1).all()
    assert set(np.unique(store.y[:papers])) == set(range(5))
    verify(store.path)


def test_the_same_bytes_whatever_the_memory(store, tmp_path):
    assert made(tmp_path / "again", memory_limit=1 << 16).fingerprint == store.fingerprint
    assert made(tmp_path / "other", seed=1).fingerprint != store.fingerprint


def test_reverse_relations_have_the_same_edges(store, tmp_path):
    for relation in SHAPES["tiny"].num_edges:
        src, dst = edges_of(store, str(relation))
        back = edges_of(store, str(relation.reverse))
        assert sorted(zip(src.tolist(), dst.tolist())) == sorted(zip(back[1].tolist(), back[0].tolist()))
    one_way = made(tmp_path / "one", one_way=True)
    assert one_way.schema.relations == tuple(SHAPES["tiny"].num_edges)
    assert one_way.num_edges * 2 == store.num_edges


def test_classes_are_in_edges_and_features(store):
    y = store.y
    src, dst = edges_of(store, "cites")
    expected = 0.6 + 0.4 / 5
    assert (y[src] == y[dst]).mean() == pytest.approx(expected, abs=0.02)
    for name in store.schema.node_types:
        assert store.x_of(name).shape == (len(store.nodes_of(name)), 16)
    x, papers = store.x_of("paper"), y[: store.schema.num_nodes[0]]
    means = np.stack([x[papers == each].mean(axis=0) for each in range(5)])
    nearest = np.argmin(((x[:, None] - means[None]) ** 2).sum(axis=2), axis=1)
    assert 0.5 < (nearest == papers).mean() < 0.95


def test_degrees_are_skewed(store):
    for name in ("cites", "written_by", "rev_topic"):
        _, dst = edges_of(store, name)
        counts = np.bincount(dst)
        assert counts.max() > 8 * counts[counts > 0].mean(), name


def test_options(tmp_path):
    bare = made(tmp_path / "bare", num_features=0)
    assert all(bare.x_of(name) is None for name in bare.schema.node_types)
    assert made(tmp_path / "half", dtype="float16").x_of("fos").dtype == np.float16
    assert made(tmp_path / "least", scale=0.0).schema.num_nodes == (2, 2, 2, 2)
    with pytest.raises(ConfigError, match=r"there is no shape 'tyni'.*tiny"):
        generate_typed(tmp_path / "wrong", shape="tyni")
