"""Graphs that are objects, against the same graph in a file."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

import partita
from partita.core.errors import InputError

geometric = pytest.importorskip("torch_geometric.data", reason="PyTorch Geometric is not installed")

N, E = 30, 120


@pytest.fixture(scope="module")
def arrays():
    random = np.random.default_rng(0)
    order = random.permutation(N)
    masks = {f"{name}_mask": np.isin(np.arange(N), order[part]) for name, part in
             (("train", slice(0, 15)), ("val", slice(15, 20)), ("test", slice(20, 30)))}  # fmt: skip
    return {
        "edge_index": random.integers(0, N, (2, E)),
        "x": random.normal(size=(N, 4)).astype(np.float32),
        "y": random.integers(0, 3, N),
        **masks,
    }


@pytest.fixture(scope="module")
def wanted(arrays, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wanted")
    np.savez(folder / "graph.npz", **arrays)
    partita.ingest(folder / "graph.npz", folder / "graph")
    return partita.open(folder / "graph")


def data_of(arrays, **changes):
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return geometric.Data(**{**tensors, **changes})


class DglGraph:
    """What of DGL's graphs is used."""

    def __init__(self, arrays) -> None:
        self._edges = tuple(torch.from_numpy(ends.copy()) for ends in arrays["edge_index"])
        names = {"feat": "x", "label": "y", **{name: name for name in arrays if name.endswith("mask")}}
        self.ndata = {name: torch.from_numpy(arrays[ours]) for name, ours in names.items()}
        self.is_homogeneous = True

    def edges(self):
        return self._edges

    def num_nodes(self) -> int:
        return N


class OgbDataset(list):
    """As OGB gives a graph without a library: names of its own, labels beside it, and ids for a split."""

    def __init__(self, arrays) -> None:
        graph = {"edge_index": arrays["edge_index"], "node_feat": arrays["x"], "edge_feat": None, "num_nodes": N}
        super().__init__([(graph, arrays["y"][:, None])])
        self._split = {
            theirs: np.flatnonzero(arrays[f"{ours}_mask"])
            for theirs, ours in (("train", "train"), ("valid", "val"), ("test", "test"))
        }

    def get_idx_split(self):
        return self._split


