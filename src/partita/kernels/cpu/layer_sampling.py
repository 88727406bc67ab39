"""Drawing a layer as a whole, compiled: the times of :mod:`partita.kernels.reference`, bit for bit."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Int, UInt32
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.draws import ONE, U, below, code, fold, log_of
from partita.kernels.cpu.excluded import directory, excluded_within, remaining_weights, step_over
from partita.kernels.reference.draws import LOG_BITS, NEVER, log_table
from partita.kernels.reference.draws import code as exact_code
from partita.kernels.reference.layer_sampling import SPARED_BITS
from partita.kernels.sorting import sort

_WORDS_PER_SLOT = 16  # a slot costs about as much as this many streamed elements; for cutting work into ranges
_WORDS_PER_NODE = 32  # likewise, a node without weights
_SPARED, _EXPONENT = U(SPARED_BITS), U(SPARED_BITS << 55)
_SEEN = 1024  # places for slots at first, a power of 2
_NEVER = U(NEVER)


def arrival_times(
    indptr: Int[Tensor, "N_1"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    wanted: int,
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int[Tensor, "k"],
) -> Int[Tensor, "wanted"]:
    """See :func:`partita.kernels.reference.arrival_times`."""
    rows, nodes, original, seed = indptr.numpy(), dst.numpy(), dst_original.numpy(), np.uint64(key)
    table, bounds, skips = log_table(), _bounds(rows, nodes, weights), directory(excluded)
    # Without weights a guess of the last time spares looking at arrivals that cannot win; it may be too early.
    limits = [_NEVER] if weights is not None else [_guess(rows, nodes, wanted), _NEVER]
    for limit in limits:
        found: list[np.ndarray] = []

        def work(low: int, high: int, limit: np.uint64 = limit, found: list[np.ndarray] = found) -> None:
            held = np.empty(2 * wanted, np.uint64)
            common = (table, nodes, original, seed, wanted, replace, *skips)
            if weights is None:
                size = _smallest_even(rows, first_edge, *common, limit, held, low, high)
            else:
                size = _smallest(rows, first_edge, weights.numpy(), *common, held, low, high)
            found.append(held[:size])  # in any order: they are sorted below

        threads.run(work, bounds)
        best = np.unique(np.concatenate(found))[:wanted]
        if len(best) == wanted:
            break
    times = np.full(wanted, NEVER, np.int64)
    times[: len(best)] = best
    return torch.from_numpy(times)


def pick_arrivals(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    before: int,
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int[Tensor, "k"],
) -> tuple[Int[Tensor, "D_1"], Int[Tensor, "E"], Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference.pick_arrivals`."""
    rows, nodes, original, seed = indptr.numpy(), dst.numpy(), dst_original.numpy(), np.uint64(key)
    table, bounds, skips = log_table(), _bounds(rows, nodes, weights), directory(excluded)
    limit, begins = np.uint64(before), np.zeros(nodes.shape[0] + 1, np.int64)

    def work(low: int, high: int) -> None:
        common = (table, nodes, original, seed, limit, replace, *skips, begins, positions, low, high)
        if weights is None:
            _pick_even(rows, first_edge, *common)
        else:
            _pick(rows, first_edge, weights.numpy(), *common)

    positions = np.empty(0, np.int64)
    threads.run(work, bounds)
    np.cumsum(begins, out=begins)
    positions = np.empty(int(begins[-1]), np.int64)
    if len(positions):
        threads.run(work, bounds)
    at = torch.from_numpy(positions)
    return torch.from_numpy(begins), torch.from_numpy(indices.numpy()[positions]), at


def _guess(indptr: np.ndarray, nodes: np.ndarray, wanted: int) -> np.uint64:
    """A time before which more than ``wanted`` of the edges of some nodes most probably arrive."""
    share = (wanted + 4 * math.sqrt(wanted)) / max(1, int((indptr[nodes + 1] - indptr[nodes]).sum()))
    if share > 0.9:
        return _NEVER
    return U(exact_code(round(-math.log2(1 - share) * 2**LOG_BITS), 1))


