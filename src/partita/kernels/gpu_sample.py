"""Sampling in Triton: bounds of rows, picks, and look-ups in columns of the store.

Columns of the store (``indptr``, ``indices``, ``weights``, ``self_loops``) may lie in pinned host memory, which a
device reads in place; everything else lies on the device.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from partita.kernels.gpu_draws import below, fold, unsigned
from partita.kernels.gpu_launch import LARGEST


@triton.jit(do_not_specialize=["first", "num"])
def row_bounds(indptr, dst, begins, degrees, first, num, BLOCK: tl.constexpr):
    """First edge, counted from ``first`` on, and degree of ``num`` nodes, int64."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num
    node = tl.load(dst + i, mask=inside, other=0).to(tl.int64)
    begin = tl.load(indptr + node, mask=inside, other=0)
    tl.store(begins + i, begin - first, mask=inside)
    tl.store(degrees + i, tl.load(indptr + node + 1, mask=inside, other=0) - begin, mask=inside)


@triton.jit(do_not_specialize=["num"])
def take(values, at, out, num, BLOCK: tl.constexpr):
    """``out[e] = values[at[e]]``, in the dtype of ``out``."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = e < num
    place = tl.load(at + e, mask=inside, other=0).to(tl.int64)
    tl.store(out + e, tl.load(values + place, mask=inside, other=0).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num"])
def degrees_and_norms(indptr, loops, ids, degrees, norms, num, BLOCK: tl.constexpr):
    """In-degree, and in-degree without self loops + 1, of ``num`` nodes, int64; ``loops`` may be ``None``."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num
    node = tl.load(ids + i, mask=inside, other=0).to(tl.int64)
    degree = tl.load(indptr + node + 1, mask=inside, other=0) - tl.load(indptr + node, mask=inside, other=0)
    norm = degree + 1
    if loops is not None:
        norm -= tl.load(loops + node, mask=inside, other=0).to(tl.int64)
    tl.store(degrees + i, degree, mask=inside)
    tl.store(norms + i, norm, mask=inside)


@triton.jit(do_not_specialize=["key", "fanout", "num"])
def pick_with(begins, ranges, rows, original, positions, key, fanout, num, BLOCK: tl.constexpr):
    """With replacement: ``positions[rows[i] + s] = begins[i] + below(draw s of i, ranges[i])`` for all s of row i."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num
    begin, bound = tl.load(begins + i, mask=inside, other=0), tl.load(ranges + i, mask=inside, other=0)
    at = tl.load(rows + i, mask=inside, other=0)
    drawn = tl.load(rows + i + 1, mask=inside, other=0) > at
    node_key = fold(unsigned(key), tl.load(original + i, mask=inside, other=0))
    for s in range(fanout):
        tl.store(positions + at + s, begin + below(fold(node_key, s), bound), mask=drawn)


@triton.jit(do_not_specialize=["key", "fanout", "num"])
def pick_few(
    begins, degrees, rows, original, positions, key, fanout, num, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Floyd's algorithm for ``ROWS`` destinations at a time, their picks so far in registers, ``WIDTH`` at most."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = i < num
    begin, degree = tl.load(begins + i, mask=inside, other=0), tl.load(degrees + i, mask=inside, other=0)
    at = tl.load(rows + i, mask=inside, other=0)
    count = tl.load(rows + i + 1, mask=inside, other=0) - at
    node_key = fold(unsigned(key), tl.load(original + i, mask=inside, other=0))
    column = tl.arange(0, WIDTH)
    picks = tl.full([ROWS, WIDTH], -1, tl.int64)
    for s in range(fanout):
        bound = degree - fanout + s
        slot = below(fold(node_key, s), tl.maximum(bound + 1, 0))
        before = tl.reduce((picks == slot[:, None]).to(tl.int32), 1, LARGEST) > 0
        slot = tl.where(before, bound, slot)
        picks = tl.where(column[None, :] == s, slot[:, None], picks)
        slot = tl.where(count == degree, s, slot)  # all of a short row, in its order
        tl.store(positions + at + s, begin + slot, mask=s < count)


@triton.jit(do_not_specialize=["key"])
def pick_many(begins, degrees, rows, original, positions, key, BLOCK: tl.constexpr):
    """As :func:`pick_few` for any fanout: one destination per program, its picks so far read back from memory."""
    i = tl.program_id(0).to(tl.int64)
    begin, degree = tl.load(begins + i), tl.load(degrees + i)
    at = tl.load(rows + i)
    count = tl.load(rows + i + 1) - at
    place = tl.arange(0, BLOCK)
    if count == degree:
        for start in range(0, count, BLOCK):
            tl.store(positions + at + start + place, begin + start + place, mask=start + place < count)
    else:
        node_key = fold(unsigned(key), tl.load(original + i))
        for s in range(count):
            last = degree - count + s
            pick = begin + below(fold(node_key, s), last + 1)
            same = tl.full([BLOCK], 0, tl.int32)
            for start in range(0, s, BLOCK):
                earlier = tl.load(positions + at + start + place, mask=start + place < s, other=-1)
                same = same | (earlier == pick).to(tl.int32)
            pick = tl.where(tl.reduce(same, 0, LARGEST) > 0, begin + last, pick)
            tl.store(positions + at + s, pick)
            tl.debug_barrier()  # the next round reads it, maybe in another thread
