"""Blocks and their coefficients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCNConv

from partita import kernels
from partita.core.keys import Purpose, StepKey
from partita.kernels import Relabeller
from partita.nn.layers import GCN
from partita.sample.blocks import sample_block
from partita.sample.topology import LocalTopology

KEY = StepKey(seed=3, epoch=1, step=2)


def symmetric_graph(nodes=30, edges=150, loops=True, seed=0):
    random = np.random.default_rng(seed)
    pairs = random.integers(0, nodes - 2, (edges, 2))  # the last two have no neighbor
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    pairs = np.concatenate([pairs, pairs[:, ::-1]])
    if loops:
        pairs = np.concatenate([pairs, [[4, 4], [4, 4], [7, 7], [nodes - 1, nodes - 1]]])
    return pairs, nodes


def test_fields(store_of):
    edges, nodes = symmetric_graph()
    topology = LocalTopology(store_of(edges, nodes, original_index=np.arange(nodes)[::-1].copy()))
    requests = torch.tensor([5, 29, 0])
    block = sample_block(topology, requests, KEY, 2, 3, relabel=Relabeller(nodes))
    assert block.dst.dtype == topology.id_dtype
    assert block.dst.tolist() == requests.tolist() == block.src[:3].tolist()
    assert block.dst_original.tolist() == [24, 0, 29]
    assert block.weight is None
    assert block.self_weight is None
    sampled = topology.sample(requests, KEY.at(Purpose.SAMPLE, 2), 3)
    assert torch.equal(block.src[block.indices.long()], sampled.indices)
    by_id = sample_block(topology, requests, KEY, 2, 3)
    assert by_id.src is None
    assert torch.equal(by_id.indices, sampled.indices)


def test_steps_and_layers_draw_differently(store_of):
    edges, nodes = symmetric_graph()
    topology = LocalTopology(store_of(edges, nodes))
    names = [(KEY, 1), (KEY, 2), (StepKey(3, 1, 3), 1), (StepKey(3, 2, 2), 1), (StepKey(4, 1, 2), 1)]
    found = [sample_block(topology, torch.arange(nodes), key, layer, 2).indices for key, layer in names]
    for i, a in enumerate(found):
        assert torch.equal(a, sample_block(topology, torch.arange(nodes), *names[i], 2).indices)
        assert not any(torch.equal(a, b) for b in found[:i])


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("relabeled", [False, True])
def test_gcn_on_full_neighborhoods_is_pyg(store_of, loops, relabeled):
    edges, nodes = symmetric_graph(loops=loops)
    topology = LocalTopology(store_of(edges, nodes))
    layer = GCNConv(5, 3).double()
    x = torch.randn(nodes, 5, dtype=torch.float64)
    expected = layer(x, torch.from_numpy(edges.T.copy())).detach()
    dst = torch.tensor([7, 4, 29, 28, 0, 11])
    block = sample_block(
        topology,
        dst,
        KEY,
        1,
        -1,
        coefficients=GCN.coefficients,
        relabel=Relabeller(nodes) if relabeled else None,
        dtype=torch.float64,
    )
    rows = x if block.src is None else x[block.src.long()]
    total = kernels.aggregate(rows, block.indptr, block.indices, block.weight) + block.self_weight[:, None] * x[dst]
    found = total @ layer.lin.weight.detach().T + layer.bias.detach()
    torch.testing.assert_close(found, expected[dst], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("relabeled", [False, True])
def test_sampled_gcn_has_the_full_sum_as_expectation(store_of, relabeled):
    edges, nodes = symmetric_graph()
    topology = LocalTopology(store_of(edges, nodes))
    dst, x = torch.arange(nodes), torch.ones(nodes, 1, dtype=torch.float64)

    def total(step, fanout):
        block = sample_block(
            topology,
            dst,
            StepKey(0, 0, step),
            1,
            fanout,
            coefficients=GCN.coefficients,
            relabel=Relabeller(nodes) if relabeled else None,
            dtype=torch.float64,
        )
        rows = x if block.src is None else x[block.src.long()]
        return kernels.aggregate(rows, block.indptr, block.indices, block.weight)[:, 0]

    sums = torch.stack([total(step, 4) for step in range(1500)])
    error = (sums.mean(0) - total(0, -1)) / (sums.std(0) / 1500**0.5 + 1e-12)
    assert error.abs().max() < 5


def test_dtype_and_duplicate_requests(store_of):
    edges, nodes = symmetric_graph()
    topology = LocalTopology(store_of(edges, nodes))
    block = sample_block(topology, torch.arange(3), KEY, 1, 2, coefficients=GCN.coefficients)
    assert block.weight.dtype == block.self_weight.dtype == torch.float32
    with pytest.raises(ValueError, match="twice"):
        sample_block(topology, torch.tensor([1, 1]), KEY, 1, 2, relabel=Relabeller(nodes))


def test_no_requests(store_of):
    topology = LocalTopology(store_of(*symmetric_graph()))
    for relabel in (None, Relabeller(30)):
        none = torch.zeros(0, dtype=torch.int64)
        block = sample_block(topology, none, KEY, 1, 2, coefficients=GCN.coefficients, relabel=relabel)
        assert block.indptr.tolist() == [0]
        assert block.weight.shape == block.self_weight.shape == block.indices.shape == (0,)
