"""Walks taken by the owners of the nodes are those that one worker takes, and nothing more travels."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from meters import bytes_sent

import partita
from partita.comm.axis import Axis
from partita.comm.threads import ThreadGroups
from partita.config import Config
from partita.core.errors import ConfigError, StoreError
from partita.core.keys import Purpose, StepKey
from partita.core.protocols import Sampler
from partita.core.records import RemoteDraws
from partita.nn.layers import GCN
from partita.partitioning.shards import shard
from partita.sample.blocks import sample_block
from partita.sample.collective import CollectiveTopology
from partita.sample.topology import LocalTopology
from partita.sample.walks import WalkWise, step_by_step
from partita.setup.sampler import sampler_settings
from partita.testing.graphs import formula_store


def axis_of(context, offsets):
    groups = [context.group("all", purpose) for purpose in ("sample", "train", "load")]
    return Axis(*groups, torch.as_tensor(offsets), torch.arange(len(offsets) - 1))


@st.composite
def cases(draw):
    """Edges (sinks, repeats, self loops, weights of 0), parts (also empty ones), and every worker's starts."""
    workers = draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    nodes = draw(st.integers(1, 30))
    edges = random.integers(0, nodes, (draw(st.integers(0, 120)), 2))
    edges[:, 1] = (edges[:, 1] ** 2) // nodes
    weights = random.integers(0, 3, len(edges))
    inner = sorted(draw(st.lists(st.integers(0, nodes), min_size=workers - 1, max_size=workers - 1)))
    starts = [
        torch.from_numpy(random.permutation(nodes)[: draw(st.sampled_from([0, 1, nodes]))]) for _ in range(workers)
    ]
    return edges, weights, nodes, [0, *inner, nodes], starts, random.permutation(nodes)


@settings(max_examples=60)
@given(
    cases(),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.4]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**64 - 1),
)
def test_owners_walk_as_one_worker_walks(store_of, shard_of, case, walks, length, restart, weighted, cut, key):
    edges, weights, nodes, offsets, starts, original = case
    workers = len(starts)
    store = store_of(edges, nodes, original_index=original, weights=weights if weighted else None)
    whole = LocalTopology(store, weighted=weighted)
    options = {"walks": walks, "length": length, "restart": restart}
    groups = ThreadGroups(workers)

    def work(context):
        rank = context.mesh.rank
        mine = shard_of(store, rank, workers, offsets[rank], offsets[rank + 1]) if cut else store
        topology = CollectiveTopology(LocalTopology(mine, weighted=weighted), axis_of(context, offsets))
        return topology, step_by_step(topology, starts[rank], key, **options)

    results, sent = groups.run(work), RemoteDraws()
    for rank, (start, (_, (nodes_visited, remote))) in enumerate(zip(starts, results)):
        wanted = whole.random_walks(start, key, **options)
        assert nodes_visited.dtype == wanted.dtype == whole.id_dtype
        assert torch.equal(nodes_visited, wanted)
        alone, nothing = step_by_step(whole, start, key, **options)
        assert torch.equal(alone, wanted)
        assert nothing == RemoteDraws()
        # A step is asked of another worker where it is its node's, and the walk has not gone back instead.
        elsewhere = torch.bucketize(wanted[:, :-1].long(), torch.tensor(offsets[1:]), right=True) != rank
        assert remote.steps <= int((elsewhere & (wanted[:, :-1] >= 0)).sum())
        if restart == 0 and workers > 1:
            assert remote.steps == int((elsewhere & (wanted[:, :-1] >= 0)).sum())
        sent += remote
    assert results[0][0].traffic(sent).ids == bytes_sent(groups)["ids"]
    assert sum(size for kind, size in bytes_sent(groups).items() if kind not in ("ids", "metadata")) == 0


def test_an_id_and_a_draw_travel_and_an_id_back(store_of):
    store = store_of([(node, 39 - node) for node in range(40)], 40)  # every step crosses
    groups = ThreadGroups(2)

    def work(context):
        topology = CollectiveTopology(LocalTopology(store), axis_of(context, [0, 20, 40]))
        start = torch.tensor([0, 1, 2]) if context.mesh.rank == 0 else torch.tensor([], dtype=torch.int64)
        return step_by_step(topology, start, 5, walks=2, length=3, restart=0.0)

    (walks, remote), (nothing, _) = groups.run(work)
    assert walks[:2].tolist() == [[0, 39, 0, 39]] * 2
    assert nothing.shape == (0, 4)
    assert remote == RemoteDraws(steps=6)  # the second of three
    assert bytes_sent(groups)["ids"] == 6 * (4 + 8 + 4)
    assert bytes_sent(groups)["metadata"] == 3 * 2 * 8  # all workers take all steps


