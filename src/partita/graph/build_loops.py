"""Kernels that only the building of a graph store uses.

Each exists twice: as loops that numba compiles, and as plain numpy, which is used where numba cannot be imported
and which the tests compare. Arguments are numpy arrays; an absent array is one of length 0. All run without the
GIL, allocate nothing but what is said, and are single passes over their edges. Edges have a source, a destination, and
as far as they are there a weight, a kind, which is the number of their relation, and a number, by which their features
are found.
"""

from __future__ import annotations

import numpy as np

from partita.kernels.compile import COMPILES, compiled

LARGEST_QUANTIZED = 4294967295.0
"""2^32 - 1: what the largest weight of a row becomes."""

_FROM, _TO, _MIX, _SHIFT = (
    np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 32)
)


# Final ids and both directions of the raw edges


def _map_edges_loops(
    src, dst, weight, kind, number, rank, num_nodes, undirected, drop_loops,
    out_src, out_dst, out_weight, out_kind, out_number,
):  # fmt: skip
    count = 0
    for e in range(len(src)):
        u = np.int64(src[e])
        v = np.int64(dst[e])
        if u < 0 or u >= num_nodes or v < 0 or v >= num_nodes:
            return count, np.int64(e)
        if u == v and drop_loops:
            continue
        if len(rank) > 0:
            u = np.int64(rank[u])
            v = np.int64(rank[v])
        out_src[count] = u
        out_dst[count] = v
        if len(weight) > 0:
            out_weight[count] = weight[e]
        if len(kind) > 0:
            out_kind[count] = kind[e]
        if len(number) > 0:
            out_number[count] = number[e]
        count += 1
        if undirected and u != v:
            out_src[count] = v
            out_dst[count] = u
            if len(weight) > 0:
                out_weight[count] = weight[e]
            if len(number) > 0:
                out_number[count] = number[e]
            count += 1
    return count, np.int64(-1)


def map_edges_numpy(
    src, dst, weight, kind, number, rank, num_nodes, undirected, drop_loops,
    out_src, out_dst, out_weight, out_kind, out_number,
):  # fmt: skip
    """Give raw edges their final ids, in order; ``undirected`` adds the reverse right after each edge.

    Args:
        src, dst: (n) provisional ids.
        weight: (n) or empty.
        kind: (n) or empty, and then not ``undirected``.
        number: (n) or empty; both directions have that of the edge.
        rank: (num_nodes) final id of each provisional id, or empty for the same ids.
        num_nodes: N.
        undirected: emit (u, v) and then (v, u); a self loop once.
        drop_loops: leave self loops out.
        out_src, out_dst, out_weight, out_kind, out_number: room for n edges, 2n if undirected.

    Returns:
        Number of edges written, and the position of the first edge with an id outside [0, num_nodes), or -1.
    """
    outside = (src < 0) | (src >= num_nodes) | (dst < 0) | (dst >= num_nodes)
    if outside.any():
        return 0, int(np.argmax(outside))
    if drop_loops:
        kept = src != dst
        src, dst = src[kept], dst[kept]
        weight, kind, number = (each[kept] if len(each) else each for each in (weight, kind, number))
    if len(rank):
        src, dst = rank[src], rank[dst]
    if undirected:
        mask = np.stack([np.ones(len(src), dtype=bool), src != dst], axis=1).reshape(-1)
        src, dst = np.stack([src, dst], axis=1).reshape(-1)[mask], np.stack([dst, src], axis=1).reshape(-1)[mask]
        weight, number = (np.repeat(each, 2)[mask] if len(each) else each for each in (weight, number))
    count = len(src)
    out_src[:count] = src
    out_dst[:count] = dst
    out_weight[: len(weight)] = weight
    out_kind[: len(kind)] = kind
    out_number[: len(number)] = number
    return count, -1


# Counting


def _count_rows_loops(dst, degree):
    for e in range(len(dst)):
        degree[dst[e]] += 1


def count_rows_numpy(dst, degree):
    """Add the number of edges into every node to ``degree`` (N)."""
    np.add.at(degree, dst, 1)


# Distribution to buckets: a stable counting sort of one chunk


def _partition_edges_loops(
    src, dst, weight, kind, number, bucket_of, starts, out_src, out_dst, out_weight, out_kind, out_number
):
    starts[:] = 0
    for e in range(len(dst)):
        starts[bucket_of[dst[e]] + 1] += 1
    for b in range(1, len(starts)):
        starts[b] += starts[b - 1]
    for e in range(len(dst)):
        b = bucket_of[dst[e]]
        slot = starts[b]
        starts[b] = slot + 1
        out_src[slot] = src[e]
        out_dst[slot] = dst[e]
        if len(weight) > 0:
            out_weight[slot] = weight[e]
        if len(kind) > 0:
            out_kind[slot] = kind[e]
        if len(number) > 0:
            out_number[slot] = number[e]
    for b in range(len(starts) - 1, 0, -1):
        starts[b] = starts[b - 1]
    starts[0] = 0


