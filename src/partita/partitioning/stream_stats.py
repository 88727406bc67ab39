"""The first pass over a stream: degrees, loops, and whether the graph is undirected."""

from __future__ import annotations

import numpy as np

from partita.core.errors import InputError
from partita.core.partitioning import EdgeStream, StreamStats
from partita.kernels.compile import AHEAD, compiled, prefetch

_LARGEST_INT32_VOLUME = 2**30  # edges; each adds two to the sum of degrees


def survey(stream: EdgeStream) -> StreamStats:
    """Read a stream once. Memory: 4 bytes per node, 8 from 2^30 edges on and for weighted streams.

    Raises:
        InputError: an edge names a node outside [0, N).
    """
    known = stream.num_edges
    wide = stream.weighted or known is None or known >= _LARGEST_INT32_VOLUME
    degree = np.zeros(stream.num_nodes, dtype=np.int64 if wide else np.int32)
    state = np.zeros(4, dtype=np.int64)  # edges, loops, hash sums of the edges with src < dst less those with src > dst
    for edges in stream.edges("count degrees"):
        wrong = _survey(edges.src, edges.dst, edges.weight, degree, state)
        if wrong >= 0:
            raise InputError(
                f"the edge {edges.src[wrong]} -> {edges.dst[wrong]} names a node that does not exist: "
                f"there are {stream.num_nodes:,} nodes, numbered from 0",
                where=f"edge {state[0] + wrong:,}, counted from 0",
                fix="Correct the edge, or give the right number of nodes",
            )
    symmetric = bool(state[2] == 0 and state[3] == 0)
    if symmetric and not stream.weighted:
        np.right_shift(degree, 1, out=degree)
    return StreamStats(
        degree=degree,
        volume=int(degree.sum(dtype=np.int64)),
        num_edges=int(state[0]),
        num_loops=int(state[1]),
        symmetric=symmetric,
    )


@compiled
def _survey(src, dst, weight, degree, state):
    num_nodes = len(degree)
    for e in range(len(src)):
        if e + AHEAD < len(src):
            prefetch(degree, np.int64(src[e + AHEAD]))
        u, v = np.int64(src[e]), np.int64(dst[e])
        if u < 0 or u >= num_nodes or v < 0 or v >= num_nodes:
            return np.int64(e)
        if u == v:
            state[1] += 1
            continue
        w = np.int64(weight[e]) if len(weight) > 0 else np.int64(1)
        degree[u] += w
        degree[v] += w
        low, high = np.uint64(min(u, v)), np.uint64(max(u, v))
        z = low * np.uint64(0x9E3779B97F4A7C15) ^ (high + np.uint64(0x94D049BB133111EB))
        z = (z ^ (z >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(32)
        if u < v:
            state[2] += 1
            state[3] += np.int64(z)
        else:
            state[2] -= 1
            state[3] -= np.int64(z)
    state[0] += len(src)
    return np.int64(-1)
