"""A graph store held in memory, and shards of it."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from partita.graph.metadata import StoreMetadata
from partita.graph.shard import Shard
from partita.graph.store import GraphStore


class MemoryStore(GraphStore):
    """A store of (source, destination) pairs, with read-only columns like those of a store on disk."""

    def __init__(self, edges, num_nodes, original_index=None, weights=None):
        edges = np.asarray(edges, np.int64).reshape(-1, 2)
        order = np.argsort(edges[:, 1], kind="stable")
        columns = {
            "indptr": np.concatenate([[0], np.cumsum(np.bincount(edges[:, 1], minlength=num_nodes))]),
            "indices": edges[order, 0].astype(np.int32),
        }
        loops = np.bincount(edges[edges[:, 0] == edges[:, 1], 0], minlength=num_nodes).astype(np.int32)
        if loops.any():
            columns["self_loops"] = loops
        if original_index is not None:
            columns["original_index"] = np.asarray(original_index, np.int64)
        if weights is not None:
            columns["edge_weight_quantised"] = np.asarray(weights, np.uint32)[order]
        for column in columns.values():
            column.flags.writeable = False
        self._columns = columns
        self._num_nodes = num_nodes
        self.metadata = StoreMetadata(num_nodes, len(edges))

    @property
    def num_nodes(self):
        return self._num_nodes


@pytest.fixture(scope="session")
def store_of():
    return MemoryStore


def _shard_in_memory(store, host, hosts, first_node, last_node, topology="partitioned"):
    edges = [name for name in ("indices", "edge_weight_quantised") if store.has(name)]
    cut = dict.fromkeys(edges, "edges") if topology == "partitioned" else {}
    shard = copy.copy(store)
    begin, end = int(store.indptr[first_node]), int(store.indptr[last_node])
    shard._columns = {name: data[begin:end] if name in cut else data for name, data in store._columns.items()}
    shard.shard = Shard(host, hosts, first_node, last_node, "", cut)
    return shard


@pytest.fixture(scope="session")
def shard_of():
    """A function that cuts a store held in memory: ``(store, host, hosts, first_node, last_node, topology)``."""
    return _shard_in_memory
