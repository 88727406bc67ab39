"""Typed graphs of PyG and DGL become stores, and stores become PyG's again."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.transforms import ToUndirected

import partita
from partita.core.errors import ConfigError, InputError
from partita.graph.store import GraphStore
from partita.sources.ingest import ingest

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def graph(seed: int = 0) -> HeteroData:
    """30 papers with classes, 20 authors with other features, 3 venues without any."""
    random = torch.Generator().manual_seed(seed)
    data = HeteroData()
    data["paper"].x = torch.rand(30, 4, generator=random)
    data["paper"].y = torch.randint(0, 3, (30,), generator=random)
    data["paper"].train_mask = torch.arange(30) < 20
    data["paper"].test_mask = torch.arange(30) >= 25
    data["author"].x = torch.rand(20, 2, generator=random)
    data["venue"].num_nodes = 3
    for (source, name, target), (sources, targets), count in (
        (WRITES, (20, 30), 80), (CITES, (30, 30), 50), (("paper", "in", "venue"), (30, 3), 30),
    ):  # fmt: skip
        ends = [torch.randint(0, most, (count,), generator=random) for most in (sources, targets)]
        data[source, name, target].edge_index = torch.stack(ends)
    return data


def assert_same(found: HeteroData, data: HeteroData) -> None:
    """The same nodes, and the same edges in the order of their targets."""
    assert (found.node_types, set(found.edge_types)) == (data.node_types, set(data.edge_types))
    for name in data.node_types:
        assert found[name].num_nodes == data[name].num_nodes
        for key in ("x", "y", "train_mask", "test_mask"):
            assert (key in found[name]) == (key in data[name]), (name, key)
            if key in data[name]:
                torch.testing.assert_close(found[name][key], data[name][key])
    for each in data.edge_types:
        ends = data[each].edge_index
        order = torch.argsort(ends[1], stable=True)
        assert torch.equal(found[each].edge_index, ends[:, order]), each
        if "edge_weight" in data[each]:
            torch.testing.assert_close(found[each].edge_weight, data[each].edge_weight[order])


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_there_and_back(tmp_path, parts, weighted):
    data = graph()
    if weighted:
        for each in data.edge_types:
            data[each].edge_weight = torch.rand(data[each].edge_index.shape[1])
    summary = ingest(data, tmp_path / "store")
    assert summary.splits == {"train": 20, "val": 0, "test": 5}
    assert summary.type_features == {"paper": 4, "author": 2}
    store = tmp_path / "store"
    if parts > 1:
        partita.partition(store, tmp_path / "parts", parts=parts, algorithm="random")
        store = tmp_path / "parts"
    assert_same(partita.to_pyg(store), data)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("held", [False, True])
def test_the_same_store_again(tmp_path, parts, held):
    """A store, as an object or a file, is ingested as the store that it was, with all that edges have."""
    data = graph()
    for number, each in enumerate(data.edge_types):
        count = data[each].edge_index.shape[1]
        data[each].edge_weight, data[each].edge_attr = torch.rand(count), torch.rand(count, 2)
        if held:
            data[each].held_val, data[each].held_test = data[each].edge_index[:, : 2 + number].T, torch.tensor([[1, 2]])
    ingest(data, tmp_path / "store")
    whole = GraphStore.open(tmp_path / "store")
    source = whole
    assert whole.held_out == ({"val": 9, "test": 3} if held else {})
    if parts > 1:
        partita.partition(tmp_path / "store", tmp_path / "parts", parts=parts, algorithm="random")
        source = GraphStore.open(tmp_path / "parts")
    partita.export(source, tmp_path / "out.npz")
    for name, again in (("object", partita.to_pyg(source)), ("file", tmp_path / "out.npz")):
        summary = ingest(again, tmp_path / name)
        assert GraphStore.open(tmp_path / name).fingerprint == whole.fingerprint
        assert not any("not used" in note for note in summary.notes)


@pytest.mark.parametrize("parts", [1, 3])
def test_an_untyped_store_again(tmp_path, parts):
    arrays = {
        "edge_index": np.random.default_rng(0).integers(0, 9, (2, 40)), "num_nodes": 9,
        "held_val": np.array([[0, 8], [3, 3]]),
    }  # fmt: skip
    ingest(arrays, tmp_path / "store")
    if parts > 1:
        partita.partition(tmp_path / "store", tmp_path / "parts", parts=parts, algorithm="random")
    ingest(partita.to_pyg(tmp_path / ("parts" if parts > 1 else "store")), tmp_path / "again")
    stores = [GraphStore.open(tmp_path / name) for name in ("store", "again")]
    assert stores[0].fingerprint == stores[1].fingerprint
    assert stores[1].held_out_edges("val")[0].tolist() == [[0, 3], [8, 3]]


def test_undirected_is_that_of_pyg(tmp_path):
    data = graph()
    del data[CITES]  # which PyG merges with its reverse, as source and target have one type
    ingest(data, tmp_path / "store", undirected=True)
    both = ToUndirected()(data)
    found = partita.to_pyg(tmp_path / "store")
    assert set(found.edge_types) == set(both.edge_types)
    for each in both.edge_types:
        assert sorted(found[each].edge_index.T.tolist()) == sorted(both[each].edge_index.T.tolist())


def test_regression_and_what_is_not_used(tmp_path):
    data = graph()
    data["paper"].y = torch.rand(30)
    data[WRITES].edge_attr = torch.rand(80, 2)
    data["venue"].year = torch.arange(3)
    summary = ingest(data, tmp_path / "store", split=None)
    assert summary.task == "regression"
    notes = "\n".join(summary.notes)
    assert "not used: venue year, author:writes:paper edge_attr" in notes
    assert_same(partita.to_pyg(tmp_path / "store"), data)
    assert np.isnan(GraphStore.open(tmp_path / "store").y[30:]).all()


class DglGraph:
    """What of DGL's graphs of several types is used."""

    is_homogeneous = False

    def __init__(self, data: HeteroData) -> None:
        self._data = data
        self.ntypes, self.canonical_etypes = data.node_types, data.edge_types
        names = {"x": "feat", "y": "label", "train_mask": "train_mask", "test_mask": "test_mask"}
        self.ndata = {}
        self.nodes = {
            kind: SimpleNamespace(data={names[key]: data[kind][key] for key in names if key in data[kind]})
            for kind in data.node_types
        }

    def num_nodes(self, kind):
        return self._data[kind].num_nodes

    def edges(self, etype):
        return tuple(self._data[etype].edge_index)


