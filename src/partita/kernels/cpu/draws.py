"""Keyed draws, compiled: the arithmetic of :mod:`partita.kernels.reference`, bit for bit."""

from __future__ import annotations

import numpy as np
from numba import njit

from partita.core import keys
from partita.kernels.intrinsics import leading_zeros, multiply_high

U = np.uint64
GOLDEN, MIX_1, MIX_2 = U(keys.GOLDEN), U(keys.MIX_1), U(keys.MIX_2)
ONE, FOUR, LANE_BITS, LANE_MASK = U(1), U(4), U(16), U(0xFFFF)
S8, S19, S27, S30, S31, S32, S42, S51, S55 = U(8), U(19), U(27), U(30), U(31), U(32), U(42), U(51), U(55)
MASK32, MASK55, TOP = U(0xFFFFFFFF), U((1 << 55) - 1), U(128)
WORDS_PER_PICK = 64  # a pick costs about as much as this many streamed elements; for cutting work into ranges


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
    """:func:`partita.kernels.reference.draws.log_of`."""
    draw |= ONE
    z = leading_zeros(draw)
    d = ~(draw << z)
    cell, rest = d >> S51, (d >> S19) & MASK32
    low = table[cell]
    return (z << S42) + low + (((table[cell + ONE] - low) * rest) >> S32)


@njit(inline="always")
def code(log, weight):
    """:func:`partita.kernels.reference.draws.code`; ``weight`` is a positive uint64."""
    if log == U(0):
        return U(0)
    c = leading_zeros(log)
    q = (log << c) // weight
    e = leading_zeros(q)
    return ((TOP - c - e) << S55) + (((q << e) >> S8) & MASK55)


@njit(inline="always")
def arrival_time(draw, weight, table):
    """:func:`partita.kernels.reference.draws.arrival_time`."""
    return code(log_of(draw, table), weight)
