"""Edges that are left out of rows, compiled: how they are found, and how draws step over them.

Excluded positions are few and ascending. For every row that is drawn from it must be known whether it has any, so their
list comes with a directory: element b + 1 says how many of them are in the buckets before bucket b, and element 0 how
many bits of a position's distance from the first of them are left out to get its bucket.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import or_empty
from partita.kernels.intrinsics import prefetch

_BUCKETS = 1 << 12
_FEW = 8  # up to so many sources in a row are compared one by one; more are looked up in a set
_AT_ONCE = 64  # edges that are compared before it is seen whether one of them was found
_AHEAD = 12  # rows ahead that are asked for
_LINE = 16  # edges in a cache line
_WORDS_PER_EDGE = 2  # rows are short, and each is waited for; for cutting work into ranges
_SET_WORDS = 1 << 10


def find_edges(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Shaped[Tensor, "M"] | None,
    dst: Int[Tensor, "t"],
    src: Int[Tensor, "t"],
    kinds: Int[Tensor, "t"] | None,
    first_edge: int,
) -> Int[Tensor, "k"]:
    """See :func:`partita.kernels.reference.find_edges`; pairs are sorted by destination, relation and source."""
    store, count = indices.numpy(), dst.shape[0]
    runs, begins, ends = np.empty(count + 1, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    narrow = kinds is not None and edge_type is not None
    types = or_empty(edge_type if narrow else None, (0,), np.dtype(np.uint8))
    wanted = or_empty(kinds if narrow else None, (0,), np.dtype(np.int64))
    rows = rows_loop(indptr.numpy(), first_edge, dst.numpy(), types, wanted, runs, begins, ends)
    touched = np.zeros(rows + 1, np.int64)
    np.cumsum(ends[:rows] - begins[:rows], out=touched[1:])
    found: list[tuple[int, np.ndarray]] = []
    sources = src.numpy().astype(store.dtype)

    def work(low: int, high: int) -> None:
        found.append((low, find_loop(store, begins, ends, runs, sources, low, high)))

    threads.run(work, threads.balanced_bounds(touched, _WORDS_PER_EDGE))
    parts = [part for _, part in sorted(found, key=lambda each: each[0])]
    return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))


def directory(excluded: Int64[Tensor, "k"]) -> tuple[np.ndarray, np.ndarray]:
    """Excluded positions, and their directory."""
    positions = or_empty(excluded, (0,), np.dtype(np.int64))
    if not len(positions):
        return positions, positions
    span = int(positions[-1] - positions[0])
    shift = max(0, span.bit_length() - _BUCKETS.bit_length() + 1)
    starts = np.empty((span >> shift) + 3, np.int64)
    starts[0] = shift
    fill_directory(positions, starts)
    return positions, starts


@njit(nogil=True, cache=True)
def fill_directory(excluded, starts):
    """Fill all elements of a directory but the first."""
    starts[1:] = 0
    for position in excluded:
        starts[((position - excluded[0]) >> starts[0]) + 2] += 1
    for bucket in range(2, starts.shape[0]):
        starts[bucket] += starts[bucket - 1]


@njit
def excluded_before(excluded, buckets, position):
    """How many excluded positions are below one."""
    count = excluded.shape[0]
    if count == 0 or position <= excluded[0]:
        return np.int64(0)
    if position > excluded[count - 1]:
        return np.int64(count)
    bucket = (position - excluded[0]) >> buckets[0]
    low, high = buckets[bucket + 1], buckets[bucket + 2]
    while low < high:
        middle = (low + high) // 2
        if excluded[middle] < position:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def excluded_within(excluded, buckets, begin, end):
    """Which of the excluded positions are in a row: the first, and one past the last."""
    low = excluded_before(excluded, buckets, begin)
    if low == excluded.shape[0] or excluded[low] >= end:
        return low, low
    return low, excluded_before(excluded, buckets, end)


@njit
def step_over(excluded, low, high, position):
    """See :func:`partita.kernels.excluded.stepped`; ``low`` to ``high`` are those of the row."""
    first, last = low, high
    while first < last:
        middle = (first + last) // 2
        if excluded[middle] - (middle - low) <= position:
            first = middle + 1
        else:
            last = middle
    return position + first - low


@njit
def step_all(excluded, low, high, positions, begin, end):
    """:func:`step_over` for ``positions[begin:end]``."""
    for e in range(begin, end):
        positions[e] = step_over(excluded, low, high, positions[e])


@njit
def remaining_weights(weights, begin, degree, excluded, low, high):
    """The weights of the ``degree`` edges of a row that are not left out."""
    found = np.empty(degree, weights.dtype)
    position = begin
    for slot in range(degree):
        while low < high and excluded[low] == position:
            position += 1
            low += 1
        found[slot] = weights[position]
        position += 1
    return found


@njit(nogil=True, cache=True)
def rows_loop(indptr, first, dst, kinds, wanted, runs, begins, ends):
    """Rows that are searched, and which of the pairs each of them is searched for: ``runs[i]:runs[i + 1]``.

    Pairs come sorted. Where relations are ``wanted``, rows are narrowed to the edges of one; they ascend in a row.
    Returns how many rows there are.
    """
    count, typed, rows = dst.shape[0], wanted.shape[0] > 0, 0
    for i in range(count):
        prefetch(indptr, dst[min(i + _AHEAD, count - 1)])
        if i and dst[i] == dst[i - 1] and (not typed or wanted[i] == wanted[i - 1]):
            continue
        runs[rows] = i
        begins[rows], ends[rows] = indptr[dst[i]] - first, indptr[dst[i] + 1] - first
        rows += 1
    runs[rows] = count
    if typed:
        for row in range(rows):
            kind, begin, end = wanted[runs[row]], begins[row], ends[row]
            begins[row] = _first_of(kinds, begin, end, kind)
            ends[row] = _first_of(kinds, begins[row], end, kind + 1)
    return rows


@njit
def _first_of(kinds, low, high, kind):
    """Where the first edge of a relation, or of one after it, is in a row."""
    while low < high:
        middle = (low + high) // 2
        if np.int64(kinds[middle]) < kind:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def _has(row, source):
    """Whether an id is in a row: compared many at a time, so it is not stopped where it is found."""
    found = False
    for j in range(row.shape[0]):
        found |= row[j] == source
    return found


@njit
def _has_marked(row, marks):
    """Whether a row may have any of the ids that are marked, which have some bits in common with others."""
    found = np.uint64(0)
    for j in range(row.shape[0]):
        found |= marks[(row[j] >> 6) & (_SET_WORDS - 1)] >> np.uint64(row[j] & 63)
    return found & np.uint64(1) != 0


@njit(nogil=True, cache=True)
def find_loop(indices, begins, ends, runs, sources, low, high):
    """Where edges from ``sources[runs[i]:runs[i + 1]]`` are in ``indices[begins[i]:ends[i]]``, of rows i in order."""
    found, size = np.empty(2 * (runs[high] - runs[low]) + 16, np.int64), 0
    marks = np.zeros(_SET_WORDS, np.uint64)
    for i in range(low, high):
        ahead = min(i + _AHEAD, high - 1)
        prefetch(indices, begins[ahead])
        prefetch(indices, min(begins[ahead] + _LINE, max(ends[ahead] - 1, 0)))
        first, last = runs[i], runs[i + 1]
        few = last - first <= _FEW
        if not few:
            for k in range(first, last):
                marks[(sources[k] >> 6) & (_SET_WORDS - 1)] |= np.uint64(1) << np.uint64(sources[k] & 63)
        for start in range(begins[i], ends[i], _AT_ONCE):
            row = indices[start : min(start + _AT_ONCE, ends[i])]
            if few:
                hit = False
                for k in range(first, last):
                    hit |= _has(row, sources[k])
            else:
                hit = _has_marked(row, marks)
            if not hit:
                continue
            for j in range(row.shape[0]):
                k, end = first, last
                if not few:  # they ascend
                    while k < end:
                        middle = (k + end) // 2
                        if sources[middle] < row[j]:
                            k = middle + 1
                        else:
                            end = middle
                    end = min(k + 1, last)
                while k < end and sources[k] != row[j]:
                    k += 1
                if k == end:
                    continue
                if size == found.shape[0]:
                    more = np.empty(2 * size, np.int64)
                    more[:size] = found
                    found = more
                found[size] = start + j
                size += 1
        if not few:
            for k in range(first, last):
                marks[(sources[k] >> 6) & (_SET_WORDS - 1)] = np.uint64(0)
    return found[:size].copy()
