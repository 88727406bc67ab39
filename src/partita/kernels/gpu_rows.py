"""RowPick and aggregation of rows in Triton. Offsets are 64 bits wide: a feature column may have more than 2^31 values.

Sums run over the edges of a destination in their order, as those of the other implementations do. A program has some
destinations and some columns; edges are read four at a time, so that four rows are under way before the first is
added.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from partita.kernels.gpu_launch import LARGEST, SUM

AHEAD = tl.constexpr(4)


@triton.jit(do_not_specialize=["num"])
def gather(x, ids, scale, out, num, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """``out[i] = scale[ids[i]] * x[ids[i]]``; ``scale`` may be ``None``."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = i < num
    there = inside[:, None] & (c < columns)[None, :]
    row = tl.load(ids + i, mask=inside, other=0).to(tl.int64)
    values = tl.load(x + row[:, None] * columns + c[None, :], mask=there, other=0.0).to(out.dtype.element_ty)
    if scale is not None:
        values = values * tl.load(scale + row, mask=inside, other=0.0).to(out.dtype.element_ty)[:, None]
    tl.store(out + i[:, None] * columns + c[None, :], values, mask=there)


@triton.jit(do_not_specialize=["num"])
def aggregate(
    x, indptr, indices, edge, weight, scale, out, num, columns, heads, width,
    HEADED: tl.constexpr, MEAN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Weighted sums of rows of ``x``; ``edge``, ``weight``, ``scale`` may be ``None``: the identity, ones, ones.

    ``weight`` has ``heads`` columns, each for ``width`` columns of ``x``; ``HEADED`` says that there are several.
    """
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = i < num
    begin = tl.load(indptr + i, mask=inside, other=0)
    count = tl.load(indptr + i + 1, mask=inside, other=0) - begin
    head = c // width
    total = tl.full([ROWS, COLUMNS], 0, out.dtype.element_ty)
    for start in range(0, tl.reduce(count, 0, LARGEST), AHEAD):
        for ahead in tl.static_range(AHEAD):
            e = begin + start + ahead
            on = start + ahead < count
            there = on[:, None] & (c < columns)[None, :]
            row = tl.load(indices + e, mask=on, other=0).to(tl.int64)
            values = tl.load(x + row[:, None] * columns + c[None, :], mask=there, other=0.0).to(out.dtype.element_ty)
            if scale is not None:
                values = values * tl.load(scale + row, mask=on, other=0.0).to(out.dtype.element_ty)[:, None]
            if weight is not None:
                at = e
                if edge is not None:
                    at = tl.load(edge + e, mask=on, other=0)
                if HEADED:
                    values = values * tl.load(weight + at[:, None] * heads + head[None, :], mask=there, other=0.0)
                else:
                    values = values * tl.load(weight + at, mask=on, other=0.0)[:, None]
            total += values
    if MEAN:
        total = divided(total, tl.maximum(count, 1).to(out.dtype.element_ty)[:, None])
    tl.store(out + i[:, None] * columns + c[None, :], total, mask=inside[:, None] & (c < columns)[None, :])


@triton.jit
def divided(a, b):
    """``a / b``, rounded as IEEE says: the plain division of float32 is not."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


@triton.jit(do_not_specialize=["num"])
def weight_grad(
    grad, x, indptr, indices, row, out, num, columns, heads, width,
    MEAN: tl.constexpr, EDGES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Dot products of destination gradients and source rows, of ``num`` edges and one head per program."""
    e = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    head = tl.program_id(1)
    inside = e < num
    i = tl.load(row + e, mask=inside, other=0).to(tl.int64)
    source = tl.load(indices + e, mask=inside, other=0).to(tl.int64)
    total = tl.full([EDGES, COLUMNS], 0, out.dtype.element_ty)
    for start in range(0, width, COLUMNS):
        within = start + tl.arange(0, COLUMNS)
        c = head * width + within
        there = inside[:, None] & (within < width)[None, :]
        a = tl.load(grad + i[:, None] * columns + c[None, :], mask=there, other=0.0)
        total += a * tl.load(x + source[:, None] * columns + c[None, :], mask=there, other=0.0)
    dot = tl.reduce(total, 1, SUM)
    if MEAN:
        count = tl.load(indptr + i + 1, mask=inside, other=1) - tl.load(indptr + i, mask=inside, other=0)
        dot = divided(dot, tl.maximum(count, 1).to(out.dtype.element_ty))
    tl.store(out + e * heads + head, dot, mask=inside)


@triton.jit(do_not_specialize=["num"])
def segment_max(x, indptr, indices, values, argmax, num, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Largest value and its first edge, per destination and column; NaN is larger than any number."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = i < num
    begin = tl.load(indptr + i, mask=inside, other=0)
    count = tl.load(indptr + i + 1, mask=inside, other=0) - begin
    best = tl.full([ROWS, COLUMNS], 0, values.dtype.element_ty)
    winner = tl.full([ROWS, COLUMNS], -1, tl.int64)
    for start in range(0, tl.reduce(count, 0, LARGEST), AHEAD):
        for ahead in tl.static_range(AHEAD):
            e = begin + start + ahead
            on = start + ahead < count
            there = on[:, None] & (c < columns)[None, :]
            row = tl.load(indices + e, mask=on, other=0).to(tl.int64)
            value = tl.load(x + row[:, None] * columns + c[None, :], mask=there, other=0.0)
            better = there & ((winner < 0) | (value > best) | ((value != value) & (best == best)))
            best = tl.where(better, value, best)
            winner = tl.where(better, e[:, None], winner)
    place = i[:, None] * columns + c[None, :]
    there = inside[:, None] & (c < columns)[None, :]
    tl.store(values + place, best, mask=there)
    tl.store(argmax + place, winner, mask=there)


@triton.jit(do_not_specialize=["num"])
def segment_max_backward(
    grad, argmax, begins, edge, row, out, num, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Sum, per source, the gradients of the destinations that its edges have won, in the order of the edges.

    ``begins`` and ``edge`` are the edges by source, ``row`` the destination of each of those.
    """
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = i < num
    begin = tl.load(begins + i, mask=inside, other=0)
    count = tl.load(begins + i + 1, mask=inside, other=0) - begin
    total = tl.full([ROWS, COLUMNS], 0, out.dtype.element_ty)
    for start in range(0, tl.reduce(count, 0, LARGEST), AHEAD):
        for ahead in tl.static_range(AHEAD):
            on = start + ahead < count
            there = on[:, None] & (c < columns)[None, :]
            e = tl.load(edge + begin + start + ahead, mask=on, other=0)
            place = tl.load(row + begin + start + ahead, mask=on, other=0).to(tl.int64)[:, None] * columns + c[None, :]
            won = there & (tl.load(argmax + place, mask=there, other=-1) == e[:, None])
            total += tl.load(grad + place, mask=won, other=0.0)
    tl.store(out + i[:, None] * columns + c[None, :], total, mask=inside[:, None] & (c < columns)[None, :])
