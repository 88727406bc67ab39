"""Streaming clusters: the first phase of SPRING, and what it leaves for the second.

Hollocou, Maudet, Bonald and Lelarge, "A streaming algorithm for graph clustering" (NIPS workshop 2017), with exact
degrees, as Algorithm 1 of the SDT-GNN paper uses it (lines 2-17).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Integer

from partita.core.partitioning import PartitionTask
from partita.kernels.compile import AHEAD, compiled, prefetch

_ENOUGH = 0.002  # of the nodes moved in a pass: further passes change next to nothing


class Clusters:
    """Clusters of nodes, made by passes over the edges. A cluster is named by the node that founded it.

    Memory: 4 bytes per node for the cluster, 8 for volumes, 4 for the richest neighbors where they are wanted, and
    while clusters are settled 4 to 12 more.

    Args:
        task: with a survey.
        richest: note every node's richest neighbor.

    Attributes:
        of: (N) cluster of every node; a node starts as a cluster of its own.
        richest: (N) the neighbor with the largest degree, the first seen of equals; -1 where there is none. Empty
            where not wanted.
    """

    def __init__(self, task: PartitionTask, *, richest: bool) -> None:
        self._task = task
        self._degree = task.surveyed().degree
        ids = np.int32 if task.num_nodes < 2**31 else np.int64
        self.of: Integer[np.ndarray, "N"] = np.arange(task.num_nodes, dtype=ids)
        self.richest: Integer[np.ndarray, "N"] = np.full(task.num_nodes if richest else 0, -1, dtype=ids)
        self._volume = self._degree.astype(np.int64)

    def grow(self, cap: float, doing: str = "cluster nodes") -> None:
        """One pass over the edges: of every edge between two clusters whose volumes are at most ``cap``, the end in
        the smaller one moves to the other cluster (the source, if they are equal).
        """
        both = not self._task.surveyed().symmetric
        for edges in self._task.stream.edges(doing):
            _grow(
                edges.src, edges.dst, edges.weight, self._degree, self.of, self._volume, self.richest,
                np.int64(cap), both,
            )  # fmt: skip

    def settle(self, cap: float, passes: int) -> None:
        """Move every node, in order, to the cluster of most of its in-neighbors, where that keeps its volume within
        ``cap``. Needs rows.

        (Meyerhenke, Sanders and Schulz, "Partitioning complex networks via size-constrained clustering", SEA 2014.)
        """
        counts = np.zeros(len(self.of), dtype=np.int32)
        most = int(self._degree.max()) if len(self._degree) and not self._task.stream.weighted else len(self.of)
        touched = np.empty(min(most, len(self.of)), dtype=self.of.dtype)
        for number in range(1, passes + 1):
            moved = 0
            for rows in self._task.stream.rows(f"refine clusters, pass {number} of {passes}"):
                moved += _settle(
                    rows.first, rows.indptr, rows.src, rows.weight, self._degree, self.of, self._volume, counts,
                    touched, np.int64(cap),
                )  # fmt: skip
            if moved <= _ENOUGH * len(self.of):
                break

    def forget_volumes(self) -> None:
        """Free what only further passes would need."""
        del self._volume

    def number(self, out: Integer[np.ndarray, "N"]) -> int:
        """Number the clusters from 0, in order of their founders, without the nodes that have no edges.

        Args:
            out: (N) receives the number of every node's cluster, -1 for nodes without edges; may be ``of`` itself,
                when no further pass is to come.

        Returns:
            The number of clusters.
        """
        return int(_number(self.of, self._degree, np.full(len(self.of), -1, dtype=self.of.dtype), out))


@compiled
def _grow(src, dst, weight, degree, cluster, volume, richest, cap, both):
    for e in range(len(src)):
        if e + 2 * AHEAD < len(src):
            prefetch(cluster, np.int64(src[e + 2 * AHEAD]))
            prefetch(degree, np.int64(src[e + 2 * AHEAD]))
            prefetch(volume, np.int64(cluster[src[e + AHEAD]]))
        u, v = src[e], dst[e]
        if u == v or (len(weight) > 0 and weight[e] == 0):
            continue
        du, dv = degree[u], degree[v]
        if len(richest) > 0:
            if richest[v] < 0 or degree[richest[v]] < du:
                richest[v] = u
            if both and (richest[u] < 0 or degree[richest[u]] < dv):
                richest[u] = v
        cu, cv = cluster[u], cluster[v]
        if cu == cv:
            continue
        volume_u, volume_v = volume[cu], volume[cv]
        if volume_u <= cap and volume_v <= cap:
            if volume_u <= volume_v:
                cluster[u] = cv
                volume[cv] = volume_v + du
                volume[cu] = volume_u - du
            else:
                cluster[v] = cu
                volume[cu] = volume_u + dv
                volume[cv] = volume_v - dv


@compiled
def _settle(first, indptr, src, weight, degree, cluster, volume, counts, touched, cap):
    moved = 0
    base = indptr[0]
    for r in range(len(indptr) - 1):
        v = first + r
        num_touched = 0
        for e in range(indptr[r] - base, indptr[r + 1] - base):
            if e + 2 * AHEAD < len(src):
                prefetch(cluster, np.int64(src[e + 2 * AHEAD]))
                prefetch(counts, np.int64(cluster[src[e + AHEAD]]))
            u = src[e]
            w = weight[e] if len(weight) > 0 else 1
            if u == v or w == 0:
                continue
            c = cluster[u]
            if counts[c] == 0:
                touched[num_touched] = c
                num_touched += 1
            counts[c] = min(counts[c] + w, 2147483647)
        own = cluster[v]
        best, most = own, counts[own]
        for i in range(num_touched):
            c = touched[i]
            if volume[c] + degree[v] > cap or c == own:
                continue
            if counts[c] > most or (counts[c] == most and best != own and volume[c] < volume[best]):
                best, most = c, counts[c]
        for i in range(num_touched):
            counts[touched[i]] = 0
        if best != own:
            cluster[v] = best
            volume[own] -= degree[v]
            volume[best] += degree[v]
            moved += 1
    return moved


@compiled
def _number(cluster, degree, numbers, out):
    for v in range(len(cluster)):
        if degree[v] > 0:
            numbers[cluster[v]] = 0
    count = 0
    for c in range(len(numbers)):
        if numbers[c] == 0:
            numbers[c] = count
            count += 1
    for v in range(len(cluster)):
        out[v] = numbers[cluster[v]] if degree[v] > 0 else -1
    return count
