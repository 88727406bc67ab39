"""What is exported is ingested again as the same graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import partita
from partita.core.errors import ConfigError, StoreError
from partita.graph import export as module
from partita.testing.graphs import small_random_store

COLUMNS = ("indptr", "indices", "x", "y", "edge_weight")


def same(one, other) -> None:
    for name in COLUMNS:
        mine, theirs = getattr(one, name), getattr(other, name)
        assert (mine is None) == (theirs is None), name
        assert mine is None or (mine == theirs).all(), name
    assert {name: ids.tolist() for name, ids in one.splits.items()} == {
        name: ids.tolist() for name, ids in other.splits.items()
    }
    assert (one.task, one.num_classes, one.class_names) == (other.task, other.num_classes, other.class_names)


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("kind", [{}, {"weighted": True}, {"num_features": 0}, {"num_classes": 0}], ids=str)
def test_the_same_store_again(tmp_path, monkeypatch, partitioned, kind) -> None:
    monkeypatch.setattr(module, "_BLOCK_EDGES", 37)  # many blocks, some of one row
    whole = source = small_random_store(tmp_path / "graph", 80, 600, **kind)
    if partitioned:
        partita.partition(tmp_path / "graph", tmp_path / "parts", parts=3, algorithm="random")
        source = partita.open(tmp_path / "parts")
    assert partita.export(source, tmp_path / "graph.npz") == tmp_path / "graph.npz"
    partita.ingest(tmp_path / "graph.npz", tmp_path / "again", split=None)
    same(partita.open(tmp_path / "again"), whole)


def test_names_of_nodes_and_classes(tmp_path) -> None:
    (tmp_path / "edges.csv").write_text("source,target\nx,y\ny,z\n")
    (tmp_path / "nodes.csv").write_text("id,f,label\nz,1,red\nx,2,blue\ny,3,red\n")
    partita.ingest(tmp_path / "edges.csv", tmp_path / "graph", nodes=tmp_path / "nodes.csv")
    partita.export(tmp_path / "graph", tmp_path / "graph.npz")
    with np.load(tmp_path / "graph.npz", allow_pickle=False) as found:
        assert found["name"].tolist() == ["z", "x", "y"]
        assert found["class_names"].tolist() == partita.open(tmp_path / "graph").class_names
        assert found["edge_index"].tolist() == [[2, 1], [0, 2]]
    partita.ingest(tmp_path / "graph.npz", tmp_path / "again")
    assert partita.open(tmp_path / "again").class_names == partita.open(tmp_path / "graph").class_names


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_graph_for_pyg(tmp_path, partitioned) -> None:
    pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")
    whole = source = small_random_store(tmp_path / "graph", 80, 600, weighted=True)
    if partitioned:
        partita.partition(tmp_path / "graph", tmp_path / "parts", parts=3, algorithm="random")
        source = tmp_path / "parts"
    data = partita.to_pyg(source)
    data.validate()
    assert data.num_nodes == 80
    assert torch.equal(data.edge_index[0], torch.from_numpy(whole.indices.astype(np.int64)))
    assert torch.equal(data.edge_weight, torch.from_numpy(whole.edge_weight.copy()))
    assert data.train_mask.nonzero().flatten().tolist() == whole.split("train").tolist()
    partita.ingest(data, tmp_path / "again")
    same(partita.open(tmp_path / "again"), whole)


def test_bad_input(tmp_path) -> None:
    small_random_store(tmp_path / "graph", 10, 20)
    with pytest.raises(ConfigError, match=r"cannot export to '\.pt' files"):
        partita.export(tmp_path / "graph", tmp_path / "graph.pt")
    with pytest.raises(ConfigError, match="no such directory"):
        partita.export(tmp_path / "graph", tmp_path / "no" / "graph.npz")
    with pytest.raises(StoreError):
        partita.export(tmp_path / "nothing", tmp_path / "graph.npz")
    partita.export(tmp_path / "graph", tmp_path / "graph.npz")
    before = (tmp_path / "graph.npz").read_bytes()
    with pytest.raises(ConfigError, match="is there already"):
        partita.export(tmp_path / "graph", tmp_path / "graph.npz")
    partita.export(tmp_path / "graph", tmp_path / "graph.npz", overwrite=True)
    assert (tmp_path / "graph.npz").read_bytes() == before


def test_a_failure_leaves_nothing(tmp_path, monkeypatch) -> None:
    store = small_random_store(tmp_path / "graph", 10, 20)

    def fail(*_) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(module._Export, "_whole", fail)
    with pytest.raises(OSError, match="no space"):
        partita.export(store, tmp_path / "graph.npz")
    assert {path.name for path in tmp_path.iterdir()} == {"graph"}
