"""Draws that all destinations of a layer share, compiled: those of :mod:`partita.kernels.reference`, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int, Shaped, UInt32
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import or_empty, run
from partita.kernels.cpu.draws import MASK32, U, arrival_time, fold
from partita.kernels.cpu.excluded import directory, rows_found
from partita.kernels.cpu.sampling import read_runs, row_bounds, sift
from partita.kernels.intrinsics import leading_zeros, multiply_high, prefetch
from partita.kernels.reference.draws import log_table
from partita.kernels.reference.relations import Drawn
from partita.kernels.reference.shared_draws import (
    CELL_BITS,
    MOST_NORMAL,
    OCTAVE_CELLS_BITS,
    TURN_BITS,
    SharedKey,
    distribution_table,
    quantile_table,
)
from partita.kernels.sorting import sort

_AT_ONCE = 512  # edges of a row whose times are found before they are compared
_AHEAD = 12  # edges ahead whose sources' original indices are asked for
_WORDS_PER_EDGE = 16  # an edge that is looked at costs about as much as this many streamed elements
_CELLS = 1 << OCTAVE_CELLS_BITS
_CELL_SHIFT, _REST_SHIFT, _CELL_MASK = U(63 - OCTAVE_CELLS_BITS), U(31 - OCTAVE_CELLS_BITS), U(_CELLS - 1)
_HALF, _ONE = U(1 << 63), U(1)
_NEVER = U(2**64 - 1)
_SCALE = U(64 - CELL_BITS)


def sample_shared(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Shaped[Tensor, "M"] | None,
    dst: Int[Tensor, "D"],
    original: Int[Tensor, "N"] | None,
    key: SharedKey,
    fanouts: Sequence[int],
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int[Tensor, "k"],
    num_nodes: int,
) -> Drawn:
    """See :func:`partita.kernels.reference.shared_draws.sample_shared`."""
    wanted, skips = np.array(fanouts, np.int64), directory(excluded)
    if edge_type is None:
        found = rows_found(excluded, indptr)
        begins, degrees, rows = row_bounds(indptr, dst, fanouts[0], False, weights, first_edge, skips, found)
        kinds, runs, skipped = np.empty(0, np.int32), rows, found.skipped
    else:
        skipped = np.empty((len(skips[0]), 2), np.int64)
        begins, degrees, _, kinds, counts, of_dst = read_runs(
            indptr, edge_type, dst, dst, wanted, False, weights, first_edge, skips, skipped
        )
        runs = np.concatenate([[0], np.cumsum(counts)])
        rows = runs[of_dst]
    size, store = int(rows[-1]), indices.numpy()
    ids, positions = np.empty(size, store.dtype), np.empty(size, np.int64)
    types = np.empty(size if edge_type is not None else 0, np.int32)
    touched = np.concatenate([[0], np.cumsum(degrees)])
    most = max(0, min(int(wanted.max()), int(degrees.max(initial=0))))
    weight, sources = or_empty(weights, (0,), np.dtype(np.uint32)), or_empty(original, (0,), np.dtype(np.int64))
    run(
        pick_shared, threads.balanced_bounds(touched, _WORDS_PER_EDGE),
        store, weight, weights is not None, sources, original is not None, num_nodes,
        (U(key.key), U(key.next_key), key.cosine, key.sine), (log_table(), quantile_table(), distribution_table()),
        wanted, kinds, begins, degrees, runs, skips[0], skipped, most, ids, positions, types,
    )  # fmt: skip
    return torch.from_numpy(rows), torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(types)


@njit(inline="always")
def quantile(draw, table):
    """:func:`partita.kernels.reference.shared_draws.quantile`, int64."""
    below_zero = draw < _HALF
    tail = (draw if below_zero else ~draw) | _ONE
    z = leading_zeros(tail)
    tail <<= z
    cell = np.int64(z - _ONE) * (_CELLS + 1) + np.int64((tail >> _CELL_SHIFT) & _CELL_MASK)
    rest = np.int64((tail >> _REST_SHIFT) & MASK32)
    high, low = table[cell], table[cell + 1]
    size = high - (((high - low) * rest) >> 32)
    return -size if below_zero else size


@njit(inline="always")
def distribution(number, table):
    """:func:`partita.kernels.reference.shared_draws.distribution`, uint64."""
    at = min(max(number + MOST_NORMAL, 0), 2 * MOST_NORMAL - 1)
    low, high = table[at >> CELL_BITS], table[(at >> CELL_BITS) + 1]
    return low + multiply_high(high - low, U(at) << _SCALE)


@njit
def find_times(
    indices, weights, weighted, original, renumbered, num_nodes, key, tables, excluded, lost, start, end, found
):  # fmt: skip
    """Times of the edges ``start`` to ``end``, in short loops; those that are no slots have none.

    ``lost`` is the first of the excluded edges that may be among them; returns the first one after them.
    """
    logs, quantiles, shares = tables
    first, second, cosine, sine = key
    size, damaged = end - start, False
    for e in range(size):
        source = np.int64(indices[start + e])
        damaged |= source < 0 or source >= num_nodes
        found[e] = U(source)
    if damaged:
        for e in range(size):  # they are made node 0, and drawn before any other below: so they are noticed
            if found[e] >= U(num_nodes):
                found[e] = U(0)
    if renumbered:
        for e in range(size):
            prefetch(original, np.int64(found[min(e + _AHEAD, size - 1)]))
            found[e] = U(original[np.int64(found[e])])
    if sine == 0:
        for e in range(size):
            found[e] = fold(first, found[e])
    else:
        for e in range(size):
            one, other = quantile(fold(first, found[e]), quantiles), quantile(fold(second, found[e]), quantiles)
            found[e] = distribution((cosine * one + sine * other) >> TURN_BITS, shares)
    if weighted:
        for e in range(size):
            weight = U(weights[start + e])
            found[e] = arrival_time(~found[e], weight, logs) if weight else _NEVER
    else:
        for e in range(size):
            found[e] >>= _ONE
    if damaged:
        for e in range(size):
            if (indices[start + e] < 0 or indices[start + e] >= num_nodes) and found[e] != _NEVER:
                found[e] = U(0)
    while lost < excluded.shape[0] and excluded[lost] < end:
        found[excluded[lost] - start] = _NEVER
        lost += 1
    return lost


@njit
def keep_smallest(found, count, begin, times, places, held, wanted):
    """Put ``count`` times of the edges from ``begin`` on into a heap of the ``wanted`` first ones, largest on top."""
    e = 0
    while e < count and held < wanted:
        if found[e] != _NEVER:
            times[held], places[held] = found[e], begin + e
            held += 1
            if held == wanted:
                for root in range(wanted // 2 - 1, -1, -1):
                    sift(times, places, root, wanted)
        e += 1
    while e < count:
        if found[e] < times[0]:  # an equal time loses: its position is larger
            times[0], places[0] = found[e], begin + e
            sift(times, places, 0, wanted)
        e += 1
    return held


@njit(nogil=True, cache=True)
def pick_shared(
    indices, weights, weighted, original, renumbered, num_nodes, key, tables, fanouts, kinds, begins, degrees, indptr,
    excluded, skipped, most, ids, positions, types, low, high,
):  # fmt: skip
    """Picks of destinations ``low`` to ``high``: ids, positions, and kinds where rows have some.

    One pass over each row, whose smallest times are in a heap of ``most`` places at most. Of rows with excluded edges
    ``begins`` and ``skipped`` tell as :func:`~partita.kernels.cpu.excluded.leave_out` says.
    """
    times, places = np.empty(most, np.uint64), np.empty(most, np.int64)
    found = np.empty(_AT_ONCE, np.uint64)
    for i in range(low, high):
        begin, degree, at = begins[i], degrees[i], indptr[i]
        count, kind = indptr[i + 1] - at, kinds[i] if kinds.shape[0] else 0
        if kinds.shape[0]:
            types[at : at + count] = kind
        if count == 0:
            continue
        lost, last = 0, 0
        if begin < 0:
            lost = -1 - begin
            begin, last = skipped[lost, 0], skipped[lost, 1]
        end, held = begin + degree + last - lost, 0
        if count < degree and count == fanouts[kind]:
            for start in range(begin, end, _AT_ONCE):
                stop = min(start + _AT_ONCE, end)
                lost = find_times(
                    indices, weights, weighted, original, renumbered, num_nodes, key, tables, excluded[:last], lost,
                    start, stop, found,
                )  # fmt: skip
                held = keep_smallest(found, stop - start, start, times, places, held, count)
            positions[at : at + count] = places[:count]
            sort(positions[at : at + count])
        else:  # all; or if so many are positive as are wanted, those
            for position in range(begin, end):
                if lost < last and excluded[lost] == position:
                    lost += 1
                elif not weighted or weights[position]:
                    positions[at + held] = position
                    held += 1
        for e in range(at, at + count):
            ids[e] = indices[positions[e]]