def test_a_reordered_store_walks_the_same(store_of):
    random = np.random.default_rng(0)
    edges = random.integers(0, 40, (300, 2))
    to_new = random.permutation(40)
    plain = LocalTopology(store_of(edges, 40))
    moved = LocalTopology(store_of(to_new[edges], 40, original_index=np.argsort(to_new)))
    options = {"walks": 4, "length": 5, "restart": 0.2}
    a = plain.random_walks(torch.arange(40), 77, **options)
    b = moved.random_walks(torch.from_numpy(to_new), 77, **options)
    back = moved.original(b.clamp(min=0).reshape(-1)).view(b.shape)
    assert torch.equal(a.long(), torch.where(b < 0, -1, back))


def test_a_shard_does_not_walk_by_itself(store_of, shard_of):
    shard = LocalTopology(shard_of(store_of([(1, 0), (0, 3)], 4), 0, 2, 0, 2))
    with pytest.raises(ValueError, match="of 2 edges 1 are there"):
        shard.random_walks(torch.tensor([0]), 1, walks=1, length=1, restart=0.0)
    with pytest.raises(IndexError, match="has the edges of 0:2 only"):
        step_by_step(shard, torch.tensor([3]), 1, walks=1, length=1, restart=0.0)


# The public function.


def test_walks_of_a_store_and_of_the_same_store_partitioned(tmp_path):
    plain = formula_store(tmp_path / "plain", num_nodes=50)
    moved = formula_store(tmp_path / "moved", num_nodes=50, num_parts=3, shuffle_seed=4)
    options = {"length": 4, "walks": 3, "restart": 0.2, "seed": 8}
    nodes = np.arange(50)
    found = partita.random_walks(plain, nodes, **options)
    assert found.shape == (50, 3, 5)
    assert found.dtype == plain.indices.dtype
    assert (found[:, :, 0] == nodes[:, None]).all()
    place = np.argsort(moved.to_original(nodes))
    again = partita.random_walks(tmp_path / "moved", place, **options)
    back = moved.to_original(again.clip(min=0).ravel()).reshape(again.shape)
    assert np.array_equal(np.where(again < 0, -1, back), found)
    # By themselves, in any order, or again: the same walks. Another seed gives others.
    assert np.array_equal(partita.random_walks(plain, [7, 3, 7], **options), found[[7, 3, 7]])
    assert not np.array_equal(partita.random_walks(plain, nodes, **{**options, "seed": 9}), found)
    for walk in found.reshape(-1, 5).tolist():
        for a, b in pairwise(walk):
            assert b in (-1, walk[0]) or b in plain.neighbors(a)
    assert partita.random_walks(plain, [], length=2).shape == (0, 1, 3)


def test_weighted_walks_take_no_edge_of_weight_0(tmp_path):
    store = formula_store(tmp_path / "g", num_nodes=40, weighted=True)
    found = partita.random_walks(store, np.arange(40), length=3, walks=20, weighted=True)
    weight = {
        (int(u), v): w
        for v in range(40)
        for u, w in zip(store.neighbors(v), store.edge_weight[store.indptr[v] : store.indptr[v + 1]])
    }
    moves = [(b, a) for walk in found.reshape(-1, 4).tolist() for a, b in pairwise(walk) if b not in (-1, walk[0])]
    assert len(moves) > 500
    assert all(weight[move] > 0 for move in moves)
    assert 0 in weight.values()


@pytest.mark.parametrize(
    ("nodes", "options", "message"),
    [
        ([0], {"length": 0}, "length must be at least 1, not 0"),
        ([0], {"length": -2}, "length must be at least 1, not -2"),
        ([0], {"walks": 0}, "walks must be at least 1"),
        ([0], {"restart": 1.0}, "restart must be at least 0 and below 1, not 1.0"),
        ([0], {"restart": -0.5}, "restart must be"),
        ([0], {"restart": float("nan")}, "restart must be"),
        ([0], {"seed": -1}, "seed must be at least 0"),
        ([0, 12], {}, "there is no node 12.*from 0 to 11"),
        ([-1], {}, "there is no node -1"),
        ([0.5], {}, "whole numbers, not float64"),
        ([[0]], {}, r"shape \(1, 1\)"),
        (["a"], {}, "whole numbers"),
        ([0], {"weighted": True}, "needs edge weights"),
    ],
)
def test_what_cannot_be_walked(tmp_path, nodes, options, message):
    store = formula_store(tmp_path / "g", num_nodes=12)
    with pytest.raises(ConfigError, match=message):
        partita.random_walks(store, nodes, **{"length": 2, **options})


