"""Features of edges from tables, arrays and objects into the rows of a store, and back out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import partita
from partita.core.errors import ConfigError, InputError

EDGES = [("a", "b", 1.5, -2.0), ("b", "c", 0.25, 3.0), ("c", "c", 7.0, 0.5), ("a", "c", 4.0, 1.0)]


def rows_by_ends(store: partita.GraphStore) -> dict[tuple[str, str], list[float]]:
    names = [str(name) for name in store.names(np.arange(store.num_nodes))]
    dst = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    ends = zip(store.indices, dst)
    return {(names[u], names[v]): row.tolist() for (u, v), row in zip(ends, store.edge_attr, strict=True)}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = ["source,target,one,two", *(",".join(map(str, edge)) for edge in EDGES)]
    (tmp_path / "edges.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "edges.csv"


def test_columns_of_a_table(table, tmp_path) -> None:
    summary = partita.ingest(table, tmp_path / "g", edge_feature_columns=["two", "one"])
    assert summary.edge_features == 2
    store = partita.GraphStore.open(tmp_path / "g")
    assert rows_by_ends(store) == {(u, v): [two, one] for u, v, one, two in EDGES}
    assert store.num_edge_features == store.summary()["edge_features"] == 2
    assert store.edge_attr.dtype == np.float32
    assert not any("not used" in note for note in summary.notes)


def test_both_directions_have_those_of_the_edge(table, tmp_path) -> None:
    partita.ingest(
        table, tmp_path / "g", edge_feature_columns=["tw*"], undirected=True, self_loops="add", feature_dtype="float16"
    )
    store = partita.GraphStore.open(tmp_path / "g")
    kept = {(u, v): [two] for u, v, _, two in EDGES if u != v}
    loops = {(name, name): [0.0] for name in "abc"}
    assert rows_by_ends(store) == kept | {(v, u): row for (u, v), row in kept.items()} | loops
    assert store.edge_attr.dtype == np.float16


def test_weights_and_features_side_by_side(table, tmp_path) -> None:
    partita.ingest(table, tmp_path / "g", weight_column="one", edge_feature_columns=["two"])
    store = partita.GraphStore.open(tmp_path / "g")
    assert rows_by_ends(store) == {(u, v): [two] for u, v, _, two in EDGES}
    assert sorted(store.edge_weight.tolist()) == sorted(one for *_, one, _ in EDGES)


@pytest.mark.parametrize("wide", [True, False])
def test_an_array_of_a_file_is_exported_again(tmp_path, wide) -> None:
    edge_index = np.array([[0, 1, 2, 0], [1, 2, 0, 2]])
    features = np.arange(8.0).reshape(4, 2) if wide else np.arange(4.0)
    np.savez(tmp_path / "g.npz", edge_index=edge_index, edge_attr=features)
    partita.ingest(tmp_path / "g.npz", tmp_path / "g")
    store = partita.GraphStore.open(tmp_path / "g")
    assert rows_by_ends(store) == {
        (str(u), str(v)): row.reshape(-1).tolist() for (u, v), row in zip(edge_index.T, features)
    }
    partita.partition(store, tmp_path / "two", parts=2, algorithm="random")
    moved = partita.GraphStore.open(tmp_path / "two")
    assert rows_by_ends(moved) == rows_by_ends(store)
    partita.export(moved, tmp_path / "out.npz")
    partita.ingest(tmp_path / "out.npz", tmp_path / "again")
    assert rows_by_ends(partita.GraphStore.open(tmp_path / "again")) == rows_by_ends(store)


def test_those_of_pyg_and_dgl_objects(tmp_path) -> None:
    pytest.importorskip("torch_geometric")
    import torch
    from torch_geometric.data import Data, HeteroData

    ends, features = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    data = Data(edge_index=ends, edge_attr=features, num_nodes=2)
    partita.ingest(data, tmp_path / "data")
    expected = {("0", "1"): [1.0, 2.0], ("1", "0"): [3.0, 4.0]}
    assert rows_by_ends(partita.GraphStore.open(tmp_path / "data")) == expected
    hetero = HeteroData()
    hetero["a"].num_nodes = 2
    for name, scale in (("r", 1), ("s", 10)):
        hetero["a", name, "a"].edge_index = ends
        hetero["a", name, "a"].edge_attr = scale * features
    partita.ingest(hetero, tmp_path / "hetero")
    store = partita.GraphStore.open(tmp_path / "hetero")
    assert store.edge_attr.tolist() == [[3.0, 4.0], [30.0, 40.0], [1.0, 2.0], [10.0, 20.0]]
    hetero["a", "s", "a"].edge_attr = features[:, :1]
    summary = partita.ingest(hetero, tmp_path / "other")
    assert summary.edge_features == 0
    assert any("edge_attr" in note and "not used" in note for note in summary.notes)


@pytest.mark.parametrize(
    ("cells", "options", "error", "message"),
    [
        ("a,b,x,1", {}, InputError, "'x'"),
        ("a,b,,1", {}, InputError, "line 2.*one.*empty"),
        ("a,b,inf,1", {}, InputError, r"line 2.*feature 0 of the edge is inf"),
        ("a,b,1e30,1", {"feature_dtype": "float16"}, InputError, "does not fit float16"),
        ("a,b,1,1", {"edge_feature_columns": ["three"]}, InputError, "no column 'three'"),
        ("a,b,1,1", {"edge_feature_columns": ["source"]}, InputError, "column source is a feature"),
        ("a,b,1,1", {"weight_column": "one"}, InputError, "column one is a feature"),
    ],
)
def test_what_cannot_be_features_is_said(tmp_path, cells, options, error, message) -> None:
    (tmp_path / "edges.csv").write_text(f"source,target,one,two\n{cells}\n")
    with pytest.raises(error, match=message):
        partita.ingest(tmp_path / "edges.csv", tmp_path / "g", **{"edge_feature_columns": ["one", "two"], **options})
    assert not (tmp_path / "g").exists()


def test_arrays_that_do_not_fit_are_refused(tmp_path) -> None:
    ends = np.array([[0, 1], [1, 0]])
    np.savez(tmp_path / "g.npz", edge_index=ends, edge_attr=np.zeros((3, 2)))
    with pytest.raises(InputError, match="3 rows for 2 edges"):
        partita.ingest(tmp_path / "g.npz", tmp_path / "g")
    np.savez(tmp_path / "g.npz", edge_index=ends, edge_attr=np.zeros((2, 0)))
    with pytest.raises(InputError, match="has no columns"):
        partita.ingest(tmp_path / "g.npz", tmp_path / "g")
    np.savez(tmp_path / "g.npz", edge_index=ends, edge_attr=np.zeros((2, 1)))
    with pytest.raises(ConfigError, match="edge_attr"):
        partita.ingest(tmp_path / "g.npz", tmp_path / "g", edge_feature_columns=["one"])


def test_a_graph_of_dgl(tmp_path) -> None:
    frames = {"feat": np.array([[1.0], [2.0]]), "other": np.zeros(2)}
    graph = SimpleNamespace(
        ndata={}, edata=frames, edges=lambda: (np.array([0, 1]), np.array([1, 0])), num_nodes=lambda: 2
    )
    summary = partita.ingest(graph, tmp_path / "g")
    assert rows_by_ends(partita.GraphStore.open(tmp_path / "g")) == {("0", "1"): [1.0], ("1", "0"): [2.0]}
    assert any("edata other" in note for note in summary.notes)
