"""Which worker computes which nodes: all of them once, evenly, and by owner where there is one."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import ConfigError
from partita.core.mesh import Mesh
from partita.graph.shard import Shard
from partita.graph.store import GraphStore
from partita.infer.ranges import Ranges


class Described(GraphStore):
    """What of a store is looked at, without a store."""

    indptr = part_offsets = shard = None
    num_nodes = num_parts = 0

    def __init__(self, degrees: list[int], offsets: list[int], shard: Shard | None = None) -> None:
        self.indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        self.num_nodes, self.num_parts = len(degrees), len(offsets) - 1
        self.part_offsets, self.shard, self.path = np.array(offsets), shard, Path("store")


@given(st.lists(st.integers(0, 9), min_size=0, max_size=40), st.integers(1, 6))
def test_nodes_are_cut_evenly_by_work(degrees, workers) -> None:
    store = Described(degrees, [0, *[0] * workers, len(degrees)])  # parts that are not one per worker
    bounds = Ranges.of(store, Mesh.of(0, workers, workers)).bounds
    assert len(bounds) == workers + 1
    assert list(bounds) == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0, len(degrees))
    work = [sum(degrees[first:last]) + last - first for first, last in pairwise(bounds)]
    assert max(work) <= sum(work) / workers + max(degrees, default=0) + 1


def test_parts_and_shards() -> None:
    store = Described([1] * 12, [0, 2, 2, 9, 12])
    mesh = Mesh.of(2, 4, 2)
    ranges = Ranges.of(store, mesh)
    assert ranges.bounds == (0, 2, 2, 9, 12)
    assert (ranges.own, ranges.host) == ((2, 9), (2, 12))
    ids = torch.tensor([0, 1, 2, 8, 9, 11])
    assert ranges.workers_of(ids).tolist() == [0, 0, 2, 2, 3, 3]
    assert ranges.hosts_of(ids).tolist() == [0, 0, 1, 1, 1, 1]
    shard = Shard(0, 2, 0, 4, "0123", {"x": "nodes"})
    sharded = Described([1] * 12, [0, 4, 12], shard)
    assert Ranges.of(sharded, mesh).bounds == (0, 2, 4, 8, 12)
    with pytest.raises(ConfigError, match="one of 2 shards, but there are 4 hosts"):
        Ranges.of(sharded, Mesh.of(0, 12, 3))
