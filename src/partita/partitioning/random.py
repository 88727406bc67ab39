"""Random owners: a hash of the node's id in the stream and of the seed."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32

from partita.core import keys
from partita.core.partitioning import PartitionTask, Requires
from partita.kernels.compile import compiled
from partita.partitioning.loads import Unbounded

_GOLDEN, _MIX_1, _MIX_2 = np.uint64(keys.GOLDEN), np.uint64(keys.MIX_1), np.uint64(keys.MIX_2)


def partition_key(seed: int) -> np.uint64:
    """The key of all hashes of a partitioner that runs with ``seed``."""
    return np.uint64(keys.fold(int(keys.Purpose.PARTITION), seed))


@compiled
def hashed(node, key):
    """:func:`partita.core.keys.fold` of two uint64."""
    z = key + _GOLDEN * (np.uint64(node) + np.uint64(1))
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@compiled
def hashed_part(node, key, num_parts):
    """``hashed(node, key) % num_parts``."""
    return np.int64(hashed(node, key) % np.uint64(num_parts))


@compiled
def _hash_all(parts, key, num_parts):
    for v in range(len(parts)):
        parts[v] = hashed_part(v, key, num_parts)


class Random(Unbounded):
    """Every node to a part drawn uniformly, whatever its edges: what any other partitioner must beat.

    Draws are independent, so loads differ by chance.
    """

    requires = Requires(passes=0, survey=False, node_bytes=(4.0, 0.0), options=())
    order_independent = True

    def partition(self, task: PartitionTask) -> Int32[np.ndarray, "N"]:
        """The part of every node; the edges are not read."""
        parts = np.empty(task.num_nodes, dtype=np.int32)
        _hash_all(parts, partition_key(task.seed), task.num_parts)
        return parts