def partition_edges_numpy(
    src, dst, weight, kind, number, bucket_of, starts, out_src, out_dst, out_weight, out_kind, out_number
):
    """Sort a chunk of edges by bucket, stably.

    Args:
        src, dst: (n).
        weight, kind, number: (n) or empty.
        bucket_of: (N) bucket of every destination.
        starts: (buckets + 1) receives where each bucket's edges begin in the output, and n.
        out_src, out_dst, out_weight, out_kind, out_number: (n).
    """
    bucket = bucket_of[dst]
    starts[0] = 0
    np.cumsum(np.bincount(bucket, minlength=len(starts) - 1), out=starts[1:])
    order = np.argsort(bucket, kind="stable")
    out_src[: len(src)] = src[order]
    out_dst[: len(src)] = dst[order]
    if len(weight):
        out_weight[: len(src)] = weight[order]
    if len(kind):
        out_kind[: len(src)] = kind[order]
    if len(number):
        out_number[: len(src)] = number[order]


# Sorting one bucket by destination


def _place_edges_loops(src, dst, weight, kind, number, low, cursor, out_src, out_weight, out_kind, out_number):
    for e in range(len(dst)):
        row = dst[e] - low
        slot = cursor[row]
        cursor[row] = slot + 1
        out_src[slot] = src[e]
        if len(weight) > 0:
            out_weight[slot] = weight[e]
        if len(kind) > 0:
            out_kind[slot] = kind[e]
        if len(number) > 0:
            out_number[slot] = number[e]


def place_edges_numpy(src, dst, weight, kind, number, low, cursor, out_src, out_weight, out_kind, out_number):
    """Put the edges of a chunk into their rows, in order.

    Args:
        src, dst: (n).
        weight, kind, number: (n) or empty.
        low: first destination of the bucket.
        cursor: (rows) next free slot of every row; moved on.
        out_src, out_weight, out_kind, out_number: the bucket's edges.
    """
    if not len(dst):
        return
    row = dst - low
    order = np.argsort(row, kind="stable")
    row = row[order]
    first = np.concatenate([[True], row[1:] != row[:-1]])
    begin = np.flatnonzero(first)
    rank_in_row = np.arange(len(row)) - np.repeat(begin, np.diff(np.append(begin, len(row))))
    slot = cursor[row] + rank_in_row
    out_src[slot] = src[order]
    if len(weight):
        out_weight[slot] = weight[order]
    if len(kind):
        out_kind[slot] = kind[order]
    if len(number):
        out_number[slot] = number[order]
    np.add.at(cursor, row, 1)


# Whether every edge is there in both directions


def _direction_sum_loops(src, dst):
    total = np.uint64(0)
    straight = False
    for i in range(len(src)):
        u, v = np.uint64(src[i]), np.uint64(dst[i])
        straight |= u != v
        there = u * _FROM + v * _TO
        back = v * _FROM + u * _TO
        total += (there ^ (there >> _SHIFT)) * _MIX - (back ^ (back >> _SHIFT)) * _MIX
    return total, straight


def direction_sum_numpy(src, dst):
    """The sum of a hash of every edge less that of the edge in the other direction, modulo 2^64.

    Over all edges it is 0 where every edge is there equally often in both directions, in any order; otherwise it is 0
    with a probability of about 2^-64.

    Args:
        src, dst: of edges.

    Returns:
        The sum, and whether any of the edges is not a self loop.
    """
    u, v = (np.asarray(ends).astype(np.uint64) for ends in (src, dst))
    there, back = u * _FROM + v * _TO, v * _FROM + u * _TO
    terms = (there ^ (there >> _SHIFT)) * _MIX - (back ^ (back >> _SHIFT)) * _MIX
    return terms.sum(dtype=np.uint64), bool((u != v).any())


# What is known only when a row is complete: repeats, self loops, the largest weight


def _finish_rows_loops(low, degree, src, weight, kind, number, drop, last_seen, last_kind, loops, largest):
    kept = 0
    repeats = 0
    read = 0
    for r in range(len(degree)):
        v = low + r
        begin = kept
        end = read + degree[r]
        for e in range(read + 1, end if len(kind) > 0 else 0):
            if kind[e] < kind[e - 1]:
                order = np.argsort(kind[read:end], kind="mergesort")
                src[read:end] = src[read:end][order]
                kind[read:end] = kind[read:end][order]
                if len(weight) > 0:
                    weight[read:end] = weight[read:end][order]
                if len(number) > 0:
                    number[read:end] = number[read:end][order]
                break
        for _ in range(degree[r]):
            u = np.int64(src[read])
            if last_seen[u] == v + 1 and (len(kind) == 0 or last_kind[u] == kind[read]):
                repeats += 1
                if drop:
                    read += 1
                    continue
            last_seen[u] = v + 1
            if u == v:
                loops[r] += 1
            src[kept] = u
            if len(kind) > 0:
                last_kind[u] = kind[read]
                kind[kept] = kind[read]
            if len(weight) > 0:
                weight[kept] = weight[read]
                largest[r] = max(largest[r], weight[kept])
            if len(number) > 0:
                number[kept] = number[read]
            kept += 1
            read += 1
        degree[r] = kept - begin
    return kept, repeats