def test_a_shard_is_refused(tmp_path):
    store = formula_store(tmp_path / "g", num_nodes=12, num_parts=2)
    shard(store, tmp_path / "shard", host=0, hosts=2)
    with pytest.raises(StoreError, match="a random walk needs the whole graph"):
        partita.random_walks(tmp_path / "shard", [0], length=2)


# Neighborhoods of visited nodes.


def visited(store, node, sampler, key, count):
    """Neighbors and shares by brute force."""
    topology = LocalTopology(store)
    nodes = topology.random_walks(
        torch.tensor([node]), key, walks=sampler.walks, length=sampler.length, restart=sampler.restart
    )
    row = [v for v in nodes[:, 1:].reshape(-1).tolist() if v not in (-1, node)]
    best = Counter(row).most_common(count)
    total = sum(times for _, times in best)
    return [(v, times / total) for v, times in best]


def test_the_most_visited_nodes_and_their_shares(tmp_path):
    store = formula_store(tmp_path / "g", num_nodes=40)
    topology, sampler = LocalTopology(store), WalkWise((3, 2), walks=6, length=3, restart=0.3)
    for layer, count in ((1, 3), (2, 2)):
        dst = torch.tensor([7, 0, 33, 6])  # 0 and 6 have no in-neighbors
        found = sampler.draw(topology, dst, 99, layer)
        for i, node in enumerate(dst.tolist()):
            mine = slice(int(found.indptr[i]), int(found.indptr[i + 1]))
            wanted = visited(store, node, sampler, 99, count)
            assert found.indices[mine].tolist() == [v for v, _ in wanted]
            assert found.visit_weight[mine].tolist() == pytest.approx([share for _, share in wanted], abs=1e-15)
        assert found.indptr.diff()[[1, 3]].tolist() == [0, 0]
        assert found.importance is None
    assert isinstance(sampler, Sampler)


def test_a_key_of_its_own_holds_in_every_step_and_layer(tmp_path):
    topology = LocalTopology(formula_store(tmp_path / "g", num_nodes=40))
    config = Config.make({"sampler": "walk", "fanout": "4,9,2", "seed": 3})
    sampler, dst = WalkWise.for_evaluation(sampler_settings(config)), torch.arange(40)
    assert (sampler.fanouts, sampler.most) == ((2, 9, 4), 9)
    one, other = (sampler.draw(topology, dst, key, 1) for key in (1, 2))
    assert torch.equal(one.indices, other.indices)
    widest = sampler.widest(topology, dst)
    for layer, count in ((1, 2), (2, 9), (3, 4)):
        found = sampler.draw(topology, dst, 0, layer)
        for i in range(40):
            mine, wide = (part.indices[part.indptr[i] : part.indptr[i + 1]].tolist() for part in (found, widest))
            assert mine == wide[:count]
    trained = WalkWise.of(sampler_settings(config), None)
    assert not torch.equal(trained.draw(topology, dst, 1, 1).indices, trained.draw(topology, dst, 2, 1).indices)
    another = WalkWise.for_evaluation(sampler_settings(config.model_copy(update={"seed": 4})))
    assert not torch.equal(another.draw(topology, dst, 1, 1).indices, one.indices)


@pytest.mark.parametrize("reduce", ["sum", "mean", None])
def test_shares_are_the_weights_of_a_sum_as_of_a_mean(tmp_path, reduce):
    topology = LocalTopology(formula_store(tmp_path / "g", num_nodes=40))
    sampler, requests = WalkWise((3,), walks=6, length=3, restart=0.3), torch.tensor([7, 0, 33])
    key = StepKey(1, 0, 2)
    block = sample_block(topology, requests, key, 1, sampler, reduce=reduce, dtype=torch.float64)
    drawn = sampler.draw(topology, requests, key.at(Purpose.SAMPLE, 1), 1)
    assert torch.equal(block.indices, drawn.indices)
    if reduce is None:
        assert block.weight is None
    else:
        assert torch.equal(block.weight, drawn.visit_weight)
        sums = torch.zeros(3, dtype=torch.float64).index_add_(0, block.edge_dst(), block.weight)
        assert sums.tolist() == pytest.approx([1, 0, 1])
    with pytest.raises(ValueError, match="are not edges of the graph"):
        sample_block(topology, requests, key, 1, sampler, coefficients=GCN.coefficients)
