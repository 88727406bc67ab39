"""Drawing from a store's memory maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from partita.core.errors import ConfigError, EdgesError
from partita.core.keys import StepKey
from partita.kernels import Relabeller
from partita.kernels.reference.draws import NEVER
from partita.sample.blocks import sample_block
from partita.sample.samplers import Fanout
from partita.sample.topology import ArrayTopology, LocalTopology, as_tensor

EDGES = [(1, 0), (2, 0), (2, 0), (0, 0), (0, 1), (1, 2)]


def test_as_tensor_shares_memory_and_is_silent(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r", allow_pickle=False)
    tensor = as_tensor(mapped)
    assert tensor.tolist() == list(range(6))
    assert tensor.data_ptr() == mapped.__array_interface__["data"][0]
    del mapped
    assert tensor.tolist() == list(range(6))  # the tensor keeps the map alive
    assert as_tensor(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_degrees_and_rows(store_of):
    topology = LocalTopology(store_of(EDGES, 4))
    assert topology.num_nodes == 4
    assert topology.id_dtype == torch.int32
    assert topology.degrees(torch.tensor([3, 0], dtype=torch.int32)).tolist() == [0, 4]
    sampled = topology.at_owners(torch.tensor([0, 3, 2]), Fanout(1, -1, positions=True))
    assert sampled.indptr.tolist() == [0, 4, 4, 5]
    assert sampled.indices.tolist() == [1, 2, 2, 0, 1]
    assert sampled.positions.tolist() == [0, 1, 2, 3, 5]


def test_options(store_of):
    assert LocalTopology(store_of(EDGES, 4), replace=True).sample(torch.tensor([1, 3]), 1, 3).indptr.tolist() == [
        0,
        3,
        3,
    ]
    weighted = LocalTopology(store_of(EDGES, 4, weights=[0, 5, 0, 0, 1, 1]), weighted=True)
    assert weighted.sample(torch.tensor([0, 1]), 1, 3).indices.tolist() == [2, 0]
    with pytest.raises(ConfigError, match="edge weight column"):
        LocalTopology(store_of(EDGES, 4), weighted=True)


@pytest.mark.parametrize("wrong", [3, -1, 2**31 - 1])
def test_what_is_drawn_are_nodes(wrong):
    topology = ArrayTopology(torch.tensor([0, 2, 2, 3]), torch.tensor([1, wrong, 2], dtype=torch.int32))
    for draw in (topology.sample, topology.arrivals):
        assert draw(torch.tensor([2]), 7, [NEVER] if draw == topology.arrivals else -1).indices.tolist() == [2]
        with pytest.raises(EdgesError, match=f"it holds the id {wrong}, but there are 3 nodes"):
            draw(torch.tensor([0, 2]), 7, [NEVER] if draw == topology.arrivals else -1)


def test_a_reordered_store_draws_the_same(store_of):
    random = np.random.default_rng(0)
    edges = random.integers(0, 40, (800, 2))
    to_new = random.permutation(40)
    plain = LocalTopology(store_of(edges, 40))
    moved = LocalTopology(store_of(to_new[edges], 40, original_index=np.argsort(to_new)))
    dst = torch.arange(40)
    new_dst = torch.from_numpy(to_new)
    assert torch.equal(moved.original(new_dst), dst)
    a, b = plain.sample(dst, 77, 4), moved.sample(new_dst, 77, 4)
    assert torch.equal(a.indptr, b.indptr)
    assert torch.equal(a.indices.long(), moved.original(b.indices))
    # Block sources come in the same order too, so float sums are bit-identical.
    key = StepKey(0, 0, 7)
    a, b = (sample_block(t, ids[:9], key, 1, 4, relabel=Relabeller(40)) for t, ids in ((plain, dst), (moved, new_dst)))
    assert torch.equal(a.indices, b.indices)
    assert torch.equal(a.src.long(), moved.original(b.src))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fanout", [-1, 2, 40])
def test_a_shard_draws_for_its_own_nodes_what_the_whole_store_draws(store_of, shard_of, weighted, fanout):
    random = np.random.default_rng(1)
    edges = random.integers(0, 30, (600, 2))
    store = store_of(edges, 30, original_index=random.permutation(30), weights=random.integers(0, 4, 600))
    whole = LocalTopology(store, weighted=weighted)
    for host, (first, last) in enumerate([(0, 11), (11, 11), (11, 30)]):
        shard = LocalTopology(shard_of(store, host, 3, first, last), weighted=weighted)
        dst = torch.arange(first, last).flip(0)
        a, b = (t.at_owners(dst, Fanout(9, fanout, positions=True)) for t in (whole, shard))
        for name in ("indptr", "indices", "positions"):
            assert torch.equal(getattr(a, name), getattr(b, name))
        for node in {0, 10, 11, 29} - set(range(first, last)):
            with pytest.raises(IndexError, match=f"has the edges of {first}:{last} only"):
                shard.at_owners(torch.tensor([node]), Fanout(9, fanout))
        # Node columns are whole.
        everyone = torch.arange(30)
        assert torch.equal(shard.degrees(everyone), whole.degrees(everyone))
        assert torch.equal(shard.original(everyone), whole.original(everyone))


def test_a_shard_with_replicated_topology_draws_for_all(store_of, shard_of):
    store = store_of(EDGES, 4)
    shard = LocalTopology(shard_of(store, 1, 2, 2, 4, "replicated"))
    assert shard.nodes == range(4)
    assert shard.sample(torch.tensor([0]), 1, -1).indices.tolist() == [1, 2, 2, 0]
