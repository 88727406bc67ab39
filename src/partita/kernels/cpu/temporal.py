"""Edges that are there at a time, compiled.

A search waits for memory. So of a group of rows the bounds are read first, then the lines are asked for that their
searches begin with, and then they are searched side by side.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int, Int64, UInt32
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import or_empty, run
from partita.kernels.cpu.draws import U, fold
from partita.kernels.cpu.sampling import able, number_of_picks, picked
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


def sample_until(
    original: Int64[Tensor, "N"] | None,
    indptr: Int64[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    times: Int64[Tensor, "M"],
    requests: Int64[Tensor, "D"],
    until: Int64[Tensor, "T"],
    since: Int64[Tensor, "T"] | None,
    slots: int,
    key: int,
    fanout: int,
    last: bool,
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
) -> tuple[Int64[Tensor, "D"], Int64[Tensor, "D_1"], Int64[Tensor, "E"], Int64[Tensor, "E"]] | None:
    """See :func:`partita.kernels.reference.sample_until`."""
    none, size, bits = np.empty(0, np.int64), len(requests), slots.bit_length() - 1
    keys, begins, degrees = (np.empty(size, np.int64) for _ in range(3))
    rows, wrong = np.zeros(size + 1, np.int64), np.zeros(1, np.bool_)
    run(
        rows_loop, threads.even_bounds(size, size * _WORDS_PER_ROW),
        or_empty(original, (0,), none.dtype), indptr, times, or_empty(weights, (0,), np.dtype(np.uint32)), requests,
        until, or_empty(since, (0,), none.dtype), bits, first_edge, fanout, last, replace,
        keys, begins, degrees, rows[1:], wrong,
    )  # fmt: skip
    if wrong[0]:
        return None
    np.cumsum(rows, out=rows)
    wanted = np.array([-1 if last else fanout], np.int64)
    ids, positions, _ = picked(
        indices, keys, key, wanted, none.astype(np.int32), replace, weights, begins, degrees, rows, none,
        none.reshape(0, 2), (requests.numpy(), bits, len(indptr) - 1, wrong),
    )  # fmt: skip
    return None if wrong[0] else (torch.from_numpy(keys), torch.from_numpy(rows), ids.long(), positions)


def distinct_times(
    times: Int64[Tensor, "N"], ids: Int64[Tensor, "n"]
) -> tuple[Int64[Tensor, "T"], Int64[Tensor, "n"]] | None:
    """See :func:`partita.kernels.reference.distinct_times`."""
    found, places = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    count = distinct_loop(times.numpy(), ids.numpy(), found, places)
    return None if count < 0 else (torch.from_numpy(found[:count].copy()), torch.from_numpy(places))


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
    num_nodes: int,
    out: Int64[Tensor, "E"],
) -> bool:
    """See :func:`partita.kernels.reference.to_requests`."""
    wrong = np.zeros(1, np.bool_)
    bounds = threads.balanced_bounds(indptr.numpy(), 2)
    run(requests_loop, bounds, indptr, indices, requests, slots.bit_length() - 1, num_nodes, out, wrong)
    return not wrong[0]


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
def rows_loop(
    original, indptr, times, weights, requests, until, since, bits, first_edge, fanout, last, replace,
    keys, begins, degrees, counts, wrong, low, high,
):  # fmt: skip
    """Keys, first edges, degrees and numbers of picks of nodes at times, of which each node has 2^``bits``.

    Ends where one is none, which is then ``wrong``.
    """
    mask = (1 << bits) - 1
    lows, highs, limits = np.empty(_GROUP, np.int64), np.empty(_GROUP, np.int64), np.empty(_GROUP, np.int64)
    excluded, skipped = np.empty(0, np.int64), np.empty((0, 2), np.int64)
    for first in range(low - _GROUP, high, _GROUP):
        for i in range(first + _GROUP, min(first + 2 * _GROUP, high)):  # those of the next group
            prefetch(indptr, requests[i] >> bits)
            if original.shape[0] > 0:
                prefetch(original, requests[i] >> bits)
        if first < low:
            continue
        count = min(_GROUP, high - first)
        for i in range(first, first + count):
            node = requests[i] >> bits
            if node < 0 or node >= indptr.shape[0] - 1 or (requests[i] & mask) >= until.shape[0]:
                wrong[0] = True
                return
            begins[i], degrees[i] = indptr[node] - first_edge, indptr[node + 1] - first_edge
            prefetch(times, degrees[i] - 1)
        for j in range(count):
            request = requests[first + j]
            limits[j] = until[request & mask]
            lows[j], highs[j] = _begin(times, begins[first + j], degrees[first + j], limits[j])
            name = original[request >> bits] if original.shape[0] > 0 else request >> bits
            keys[first + j] = np.int64(fold(np.uint64(name), np.uint64(limits[j])))
        _search(times, lows, highs, limits, count)
        if since.shape[0] > 0:
            for j in range(count):
                degrees[first + j], limits[j] = lows[j], since[requests[first + j] & mask]
                lows[j], highs[j] = _begin(times, begins[first + j], lows[j], limits[j])
            _search(times, lows, highs, limits, count)
            for j in range(count):
                begins[first + j], lows[j] = lows[j], degrees[first + j]
        for j in range(count):
            i = first + j
            if last and fanout >= 0:
                begins[i] = max(begins[i], lows[j] - fanout)
            degrees[i] = candidates = lows[j] - begins[i]
            if weights.shape[0] > 0:
                candidates = able(weights, begins[i], candidates, excluded, skipped)
            counts[i] = number_of_picks(candidates, -1 if last else fanout, replace)


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
def requests_loop(indptr, indices, requests, bits, num_nodes, out, wrong, low, high):
    """What is drawn for a request is asked for at its time; whether an id is wrong is noted."""
    mask, largest = np.int64((1 << bits) - 1), np.uint64(0)
    for i in range(low, high):
        slot = requests[i] & mask
        for e in range(indptr[i], indptr[i + 1]):
            node = np.int64(indices[e])
            largest = max(largest, np.uint64(node))  # of those below 0, a large one
            out[e] = (node << bits) | slot
    if largest >= np.uint64(num_nodes):
        wrong[0] = True


@njit(nogil=True, cache=True)
def distinct_loop(times, ids, found, places):
    """Radix sort of the times of some ids, by 8 bits at once; returns how many there are, -1 where an id is none."""
    size = ids.shape[0]
    values, order = np.empty(size, np.int64), np.arange(size)
    for i in range(size):
        prefetch(times, ids[min(i + _GROUP, size - 1)])
        if ids[i] < 0 or ids[i] >= times.shape[0]:
            return -1
        values[i] = times[ids[i]]
    if size == 0:
        return 0
    least, most = values.min(), values.max()
    keys, span = np.empty(size, np.uint64), U(most) - U(least)
    for i in range(size):
        keys[i] = U(values[i]) - U(least)
    other_keys, other_order, begins = np.empty_like(keys), np.empty_like(order), np.empty(257, np.int64)
    for shift in range(0, 64, 8):
        if span >> U(shift) == U(0):
            break
        begins[:] = 0
        for i in range(size):
            begins[np.int64((keys[i] >> U(shift)) & U(255)) + 1] += 1
        for digit in range(256):
            begins[digit + 1] += begins[digit]
        for i in range(size):
            digit = np.int64((keys[i] >> U(shift)) & U(255))
            other_keys[begins[digit]], other_order[begins[digit]] = keys[i], order[i]
            begins[digit] += 1
        keys, other_keys, order, other_order = other_keys, keys, other_order, order
    count = 0
    for i in range(size):
        if i == 0 or keys[i] != keys[i - 1]:
            found[count] = values[order[i]]
            count += 1
        places[order[i]] = count - 1
    return count
