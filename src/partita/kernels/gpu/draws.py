"""Keyed draws in Triton: the arithmetic of :mod:`partita.kernels.reference`, bit for bit.

Draws and keys are uint64, whose sums and products wrap. A key arrives as a signed integer of the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from partita.core import keys

GOLDEN, MIX_1, MIX_2 = tl.constexpr(keys.GOLDEN), tl.constexpr(keys.MIX_1), tl.constexpr(keys.MIX_2)


@triton.jit
def fold(key, value):
    """:func:`partita.core.keys.fold`; ``key`` is uint64, ``value`` any integer >= 0."""
    z = key + (tl.cast(value, tl.uint64) + 1) * GOLDEN
    z = (z ^ (z >> 30)) * MIX_1
    z = (z ^ (z >> 27)) * MIX_2
    return z ^ (z >> 31)


@triton.jit
def unsigned(key):
    """The key as uint64."""
    return key.to(tl.int64).to(tl.uint64)


@triton.jit
def below(draw, n):
    """Map a draw to 0..n-1, int64; 0 where ``n`` is 0."""
    return tl.umulhi(draw, n.to(tl.uint64)).to(tl.int64)


@triton.jit
def leading_zeros(x):
    """Number of leading zero bits of a uint64 that is not 0, by halves: no instruction of Triton's counts them."""
    count = x ^ x
    for half in tl.static_range(6):
        width = 32 >> half
        empty = (x >> (64 - width)) == 0
        count = tl.where(empty, count + width, count)
        x = tl.where(empty, x << width, x)
    return count


@triton.jit
def arrival_time(draw, weight, table):
    """:func:`partita.kernels.reference.draws.arrival_time`; ``weight`` a positive uint64, ``table`` int64 in memory."""
    draw = draw | 1
    z = leading_zeros(draw)
    d = ~(draw << z)
    cell, rest = (d >> 51).to(tl.int64), (d >> 19) & 0xFFFFFFFF
    low = tl.load(table + cell).to(tl.uint64)
    high = tl.load(table + cell + 1).to(tl.uint64)
    log = (z << 42) + low + (((high - low) * rest) >> 32)
    c = leading_zeros(log | 1)
    q = (log << c) // weight
    e = leading_zeros(q | 1)
    time = ((128 - c - e) << 55) + (((q << e) >> 8) & 0x7FFFFFFFFFFFFF)
    return tl.where(log == 0, 0, time.to(tl.int64))
