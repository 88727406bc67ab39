"""Reading and aggregation of rows in Triton. Offsets are 64 bits wide: a feature column may have more than 2^31 values.

Sums run over the edges of a destination in their order, as those of the other implementations do. A program has some
destinations and some columns; edges are read four at a time, so that four rows are under way before the first is
added.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from partita.kernels.gpu.launch import LARGEST, SUM, blocks, launch, power_of_two

AHEAD = tl.constexpr(4)
GATHERED = 2048
"""Elements that a program of :func:`gather_rows` copies, as far as :data:`MOST_ROWS` go."""
MOST_ROWS = 64


def gather_rows(
    x: Float[Tensor, "N F"], ids: Int[Tensor, "n"], scale: Float[Tensor, "N"] | None, out: Float[Tensor, "n F"]
) -> None:
    """See :func:`partita.kernels.reference.gather_rows`."""
    num, columns = out.shape
    wide = min(power_of_two(columns), 256)
    rows = min(GATHERED // wide, MOST_ROWS)
    grid, tile = (blocks(num, rows), blocks(columns, wide)), {"ROWS": rows, "COLUMNS": wide, "num_warps": 2}
    launch(gather_kernel, grid, out, x, ids, scale, out, num, columns, **tile)


def aggregate(
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    edge: Int[Tensor, "E"] | None,
    weight: Float[Tensor, "E H"] | None,
    scale: Float[Tensor, "S"] | None,
    reduce: str,
    out: Float[Tensor, "D F"],
) -> None:
    """See :func:`partita.kernels.reference.aggregate`."""
    num, columns = out.shape
    heads = 1 if weight is None else weight.shape[1]
    grid, tile = _tile(num, columns)
    total = out.float() if out.dtype == torch.bfloat16 else out
    launch(
        aggregate_kernel, grid, total,
        x, indptr, indices, edge, weight, scale, total, num, columns, heads, max(columns // heads, 1),
        HEADED=heads > 1, MEAN=reduce == "mean", **tile,
    )  # fmt: skip
    if total is not out:
        out.copy_(total)


def aggregate_weight_grad(
    grad: Float[Tensor, "D F"],
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    reduce: str,
    out: Float[Tensor, "E H"],
) -> None:
    """See :func:`partita.kernels.reference.aggregate_weight_grad`."""
    (num, heads), columns = out.shape, x.shape[1]
    row = torch.repeat_interleave(indptr.diff(), output_size=num)
    width = columns // heads
    at_once = min(power_of_two(width), 128)
    edges = max(256 // at_once, 4)
    launch(
        weight_grad_kernel, (blocks(num, edges), heads), out,
        grad, x, indptr, indices, row, out, num, columns, heads, width,
        MEAN=reduce == "mean", EDGES=edges, COLUMNS=at_once, num_warps=2,
    )  # fmt: skip


def segment_max(
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    values: Float[Tensor, "D F"],
    argmax: Int[Tensor, "D F"],
) -> None:
    """See :func:`partita.kernels.reference.segment_max`."""
    num, columns = values.shape
    grid, tile = _tile(num, columns)
    launch(segment_max_kernel, grid, values, x, indptr, indices, values, argmax, num, columns, **tile)


def segment_max_backward(
    grad: Float[Tensor, "D F"], argmax: Int[Tensor, "D F"], indices: Int[Tensor, "E"], out: Float[Tensor, "S F"]
) -> None:
    """See :func:`partita.kernels.reference.segment_max_backward`; per source, in the order of its edges."""
    num, columns = out.shape
    if argmax.numel() == 0:
        return
    ordered, edge = torch.sort(indices, stable=True)
    # An edge that wins anywhere wins in the first row whose winners, or those before it, go as far as the edge.
    farthest = argmax.amax(1).cummax(0).values
    row = torch.searchsorted(farthest, edge).clamp_(max=grad.shape[0] - 1)
    grid, tile = _tile(num, columns)
    launch(
        segment_max_backward_kernel, grid, out,
        grad, argmax, _begins(ordered, num), edge, row, out, num, columns, **tile,
    )  # fmt: skip


def transpose(
    indptr: Int[Tensor, "D_1"], indices: Int[Tensor, "E"], num_src: int
) -> tuple[Int[Tensor, "S_1"], Int[Tensor, "E"], Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference.transpose`."""
    ordered, edge = torch.sort(indices, stable=True)
    row = torch.repeat_interleave(indptr.diff(), output_size=indices.shape[0])
    return _begins(ordered, num_src), row[edge].int(), edge


def _begins(ordered: Tensor, num: int) -> Int[Tensor, "n_1"]:
    """Where the runs of 0..num-1 begin in a sorted list of them, and where the last ends."""
    return torch.searchsorted(ordered, torch.arange(num + 1, dtype=ordered.dtype, device=ordered.device))


def _tile(num: int, columns: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and shape of the programs that share ``num`` rows of ``columns`` columns; four elements a thread."""
    wide = min(power_of_two(columns), 256)
    rows = min(max(128 // wide, 1), 32)
    warps = max(rows * wide // 128, 1)
    return (blocks(num, rows), blocks(columns, wide)), {"ROWS": rows, "COLUMNS": wide, "num_warps": warps}


@triton.jit(do_not_specialize=["num"])
def gather_kernel(x, ids, scale, out, num, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
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
def aggregate_kernel(
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
def weight_grad_kernel(
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
def segment_max_kernel(x, indptr, indices, values, argmax, num, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
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
def segment_max_backward_kernel(
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
