"""SPRING: streaming partitioning by richest neighbors (SDT-GNN paper, Algorithm 1)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64, Integer

from partita.core import progress
from partita.core.partitioning import PartitionTask, Requires
from partita.kernels.compile import compiled
from partita.partitioning.clusters import Clusters
from partita.partitioning.loads import heapify, sift_down, spread_rest


class Spring:
    """Clusters by one pass over the edges, merged through their richest neighbors, dealt out largest first.

    What the paper leaves open: clusters are merged smallest first (ties: lower cluster), a merged one goes back to
    its new rank; one that cannot be merged is final; the representative of equal ones is that with the lower richest
    neighbor. Nodes without edges go to the parts with the least load in the end.

    Options (``task.options``): ``cap``, the largest volume of a cluster that still grows, as a share of the volume
    of a part (0.1, as in the authors' code); ``beta``, the largest size of a merged cluster over the mean size of a
    part (1.05).
    """

    requires = Requires(passes=1, node_bytes=(40.0, 0.0))
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
            size, parent = merge_clusters(
                clusters.of, clusters.richest, task.surveyed().degree, count, weights,
                int(_beta(task) * total / task.num_parts),
            )  # fmt: skip
        del clusters.richest
        parts = deal_out(clusters.of, size, parent, task.num_parts)
        spread_rest(parts, task.num_parts, weights)
        return parts


def _cap(task: PartitionTask) -> float:
    return task.options.get("cap", 0.1) * task.surveyed().volume / task.num_parts


def _beta(task: PartitionTask) -> float:
    return task.options.get("beta", 1.05)


def merge_clusters(
    cluster: Integer[np.ndarray, "N"],
    richest: Integer[np.ndarray, "N"],
    degree: Integer[np.ndarray, "N"],
    count: int,
    weights: Int64[np.ndarray, "W"],
    cap: int,
) -> tuple[Int64[np.ndarray, "C"], Integer[np.ndarray, "C"]]:
    """Merge clusters through the richest neighbor of their representative (Algorithm 1, lines 18-25).

    Args:
        cluster: number of the cluster of every node, -1 for none.
        richest: richest neighbor of every node, -1 for none.
        degree: of every node.
        count: C, the number of clusters.
        weights: load of every node, or empty.
        cap: the largest load of a merged cluster.

    Returns:
        Load of every cluster, 0 for those merged into others, and the cluster into which each was merged (itself,
        if it was not).
    """
    size = np.zeros(count, dtype=np.int64)
    best = np.full(count, -1, dtype=richest.dtype)
    _measure(cluster, richest, degree, weights, size, best)
    parent = np.arange(count, dtype=cluster.dtype)
    heap = np.arange(count, dtype=cluster.dtype)
    _merge(cluster, degree, size, best, parent, heap, size.copy(), np.int64(cap))
    return size, parent


def deal_out(
    cluster: Integer[np.ndarray, "N"],
    size: Int64[np.ndarray, "C"],
    parent: Integer[np.ndarray, "C"],
    num_parts: int,
) -> Int32[np.ndarray, "N"]:
    """Largest cluster first, each to the part with the least load (Algorithm 1, lines 26-29; ties to lower numbers).

    Returns:
        The part of every node, -1 for nodes without a cluster.
    """
    order = np.flatnonzero(size)
    order = order[np.argsort(-size[order], kind="stable")]
    part_of = np.zeros(len(size), dtype=np.int32)
    heap = np.arange(num_parts)
    parts = np.empty(len(cluster), dtype=np.int32)
    _deal(order, size, parent, part_of, np.zeros(num_parts, dtype=np.int64), heap, cluster, parts)
    return parts


@compiled
def _measure(cluster, richest, degree, weights, size, best):
    for v in range(len(cluster)):
        c = cluster[v]
        if c < 0:
            continue
        size[c] += weights[v] if len(weights) > 0 else 1
        r = richest[v]
        if r >= 0:
            b = best[c]
            if b < 0 or degree[b] < degree[r] or (degree[b] == degree[r] and r < b):
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
        b, r = best[target], best[c]
        if b < 0 or degree[b] < degree[r] or (degree[b] == degree[r] and r < b):
            best[target] = r


@compiled
def _deal(order, size, parent, part_of, loads, heap, cluster, parts):
    heapify(heap, loads)
    for c in order:
        part = heap[0]
        part_of[c] = part
        loads[part] += size[c]
        sift_down(heap, loads, 0)
    for v in range(len(cluster)):
        parts[v] = part_of[_find(parent, cluster[v])] if cluster[v] >= 0 else -1
