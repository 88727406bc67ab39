"""Neighbors that the destinations of a layer share: which keys they are drawn by, and what follows for a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from partita import kernels
from partita.comm.group import Group
from partita.config import Config
from partita.core.keys import Purpose, StepKey, fold
from partita.core.node_types import NodeTypes
from partita.core.protocols import Sampler
from partita.kernels import SharedKey
from partita.kernels.reference.shared_draws import shared_draw
from partita.nn.layers import GCN
from partita.sample.blocks import sample_block
from partita.sample.labor import LaborWise, SharedFanout
from partita.sample.samplers import NodeWise
from partita.sample.topology import ArrayTopology
from partita.setup.sampler import evaluation_sampler, make_sampler

KEY = StepKey(seed=3, epoch=1, step=6)


def topology_of(num_nodes=200, degree=30, **options):
    """Every node has as many in-edges, from anywhere."""
    random = np.random.default_rng(0)
    indptr = torch.arange(0, num_nodes * degree + 1, degree)
    return ArrayTopology(indptr, torch.from_numpy(random.integers(0, num_nodes, num_nodes * degree)), **options)


def made(**settings):
    return make_sampler(Config.make({"sampler": "labor", "layers": 2, "fanout": "5,4", **settings}), Group.alone())


def test_it_is_made_of_its_settings():
    sampler = made(batch_dependency=9, layer_dependency=True)
    assert isinstance(sampler, LaborWise)
    assert isinstance(sampler, Sampler)
    assert (sampler.fanouts, sampler.batch_dependency, sampler.layer_dependency) == ((4, 5), 9, True)
    plain = made()
    assert (plain.batch_dependency, plain.layer_dependency) == (1, False)
    assert (plain.collective, plain.has_importance) == (False, False)
    assert evaluation_sampler(Config.make({"sampler": "labor"})) is None
    assert plain.expected_edges(1, 10, 3.5, 1) == 35
    assert plain.expected_edges(1, 10, 30, 1) == 40


def test_batches_are_independent_unless_it_is_asked_for():
    """The key of the step and layer itself, as any sampler has it."""
    for layer in (1, 2):
        assert made().key_of(KEY, layer) == SharedKey(KEY.at(Purpose.SAMPLE, layer))
    topology, dst = topology_of(), torch.arange(50)
    by_step = made().at_step(KEY).draw(topology, dst, 0, 2)
    by_key = made().draw(topology, dst, KEY.at(Purpose.SAMPLE, 2), 2)
    assert torch.equal(by_step.indices, by_key.indices)


def test_layers_have_the_same_draws_if_they_depend():
    topology, dst = topology_of(), torch.arange(50)
    for options in ({}, {"batch_dependency": 4}):
        sampler = LaborWise((5, 5), layer_dependency=True, **options).at_step(KEY)
        one, other = (sampler.draw(topology, dst, 0, layer) for layer in (1, 2))
        assert torch.equal(one.indices, other.indices)
        apart = LaborWise((5, 5), **options).at_step(KEY)
        assert not torch.equal(apart.draw(topology, dst, 0, 1).indices, apart.draw(topology, dst, 0, 2).indices)
    assert LaborWise((5,), layer_dependency=True).key_of(KEY, 1).key not in {KEY.at(Purpose.SAMPLE, n) for n in (1, 2)}
    elsewhere = (StepKey(3, 1, 7), StepKey(3, 2, 6), StepKey(4, 1, 6))
    keys = {LaborWise((5,), layer_dependency=True).key_of(key, 1) for key in (KEY, *elsewhere)}
    assert len(keys) == 4


def test_keys_turn_within_a_window():
    sampler = LaborWise((5,), batch_dependency=4)
    keys = [sampler.key_of(StepKey(3, 1, step), 1) for step in range(9)]
    windows = [StepKey(3, 1, window).at(Purpose.SAMPLE, 1) for window in range(4)]
    assert [keys[0], keys[4], keys[8]] == [SharedKey(key) for key in windows[:3]]
    for step in (1, 2, 3, 5, 6, 7):
        window, passed = divmod(step, 4)
        assert keys[step] == SharedKey.turning(windows[window], windows[window + 1], passed / 4)
    assert sampler.key_of(StepKey(3, 2, 0), 1).key not in windows


def gaussians(sampler, steps):
    """Of each step those of 4000 nodes."""
    keys = [sampler.key_of(StepKey(3, 1, step), 1) for step in steps]
    shares = np.array([[shared_draw(key, node) for node in range(4000)] for key in keys], np.float64) / 2**64
    return stats.norm.ppf(shares)


def test_draws_of_steps_are_as_correlated_as_they_turn():
    """Of the same window by the cosine of the angle between them; beyond the next window not at all."""
    steps = (0, 1, 4, 6, 8, 13, 16, 24)
    found = np.corrcoef(gaussians(LaborWise((5,), batch_dependency=8), steps))
    for i, one in enumerate(steps):
        for j, other in enumerate(steps):
            turns = []
            for step in (one, other):
                window, passed = divmod(step, 8)
                angle = np.pi / 2 * passed / 8
                turns.append({window: np.cos(angle), window + 1: np.sin(angle)})
            wanted = sum(turns[0][window] * turns[1].get(window, 0) for window in turns[0])
            assert abs(found[i, j] - wanted) < 5 / 4000**0.5
    assert abs(found[0, 4:]).max() < 5 / 4000**0.5  # from step 0, 8 steps on


def test_batches_that_follow_one_another_have_sources_in_common():
    """Ever fewer, to as many as batches have that are independent."""
    topology, dst = topology_of(2000, 50), torch.arange(2000)

    def picked(sampler, step):
        found = sampler.at_step(StepKey(3, 1, step)).draw(topology, dst, 0, 1)
        return set(zip(torch.repeat_interleave(dst, found.indptr.diff()).tolist(), found.indices.tolist()))

    sampler = LaborWise((5,), batch_dependency=16)
    first = picked(sampler, 0)
    shared = [len(first & picked(sampler, step)) / len(first) for step in (1, 4, 8, 12, 16, 40)]
    assert shared[:4] == sorted(shared[:4], reverse=True)
    assert shared[0] > 0.7
    assert max(shared[4:]) < 0.2  # 5 of 50 by chance
    alone = [len(first & picked(LaborWise((5,)), step)) / len(first) for step in (1, 2)]
    assert max(alone) < 0.2


@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_has_fewer_sources_than_with_draws_of_its_own(weighted):
    random = np.random.default_rng(1)
    weights = torch.from_numpy(random.integers(1, 6, 60_000).astype(np.uint32))
    topology, dst = topology_of(2000, 30, weights=weights, weighted=weighted), torch.arange(0, 2000, 4)
    labor, node = LaborWise((5,)), NodeWise((5,))
    ours, others = labor.draw(topology, dst, 9, 1), node.draw(topology, dst, 9, 1)
    assert torch.equal(ours.indptr, others.indptr)
    assert kernels.count_distinct(ours.indices, 2000) < 0.7 * kernels.count_distinct(others.indices, 2000)


@pytest.mark.parametrize("options", [{}, {"layer_dependency": True, "batch_dependency": 8}])
@pytest.mark.parametrize(("reduce", "coefficients"), [("mean", None), ("sum", GCN.coefficients)])
def test_every_node_has_the_full_mean_as_expectation(options, reduce, coefficients):
    """Of each destination, in 1500 steps of as many epochs within 5 standard errors."""
    place, dst = topology_of(30, 12), torch.arange(30)
    x = torch.randn(30, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    sampler = LaborWise((4,), **options)

    def total(epoch, what):
        block = sample_block(
            place, dst, StepKey(0, epoch, 3), 1, what, coefficients=coefficients, reduce=reduce, dtype=torch.float64
        )
        join = reduce if block.weight is None else "sum"
        return kernels.aggregate(x, block.indptr, block.indices, block.weight, reduce=join)[:, 0]

    sums = torch.stack([total(epoch, sampler) for epoch in range(1500)])
    error = (sums.mean(0) - total(0, -1)) / (sums.std(0) / 1500**0.5 + 1e-12)
    assert error.abs().max() < 5


def test_relations_share_the_draws_and_have_fanouts_of_their_own():
    """Two relations with the same neighbors take the same ones, as far as their fanouts go."""
    indices = torch.arange(10).repeat(2)
    topology = ArrayTopology(
        torch.tensor([0, 20] + [20] * 9), indices, edge_type=torch.arange(2).repeat_interleave(10).to(torch.uint8),
        node_types=NodeTypes(np.array([0, 10])), num_relations=2,
    )  # fmt: skip
    found = LaborWise([(3, 5)]).draw(topology, torch.tensor([0]), 11, 1)
    one, other = found.indices[found.edge_type == 0].tolist(), found.indices[found.edge_type == 1].tolist()
    first = sorted(range(10), key=lambda node: fold(11, node))
    assert (one, other) == (sorted(first[:3]), sorted(first[:5]))


def test_columns_of_edges_come_with_them():
    weight = torch.rand(6000)
    topology = topology_of(edge_rows={"edge_weight": weight}).drawing(("edge_weight",))
    found = topology.at_owners(torch.arange(20), SharedFanout(SharedKey(5), 4))
    positions = kernels.sample_shared(
        torch.arange(0, 6001, 30), topology._indices, torch.arange(20), None, SharedKey(5), (4,), positions=True
    ).positions
    assert torch.equal(found.edge_weight, weight[positions])
    assert found.positions is None
