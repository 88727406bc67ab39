"""Features that ``ingest`` stores as small integers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import partita
from partita.core.errors import ConfigError, InputError
from partita.graph.small import BITS, Levels
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.sources import features as features_module
from partita.sources.ingest import ingest

EACH = pytest.mark.parametrize("dtype", BITS)
COUNT = 40


def arrays(**more):
    random = np.random.default_rng(0)
    ends = random.integers(0, COUNT, (2, 150))
    x = random.normal(size=(COUNT, 5)).astype(np.float32)
    x[:, 3] = 2
    return {"edge_index": ends, "x": x, "y": np.arange(COUNT) % 3, **more}


def expected(dtype, x):
    levels = Levels.of_blocks(dtype, [x], x.shape[1])
    return levels.values(levels.stored(x))


@EACH
def test_dense_features(tmp_path, dtype, monkeypatch):
    given = arrays()
    np.savez(tmp_path / "g.npz", **given)
    monkeypatch.setattr(features_module, "rows_at_once", lambda width: 7)  # several blocks
    summary = ingest(tmp_path / "g.npz", tmp_path / "s", feature_dtype=dtype)
    store = GraphStore.open(tmp_path / "s")
    verify(store.path)
    assert summary.features == store.num_features == 5
    assert np.array_equal(store.x[:], expected(dtype, given["x"]))
    assert store.metadata.columns["x"].shape == (COUNT, 5 if dtype == "int8" else 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.npz", "s"]
    assert not (store.path / "scratch").exists()
    batch = next(iter(partita.NeighborLoader(store, num_neighbors=[3], batch_size=4)))
    assert batch.x.dtype == torch.float32
    assert np.array_equal(batch.x.numpy(), store.x[batch.n_id.numpy()])
    data = partita.to_pyg(store)
    assert np.array_equal(data.x.numpy(), store.x[:])
    found = json.loads((store.path / "metadata.json").read_text())
    assert found["version"] == 2


@EACH
def test_tables_with_gaps_and_scaling(tmp_path, dtype):
    (tmp_path / "e.csv").write_text("source,target\n" + "".join(f"n{i},n{(i + 1) % 9}\n" for i in range(9)))
    rows = [f"n{i},{'' if i == 4 else i * i},{i % 2},{'train' if i < 6 else 'test'},{i % 3}" for i in range(9)]
    (tmp_path / "n.csv").write_text("id,a,b,split,label\n" + "\n".join(rows) + "\n")
    options = {"nodes": tmp_path / "n.csv", "missing": "mean", "standardize": True, "split_column": "split"}
    for name in ("float32", dtype):
        ingest(tmp_path / "e.csv", tmp_path / name, feature_dtype=name, label_column="label", **options)
    exact, small = (GraphStore.open(tmp_path / name) for name in ("float32", dtype))
    assert np.array_equal(small.x[:], expected(dtype, exact.x[:]))
    assert small.metadata.notes["features"] == exact.metadata.notes["features"]
    with pytest.raises(InputError, match=r"n\.csv, line 6, column a: the cell is empty.*--missing zero"):
        ingest(
            tmp_path / "e.csv", tmp_path / "no", feature_dtype=dtype, label_column="label",
            nodes=tmp_path / "n.csv", split_column="split",
        )  # fmt: skip


@EACH
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(tmp_path, dtype, value):
    given = arrays()
    given["x"][7, 2] = value
    np.savez(tmp_path / "g.npz", **given)
    with pytest.raises(InputError, match=r"g\.npz.*row 7.*feature 2 of node 7 is -?(nan|inf), which is not finite"):
        ingest(tmp_path / "g.npz", tmp_path / "s", feature_dtype=dtype)
    with pytest.raises(ConfigError, match=rf"allow_nan.*{dtype} holds finite numbers only"):
        ingest(tmp_path / "g.npz", tmp_path / "s", feature_dtype=dtype, allow_nan=True)
    assert not (tmp_path / "s").exists()


def test_what_cannot_be_stored_is_refused(tmp_path):
    given = arrays()
    given["x"][:2, 4] = [-3e38, 3e38]
    np.savez(tmp_path / "wide.npz", **given)
    with pytest.raises(InputError, match="feature 4 has values further apart than the largest float32"):
        ingest(tmp_path / "wide.npz", tmp_path / "s", feature_dtype="int8")
    del given["x"]
    np.savez(tmp_path / "bare.npz", **given)
    with pytest.raises(ConfigError, match=r"feature_dtype.*there are no features to store as int4"):
        ingest(tmp_path / "bare.npz", tmp_path / "s", feature_dtype="int4")
    with pytest.raises(ConfigError, match="int3"):
        ingest(tmp_path / "bare.npz", tmp_path / "s", feature_dtype="int3")
    summary = ingest(tmp_path / "bare.npz", tmp_path / "s", feature_dtype="int8", node_features="degree")
    assert summary.features == GraphStore.open(tmp_path / "s").x.shape[1]


def test_features_of_edges_stay_numbers(tmp_path):
    attributes = np.random.default_rng(1).normal(size=(150, 2)).astype(np.float32)
    np.savez(tmp_path / "g.npz", **arrays(edge_attr=attributes))
    summary = ingest(tmp_path / "g.npz", tmp_path / "s", feature_dtype="int8")
    assert GraphStore.open(tmp_path / "s").edge_attr.dtype == np.float32
    assert any("features of edges are kept as float32" in note for note in summary.notes)


@EACH
def test_types(tmp_path, dtype):
    random = np.random.default_rng(0)
    kinds = np.repeat([0, 1, 2], [12, 8, 5])
    ends = np.stack([random.integers(0, 12, 60), random.integers(12, 20, 60)])
    x = {name: random.normal(size=shape).astype(np.float32) for name, shape in (("a", (12, 3)), ("b", (8, 4)))}
    np.savez(
        tmp_path / "g.npz", edge_index=ends, edge_type=np.zeros(60, np.int64), edge_type_names=np.array(["to"]),
        node_type=kinds, node_type_names=np.array(["a", "b", "c"]), y=np.where(kinds == 0, np.arange(25) % 2, -1),
        **{f"x_{name}": rows for name, rows in x.items()},
    )  # fmt: skip
    ingest(tmp_path / "g.npz", tmp_path / "s", feature_dtype=dtype, undirected=True)
    store = GraphStore.open(tmp_path / "s")
    verify(store.path)
    assert store.type_widths == (3, 4, 0)
    assert store.summary()["type_feature_dtypes"] == {"a": dtype, "b": dtype}
    for name, rows in x.items():
        assert np.array_equal(store.x_of(name)[:], expected(dtype, rows))
    partita.partition(store, tmp_path / "p", parts=2, algorithm="random")
    verify(tmp_path / "p")
    data = partita.to_pyg(store)
    assert np.array_equal(data["b"].x.numpy(), store.x_of("b")[:])
    loader = partita.NeighborLoader(store, num_neighbors=[3], batch_size=4, input_nodes="a")
    batch = next(iter(loader))
    assert batch.x_dict["b"].dtype == torch.float32
