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
from partita.kernels.cpu.excluded import directory
from partita.kernels.cpu.sampling import read_runs, row_bounds, sift, sort_pairs
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

_AHEAD = 12  # edges ahead whose sources' original indices are asked for
_WORDS_PER_EDGE = 16  # an edge that is looked at costs about as much as this many streamed elements
_CELLS = 1 << OCTAVE_CELLS_BITS
_CELL_SHIFT, _REST_SHIFT, _CELL_MASK = U(63 - OCTAVE_CELLS_BITS), U(31 - OCTAVE_CELLS_BITS), U(_CELLS - 1)
_HALF, _ONE = U(1 << 63), U(1)
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
) -> Drawn:
    """See :func:`partita.kernels.reference.shared_draws.sample_shared`."""
    wanted, skips = np.array(fanouts, np.int64), directory(excluded)
    skipped = np.empty((len(skips[0]), 2), np.int64)
    if edge_type is None:
        begins, degrees, rows = row_bounds(indptr, dst, fanouts[0], False, weights, first_edge, skips, skipped)
        kinds, runs = np.empty(0, np.int32), rows
    else:
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
        store, weight, weights is not None, sources, original is not None, indptr.shape[0] - 1,
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


@njit(inline="always")
def shared_draw(key, original, quantiles, shares):
    """:func:`partita.kernels.reference.shared_draws.shared_draw`, uint64."""
    first, second, cosine, sine = key
    draw = fold(first, U(original))
    if sine != 0:
        other = fold(second, U(original))
        draw = distribution(
            (cosine * quantile(draw, quantiles) + sine * quantile(other, quantiles)) >> TURN_BITS, shares
        )
    return draw


@njit(nogil=True, cache=True)
def pick_shared(
    indices, weights, weighted, original, renumbered, num_nodes, key, tables, fanouts, kinds, begins, degrees, indptr,
    excluded, skipped, most, ids, positions, types, low, high,
):  # fmt: skip
    """Picks of destinations ``low`` to ``high``: ids, positions, and kinds where rows have some.

    One pass over each row, whose smallest times are in a heap of ``most`` places at most. Of rows with excluded edges
    ``begins`` and ``skipped`` tell as :func:`~partita.kernels.cpu.excluded.leave_out` says.
    """
    logs, quantiles, shares = tables
    times, places = np.empty(most, np.uint64), np.empty(most, np.int64)
    for i in range(low, high):
        begin, degree, at = begins[i], degrees[i], indptr[i]
        count, kind = indptr[i + 1] - at, kinds[i] if kinds.shape[0] else 0
        fanout = fanouts[kind]
        if kinds.shape[0]:
            types[at : at + count] = kind
        if count == 0:
            continue
        lost, last = 0, 0
        if begin < 0:
            lost = -1 - begin
            begin, last = skipped[lost]
        position, end, held = begin, begin + degree + last - lost, 0
        drawn = count == fanout and count < degree  # if exactly that many are positive, all of them are picked
        for position in range(begin, end):
            if lost < last and excluded[lost] == position:
                lost += 1
                continue
            weight = U(weights[position]) if weighted else _ONE
            if weight == U(0):
                continue
            if not drawn:
                positions[at + held] = position
                held += 1
                continue
            source, time = np.int64(indices[position]), U(0)
            if renumbered:
                prefetch(original, np.int64(indices[min(position + _AHEAD, end - 1)]))
            if source >= 0 and source < num_nodes:  # else it is damaged: drawn before any other, so it is noticed
                time = shared_draw(key, original[source] if renumbered else source, quantiles, shares)
                if weighted:
                    time = arrival_time(~time, weight, logs)
            if held < fanout:
                times[held], places[held] = time, position
                held += 1
                if held == fanout:
                    for root in range(fanout // 2 - 1, -1, -1):
                        sift(times, places, root, fanout)
            elif time < times[0]:  # an equal time loses: its position is larger
                times[0], places[0] = time, position
                sift(times, places, 0, fanout)
        if drawn:
            positions[at : at + fanout] = np.sort(places[:fanout])
        for e in range(at, at + count):
            ids[e] = indices[positions[e]]
