"""Layers that read weights and features of edges beside PyG's: rows and gradients, with the same parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from partita.core.keys import StepKey
from partita.core.records import Block
from partita.graph.store import GraphStore
from partita.kernels import Relabeller
from partita.nn.layers import GCN, GINE, SAGE, GATv2, GraphConv, Layer, Transformer
from partita.sample.blocks import sample_block
from partita.sample.topology import LocalTopology
from partita.testing.graphs import formula_store

pyg = pytest.importorskip("torch_geometric.nn")

NODES, EDGES, WIDTH = 60, 5, 7
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    """With loops, repeated edges, nodes without neighbors and weights of 0."""
    path = tmp_path_factory.mktemp("edges") / "g"
    return formula_store(path, num_nodes=NODES, weighted=True, edge_features=EDGES)


@pytest.fixture
def x() -> Tensor:
    rows = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return rows.requires_grad_()


def whole(store: GraphStore, layer: Layer) -> Block:
    """The block of all nodes and all edges, as it is sampled for a layer."""
    return sample_block(
        LocalTopology(store), torch.arange(NODES), StepKey(1, 0, 0), 1, -1, coefficients=layer.coefficients,
        reduce=layer.sums, edge_columns=layer.edge_columns, fills_loops=layer.fills_loops,
        relabel=Relabeller(NODES), dtype=torch.float64,
    )  # fmt: skip


def graph(store: GraphStore) -> tuple[Tensor, Tensor, Tensor]:
    """``edge_index``, ``edge_weight`` and ``edge_attr`` as PyG takes them."""
    rows = np.repeat(np.arange(NODES), np.diff(store.indptr))
    edge_index = torch.from_numpy(np.stack([store.indices.astype(np.int64), rows]))
    return edge_index, torch.tensor(store.edge_weight).double(), torch.tensor(store.edge_attr).double()


def mlp(hidden: int, out: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, out))


CASES: dict[str, tuple[Any, Any, bool]] = {
    "gcn": (lambda: GCN(WIDTH, 4, edge_weights=True), lambda: pyg.GCNConv(WIDTH, 4), True),
    "graphconv": (lambda: GraphConv(WIDTH, 4, edge_weights=True), lambda: pyg.GraphConv(WIDTH, 4), True),
    "graphconv, mean": (
        lambda: GraphConv(WIDTH, 4, aggregator="mean", edge_weights=True),
        lambda: pyg.GraphConv(WIDTH, 4, aggr="mean"),
        True,
    ),
    "gatv2": (
        lambda: GATv2(WIDTH, 4, 3, edge_width=EDGES),
        lambda: pyg.GATv2Conv(WIDTH, 4, 3, edge_dim=EDGES),
        False,
    ),
    "gatv2 without loops, averaged": (
        lambda: GATv2(WIDTH, 4, 2, concat=False, edge_width=EDGES, add_self_loops=False),
        lambda: pyg.GATv2Conv(WIDTH, 4, 2, concat=False, edge_dim=EDGES, add_self_loops=False),
        False,
    ),
    "gine": (
        lambda: GINE(WIDTH, 4, edge_width=EDGES, hidden=6, eps=0.3),
        lambda: pyg.GINEConv(mlp(6, 4), eps=0.3, train_eps=True, edge_dim=EDGES),
        False,
    ),
    "transformer": (
        lambda: Transformer(WIDTH, 4, 3, edge_width=EDGES),
        lambda: pyg.TransformerConv(WIDTH, 4, 3, edge_dim=EDGES),
        False,
    ),
    "transformer, averaged": (
        lambda: Transformer(WIDTH, 4, 2, concat=False, edge_width=EDGES),
        lambda: pyg.TransformerConv(WIDTH, 4, 2, concat=False, edge_dim=EDGES),
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_and_gradients_are_those_of_pyg(store: GraphStore, x: Tensor, name: str) -> None:
    make, make_theirs, weighted = CASES[name]
    layer, theirs = make().double(), make_theirs().double()
    state = {key: torch.randn_like(value) for key, value in layer.state_dict().items()}
    layer.load_state_dict(state)
    theirs.load_state_dict(state)  # the names are the same
    edge_index, weight, features = graph(store)
    out = layer(whole(store, layer), x)
    wanted = theirs(x, edge_index, edge_weight=weight) if weighted else theirs(x, edge_index, edge_attr=features)
    torch.testing.assert_close(out, wanted, **CLOSE)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    names, parameters = zip(*layer.named_parameters())
    of_theirs = dict(theirs.named_parameters())
    found = torch.autograd.grad((out * cotangent).sum(), [x, *parameters])
    expected = torch.autograd.grad((wanted * cotangent).sum(), [x, *(of_theirs[each] for each in names)])
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


def test_a_weighted_sage_multiplies_rows_before_their_mean(store: GraphStore, x: Tensor) -> None:
    layer = SAGE(WIDTH, 4, edge_weights=True).double()
    edge_index, weight, _ = graph(store)
    sums = torch.zeros(NODES, WIDTH, dtype=torch.float64)
    sums.index_add_(0, edge_index[1], x.detach()[edge_index[0]] * weight.unsqueeze(1))
    degrees = torch.from_numpy(np.diff(store.indptr)).clamp(min=1).unsqueeze(1)
    wanted = (sums / degrees) @ layer.lin_l.weight.T + layer.lin_l.bias + x @ layer.lin_r.weight.T
    torch.testing.assert_close(layer(whole(store, layer), x), wanted, **CLOSE)


def test_a_sampled_weighted_gcn_has_the_whole_sum_as_its_expectation(store: GraphStore, x: Tensor) -> None:
    layer = GCN(WIDTH, 4, edge_weights=True).double()
    exact = layer(whole(store, layer), x.detach())
    topology, draws = LocalTopology(store), 2000
    total, squares = torch.zeros_like(exact), torch.zeros_like(exact)
    with torch.no_grad():
        for step in range(draws):
            block = sample_block(
                topology, torch.arange(NODES), StepKey(1, 0, step), 1, 2, coefficients=layer.coefficients,
                reduce=layer.sums, edge_columns=layer.edge_columns, relabel=Relabeller(NODES), dtype=torch.float64,
            )  # fmt: skip
            off = layer(block, x[block.src]) - exact
            total, squares = total + off, squares + off**2
    deviation = (squares / draws).sqrt() / draws**0.5
    assert bool((total.abs() / draws <= 5 * deviation + 1e-9).all())
    assert bool((deviation > 1e-6).any())