def finish_rows_numpy(low, degree, src, weight, kind, number, drop, last_seen, last_kind, loops, largest):
    """Sort consecutive rows by kind, count repeats, drop them (the first stays), and gather what rows add up to.

    A row may be given in several pieces, one call after another, if their kinds ascend: ``last_seen`` remembers.

    Args:
        low: the node of the first row.
        degree: (rows) length of every row; receives the lengths that remain.
        src, weight, kind, number: of edges, row by row; sorted stably and compacted in place. All but ``src`` may be
            empty.
        drop: whether repeats go: edges of the same source and kind.
        last_seen: (N) 1 + the last row in which each source was met, 0 before.
        last_kind: (N) kind of the edge with which it was met there; empty without kinds.
        loops: (rows) the number of self loops is added to it.
        largest: (rows) raised to the largest weight, if there are weights.

    Returns:
        Number of edges that remain, and of edges that repeat an earlier one.
    """
    row = np.repeat(np.arange(len(degree)), degree)
    sources = src[: len(row)].astype(np.int64)
    weights, kinds, numbers = (each[: len(row)] if len(each) else each for each in (weight, kind, number))
    of = kinds if len(kinds) else np.zeros(len(row), np.uint8)
    by_kind = np.lexsort((of, row))  # stable, and rows are in order already
    sources, of = sources[by_kind], of[by_kind]
    weights, numbers = (each[by_kind] if len(each) else each for each in (weights, numbers))
    fresh = last_seen[sources] != low + row + 1
    if len(kind):
        fresh |= last_kind[sources] != of
    order = np.lexsort((sources, of, row))  # stable: the first of equal ones comes first
    repeated = np.ones(max(len(row) - 1, 0), bool)
    for each in (row, of, sources):
        repeated &= np.diff(each[order].astype(np.int64)) == 0
    fresh[order[1:][repeated]] = False
    repeats = int(np.count_nonzero(~fresh))
    last_seen[sources] = low + row + 1
    if len(kind):
        last_kind[sources] = of
    if drop:
        row, sources, of = row[fresh], sources[fresh], of[fresh]
        weights, numbers = (each[fresh] if len(each) else each for each in (weights, numbers))
    kept = len(row)
    src[:kept] = sources
    degree[:] = np.bincount(row, minlength=len(degree))
    loops += np.bincount(row[sources == low + row], minlength=len(loops)).astype(loops.dtype)
    if len(kind):
        kind[:kept] = of
    if len(weight):
        weight[:kept] = weights
    if len(number):
        number[:kept] = numbers
    if len(weight):
        np.maximum.at(largest, row, weights)
    return kept, repeats


# Weights as integers


def _quantize_loops(weight, first, indptr, largest, out):
    row = np.searchsorted(indptr, first, side="right") - 1
    for e in range(len(weight)):
        while indptr[row + 1] <= first + e:
            row += 1
        w = np.float64(weight[e])
        if w > 0.0:
            q = np.rint(w * (LARGEST_QUANTIZED / np.float64(largest[row])))
            out[e] = np.uint32(min(max(q, 1.0), LARGEST_QUANTIZED))
        else:
            out[e] = np.uint32(0)


def quantize_numpy(weight, first, indptr, largest, out):
    """Scale weights so that the largest of each row becomes 2^32-1; positive ones become at least 1.

    Args:
        weight: (n) float32, edges ``first`` to ``first + n``.
        first: position of the first edge.
        indptr: (N+1) rows of all edges.
        largest: (N) float32, the largest weight of each row.
        out: (n) uint32.
    """
    if not len(weight):
        return
    last = first + len(weight)
    low, high = np.searchsorted(indptr, [first, last - 1], side="right") - 1
    bounds = np.clip(indptr[low : high + 2], first, last)
    scale = np.zeros(high + 1 - low)
    top = largest[low : high + 1].astype(np.float64)
    np.divide(LARGEST_QUANTIZED, top, out=scale, where=top > 0)
    wide = weight.astype(np.float64)
    q = np.clip(np.rint(wide * np.repeat(scale, np.diff(bounds))), 1.0, LARGEST_QUANTIZED)
    out[:] = np.where(wide > 0, q, 0).astype(np.uint32)


def _choose(loops, plain):
    return compiled(loops) if COMPILES else plain


map_edges = _choose(_map_edges_loops, map_edges_numpy)
count_rows = _choose(_count_rows_loops, count_rows_numpy)
partition_edges = _choose(_partition_edges_loops, partition_edges_numpy)
place_edges = _choose(_place_edges_loops, place_edges_numpy)
direction_sum = _choose(_direction_sum_loops, direction_sum_numpy)
finish_rows = _choose(_finish_rows_loops, finish_rows_numpy)
quantize = _choose(_quantize_loops, quantize_numpy)