KINDS = {
    "arrays": dict,
    "tensors": lambda arrays: {name: torch.from_numpy(array) for name, array in arrays.items()},
    "pyg": data_of,
    "pyg with a column of labels": lambda arrays: data_of(arrays, y=torch.from_numpy(arrays["y"])[:, None]),
    "pyg, edges the other way in memory": lambda arrays: data_of(
        arrays, edge_index=torch.from_numpy(np.ascontiguousarray(arrays["edge_index"].T)).T
    ),
    "a dataset of one": lambda arrays: [data_of(arrays)],
    "dgl": DglGraph,
    "ogb": OgbDataset,
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_is_ingested_as_a_file(arrays, wanted, tmp_path, kind) -> None:
    summary = partita.ingest(KINDS[kind](arrays), tmp_path / "graph")
    found = partita.open(tmp_path / "graph")
    assert summary.edges == E
    for name in ("indptr", "indices", "x", "y"):
        assert (getattr(found, name) == getattr(wanted, name)).all(), name
    assert found.splits.keys() == wanted.splits.keys()
    assert all((found.split(name) == wanted.split(name)).all() for name in wanted.splits)


def test_masks_of_several_splits(arrays, wanted, tmp_path) -> None:
    """PyG keeps a column for each of them."""
    masks = {f"{name}_mask": torch.from_numpy(arrays[f"{name}_mask"]) for name in ("train", "val", "test")}
    several = {name: torch.stack([torch.roll(mask, 1), mask], dim=1) for name, mask in masks.items()}
    partita.ingest(data_of(arrays, **several), tmp_path / "graph", split_index=1)
    assert (partita.open(tmp_path / "graph").split("train") == wanted.split("train")).all()


@pytest.mark.parametrize("kind", ["coo", "csr", "csc"])
@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_matrices(tmp_path, kind, as_file, weighted) -> None:
    matrix = scipy.sparse.random_array((N, N), density=0.2, format=kind, rng=np.random.default_rng(1))
    matrix.data[:] = matrix.data if weighted else 1
    source = matrix
    if as_file:
        source = tmp_path / "matrix.npz"
        scipy.sparse.save_npz(source, matrix)
    partita.ingest(source, tmp_path / "graph")
    store = partita.open(tmp_path / "graph")
    found = scipy.sparse.csc_array(
        (store.edge_weight if weighted else np.ones(store.num_edges), store.indices, store.indptr), shape=(N, N)
    )
    assert (store.edge_weight is not None) == weighted
    assert abs(found - matrix).max() < 1e-6
    assert store.num_nodes == N


def test_labels_that_are_missing(tmp_path, arrays) -> None:
    """Floats that are classes, where some are missing, as in OGB's largest dataset."""
    y = arrays["y"].astype(np.float32)
    y[:4] = np.nan
    partita.ingest(data_of(arrays, y=torch.from_numpy(y)), tmp_path / "graph")
    store = partita.open(tmp_path / "graph")
    assert store.task == "classes"
    assert store.y[:4].tolist() == [-1] * 4


def test_a_regression_and_many_labels(tmp_path, arrays) -> None:
    values = torch.rand(N, dtype=torch.float32)
    partita.ingest(data_of(arrays, y=values), tmp_path / "one")
    assert partita.open(tmp_path / "one").task == "regression"
    partita.ingest(data_of(arrays, y=(torch.rand(N, 5) > 0.5).float()), tmp_path / "many")
    assert partita.open(tmp_path / "many").task == "multilabel"


def test_a_graph_without_features_and_labels(tmp_path, arrays) -> None:
    """It is a store, and what needs features says what is missing."""
    partita.ingest(geometric.Data(edge_index=torch.from_numpy(arrays["edge_index"]), num_nodes=N), tmp_path / "graph")
    with pytest.raises(partita.PartitaError, match=r"no labels|no features"):
        partita.Trainer(tmp_path / "graph", out=tmp_path / "run")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (5, "int is not a graph"),
        (np.zeros((3, 3)), "ndarray is not a graph"),
        ([], "0 graphs"),
        ([geometric.Data(), geometric.Data()], "2 graphs"),
        (geometric.Data(x=torch.zeros(3, 1)), "no edge_index"),
        (geometric.HeteroData(), "has no nodes of any type"),
        (scipy.sparse.coo_array((3, 4)), "must be square"),
        ({"x": np.zeros((3, 2))}, "no array 'edge_index'"),
        ({"edge_index": np.zeros((2, 3))}, "edge_index"),
        ({"edge_index": np.zeros((2, 3), int), "y": np.array([None] * 3)}, "holds object"),
        ({"edge_index": np.zeros((2, 3), int), "x": torch.eye(3).to_sparse()}, "a sparse tensor"),
    ],
)
def test_bad_input(tmp_path, source, said) -> None:
    with pytest.raises(InputError, match=said):
        partita.ingest(source, tmp_path / "graph")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": np.array(b"dia")}, "format 'dia'"),
        ({"shape": np.array([3, 4])}, "must be square"),
        ({"indptr": np.array([0, 2, 1, 3])}, "never descending"),
        ({"indices": np.array([0, 1])}, "of another length"),
    ],
)
def test_damaged_sparse_files(tmp_path, change, said) -> None:
    matrix = scipy.sparse.csr_array(np.eye(3))
    whole = {"format": np.array(b"csr"), "shape": np.array(matrix.shape), "data": matrix.data}
    np.savez(tmp_path / "m.npz", **{**whole, "indices": matrix.indices, "indptr": matrix.indptr, **change})
    with pytest.raises(InputError, match=said):
        partita.ingest(tmp_path / "m.npz", tmp_path / "graph")
