"""Edges that are there at a time, compiled.

A search waits for memory. So of a group of rows the bounds are read first, then the lines are asked for that their
searches begin with, and then they are searched side by side.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int, Int64
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import or_empty, run
from partita.kernels.cpu.draws import fold
from partita.kernels.intrinsics import prefetch

_WORDS_PER_ROW = 64
_GROUP = 32


def edges_until(
    times: Int64[Tensor, "M"],
    bounds: Int64[Tensor, "n 2"],
    until: Int64[Tensor, "n"],
    first_edge: int,
    ends: Int64[Tensor, "n"],
) -> None:
    """See :func:`partita.kernels.reference.edges_until`."""
    run(runs_loop, threads.even_bounds(len(until), len(until) * _WORDS_PER_ROW), times, bounds, until, first_edge, ends)


def rows_until(
    indptr: Int64[Tensor, "N_1"],
    times: Int64[Tensor, "M"],
    requests: Int64[Tensor, "n"],
    until: Int64[Tensor, "T"],
    slots: int,
    first_edge: int,
    rows: Int64[Tensor, "_"],
) -> None:
    """See :func:`partita.kernels.reference.rows_until`."""
    run(
        rows_loop, threads.even_bounds(len(requests), len(requests) * _WORDS_PER_ROW),
        indptr, times, requests, until, slots.bit_length() - 1, first_edge, rows,
    )  # fmt: skip


def request_keys(
    original: Int64[Tensor, "N"] | None,
    requests: Int64[Tensor, "n"],
    until: Int64[Tensor, "T"],
    slots: int,
    keys: Int64[Tensor, "n"],
) -> None:
    """See :func:`partita.kernels.reference.request_keys`."""
    names = or_empty(original, (0,), np.dtype(np.int64))
    run(
        keys_loop, threads.even_bounds(len(keys), len(keys) * _WORDS_PER_ROW),
        names, requests, until, slots.bit_length() - 1, keys,
    )  # fmt: skip


def to_requests(
    indptr: Int64[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    requests: Int64[Tensor, "D"],
    slots: int,
    out: Int64[Tensor, "E"],
) -> None:
    """See :func:`partita.kernels.reference.to_requests`."""
    run(requests_loop, threads.balanced_bounds(indptr.numpy(), 2), indptr, indices, requests, slots, out)


@njit(nogil=True, inline="always")
def _begin(times, begin, end, limit):
    """What is left to be searched of a row: nothing where its last edge counts, as in most rows for late seeds."""
    if begin == end or times[end - 1] <= limit:
        return end, end
    prefetch(times, (begin + end - 1) >> 1)
    return begin, end - 1


@njit(nogil=True, inline="always")
def _search(times, lows, highs, limits, count):
    """Binary searches of some rows side by side: the next step of one is under way while others take theirs."""
    searching = True
    while searching:
        searching = False
        for j in range(count):
            low, high = lows[j], highs[j]
            if low < high:
                middle = (low + high) >> 1
                if times[middle] <= limits[j]:
                    low = middle + 1
                else:
                    high = middle
                lows[j], highs[j] = low, high
                if low < high:
                    prefetch(times, (low + high) >> 1)
                    searching = True


@njit(nogil=True, cache=True)
def runs_loop(times, bounds, until, first_edge, ends, low, high):
    """Runs whose bounds are known."""
    lows, highs = np.empty(_GROUP, np.int64), np.empty(_GROUP, np.int64)
    for first in range(low, high, _GROUP):
        count = min(_GROUP, high - first)
        for j in range(count):
            prefetch(times, bounds[first + j, 1] - first_edge - 1)
        for j in range(count):
            begin, end = bounds[first + j, 0] - first_edge, bounds[first + j, 1] - first_edge
            lows[j], highs[j] = _begin(times, begin, end, until[first + j])
        _search(times, lows, highs, until[first : first + count], count)
        for j in range(count):
            ends[first + j] = lows[j] + first_edge


@njit(nogil=True, cache=True)
def rows_loop(indptr, times, requests, until, bits, first_edge, rows, low, high):
    """Rows of nodes at times, of which there are two to the power of ``bits`` for a node."""
    mask = (1 << bits) - 1
    lows, highs, limits = np.empty(_GROUP, np.int64), np.empty(_GROUP, np.int64), np.empty(_GROUP, np.int64)
    for i in range(low, min(low + _GROUP, high)):
        prefetch(indptr, requests[i] >> bits)
    for first in range(low, high, _GROUP):
        count = min(_GROUP, high - first)
        for i in range(first + count, min(first + count + _GROUP, high)):
            prefetch(indptr, requests[i] >> bits)
        for j in range(count):
            node = requests[first + j] >> bits
            begin, end = indptr[node], indptr[node + 1]
            rows[2 * (first + j)], rows[2 * (first + j) + 1] = begin, end
            prefetch(times, end - first_edge - 1)
        for j in range(count):
            begin, end = rows[2 * (first + j)] - first_edge, rows[2 * (first + j) + 1] - first_edge
            limits[j] = until[requests[first + j] & mask]
            lows[j], highs[j] = _begin(times, begin, end, limits[j])
        _search(times, lows, highs, limits, count)
        for j in range(count):
            rows[2 * (first + j) + 1] = lows[j] + first_edge


@njit(nogil=True, cache=True)
def keys_loop(original, requests, until, bits, keys, low, high):
    """Without original indices, those of nodes are their ids."""
    mask = (1 << bits) - 1
    for i in range(low, high):
        node = requests[i] >> bits
        if original.shape[0] > 0:
            prefetch(original, requests[min(i + _GROUP, high - 1)] >> bits)
            node = original[node]
        keys[i] = np.int64(fold(np.uint64(node), np.uint64(until[requests[i] & mask])))


@njit(nogil=True, cache=True)
def requests_loop(indptr, indices, requests, slots, out, low, high):
    """What is drawn for a request is asked for at its time."""
    for i in range(low, high):
        slot = requests[i] & (slots - 1)
        for e in range(indptr[i], indptr[i + 1]):
            out[e] = np.int64(indices[e]) * slots + slot