def test_a_dgl_graph(tmp_path):
    ingest(graph(), tmp_path / "pyg")
    ingest(DglGraph(graph()), tmp_path / "dgl")
    assert GraphStore.open(tmp_path / "dgl").fingerprint == GraphStore.open(tmp_path / "pyg").fingerprint


def changed(change) -> HeteroData:
    data = graph()
    change(data)
    return data


WEIGHTS = {WRITES: 81, CITES: 49, ("paper", "in", "venue"): 30}
"""As many weights as edges in all, but not by relation."""
WRONG = {
    "end": (lambda data: data[WRITES].edge_index[0].fill_(20), "source 20 of edge 0 .* of 20 nodes of type 'author'"),
    "negative": (lambda data: data[WRITES].edge_index[1].fill_(-1), "target -1 of edge 0"),
    "labels": (lambda data: data["author"].update({"y": torch.zeros(20)}), "labels of several types: paper, author"),
    "multilabel": (lambda data: data["paper"].update({"y": torch.zeros(30, 2)}), "one number for each node"),
    "weights": (lambda data: data[WRITES].update({"edge_weight": torch.ones(80)}), "has no edge_weight, but others"),
    "rows": (lambda data: data["author"].update({"x": torch.ones(19, 2), "num_nodes": 20}), "has 19 rows for 20 nodes"),
    "short labels": (lambda data: data["paper"].update({"y": torch.zeros(29)}), "has 29 rows for 30 nodes"),
    "long mask": (lambda data: data["paper"].update({"train_mask": torch.ones(40) > 0}), "has 40 rows for 30 nodes"),
    "several splits": (lambda data: data["paper"].update({"train_mask": torch.ones(30, 2) > 0}), "one mark for each"),
    "ids for marks": (lambda data: data["paper"].update({"train_mask": torch.arange(30)}), "one mark for each"),
    "weights of others": (
        lambda data: [data[each].update({"edge_weight": torch.ones(count)}) for each, count in WEIGHTS.items()],
        r"has shape \(81,\) for 80 edges"),
    "float ends": (lambda data: data[WRITES].update({"edge_index": torch.rand(2, 80)}), "two rows of integers"),
    "transposed": (lambda data: data[WRITES].update({"edge_index": torch.zeros(80, 2).int()}), "two rows of integers"),
    "unknown type": (
        lambda data: data["author", "wrote", "book"].update({"edge_index": torch.tensor([[0], [0]])}),
        "author:wrote:book: there is no node type 'book'"),
    "capitals": (lambda data: data["Paper"].update({"num_nodes": 2}), "differ by capitals only"),
    "held-out node": (
        lambda data: data[WRITES].update({"held_val": torch.tensor([[0, 30]])}),
        "author:writes:paper, held_val: target 30 of edge 0"),
    "held-out form": (lambda data: data[WRITES].update({"held_val": torch.zeros(2, 3).int()}), "not two columns"),
    "three rows": (lambda data: data[WRITES].update({"edge_index": torch.zeros(3, 80).int()}), "two rows of integers"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(tmp_path, case):
    change, message = WRONG[case]
    with pytest.raises((InputError, ConfigError), match=message):
        ingest(changed(change), tmp_path / "store")
    assert not list(tmp_path.iterdir())
