"""Samplers by name, and the coefficients that follow from what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from partita import kernels
from partita.comm.group import Group
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.keys import Purpose, StepKey
from partita.core.node_types import NodeTypes
from partita.kernels import Relabeller
from partita.nn.layers import GCN
from partita.sample.blocks import sample_block
from partita.sample.samplers import LayerWise, NodeWise, as_sampler
from partita.sample.topology import RELATION_DEGREE, ArrayTopology, LocalTopology
from partita.setup.sampler import make_sampler

KEY = StepKey(seed=3, epoch=1, step=2)


@pytest.fixture(scope="module")
def topology(store_of):
    """30 nodes, of which two have no neighbor; loops; weights from 1 on."""
    random = np.random.default_rng(0)
    edges = random.integers(0, 28, (200, 2))
    edges = np.concatenate([edges, [[4, 4], [4, 4], [29, 29]]])
    store = store_of(edges, 30, weights=random.integers(1, 6, len(edges)))
    return lambda **options: LocalTopology(store, **options)


def test_fanouts_stand_for_the_sampler_node() -> None:
    sampler = as_sampler((3, 2))
    assert isinstance(sampler, NodeWise)
    assert sampler.fanouts == (3, 2)
    assert as_sampler(sampler) is sampler


def test_samplers_of_a_configuration() -> None:
    node = make_sampler(Config.make({"fanout": "7,6,5"}), Group.alone())
    assert isinstance(node, NodeWise)
    assert node.fanouts == (5, 6, 7)
    layer = make_sampler(Config.make({"sampler": "layer", "layer_budget": "70,60,50", "weighted": True}), Group.alone())
    assert isinstance(layer, LayerWise)
    assert (layer.budgets, layer.weighted) == ((50, 60, 70), True)


def test_too_large_a_budget() -> None:
    config = Config.make({"sampler": "layer", "layer_budget": 2**20 + 1})
    with pytest.raises(ConfigError, match=r"layer_budget: at most 1,048,576 edges.*sampler node"):
        make_sampler(config, Group.alone())


def test_weights_must_be_known_to_the_sampler(topology) -> None:
    for weighted in (False, True):
        with pytest.raises(ValueError, match="weighted"):
            LayerWise([5], Group.alone(), weighted=not weighted).draw(
                topology(weighted=weighted), torch.arange(3), 1, 1
            )


@pytest.mark.parametrize("relabeled", [False, True])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_fields_of_a_block(topology, relabeled, replace, weighted) -> None:
    place, requests = topology(replace=replace, weighted=weighted), torch.tensor([5, 29, 0, 28, 4])
    sampler = LayerWise([11, 7], Group.alone(), weighted=weighted)

    def block(reduce, coefficients=None):
        return sample_block(
            place, requests, KEY, 2, sampler, coefficients=coefficients, reduce=reduce,
            relabel=Relabeller(30) if relabeled else None, dtype=torch.float64,
        )  # fmt: skip

    sampled = sampler.draw(place, requests, KEY.at(Purpose.SAMPLE, 2), 2)
    total, mean, plain, gcn = block("sum"), block("mean"), block(None), block("sum", GCN.coefficients)
    for each in (total, mean, plain, gcn):
        ids = each.indices if each.src is None else each.src[each.indices.long()]
        assert torch.equal(ids, sampled.indices)
        assert each.num_edges == 7
    assert plain.weight is None
    assert torch.equal(total.weight, sampled.importance)
    assert (sampled.importance >= 1).all() or replace
    degrees = place.degrees(requests)[total.edge_dst()]
    torch.testing.assert_close(mean.weight * degrees, sampled.importance)
    whole = sample_block(place, requests, KEY, 2, -1, coefficients=GCN.coefficients, dtype=torch.float64)
    full = {
        (v, u): weight for v, u, weight in zip(whole.edge_dst().tolist(), whole.indices.tolist(), whole.weight.tolist())
    }
    pairs = zip(gcn.edge_dst().tolist(), sampled.indices.tolist())
    expected = torch.tensor([full[pair] for pair in pairs], dtype=torch.float64) * sampled.importance
    torch.testing.assert_close(gcn.weight, expected)
    assert torch.equal(gcn.self_weight, whole.self_weight)


def test_a_budget_beyond_the_edges_is_the_whole_neighborhood(topology) -> None:
    place, dst = topology(), torch.arange(30)
    sampler, x = LayerWise([1000], Group.alone()), torch.randn(30, 2, dtype=torch.float64)
    for reduce in ("sum", "mean"):
        found = sample_block(place, dst, KEY, 1, sampler, reduce=reduce, dtype=torch.float64)
        whole = sample_block(place, dst, KEY, 1, -1)
        assert torch.equal(found.indices, whole.indices)
        torch.testing.assert_close(
            kernels.aggregate(x, found.indptr, found.indices, found.weight),
            kernels.aggregate(x, whole.indptr, whole.indices, reduce=reduce),
        )


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("reduce", "coefficients"), [("sum", None), ("mean", None), ("sum", GCN.coefficients)])
def test_every_node_has_the_full_sum_as_expectation(topology, replace, weighted, reduce, coefficients) -> None:
    """Of each destination, not only of all together: in 1500 steps within 5 standard errors."""
    place, dst, x = topology(replace=replace, weighted=weighted), torch.arange(30), torch.ones(30, 1).double()
    sampler = LayerWise([40], Group.alone(), weighted=weighted)

    def total(step, what):
        block = sample_block(
            place, dst, StepKey(0, 0, step), 1, what, coefficients=coefficients, reduce=reduce, dtype=torch.float64
        )
        join = reduce if block.weight is None else "sum"
        return kernels.aggregate(x, block.indptr, block.indices, block.weight, reduce=join)[:, 0]

    sums = torch.stack([total(step, sampler) for step in range(1500)])
    error = (sums.mean(0) - total(0, -1)) / (sums.std(0) / 1500**0.5 + 1e-12)
    assert error.abs().max() < 5


def typed_topology(**options):
    """20 nodes, in-edges of four relations, of which a node has not all; weights from 1 on."""
    random = np.random.default_rng(0)
    edges = random.integers(0, 20, (160, 2))
    kinds = random.integers(0, 4, 160)
    order = np.lexsort((kinds, edges[:, 1]))
    return ArrayTopology(
        torch.from_numpy(np.concatenate([[0], np.cumsum(np.bincount(edges[:, 1], minlength=20))])),
        torch.from_numpy(edges[order, 0]),
        edge_type=torch.from_numpy(kinds[order].astype(np.uint8)),
        weights=torch.from_numpy(random.integers(1, 6, 160).astype(np.uint32)),
        node_types=NodeTypes(np.array([0, 20])),
        num_relations=4,
        **options,
    )


def by_pair(block, reduce):
    """The sum or mean of ones over the edges of every destination and relation, weighted as the block says."""
    pair = block.edge_dst() * 4 + block.edge_type
    ones = torch.ones(block.num_edges).double() if block.weight is None else block.weight
    sums = torch.zeros(80).double().index_add_(0, pair, ones)
    return sums / torch.bincount(pair, minlength=80).clamp(min=1) if reduce == "mean" and block.weight is None else sums


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_every_relation_of_a_node_has_its_full_sum_as_expectation(replace, weighted, reduce) -> None:
    """In 1500 steps within 5 standard errors; of a relation without a budget nothing is drawn."""
    place, dst = typed_topology(replace=replace, weighted=weighted), torch.arange(20)
    sampler = LayerWise([(14, 0, 9, 300)], Group.alone(), weighted=weighted)
    columns = (RELATION_DEGREE,) if reduce == "mean" else ()
    sums = torch.stack([
        by_pair(
            sample_block(
                place, dst, StepKey(0, 0, step), 1, sampler, reduce=reduce, edge_columns=columns, dtype=torch.float64
            ),
            reduce,
        )
        for step in range(1500)
    ])  # fmt: skip
    wanted = by_pair(sample_block(place, dst, KEY, 1, -1, dtype=torch.float64), reduce).reshape(20, 4)
    found, spread = sums.mean(0).reshape(20, 4), sums.std(0).reshape(20, 4)
    error = (found - wanted) / (spread / 1500**0.5 + 1e-12)
    assert error[:, [0, 2]].abs().max() < 5
    assert not found[:, 1].any()
    assert wanted[:, 1].any()
    if replace:
        assert error[:, 3].abs().max() < 5
    else:  # all of them are drawn
        torch.testing.assert_close(found[:, 3], wanted[:, 3])


def test_a_budget_for_other_relations_is_refused() -> None:
    with pytest.raises(ValueError, match="3 times for 4 relations"):
        LayerWise([(1, 2, 3)], Group.alone()).draw(typed_topology(), torch.arange(3), 1, 1)