def _bounds(indptr: np.ndarray, nodes: np.ndarray, weights: UInt32[Tensor, "M"] | None) -> np.ndarray:
    """Ranges of nodes for threads: with weights every edge is looked at."""
    if weights is None:
        return threads.even_bounds(nodes.shape[0], nodes.shape[0] * _WORDS_PER_NODE)
    touched = np.concatenate([[0], np.cumsum(indptr[nodes + 1] - indptr[nodes])])
    return threads.balanced_bounds(touched, _WORDS_PER_SLOT)


@njit
def _row(indptr, first, node, excluded, marks):
    """First edge and degree of a row, the latter without excluded edges; and which of these are in it."""
    begin, end = indptr[node] - first, indptr[node + 1] - first
    left, right = excluded_within(excluded, marks, begin, end)
    return begin, end - begin - (right - left), left, right


@njit
def _distinct(times, size, most):
    """Sort the first ``size`` times, drop repeated ones, and keep no more than ``most``; returns how many are left."""
    held = times[:size]
    sort(held)
    kept = 0
    for i in range(size):
        if kept == most:
            break
        if kept == 0 or held[i] != held[kept - 1]:
            held[kept] = held[i]
            kept += 1
    return kept


@njit
def _see(seen, stamps, stamp, slot):
    """Put a slot into a set with open addressing, of which places with another stamp are free; whether it is new."""
    mask = seen.shape[0] - 1
    place = slot & mask
    while stamps[place] == stamp:
        if seen[place] == slot:
            return False
        place = (place + 1) & mask
    seen[place], stamps[place] = slot, stamp
    return True


@njit
def _grown(seen, stamps, stamp):
    """The same set with twice as many places."""
    more, others = np.empty(2 * seen.shape[0], np.int64), np.full(2 * seen.shape[0], np.int64(-1))
    for place in range(seen.shape[0]):
        if stamps[place] == stamp:
            _see(more, others, stamp, seen[place])
    return more, others


@njit(nogil=True, cache=True)
def _smallest_even(
    indptr, first, table, dst, original, key, wanted, replace, excluded, marks, limit, times, low, high
):  # fmt: skip
    """:func:`_smallest` without weights, of the times before ``limit``."""
    size = 0
    seen, stamps = np.empty(_SEEN, np.int64), np.full(_SEEN, np.int64(-1))
    for i in range(low, high):
        _, degree, _, _ = _row(indptr, first, dst[i], excluded, marks)
        node_key = fold(key, U(original[i]))
        log, a, distinct = U(0), U(0), 0
        while degree > 0 and (replace or distinct < degree):
            draw = fold(node_key, a)
            a += ONE
            log += log_of(draw, table) >> _SPARED
            time = code(log, U(degree)) + _EXPONENT
            if time >= limit:
                break
            if not replace:
                if not _see(seen, stamps, i, below(fold(draw, ONE), degree)):
                    continue
                distinct += 1
                if 2 * distinct > seen.shape[0]:
                    seen, stamps = _grown(seen, stamps, i)
            times[size] = time
            size += 1
            if size == times.shape[0]:
                size = _distinct(times, size, wanted)
                if size == wanted:
                    limit = times[wanted - 1]
    return _distinct(times, size, wanted)


