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

_BUCKETS = 1 << 12
_FEW = 6  # up to so many sources in a row are compared one by one; more are looked up in a set
_AT_ONCE = 256  # edges that are compared before it is seen whether one of them was found
_SET_WORDS = 1 << 10


def find_edges(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Shaped[Tensor, "M"] | None,
    dst: Int[Tensor, "t"],
    src: Int[Tensor, "t"],
    kinds: Int[Tensor, "t"] | None,
    first_edge: int,
) -> Int[Tensor, "x"]:
    """See :func:`partita.kernels.reference.find_edges`; pairs are sorted by destination, relation and source."""
    nodes, store = dst.numpy(), indices.numpy()
    fresh = np.ones(len(nodes), np.bool_)
    fresh[1:] = nodes[1:] != nodes[:-1]
    if kinds is not None:
        fresh[1:] |= kinds.numpy()[1:] != kinds.numpy()[:-1]
    heads = np.flatnonzero(fresh)
    runs = np.append(heads, len(nodes))
    rows, wanted = nodes[heads], src.numpy().astype(store.dtype)
    begins, ends = indptr.numpy()[rows] - first_edge, indptr.numpy()[rows + 1] - first_edge
    if kinds is not None and edge_type is not None:
        narrow_loop(edge_type.numpy(), kinds.numpy()[heads], begins, ends)
    found: list[tuple[int, np.ndarray]] = []
    touched = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(ends - begins, out=touched[1:])

    def work(low: int, high: int) -> None:
        found.append((low, find_loop(store, begins, ends, runs, wanted, low, high)))

    threads.run(work, threads.balanced_bounds(touched, 1))
    parts = [part for _, part in sorted(found, key=lambda each: each[0])]
    return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))


def directory(excluded: Int64[Tensor, "x"]) -> tuple[np.ndarray, np.ndarray]:
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
def narrow_loop(kinds, wanted, begins, ends):
    """Narrow rows to the edges of one relation each; relations ascend in a row."""
    for i in range(wanted.shape[0]):
        for side in range(2):
            goal, low, high = wanted[i] + side, begins[i], ends[i]
            while low < high:
                middle = (low + high) // 2
                if np.int64(kinds[middle]) < goal:
                    low = middle + 1
                else:
                    high = middle
            if side == 0:
                begins[i] = low
            else:
                ends[i] = low


@njit
def _among(sources, low, high, source):
    """Whether an id is in ``sources[low:high]``, which ascend."""
    while low < high:
        middle = (low + high) // 2
        if sources[middle] == source:
            return True
        if sources[middle] < source:
            low = middle + 1
        else:
            high = middle
    return False


@njit(nogil=True, cache=True)
def find_loop(indices, begins, ends, runs, sources, low, high):
    """Where edges from ``sources[runs[i]:runs[i + 1]]`` are in ``indices[begins[i]:ends[i]]``, of rows i in order."""
    found, size = np.empty(2 * (runs[high] - runs[low]) + 16, np.int64), 0
    marks = np.zeros(_SET_WORDS, np.uint64)
    for i in range(low, high):
        first, last = runs[i], runs[i + 1]
        few = last - first <= _FEW
        if not few:
            for k in range(first, last):
                marks[(sources[k] >> 6) & (_SET_WORDS - 1)] |= np.uint64(1) << np.uint64(sources[k] & 63)
        for start in range(begins[i], ends[i], _AT_ONCE):
            stop = min(start + _AT_ONCE, ends[i])
            hits = 0
            if few:
                for k in range(first, last):
                    source = sources[k]
                    for position in range(start, stop):
                        hits += indices[position] == source
            else:
                for position in range(start, stop):
                    source = indices[position]
                    word = marks[(source >> 6) & (_SET_WORDS - 1)]
                    hits += (word >> np.uint64(source & 63)) & np.uint64(1) != 0
            if hits == 0:
                continue
            for position in range(start, stop):
                if _among(sources, first, last, indices[position]):
                    if size == found.shape[0]:
                        more = np.empty(2 * size, np.int64)
                        more[:size] = found
                        found = more
                    found[size] = position
                    size += 1
        if not few:
            for k in range(first, last):
                marks[(sources[k] >> 6) & (_SET_WORDS - 1)] = np.uint64(0)
    return found[:size].copy()
