"""SPRING: streaming partitioning by richest neighbors (SDT-GNN paper, Algorithm 1)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64, Integer

from partita.core import progress
from partita.core.partitioning import PartitionTask, Requires
from partita.kernels.compile import compiled
from partita.partitioning.clusters import Clusters
from partita.partitioning.loads import deal_out, heapify, part_loads, sift_down, spread_rest


class Spring:
    """Clusters by one pass over the edges, merged through their richest neighbors, dealt out largest first.

    What the paper leaves open: clusters are merged smallest first (ties: lower cluster), a merged one goes back to
    its new rank; one that cannot be merged is final; the representative of equal ones is that with the lower richest
    neighbor. Nodes without edges go to the parts with the least load in the end.

    Options (``task.options``): ``cap``, the largest volume of a cluster that still grows, as a share of the volume
    of a part (0.1, as in the authors' code); ``beta``, the largest size of a merged cluster over the mean size of a
    part (1.05).
    """

    requires = Requires(passes=1, node_bytes=(40.0, 0.0), options=("cap", "beta"))
    order_independent = False

    def bound(self, task: PartitionTask) -> float | None:
        """The mean load plus that of the largest cluster: no list schedule is worse (Graham 1969)."""
        if task.node_weight is not None or task.stream.weighted:
            return None
        survey, mean = task.surveyed(), task.num_nodes / task.num_parts
        grown = _cap(task) + (int(survey.degree.max()) if task.num_nodes else 0) + 1
        return mean + max(_beta(task) * mean, grown)

    def partition(self, task: PartitionTask) -> Int32[np.ndarray, "N"]:
        """See :class:`~partita.core.partitioning.Partitioner`."""
        clusters = Clusters(task, richest=True)
        clusters.grow(_cap(task))
        clusters.forget_volumes()
        count = clusters.number(clusters.of)
        weights = task.weights()
        total = int(weights.sum()) if len(weights) else task.num_nodes
        with progress.task("merge clusters", total=count, unit="clusters"):
            size, parent = _merged(clusters, task, count, int(_beta(task) * total / task.num_parts))
        del clusters.richest
        # Algorithm 1, lines 26-29: largest cluster first, ties to lower numbers.
        order = np.flatnonzero(size)
        order = order[np.argsort(-size[order], kind="stable")]
        part_of = np.zeros(count, dtype=np.int32)
        deal_out(order, size, part_of, task.num_parts)
        parts = np.empty(task.num_nodes, dtype=np.int32)
        _assign(clusters.of, parent, part_of, parts)
        spread_rest(parts, task.num_parts, weights)
        return parts


def _cap(task: PartitionTask) -> float:
    return task.options.get("cap", 0.1) * task.surveyed().volume / task.num_parts


def _beta(task: PartitionTask) -> float:
    return task.options.get("beta", 1.05)


def _merged(
    clusters: Clusters, task: PartitionTask, count: int, cap: int
) -> tuple[Int64[np.ndarray, "C"], Integer[np.ndarray, "C"]]:
    """Merge clusters through the richest neighbor of their representative (Algorithm 1, lines 18-25).

    Returns:
        Load of every cluster, 0 for those merged into others, and the cluster into which each was merged (itself,
        if it was not).
    """
    cluster, degree = clusters.of, task.surveyed().degree
    size = part_loads(cluster, count, task.weights())
    best = np.full(count, -1, dtype=cluster.dtype)
    _represent(cluster, clusters.richest, degree, best)
    parent = np.arange(count, dtype=cluster.dtype)
    heap = np.arange(count, dtype=cluster.dtype)
    _merge(cluster, degree, size, best, parent, heap, size.copy(), np.int64(cap))
    return size, parent


@compiled
def _richer(degree, r, b):
    """Whether ``r`` represents better than ``b``, which may be -1, none: by degree, ties to the lower id."""
    return b < 0 or degree[b] < degree[r] or (degree[b] == degree[r] and r < b)


@compiled
def _represent(cluster, richest, degree, best):
    for v in range(len(cluster)):
        c, r = cluster[v], richest[v]
        if c >= 0 and r >= 0 and _richer(degree, r, best[c]):
            best[c] = r


@compiled
def _find(parent, c):
    while parent[c] != c:
        parent[c] = parent[parent[c]]
        c = parent[c]
    return c


@compiled
def _merge(cluster, degree, size, best, parent, heap, key, cap):
    """The heap is ordered by ``key``, the size a cluster had when it was last put in; sizes only grow, so that a
    cluster met at the top with a larger size than its key goes down to its true rank.
    """
    heapify(heap, key)
    left = len(heap)
    while left > 0:
        c = heap[0]
        if parent[c] == c and key[c] != size[c]:
            key[c] = size[c]
            sift_down(heap[:left], key, 0)
            continue
        left -= 1
        heap[0] = heap[left]
        if left > 0:
            sift_down(heap[:left], key, 0)
        if parent[c] != c or best[c] < 0:
            continue
        target = _find(parent, cluster[best[c]])
        if target == c or size[c] + size[target] > cap:
            continue
        parent[c] = target
        size[target] += size[c]
        size[c] = 0
        if _richer(degree, best[c], best[target]):
            best[target] = best[c]


@compiled
def _assign(cluster, parent, part_of, parts):
    for v in range(len(cluster)):
        parts[v] = part_of[_find(parent, cluster[v])] if cluster[v] >= 0 else -1