@njit(nogil=True, cache=True)
def _smallest(
    indptr, first, weights, table, dst, original, key, wanted, replace, excluded, marks, times, low, high
):  # fmt: skip
    """The smallest distinct times of destinations ``low`` to ``high``, into ``times``; returns how many there are.

    ``times`` has room for twice as many as are wanted: only when it is full, those that cannot win are dropped.
    """
    size, limit = 0, _NEVER
    for i in range(low, high):
        begin, degree, before, after = _row(indptr, first, dst[i], excluded, marks)
        row, start = weights, begin
        if before < after:
            row, start = remaining_weights(weights, begin, degree, excluded, before, after), 0
        node_key = fold(key, U(original[i]))
        for slot in range(degree):
            weight = U(row[start + slot])
            if weight == U(0):
                continue
            slot_key = fold(node_key, U(slot))
            log, a = U(0), U(0)
            while True:
                log += log_of(fold(slot_key, a), table)
                time = code(log, weight)
                if time >= limit:
                    break
                times[size] = time
                size += 1
                if size == times.shape[0]:
                    size = _distinct(times, size, wanted)
                    if size == wanted:
                        limit = times[wanted - 1]
                if not replace:
                    break
                a += ONE
    return _distinct(times, size, wanted)


@njit(nogil=True, cache=True)
def _pick_even(
    indptr, first, table, dst, original, key, before, replace, excluded, marks, rows, positions, low, high
):  # fmt: skip
    """:func:`_pick` without weights."""
    counting = positions.shape[0] == 0
    seen, stamps = np.empty(_SEEN, np.int64), np.full(_SEEN, np.int64(-1))
    for i in range(low, high):
        begin, degree, left, right = _row(indptr, first, dst[i], excluded, marks)
        node_key = fold(key, U(original[i]))
        at = np.int64(0) if counting else rows[i]
        if before == _NEVER and not replace:
            if counting:
                rows[i + 1] = degree
            else:
                for slot in range(degree):
                    positions[at + slot] = step_over(excluded, left, right, begin + slot)
            continue
        if not counting and rows[i + 1] == at:
            continue
        log, a, distinct = U(0), U(0), 0
        while degree > 0 and (replace or distinct < degree):
            draw = fold(node_key, a)
            a += ONE
            log += log_of(draw, table) >> _SPARED
            if code(log, U(degree)) + _EXPONENT >= before:
                break
            slot = below(fold(draw, ONE), degree)
            if not replace:
                if not _see(seen, stamps, i, slot):
                    continue
                distinct += 1
                if 2 * distinct > seen.shape[0]:
                    seen, stamps = _grown(seen, stamps, i)
            if not counting:
                positions[at] = step_over(excluded, left, right, begin + slot)
            at += 1
        if counting:
            rows[i + 1] = at
        elif at - rows[i] > 1:
            sort(positions[rows[i] : at])


@njit(nogil=True, cache=True)
def _pick(
    indptr, first, weights, table, dst, original, key, before, replace, excluded, marks, rows, positions, low, high
):  # fmt: skip
    """Arrivals of destinations ``low`` to ``high`` before a time: their positions; without room for any, their number.

    Called with empty ``positions`` it fills ``rows[i + 1]`` with the number of destination i.
    """
    counting = positions.shape[0] == 0
    for i in range(low, high):
        begin, degree, left, right = _row(indptr, first, dst[i], excluded, marks)
        node_key = fold(key, U(original[i]))
        at = np.int64(0) if counting else rows[i]
        if not counting and rows[i + 1] == at:
            continue
        row, start = weights, begin
        if left < right:
            row, start = remaining_weights(weights, begin, degree, excluded, left, right), 0
        for slot in range(degree):
            weight = U(row[start + slot])
            if weight == U(0):
                continue
            for _ in range(_arrived(fold(node_key, U(slot)), weight, table, before, replace)):
                if not counting:
                    positions[at] = step_over(excluded, left, right, begin + slot)
                at += 1
        if counting:
            rows[i + 1] = at


@njit
def _arrived(slot_key, weight, table, before, replace):
    """Number of arrivals of a slot before a time."""
    log, a = U(0), U(0)
    while True:
        log += log_of(fold(slot_key, a), table)
        if code(log, weight) >= before:
            return np.int64(a)
        a += ONE
        if not replace:
            return np.int64(a)
