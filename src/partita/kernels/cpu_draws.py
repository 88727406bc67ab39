"""Keyed draws, compiled: the arithmetic of :mod:`partita.kernels.reference`, bit for bit."""
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit

from partita.core import keys
from partita.kernels.intrinsics import leading_zeros, multiply_high
from partita.kernels.reference import FEISTEL_ROUNDS

U = np.uint64
GOLDEN, MIX_1, MIX_2 = U(keys.GOLDEN), U(keys.MIX_1), U(keys.MIX_2)
ONE, FOUR, LANE_BITS, LANE_MASK = U(1), U(4), U(16), U(0xFFFF)
S8, S19, S27, S30, S31, S32, S42, S51, S55 = U(8), U(19), U(27), U(30), U(31), U(32), U(42), U(51), U(55)
MASK32, MASK55, TOP = U(0xFFFFFFFF), U((1 << 55) - 1), U(128)


@njit(inline="always")
def fold(key, value):
    """:func:`partita.core.keys.fold` of two uint64."""
    z = key + GOLDEN * (value + ONE)
    z = (z ^ (z >> S30)) * MIX_1
    z = (z ^ (z >> S27)) * MIX_2
    return z ^ (z >> S31)


@njit(inline="always")
def below(draw, n):
    """Map a draw to 0..n-1, int64."""
    return np.int64(multiply_high(draw, U(n)))


@njit(inline="always")
def log_of(draw, table):
    """:func:`partita.kernels.reference_race.log_of`."""
    draw |= ONE
    z = leading_zeros(draw)
    d = ~(draw << z)
    cell, rest = d >> S51, (d >> S19) & MASK32
    low = table[cell]
    return (z << S42) + low + (((table[cell + ONE] - low) * rest) >> S32)


@njit(inline="always")
def code(log, weight):
    """:func:`partita.kernels.reference_race.code`; ``weight`` is a positive uint64."""
    if log == U(0):
        return U(0)
    c = leading_zeros(log)
    q = (log << c) // weight
    e = leading_zeros(q)
    return ((TOP - c - e) << S55) + (((q << e) >> S8) & MASK55)


@njit(inline="always")
def arrival_time(draw, weight, table):
    """:func:`partita.kernels.reference_race.arrival_time`."""
    return code(log_of(draw, table), weight)


@njit(nogil=True, cache=True)
def permute(start, n, key, out):
    """Fill ``out`` with places ``start``... of the keyed permutation of 0..n-1."""
    bits = ONE
    while U(2) * bits < U(64) and (U(n - 1) >> (U(2) * bits)) > U(0):
        bits += ONE
    mask = (ONE << bits) - ONE
    rounds = np.empty(FEISTEL_ROUNDS, np.uint64)
    for r in range(FEISTEL_ROUNDS):
        rounds[r] = fold(key, U(r))
    for i in range(out.shape[0]):
        value = U(start + i)
        while True:
            left, right = value >> bits, value & mask
            for r in range(FEISTEL_ROUNDS):
                left, right = right, left ^ (fold(rounds[r], right) & mask)
            value = (left << bits) | right
            if value < U(n):
                break
        out[i] = np.int64(value)


@njit(nogil=True, cache=True)
def drop_rows(x, original, key, threshold, factor, relu, out, low, high):
    """Dropout of rows ``low`` to ``high``; ``threshold`` is uint64, ``factor`` of the dtype of ``x``."""
    columns = x.shape[1]
    # All draws of a row first, then all columns: two loops over arrays, each of which the compiler vectorizes.
    draws = np.empty((columns + 3) // 4, np.uint64)
    lanes = draws.view(np.uint16)
    limit, zero = np.uint32(threshold), x.dtype.type(0)
    for i in range(low, high):
        row_key = fold(key, U(original[i]))
        for group in range(draws.shape[0]):
            draws[group] = fold(row_key, U(group))
        if relu:
            for c in range(columns):
                keep = (np.uint32(lanes[c]) >= limit) & ~(x[i, c] <= zero)  # a NaN is kept
                out[i, c] = x[i, c] * factor if keep else zero
        else:
            for c in range(columns):
                out[i, c] = x[i, c] * factor if np.uint32(lanes[c]) >= limit else zero


@njit(nogil=True, cache=True)
def drop_edges(indptr, original, key, threshold, factor, out, low, high):
    """Multipliers of the edges of destinations ``low`` to ``high``."""
    heads = out.shape[1]
    for i in range(low, high):
        node_key = fold(key, U(original[i]))
        for e in range(indptr[i], indptr[i + 1]):
            edge_key = fold(node_key, U(e - indptr[i]))
            draw = U(0)
            for head in range(heads):
                if head % 4 == 0:
                    draw = fold(edge_key, U(head // 4))
                keep = ((draw >> (LANE_BITS * U(head % 4))) & LANE_MASK) >= threshold
                out[e, head] = factor if keep else out.dtype.type(0)
