"""PyG's models on our batches, PyG's loaders on our store."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import partita
from partita.loaders.neighbor import NeighborLoader
from partita.loaders.pyg import pyg_stores
from partita.testing.graphs import small_random_store

geometric = pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")
loader = pytest.importorskip("torch_geometric.loader")
sampler = pytest.importorskip("torch_geometric.sampler")
typing = pytest.importorskip("torch_geometric.typing")
from torch_geometric.nn import GraphSAGE  # noqa: E402

SAMPLES = typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return small_random_store(tmp_path_factory.mktemp("pyg") / "graph", 200, 1500)


def edge_index(store) -> torch.Tensor:
    destinations = np.repeat(np.arange(store.num_nodes), store.in_degree())
    return torch.from_numpy(np.stack([store.indices.astype(np.int64), destinations]))


@pytest.mark.parametrize("trimmed", [False, True])
def test_all_neighbors_give_what_the_whole_graph_gives(store, trimmed) -> None:
    """Of a model of PyG: outputs of seeds and gradients, exactly, also where each layer leaves out what it need not."""
    torch.manual_seed(0)
    model = GraphSAGE(store.num_features, 16, 2, out_channels=4).double()
    whole = model(torch.from_numpy(store.x.copy()).double(), edge_index(store))
    for batch in NeighborLoader(store, [-1, -1], "train", batch_size=40):
        hops = {
            "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
            "num_sampled_edges_per_hop": batch.num_sampled_edges,
        }
        found = model(batch.x.double(), batch.edge_index, **(hops if trimmed else {}))[: batch.batch_size]
        wanted = whole[batch.n_id[: batch.batch_size]]
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
        weights = list(model.parameters())
        gradients = [torch.autograd.grad(rows.square().sum(), weights, retain_graph=True) for rows in (found, wanted)]
        for one, other in zip(*gradients):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


class Everything(sampler.BaseSampler):
    """All nodes and edges, the seeds first: what PyG's loaders make of a sample needs no compiled extension."""

    def __init__(self, graph_store) -> None:
        self.row, self.colptr, self.permutation = graph_store.csc()

    @property
    def edge_permutation(self):
        return self.permutation

    def sample_from_edges(self, inputs, neg_sampling=None):
        raise NotImplementedError

    def sample_from_nodes(self, inputs):
        others = torch.ones(len(self.colptr) - 1, dtype=torch.bool)
        others[inputs.node] = False
        nodes = torch.cat([inputs.node, others.nonzero().flatten()])
        place = torch.empty_like(nodes)
        place[nodes] = torch.arange(len(nodes))
        destinations = torch.repeat_interleave(torch.arange(len(nodes)), self.colptr.diff())
        return sampler.SamplerOutput(
            node=nodes, row=place[self.row], col=place[destinations], edge=torch.arange(len(self.row)),
            batch=None, metadata=(inputs.input_id, None),
        )  # fmt: skip


def check(store, batch, seeds) -> None:
    nodes = batch.n_id
    assert nodes[: batch.batch_size].tolist() == seeds.tolist()
    assert (batch.x.numpy() == store.x[nodes]).all()
    assert (batch.y.numpy() == store.y[nodes]).all()
    source, destination = nodes[batch.edge_index]
    assert (store.indices[batch.e_id] == source.numpy()).all()
    assert (store.indptr[destination] <= batch.e_id.numpy()).all()
    assert (batch.e_id.numpy() < store.indptr[destination + 1]).all()


def test_loaders_of_pyg_read_the_store(store) -> None:
    features, edges = pyg_stores(store)
    seeds = torch.from_numpy(store.split("train").copy())
    batches = list(
        loader.NodeLoader((features, edges), node_sampler=Everything(edges), input_nodes=seeds, batch_size=50)
    )
    assert sum(batch.batch_size for batch in batches) == len(seeds)
    for number, batch in enumerate(batches):
        check(store, batch, seeds[50 * number : 50 * number + 50])
        assert batch.num_edges == store.num_edges


@pytest.mark.skipif(not SAMPLES, reason="PyG's NeighborLoader needs pyg-lib or torch-sparse, which are not installed")
@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_neighbor_loader_of_pyg_reads_the_store(store, num_workers) -> None:
    seeds = torch.from_numpy(store.split("train").copy())
    batches = list(
        loader.NeighborLoader(pyg_stores(store), [3, 2], input_nodes=seeds, batch_size=50, num_workers=num_workers)
    )
    assert len(batches) == -(-len(seeds) // 50)
    for number, batch in enumerate(batches):
        check(store, batch, seeds[50 * number : 50 * number + 50])
        drawn = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)[: batch.batch_size]
        wanted = np.minimum(store.in_degree(batch.n_id[: batch.batch_size].numpy()), 3)
        assert drawn.tolist() == wanted.tolist()


def test_columns_are_read_in_parts(store) -> None:
    features, _ = pyg_stores(store)
    assert [attr.attr_name for attr in features.get_all_tensor_attrs()] == ["x", "y"]
    assert features.get_tensor_size(group_name=None, attr_name="x") == store.x.shape
    for index in (None, slice(3, 9), torch.tensor([5, 1, 5])):
        wanted = store.x[slice(None) if index is None else index]
        assert (features.get_tensor(group_name=None, attr_name="x", index=index).numpy() == wanted).all()
    with pytest.raises(NotImplementedError):
        features.put_tensor(torch.zeros(3), group_name=None, attr_name="z", index=None)


def test_without_pyg(monkeypatch) -> None:
    code = (
        "import sys; sys.modules['torch_geometric'] = None; sys.modules['torch_geometric.data'] = None\n"
        "import partita\n"
        "try:\n    partita.pyg_stores('nothing')\n"
        "except partita.PartitaError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'partita[pyg]'" in done.stdout


def test_names_and_class_names_are_kept(tmp_path) -> None:
    (tmp_path / "e.csv").write_text("source,target\nanna,bob\nbob,carl\ncarl,anna\n")
    (tmp_path / "n.csv").write_text("id,label,f\nbob,red,1\nanna,blue,2\ncarl,red,3\n")
    partita.ingest(tmp_path / "e.csv", tmp_path / "g", nodes=tmp_path / "n.csv")
    data = partita.to_pyg(tmp_path / "g")
    labels = {name: data.class_names[int(label)] for name, label in zip(data.name, data.y, strict=True)}
    assert labels == {"anna": "blue", "bob": "red", "carl": "red"}
    assert dict(zip(data.name, data.x[:, 0].tolist(), strict=True)) == {"anna": 2.0, "bob": 1.0, "carl": 3.0}
    assert "name" not in partita.to_pyg(small_random_store(tmp_path / "plain", 20, 60))
