"""Keyed draws: hashes of whole arrays, and times of arrival. The rules are in :mod:`partita.kernels.reference`."""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Int, UInt64

from partita.core.keys import GOLDEN, MASK64, MIX_1, MIX_2, below

FEISTEL_ROUNDS = 8
LOG_BITS = 42
LOG_CELLS = 4096
NEVER = 2**63 - 1
"""A time that is later than any arrival."""


def fold_all(key: UInt64[np.ndarray, "n"], value: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
    """:func:`partita.core.keys.fold`, elementwise (numpy wraps unsigned arrays without a warning)."""
    z = key + np.uint64(GOLDEN) * (value + np.uint64(1))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    return z ^ (z >> np.uint64(31))


def below_all(draws: UInt64[np.ndarray, "n"], n: int) -> Int[np.ndarray, "n"]:
    """:func:`partita.core.keys.below`, elementwise: int64."""
    if n > 1 << 32:
        return np.array([below(int(draw), n) for draw in draws], np.int64)
    high, low, bound = draws >> np.uint64(32), draws & np.uint64(0xFFFFFFFF), np.uint64(n)
    return ((high * bound + ((low * bound) >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


def lanes(key: UInt64[np.ndarray, "n 1"], columns: int) -> Int[np.ndarray, "n columns"]:
    """The 16-bit lane of every column for every row key."""
    column = np.arange(columns, dtype=np.uint64)[None, :]
    draws = fold_all(key, column // np.uint64(4))
    return ((draws >> (np.uint64(16) * (column % np.uint64(4)))) & np.uint64(0xFFFF)).astype(np.int64)


@functools.cache
def log_table() -> UInt64[np.ndarray, "4097"]:
    """``ceil(-log2(1 - i / 8192) * 2^42)`` for i = 0..4096, by integers only: the same on every machine."""
    guard = 64  # bits of the significand while squaring; each squaring yields one bit of log2
    table = np.zeros(LOG_CELLS + 1, np.uint64)
    for i in range(1, LOG_CELLS + 1):
        # -log2(1 - i/8192) = 1 - log2(y) with y = 2 - i/4096 in [1, 2)
        y = ((2 * LOG_CELLS - i) << guard) // LOG_CELLS
        log = 0
        for _ in range(LOG_BITS):
            y = (y * y) >> guard
            log <<= 1
            if y >> (guard + 1):
                y >>= 1
                log |= 1
        table[i] = (1 << LOG_BITS) - log
    return table


def log_of(draw: int) -> int:
    """L of a draw, -log2(u) in units of 2^-42."""
    table = log_table()
    z = 64 - (draw | 1).bit_length()
    d = MASK64 - ((draw | 1) << z)
    i, r = d >> 51, (d >> 19) & 0xFFFFFFFF
    low, high = int(table[i]), int(table[i + 1])
    return (z << LOG_BITS) + low + (((high - low) * r) >> 32)


def code(log: int, weight: int) -> int:
    """The quotient of a sum of L and a weight as a time: exponent, then mantissa."""
    if log == 0:
        return 0
    c = 64 - log.bit_length()
    q = (log << c) // weight
    e = 64 - q.bit_length()
    return ((128 - c - e) << 55) + (((q << e) >> 8) & ((1 << 55) - 1))


def decoded(time: int) -> float:
    """The quotient that a time encodes, in the units of L."""
    return (1 + (time & ((1 << 55) - 1)) / 2**55) * 2.0 ** ((time >> 55) - 128 + 63) if time else 0.0


def arrival_time(draw: int, weight: int) -> int:
    """When a slot of some weight arrives, with weights and without replacement."""
    return code(log_of(draw), weight)
