"""Replicas counted: how many out-neighbors every node has in every part, four bits each.

``near[u, p // 2]`` holds two counters, that of the even part in the low bits. A counter stops at 15 and cannot be
counted down from there; so counters are too high at times, never too low, until they are counted afresh.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, UInt8

from partita.core.partitioning import PartitionTask
from partita.kernels.compile import AHEAD, compiled, prefetch

_MOST = np.uint8(15)


def counters(task: PartitionTask) -> UInt8[np.ndarray, "n W"]:
    """Room for the counters, ``N x ceil(P / 2)`` bytes.

    Empty (0 nodes) where they would be of no use, as the stream is weighted, or do not fit into ``task.memory_limit``.
    """
    width = -(-task.num_parts // 2)
    used = not task.stream.weighted and task.num_nodes * width <= task.memory_limit
    return np.zeros((task.num_nodes if used else 0, width), dtype=np.uint8)


def count(task: PartitionTask, parts: Int32[np.ndarray, "N"], near: UInt8[np.ndarray, "N W"], doing: str) -> None:
    """Count afresh, in one pass over the rows, which ``doing`` names."""
    near[:] = 0
    for rows in task.stream.rows(doing):
        _count_rows(rows.first, rows.indptr, rows.src, parts, near)


@compiled
def replicas(parts, near):
    """The number of pairs of a node and a foreign part with an out-neighbor of it."""
    found = 0
    for u in range(len(near)):
        for w in range(near.shape[1]):
            found += np.int64((near[u, w] & _MOST) > 0) + np.int64((near[u, w] >> np.uint8(4)) > 0)
        found -= np.int64(get(near, u, parts[u]) > 0)
    return found


@compiled
def get(near, u, p):
    """Out-neighbors of u in p; 15 for 15 and more."""
    return (near[u, p >> 1] >> np.uint8(4 * (p & 1))) & _MOST


@compiled
def lift(near, u, p):
    """One more."""
    if get(near, u, p) < _MOST:
        near[u, p >> 1] += np.uint8(1 << (4 * (p & 1)))


@compiled
def lower(near, u, p):
    """One less."""
    if 0 < get(near, u, p) < _MOST:
        near[u, p >> 1] -= np.uint8(1 << (4 * (p & 1)))


@compiled
def move(src, begin, end, v, own, to, near):
    """Tell the in-neighbors of v, ``src[begin:end]``, that it moves from part ``own`` to part ``to``."""
    for e in range(begin, end):
        if src[e] != v:
            lower(near, src[e], own)
            lift(near, src[e], to)


@compiled
def saved(src, begin, end, v, own, to, parts, near):
    """How many replicas vanish when v, with in-neighbors ``src[begin:end]``, moves from part ``own`` to ``to``."""
    total = np.int64(get(near, v, to) > 0) - np.int64(get(near, v, own) > 0)
    for e in range(begin, end):
        u = src[e]
        if u == v:
            continue
        home = parts[u]
        if home != own and get(near, u, own) == 1:
            total += 1
        if home != to and get(near, u, to) == 0:
            total -= 1
    return total


@compiled
def _count_rows(first, indptr, src, parts, near):
    base = indptr[0]
    for r in range(len(indptr) - 1):
        v = first + r
        for e in range(indptr[r] - base, indptr[r + 1] - base):
            if e + AHEAD < len(src):
                prefetch(near, np.int64(src[e + AHEAD]) * near.shape[1])
            if src[e] != v:
                lift(near, src[e], parts[v])
