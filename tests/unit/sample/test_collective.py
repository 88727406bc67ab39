"""Owners draw what one worker would: the same picks, in the same order, and nothing more travels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from meters import bytes_sent

from partita.comm.axis import Axis, owners_of_parts
from partita.comm.group import Group
from partita.comm.threads import ThreadGroups
from partita.core.keys import StepKey
from partita.core.protocols import Topology
from partita.core.records import RemoteDraws
from partita.graph.store import GraphStore
from partita.kernels import Relabeller
from partita.nn.layers import GCN
from partita.partitioning.shards import shard
from partita.sample.blocks import sample_block
from partita.sample.collective import CollectiveTopology
from partita.sample.samplers import Fanout
from partita.sample.topology import LocalTopology
from partita.testing.graphs import formula_store

SYMMETRIC = GCN.coefficients


def axis_of(context, offsets, owners=None, name="all"):
    offsets = torch.as_tensor(offsets)
    owners = torch.arange(len(offsets) - 1) if owners is None else owners
    return Axis(*(context.group(name, purpose) for purpose in ("sample", "train", "load")), offsets, owners)


def same(found, wanted):
    for name in ("indptr", "indices", "positions"):
        a, b = getattr(found, name), getattr(wanted, name)
        assert (a is None) == (b is None), name
        if a is not None and b is not None:
            assert a.dtype == b.dtype, name
            assert torch.equal(a, b), name


def ids_sent(groups):
    return bytes_sent(groups)["ids"]


@st.composite
def cases(draw):
    """Edges (repeats, self loops, weights of 0), parts (also empty ones), and what every worker asks for."""
    workers = draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    nodes = draw(st.integers(1, 40))
    edges = random.integers(0, nodes, (draw(st.integers(0, 300)), 2))
    edges[:, 1] = (edges[:, 1] ** 2) // nodes  # skewed; some nodes have none
    weights = random.integers(0, 5, len(edges))
    inner = sorted(draw(st.lists(st.integers(0, nodes), min_size=workers - 1, max_size=workers - 1)))
    asked = [
        torch.from_numpy(random.permutation(nodes)[: draw(st.sampled_from([0, 1, nodes // 2, nodes]))])
        for _ in range(workers)
    ]
    return edges, weights, nodes, [0, *inner, nodes], asked, random.permutation(nodes)


@settings(max_examples=60, deadline=None)
@given(
    case=cases(),
    fanout=st.sampled_from([-1, 0, 1, 3, 10, 40]),
    replace=st.booleans(),
    weighted=st.booleans(),
    positions=st.booleans(),
    cut=st.booleans(),
    key=st.integers(0, 2**64 - 1),
)
def test_owners_draw_what_one_worker_draws(store_of, shard_of, case, fanout, replace, weighted, positions, cut, key):
    edges, weights, nodes, offsets, asked, original = case
    workers = len(asked)
    store = store_of(edges, nodes, original_index=original, weights=weights if weighted else None)
    options = {"replace": replace, "weighted": weighted}
    whole = LocalTopology(store, **options)
    groups = ThreadGroups(workers)

    def work(context):
        rank = context.mesh.rank
        mine = shard_of(store, rank, workers, offsets[rank], offsets[rank + 1]) if cut else store
        topology = CollectiveTopology(LocalTopology(mine, **options), axis_of(context, offsets))
        found = [
            topology.at_owners(asked[rank], Fanout(step_key, fanout, positions=positions))
            for step_key in (key, key ^ 1)
        ]
        return topology, found

    results = groups.run(work)
    drawn = RemoteDraws()
    for rank, ((topology, found), dst) in enumerate(zip(results, asked)):
        assert isinstance(topology, Topology)
        assert topology.collective == (workers > 1)
        elsewhere = torch.bucketize(dst, torch.tensor(offsets[1:]), right=True) != rank
        for sampled, step_key in zip(found, (key, key ^ 1)):
            wanted = whole.sample(dst, step_key, fanout, positions=positions)
            same(sampled, wanted)
            edges_elsewhere = int(wanted.indptr.diff()[elsewhere].sum())
            expected = RemoteDraws(int(elsewhere.sum()), edges_elsewhere) if workers > 1 else RemoteDraws()
            assert sampled.remote == expected
            drawn += sampled.remote
    extra = 8 * drawn.edges if positions else 0
    assert results[0][0].traffic(drawn).ids + extra == ids_sent(groups)
    assert sum(size for kind, size in bytes_sent(groups).items() if kind not in ("ids", "metadata")) == 0


def test_one_worker_exchanges_nothing(store_of):
    store = store_of([(1, 0), (2, 0)], 3)
    group = Group.alone()
    topology = CollectiveTopology(
        LocalTopology(store), Axis(group, group, group, torch.tensor([0, 3]), torch.tensor([0]))
    )
    assert not topology.collective
    assert topology.at_owners(torch.tensor([0, 1]), Fanout(1, -1)).indices.tolist() == [1, 2]
    assert topology.traffic(RemoteDraws(destinations=5, edges=9)).ids == 0
    assert sum(sum(links.values()) for links in group.meter.snapshot().values()) == 0


def test_picks_travel_and_adjacency_lists_do_not(store_of):
    degree = 1000
    edges = [(2 + i % 38, node) for node in (0, 39) for i in range(degree)]
    store = store_of(edges, 40)
    groups = ThreadGroups(2)
    asked = [torch.tensor([39]), torch.tensor([0])]  # each of the other

    def work(context):
        topology = CollectiveTopology(LocalTopology(store), axis_of(context, [0, 20, 40]))
        return topology.at_owners(asked[context.mesh.rank], Fanout(5, 3)).remote

    assert groups.run(work) == [RemoteDraws(1, 3)] * 2
    assert ids_sent(groups) == 2 * (4 + 4 + 3 * 4)  # id, count, three picks; 4 bytes each, of 1000 neighbors
    assert bytes_sent(groups)["metadata"] == 2 * 8


def test_ids_of_large_graphs_travel_in_8_bytes(store_of):
    store = store_of([(1, 0), (0, 3), (2, 3), (1, 3)], 4)
    store._columns["indices"] = store._columns["indices"].astype(np.int64)
    groups = ThreadGroups(2)

    def work(context):
        topology = CollectiveTopology(LocalTopology(store), axis_of(context, [0, 2, 4]))
        return topology, topology.at_owners(torch.tensor([0, 3]), Fanout(5, 2))

    results = groups.run(work)
    drawn = results[0][1].remote + results[1][1].remote
    assert drawn == RemoteDraws(destinations=2, edges=3)
    assert results[0][0].traffic(drawn).ids == ids_sent(groups) == 2 * (8 + 4) + 3 * 8
    assert all(sampled.indices.dtype == torch.int64 for _, sampled in results)


def test_a_block_is_the_same_over_shards_of_two_hosts_with_two_workers(tmp_path):
    store = formula_store(tmp_path / "store", num_nodes=200, weighted=True, num_parts=4, shuffle_seed=3)
    for host in range(2):
        shard(store, tmp_path / f"shard{host}", host=host, hosts=2)
    key, requests = StepKey(7, 0, 3), [torch.arange(rank, 200, 3) for rank in range(4)]
    local = LocalTopology(store, weighted=True)

    def work(context):
        mesh = context.mesh
        mine = LocalTopology(GraphStore.open(tmp_path / f"shard{mesh.host}"), weighted=True)
        # Among hosts: what another worker of the same host owns lies in the host's shard, and needs no asking.
        blocks = []
        for name in ("all", "hosts"):
            owners = owners_of_parts(4, name, mesh.hosts, mesh.workers)
            topology = CollectiveTopology(mine, axis_of(context, store.part_offsets.copy(), owners, name))
            blocks.append(
                sample_block(topology, requests[mesh.rank], key, 1, 4, coefficients=SYMMETRIC, relabel=Relabeller(200))
            )
        return blocks

    for blocks, dst in zip(ThreadGroups(4, hosts=2).run(work), requests):
        wanted = sample_block(local, dst, key, 1, 4, coefficients=SYMMETRIC, relabel=Relabeller(200))
        for block in blocks:
            for name in ("dst", "src", "indptr", "indices", "dst_original", "weight", "self_weight"):
                assert torch.equal(getattr(block, name), getattr(wanted, name)), name
        assert blocks[0].remote.destinations > blocks[1].remote.destinations > 0


def test_an_id_that_is_no_node_is_refused_before_anything_is_sent(store_of):
    store = store_of([(1, 0)], 4)
    groups = ThreadGroups(2)

    def work(context):
        topology = CollectiveTopology(LocalTopology(store), axis_of(context, [0, 2, 4]))
        with pytest.raises(IndexError, match="ids"):
            topology.at_owners(torch.tensor([4]), Fanout(1, 1))

    groups.run(work)
    assert sum(bytes_sent(groups).values()) == 0


def test_a_node_that_its_owner_does_not_hold_is_an_error(store_of, shard_of):
    store = store_of([(1, 0), (0, 3)], 4)
    groups = ThreadGroups(2)

    def work(context):
        other = 1 - context.mesh.rank  # the shards were mixed up
        mine = shard_of(store, other, 2, 2 * other, 2 * other + 2)
        CollectiveTopology(LocalTopology(mine), axis_of(context, [0, 2, 4])).at_owners(
            torch.tensor([0, 3]), Fanout(1, 1)
        )

    with pytest.raises(IndexError, match="of a host that has the edges of"):
        groups.run(work)
