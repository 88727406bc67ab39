"""A graph of clusters, counted in one pass over the edges within a stated number of entries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, Integer

from partita.core.partitioning import EdgeStream
from partita.kernels.compile import AHEAD, compiled, prefetch
from partita.kernels.sorting import argsort

_FIRST_SLOTS = 1 << 12
_FULL = 0.6  # of a table's slots; beyond, searches get long
_UNIT = 8  # weight of an edge in a sampled graph, so that divided weights keep some digits


@dataclass(frozen=True, slots=True)
class ClusterGraph:
    """An undirected weighted graph in METIS's form: both directions of every edge, no loops.

    Attributes:
        indptr: int64 (C+1).
        indices: int64 (2L) neighbors.
        edge_weight: int64 (2L), positive: edges (or their weights) between the two clusters, both directions.
    """

    indptr: Int64[np.ndarray, "C_1"]
    indices: Int64[np.ndarray, "L2"]
    edge_weight: Int64[np.ndarray, "L2"]


def contract(
    stream: EdgeStream,
    degree: Integer[np.ndarray, "N"],
    cluster: Integer[np.ndarray, "N"],
    count: int,
    *,
    most_links: int,
    sample: float = 0.0,
) -> tuple[ClusterGraph | None, int]:
    """Count the edges between every two clusters, all of them or a sample.

    The sample keeps an edge of weight w with probability ``min(1, sample * w / min(degree of its ends))`` and divides
    its weight by that, so that every cut keeps its expected weight. Edges of nodes with few neighbors all stay; at
    most about ``sample`` edges per node do. (The probability is the simplest bound of an edge's effective resistance,
    by which Spielman and Srivastava, "Graph sparsification by effective resistances", STOC 2008, sample.)

    Args:
        stream: the edges; their weights count where there are any.
        degree: ends of edges (or their weights) at every node.
        cluster: number of the cluster of every node, -1 for none.
        count: C, the number of clusters.
        most_links: L, the number of pairs of clusters that may be held.
        sample: mean number of edges kept per node, at most; 0 keeps all.

    Returns:
        The graph of clusters, and the number of edges read. The graph is ``None`` where there was no room for one
        more pair; then that is how far the pass came.
    """
    table = _Table(most_links)
    read = 0
    for edges in stream.edges("merge clusters"):
        done = 0
        while done < len(edges.src):
            done, table.used = _count(
                edges.src, edges.dst, edges.weight, done, degree, cluster, np.int64(count), float(sample),
                table.pairs, table.weights, table.used, table.room,
            )  # fmt: skip
            if done < len(edges.src) and not table.grow():
                return None, read + done
        read += done
    return table.graph(count), read


class _Table:
    """Open addressing: pair of clusters -> weight."""

    def __init__(self, most_links: int) -> None:
        self._most = most_links
        self.used = 0
        self._make(_FIRST_SLOTS)

    def _make(self, slots: int) -> None:
        self.pairs = np.full(slots, -1, dtype=np.int64)
        self.weights = np.zeros(slots, dtype=np.int64)
        self.room = min(int(slots * _FULL), self._most)

    def grow(self) -> bool:
        if self.room >= self._most:
            return False
        pairs, weights = self.pairs, self.weights
        self._make(2 * len(pairs))
        _rehash(pairs, weights, self.pairs, self.weights)
        return True

    def graph(self, count: int) -> ClusterGraph:
        # Two stable counting sorts put the links in order, whatever the table's order is: results must not depend
        # on the size of the table.
        indptr = np.zeros(count + 1, dtype=np.int64)
        _degrees(self.pairs, count, indptr)
        np.cumsum(indptr, out=indptr)
        indices = np.empty(2 * self.used, dtype=np.int64)
        weight = np.empty(2 * self.used, dtype=np.int64)
        _rows(self.pairs, self.weights, count, indptr[:-1].copy(), indices, weight)
        del self.pairs, self.weights
        _sort_rows(indptr, indices, weight)
        return ClusterGraph(indptr, indices, weight)


@compiled
def _slot(pairs, pair):
    mask = np.uint64(len(pairs) - 1)
    z = np.uint64(pair) * np.uint64(0x9E3779B97F4A7C15)
    at = np.int64((z ^ (z >> np.uint64(32))) & mask)
    while pairs[at] != -1 and pairs[at] != pair:
        at = np.int64((np.uint64(at) + np.uint64(1)) & mask)
    return at


@compiled
def _count(src, dst, weight, first, degree, cluster, count, sample, pairs, weights, used, room):
    for e in range(first, len(src)):
        if e + AHEAD < len(src):
            prefetch(cluster, np.int64(src[e + AHEAD]))
            prefetch(degree, np.int64(src[e + AHEAD]))
        u, v = src[e], dst[e]
        a, b = np.int64(cluster[u]), np.int64(cluster[v])
        if a == b or a < 0 or b < 0:
            continue
        w = np.int64(weight[e]) if len(weight) > 0 else np.int64(1)
        if w == 0:
            continue
        if sample > 0.0:
            probability = sample * w / min(degree[u], degree[v])
            if probability < 1.0:
                # Both directions of an edge are kept or left out together.
                z = np.uint64(min(u, v)) * np.uint64(0xBF58476D1CE4E5B9) ^ np.uint64(max(u, v))
                z *= np.uint64(0x94D049BB133111EB)
                z = (z ^ (z >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
                z ^= z >> np.uint64(29)
                if np.float64(z >> np.uint64(11)) * 2.0**-53 >= probability:
                    continue
                w = np.int64(w / probability * _UNIT + 0.5)
            else:
                w *= _UNIT
        pair = min(a, b) * count + max(a, b)
        at = _slot(pairs, pair)
        if pairs[at] == -1:
            if used >= room:
                return e, used
            pairs[at] = pair
            used += 1
        weights[at] += w
    return len(src), used


@compiled
def _rehash(pairs, weights, new_pairs, new_weights):
    for i in range(len(pairs)):
        if pairs[i] != -1:
            at = _slot(new_pairs, pairs[i])
            new_pairs[at] = pairs[i]
            new_weights[at] = weights[i]


@compiled
def _degrees(pairs, count, indptr):
    for i in range(len(pairs)):
        if pairs[i] != -1:
            indptr[pairs[i] // count + 1] += 1
            indptr[pairs[i] % count + 1] += 1


@compiled
def _rows(pairs, weights, count, cursor, indices, weight):
    for i in range(len(pairs)):
        if pairs[i] != -1:
            a, b = pairs[i] // count, pairs[i] % count
            indices[cursor[a]], weight[cursor[a]] = b, weights[i]
            indices[cursor[b]], weight[cursor[b]] = a, weights[i]
            cursor[a] += 1
            cursor[b] += 1


@compiled
def _sort_rows(indptr, indices, weight):
    for r in range(len(indptr) - 1):
        begin, end = indptr[r], indptr[r + 1]
        order = argsort(indices[begin:end])
        indices[begin:end] = indices[begin:end][order]
        weight[begin:end] = weight[begin:end][order]
