"""Which nodes each worker computes in full-graph inference: one contiguous range of store ids per worker."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Int, Int64
from numpy import ndarray
from torch import Tensor

from partita.core.errors import ConfigError
from partita.core.mesh import Mesh
from partita.graph.store import GraphStore


@dataclass(frozen=True, slots=True)
class Ranges:
    """Contiguous ranges of store ids, one per worker in order of rank, which together are all nodes.

    Workers are host-major, so the ranges of a host's workers lie side by side.

    Attributes:
        mesh: who this worker is.
        bounds: worker w computes the nodes ``bounds[w]`` to ``bounds[w + 1] - 1``; ranges may be empty.
    """

    mesh: Mesh
    bounds: tuple[int, ...]

    @classmethod
    def whole(cls, num_nodes: int) -> Ranges:
        """One worker that computes all nodes."""
        return cls(Mesh.of(0, 1, 1), (0, num_nodes))

    @classmethod
    def of(cls, store: GraphStore, mesh: Mesh) -> Ranges:
        """Ranges for the workers of a run.

        Each worker's own part, where the store has one part per worker. Otherwise nodes are dealt out so that every
        worker has about as many in-edges and nodes as the others; where the store is a shard, inside the range of
        each host.

        Raises:
            ConfigError: the store is a shard for another number of hosts.
        """
        offsets, size = store.part_offsets, mesh.size
        if store.num_parts == size:
            return cls(mesh, tuple(offsets.tolist()))
        if store.shard is None:
            return cls(mesh, tuple(_cuts(store.indptr, 0, store.num_nodes, size)))
        if store.shard.hosts != mesh.hosts:
            raise ConfigError(
                f"the store is one of {store.shard.hosts} shards, but there are {mesh.hosts} hosts",
                where=str(store.path),
                fix="Use one shard per host, or the whole store",
            )
        hosts = [int(offsets[host * store.num_parts // mesh.hosts]) for host in range(mesh.hosts + 1)]
        bounds = [0]
        for first, last in pairwise(hosts):
            bounds += _cuts(store.indptr, first, last, mesh.workers)[1:]
        return cls(mesh, tuple(bounds))

    @property
    def own(self) -> tuple[int, int]:
        """First node of this worker, and one past its last."""
        return self.bounds[self.mesh.rank], self.bounds[self.mesh.rank + 1]

    @property
    def host(self) -> tuple[int, int]:
        """First node of the workers of this host, and one past their last."""
        first = self.mesh.host * self.mesh.workers
        return self.bounds[first], self.bounds[first + self.mesh.workers]

    def workers_of(self, ids: Int[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Rank of the worker that computes each store id."""
        return torch.searchsorted(torch.tensor(self.bounds[1:]), ids.long(), right=True)

    def hosts_of(self, ids: Int[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Host of the worker that computes each store id."""
        return self.workers_of(ids) // self.mesh.workers


def _cuts(indptr: Int64[ndarray, "N_1"], first: int, last: int, pieces: int) -> list[int]:
    """Bounds of ``pieces`` ranges of the nodes ``first`` to ``last - 1`` with about as many in-edges plus nodes each.

    Reads a few entries of ``indptr``, which may be a memory map.
    """

    def work(node: int) -> int:
        return int(indptr[node]) + node

    start, total = work(first), work(last) - work(first)
    inner = [first + bisect_left(range(first, last), start + total * n / pieces, key=work) for n in range(1, pieces)]
    return [first, *inner, last]
