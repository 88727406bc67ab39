"""Weights by name."""

from __future__ import annotations

import numpy as np
import pytest
from derived_columns import add_columns

from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.partitioning.weights import SCHEMES, node_and_edge_weights
from partita.testing.graphs import formula_store


@pytest.fixture
def store(tmp_path):
    made = formula_store(tmp_path / "store")
    node = np.arange(2, made.num_nodes + 2)
    edge = (np.arange(made.num_edges) % 5 + (1 << 31)).astype(np.uint32)
    add_columns(made.path, {"presample_node": node, "presample_edge": edge})
    return GraphStore.open(made.path)


def test_every_scheme(store):
    rows = [slice(store.indptr[v], store.indptr[v + 1]) for v in range(store.num_nodes)]
    expected = {
        "none": (None, None),
        "presample": (store.presample_node.tolist(), store.presample_edge.tolist()),
        "edges": ([1 + sum(store.presample_edge[row].tolist()) for row in rows], store.presample_edge.tolist()),
        "node": (store.presample_node.tolist(), None),
        "degree": ([1 + row.stop - row.start for row in rows], None),
    }
    assert set(expected) == set(SCHEMES)
    for scheme, wanted in expected.items():
        found = node_and_edge_weights(store, scheme)
        assert tuple(None if weight is None else weight.tolist() for weight in found) == wanted, scheme
        assert found[0] is None or (found[0].dtype == np.int64 and found[0].min() > 0)


def test_without_presampled_counts(tmp_path):
    store = formula_store(tmp_path / "store")
    for scheme in ("none", "degree"):
        node_and_edge_weights(store, scheme)
    for scheme in ("presample", "edges", "node"):
        with pytest.raises(ConfigError, match=f"partita presample {store.path} --fanout"):
            node_and_edge_weights(store, scheme)


def test_unknown_schemes(store):
    with pytest.raises(ConfigError, match="Known names: degree, edges, node, none, presample"):
        node_and_edge_weights(store, "xyz")
    with pytest.raises(ConfigError, match="Did you mean 'presample'"):
        node_and_edge_weights(store, "presampled")
