"""DBH: degree-based hashing (Xie et al., "Distributed power-law graph computing", NIPS 2014)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Shaped

from partita.core.partitioning import PartitionTask, Requires
from partita.kernels.compile import compiled
from partita.partitioning.owners import EdgePartitioner, Owners, add_replica, close_row, replica_sets
from partita.partitioning.random import hashed_part, partition_key


class Dbh(EdgePartitioner):
    """Every edge to the hashed part of its end of lower degree; the destination's where degrees are equal.

    So hubs are cut and nodes of low degree are not. Degrees are exact.
    """

    requires = Requires(passes=1, grouped=True, node_bytes=(12.0, 0.0), options=())

    def __init__(self, owner: str = "majority") -> None:
        super().__init__(owner)
        self.order_independent = owner == "majority"

    def partition(self, task: PartitionTask) -> Int32[np.ndarray, "N"]:
        """The owner of every node; the sets of parts, which DBH needs not, are not kept."""
        return self._owners(task, replica_sets(0, 1))

    def place(self, task: PartitionTask, sets: Shaped[np.ndarray, "n words"], owners: Owners) -> None:
        """See :meth:`partita.partitioning.owners.EdgePartitioner.place`; ``sets`` of no node are not kept."""
        degree, key = task.surveyed().degree, partition_key(task.seed)
        for edges in task.stream.edges("place edges"):
            _place_edges(edges.src, edges.dst, degree, key, task.num_parts, sets, owners)


@compiled
def _place_edges(src, dst, degree, key, num_parts, sets, owners):
    parts, counts, directed = owners.parts, owners.counts, owners.directed
    row, last = owners.open_row[0], owners.open_row[1]
    row_part, row_degree = np.int64(0), np.int64(0)
    if row >= 0:
        row_part, row_degree = hashed_part(row, key, num_parts), np.int64(degree[row])
    for e in range(len(src)):
        u, v = src[e], dst[e]
        if v != row:
            close_row(row, last, owners)
            row, last = np.int64(v), -1
            row_part, row_degree = hashed_part(v, key, num_parts), np.int64(degree[v])
        if u == v:
            continue
        part = row_part
        if degree[u] < row_degree:
            part = hashed_part(u, key, num_parts)
        if len(sets) > 0:
            add_replica(sets, u, part)
            add_replica(sets, v, part)
        counts[part] += 1
        last = part
        if directed and parts[u] < 0:
            parts[u] = -2 - part
    owners.open_row[0], owners.open_row[1] = row, last
