"""Keyed draws in Triton: the arithmetic of :mod:`partita.kernels.reference`, bit for bit.

Draws and keys are uint64, whose sums and products wrap. A key arrives as a signed integer of the same bits.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from partita.core import keys
from partita.kernels.gpu_launch import LARGEST

GOLDEN, MIX_1, MIX_2 = tl.constexpr(keys.GOLDEN), tl.constexpr(keys.MIX_1), tl.constexpr(keys.MIX_2)
ROUNDS = tl.constexpr(8)  # of the Feistel network


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
    """:func:`partita.kernels.reference.arrival_time`; ``weight`` is a positive uint64, ``table`` int64 in memory."""
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


@triton.jit(do_not_specialize=["key", "num"])
def arrival_times(row, slot, weight, original, table, times, key, num, BLOCK: tl.constexpr):
    """Times of ``num`` edges, each the ``slot``-th of destination ``row`` and of positive ``weight`` (int64 all)."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = e < num
    node = tl.load(original + tl.load(row + e, mask=inside, other=0), mask=inside, other=0)
    draw = fold(fold(unsigned(key), node), tl.load(slot + e, mask=inside, other=0))
    time = arrival_time(draw, tl.load(weight + e, mask=inside, other=1).to(tl.uint64), table)
    tl.store(times + e, time, mask=inside)


@triton.jit(do_not_specialize=["key", "start", "n", "bits", "num"])
def permute(out, key, start, n, bits, num, BLOCK: tl.constexpr):
    """Places ``start``... of the keyed permutation of 0..n-1, whose halves have ``bits`` bits."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < num
    seed, half = unsigned(key), tl.cast(bits, tl.uint64)
    mask = (tl.cast(1, tl.uint64) << half) - 1
    limit = tl.cast(n, tl.uint64)
    value = tl.where(inside, place + start, 0).to(tl.uint64)
    walking = inside
    while tl.reduce(walking.to(tl.int32), 0, LARGEST) > 0:
        left, right = value >> half, value & mask
        for r in range(ROUNDS):
            mixed = left ^ (fold(fold(seed, r), right) & mask)
            left = right
            right = mixed
        value = tl.where(walking, (left << half) | right, value)
        walking = inside & (value >= limit)
    tl.store(out + place, value.to(tl.int64), mask=inside)


@triton.jit(do_not_specialize=["key", "threshold", "num"])
def drop_rows(x, original, out, key, threshold, num, columns, RELU: tl.constexpr, BLOCK: tl.constexpr):
    """Dropout of ``num`` groups of four columns: one draw has the lanes of a group."""
    groups = (columns + 3) // 4
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num
    row, group = at // groups, at % groups
    draw = fold(fold(unsigned(key), tl.load(original + row, mask=inside, other=0)), group)
    lane = tl.arange(0, 4)
    column = group[:, None] * 4 + lane[None, :]
    there = inside[:, None] & (column < columns)
    keep = ((draw[:, None] >> (16 * lane[None, :]).to(tl.uint64)) & 0xFFFF).to(tl.int32) >= threshold
    place = row[:, None] * columns + column
    values = tl.load(x + place, mask=there, other=0.0)
    if RELU:
        values = tl.where(values <= 0, 0.0, values)  # a NaN stays one
    kept = tl.where(keep, values * _factor(threshold).to(values.dtype), 0.0)
    tl.store(out + place, kept, mask=there)


@triton.jit(do_not_specialize=["key", "threshold", "num"])
def drop_edges(indptr, row, original, out, key, threshold, num, heads, BLOCK: tl.constexpr):
    """Multipliers of ``num`` edges, whose destinations are ``row``, for four heads per program."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    group = tl.program_id(1)
    inside = e < num
    i = tl.load(row + e, mask=inside, other=0).to(tl.int64)
    slot = tl.where(inside, e - tl.load(indptr + i, mask=inside, other=0), 0)
    node_key = fold(unsigned(key), tl.load(original + i, mask=inside, other=0))
    draw = fold(fold(node_key, slot), group)
    lane = tl.arange(0, 4)
    head = group * 4 + lane
    there = inside[:, None] & (head < heads)[None, :]
    keep = ((draw[:, None] >> (16 * lane[None, :]).to(tl.uint64)) & 0xFFFF).to(tl.int32) >= threshold
    factor = _factor(threshold).to(out.dtype.element_ty)
    tl.store(out + e[:, None] * heads + head[None, :], tl.where(keep, factor, 0.0), mask=there)


@triton.jit
def _factor(threshold):
    """What kept values are multiplied by, float64: an argument would arrive as float32."""
    return 65536.0 / tl.maximum(65536 - threshold, 1).to(tl.float64)
