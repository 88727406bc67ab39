"""Edges that are there at a time, compiled.

A search waits for memory. So of a group of rows the bounds are read first, then the lines are asked for that their
searches begin with, and then they are searched.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int, Int64
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import run
from partita.kernels.intrinsics import prefetch

_WORDS_PER_ROW = 64
_GROUP = 32
_LINE = 8
_SHORT = 64


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
def _end(times, begin, end, limit):
    """Where the times of a row end that are not above a limit; most rows are in the past of late seeds as a whole."""
    if begin < end and times[end - 1] > limit:
        end -= 1
        while begin < end:
            middle = (begin + end) >> 1
            if times[middle] <= limit:
                begin = middle + 1
            else:
                end = middle
    return end


@njit(nogil=True, inline="always")
def _ask(times, begin, end):
    """For the lines that a search reads: of short rows all, of others those that it begins with."""
    if end - begin <= _SHORT:
        for e in range(begin, end, _LINE):
            prefetch(times, e)
        prefetch(times, end - 1)
    else:
        prefetch(times, end - 1)
        prefetch(times, (begin + end) >> 1)


@njit(nogil=True, cache=True)
def runs_loop(times, bounds, until, first_edge, ends, low, high):
    """Runs whose bounds are known."""
    for first in range(low, high, _GROUP):
        last = min(first + _GROUP, high)
        for i in range(first, last):
            _ask(times, bounds[i, 0] - first_edge, bounds[i, 1] - first_edge)
        for i in range(first, last):
            ends[i] = _end(times, bounds[i, 0] - first_edge, bounds[i, 1] - first_edge, until[i]) + first_edge


@njit(nogil=True, cache=True)
def rows_loop(indptr, times, requests, until, bits, first_edge, rows, low, high):
    """Rows of nodes at times, which are powers of two a node."""
    mask = (1 << bits) - 1
    for i in range(low, min(low + _GROUP, high)):
        prefetch(indptr, requests[i] >> bits)
    for first in range(low, high, _GROUP):
        last = min(first + _GROUP, high)
        for i in range(last, min(last + _GROUP, high)):
            prefetch(indptr, requests[i] >> bits)
        for i in range(first, last):
            node = requests[i] >> bits
            begin, end = indptr[node], indptr[node + 1]
            rows[2 * i], rows[2 * i + 1] = begin, end
            _ask(times, begin - first_edge, end - first_edge)
        for i in range(first, last):
            limit = until[requests[i] & mask]
            end = _end(times, rows[2 * i] - first_edge, rows[2 * i + 1] - first_edge, limit)
            rows[2 * i + 1] = np.int64(end + first_edge)


@njit(nogil=True, cache=True)
def requests_loop(indptr, indices, requests, slots, out, low, high):
    """What is drawn for a request is asked for at its time."""
    for i in range(low, high):
        slot = requests[i] & (slots - 1)
        for e in range(indptr[i], indptr[i + 1]):
            out[e] = np.int64(indices[e]) * slots + slot
