"""Reading and aggregation of rows, compiled.

float16 rows arrive as uint16 and bfloat16 rows as int16; they are widened as they are read.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import bits, or_empty, run
from partita.kernels.intrinsics import narrow, prefetch, widen

U = np.uint64  # numba counts negative indices from the end; a loop over unsigned columns needs no such check
FEWEST_AHEAD, MOST_AHEAD = 6, 24  # rows ahead whose cache lines are asked for: more of narrow ones
BYTES_AHEAD = 6 * 1024  # about so many; several times as many would push each other out of the cache
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
LINES_AHEAD = 8  # of each row; the processor itself asks for those that follow


def gather_rows(
    x: Float[Tensor, "N F"], ids: Int[Tensor, "n"], scale: Float[Tensor, "N"] | None, out: Float[Tensor, "n F"]
) -> None:
    """See :func:`partita.kernels.reference.gather_rows`."""
    bounds = threads.even_bounds(out.shape[0], out.numel())
    if out.dtype in (torch.float16, torch.int8, torch.uint8):
        run(copy_loop, bounds, bits(x), ids, bits(out))
    else:
        run(gather_loop, bounds, bits(x), ids, or_empty(scale, (0,), out.numpy().dtype), out)


def move_rows(
    x: Shaped[Tensor, "N F"], ids: Int[Tensor, "n"] | None, out: Shaped[Tensor, "M F"], at: Int[Tensor, "n"]
) -> None:
    """See :func:`partita.kernels.reference.move_rows`."""
    # As the largest integers that fit: one compiled version serves several dtypes.
    places = [x.shape[1] * x.element_size()]
    for tensor in (x, out):
        size = tensor.element_size()
        places += [tensor.data_ptr(), size * tensor.storage_offset(), size * tensor.stride(0)]
    words = next(each for each in _WORDS if all(place % each.itemsize == 0 for place in places))
    rows, to = x.view(torch.uint8).view(words), out.view(torch.uint8).view(words)
    bounds = threads.even_bounds(at.shape[0], at.shape[0] * x.shape[1])
    run(move_loop, bounds, rows, or_empty(ids, (0,), at.numpy().dtype), to, at)


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
    edges = or_empty(edge, (0,), np.dtype(np.int64))
    exact = np.dtype(np.float64 if out.dtype == torch.float64 else np.float32)
    weights, scales = or_empty(weight, (0, 1), exact), or_empty(scale, (0,), exact)
    run(
        aggregate_loop, threads.balanced_bounds(indptr.numpy(), x.shape[1]),
        bits(x), indptr, indices, edges, weights, scales, reduce == "mean", bits(out),
    )  # fmt: skip


def aggregate_weight_grad(
    grad: Float[Tensor, "D F"],
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    reduce: str,
    out: Float[Tensor, "E H"],
) -> None:
    """See :func:`partita.kernels.reference.aggregate_weight_grad`."""
    bounds = threads.balanced_bounds(indptr.numpy(), x.shape[1])
    run(weight_grad_loop, bounds, grad, x, indptr, indices, reduce == "mean", out)


def segment_max(
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    values: Float[Tensor, "D F"],
    argmax: Int[Tensor, "D F"],
) -> None:
    """See :func:`partita.kernels.reference.segment_max`."""
    bounds = threads.balanced_bounds(indptr.numpy(), x.shape[1])
    run(segment_max_loop, bounds, x, indptr, indices, values, argmax)


def segment_max_backward(
    grad: Float[Tensor, "D F"], argmax: Int[Tensor, "D F"], indices: Int[Tensor, "E"], out: Float[Tensor, "S F"]
) -> None:
    """See :func:`partita.kernels.reference.segment_max_backward`."""
    run(segment_max_backward_loop, threads.even_bounds(grad.shape[1], grad.numel()), grad, argmax, indices, out)


def transpose(
    indptr: Int[Tensor, "D_1"], indices: Int[Tensor, "E"], num_src: int
) -> tuple[Int[Tensor, "S_1"], Int[Tensor, "E"], Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference.transpose`."""
    begins = np.zeros(num_src + 1, np.int64)
    dst, edge = np.empty(indices.shape[0], np.int32), np.empty(indices.shape[0], np.int64)
    transpose_loop(indptr.numpy(), indices.numpy(), begins, dst, edge)
    return torch.from_numpy(begins), torch.from_numpy(dst), torch.from_numpy(edge)


@njit(inline="always")
def _prefetch_row(x, row):
    columns = x.shape[1]
    step = 64 // x.itemsize
    for c in range(0, min(columns, LINES_AHEAD * step), step):
        prefetch(x, row * columns + c)


@njit(inline="always")
def _rows_ahead(x):
    return min(max(BYTES_AHEAD // max(1, x.shape[1] * x.itemsize), FEWEST_AHEAD), MOST_AHEAD)


@njit(nogil=True, cache=True)
def gather_loop(x, ids, scale, out, low, high):
    """``out[i] = scale[ids[i]] * x[ids[i]]``; an empty ``scale`` means 1."""
    columns, ahead = x.shape[1], _rows_ahead(x)
    scaled = scale.shape[0] > 0
    for i in range(low, high):
        _prefetch_row(x, np.int64(ids[min(i + ahead, high - 1)]))
        row = np.int64(ids[i])
        if scaled:
            factor = scale[row]
            for c in range(columns):
                out[i, c] = factor * widen(x[row, c])
        else:
            for c in range(columns):
                out[i, c] = widen(x[row, c])


@njit(nogil=True, cache=True)
def copy_loop(x, ids, out, low, high):
    """``out[i] = x[ids[i]]``."""
    columns, ahead = x.shape[1], _rows_ahead(x)
    for i in range(low, high):
        _prefetch_row(x, np.int64(ids[min(i + ahead, high - 1)]))
        row = np.int64(ids[i])
        for c in range(columns):
            out[i, c] = x[row, c]


@njit(nogil=True, cache=True)
def move_loop(x, ids, out, at, low, high):
    """``out[at[i]] = x[ids[i]]``; empty ``ids`` mean the identity."""
    columns, ahead, picks = x.shape[1], _rows_ahead(x), ids.shape[0] > 0
    for i in range(low, high):
        after = min(i + ahead, high - 1)
        _prefetch_row(x, np.int64(ids[after]) if picks else np.int64(after))
        row, to = np.int64(ids[i]) if picks else np.int64(i), np.int64(at[i])
        for c in range(columns):
            out[to, c] = x[row, c]


@njit(nogil=True, cache=True, fastmath={"contract"})
def aggregate_loop(x, indptr, indices, edge, weight, scale, mean, out, low, high):
    """Weighted sums of rows of ``x`` for destinations ``low`` to ``high``, added in the order of the edges.

    Empty ``edge``, ``weight``, ``scale`` mean the identity, ones, ones.
    """
    columns, last, ahead = x.shape[1], indices.shape[0] - 1, _rows_ahead(x)
    weighted, mapped, scaled = weight.shape[0] > 0, edge.shape[0] > 0, scale.shape[0] > 0
    heads = weight.shape[1] if weighted else 1
    width, plain = columns // heads, not weighted and not scaled
    total = np.empty(columns, weight.dtype)  # of ``out``, or float32 where that is of 16 bits
    one = weight.dtype.type(1)
    for i in range(low, high):
        begin, end = indptr[i], indptr[i + 1]
        total[:] = 0
        # A loop of its own for each: what is looked up for an edge takes longer than adding a narrow row.
        if plain:
            for e in range(begin, end):
                _prefetch_row(x, np.int64(indices[min(e + ahead, last)]))
                row = np.int64(indices[e])
                for c in range(U(columns)):
                    total[c] += widen(x[row, c])
        elif heads == 1:
            for e in range(begin, end):
                _prefetch_row(x, np.int64(indices[min(e + ahead, last)]))
                row = np.int64(indices[e])
                factor = scale[row] if scaled else one
                if weighted:
                    factor *= weight[edge[e] if mapped else e, 0]
                for c in range(U(columns)):
                    total[c] += factor * widen(x[row, c])
        else:
            for e in range(begin, end):
                _prefetch_row(x, np.int64(indices[min(e + ahead, last)]))
                row = np.int64(indices[e])
                row_factor = scale[row] if scaled else one
                at = edge[e] if mapped else e
                for h in range(heads):
                    factor = row_factor * weight[at, h]
                    for c in range(U(h * width), U((h + 1) * width)):
                        total[c] += factor * widen(x[row, c])
        if mean and end > begin:
            total /= weight.dtype.type(end - begin)
        for c in range(columns):
            out[i, c] = narrow(total[c], out)


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"})
def weight_grad_loop(grad, x, indptr, indices, mean, out, low, high):
    """Dot products of destination gradients and source rows, per edge and head."""
    heads = out.shape[1]
    width = x.shape[1] // heads
    last, ahead = indices.shape[0] - 1, _rows_ahead(x)
    for i in range(low, high):
        begin, end = indptr[i], indptr[i + 1]
        for e in range(begin, end):
            _prefetch_row(x, np.int64(indices[min(e + ahead, last)]))
            row = np.int64(indices[e])
            for h in range(heads):
                total = out.dtype.type(0)
                for c in range(U(h * width), U((h + 1) * width)):
                    total += grad[i, c] * x[row, c]
                out[e, h] = total / out.dtype.type(end - begin) if mean else total


@njit(nogil=True, cache=True)
def segment_max_loop(x, indptr, indices, values, argmax, low, high):
    """Largest value and its first edge, per destination and column."""
    columns, last, ahead = x.shape[1], indices.shape[0] - 1, _rows_ahead(x)
    winner = np.empty(columns, np.int32)  # place within the row: half as wide as a position, so twice as fast
    for i in range(low, high):
        begin, end = indptr[i], indptr[i + 1]
        for c in range(columns):
            values[i, c] = x.dtype.type(0)
            winner[c] = -1
        for e in range(begin, end):
            _prefetch_row(x, np.int64(indices[min(e + ahead, last)]))
            row, place = np.int64(indices[e]), np.int32(e - begin)
            for c in range(columns):
                value, best = x[row, c], values[i, c]
                better = (winner[c] < 0) | (value > best) | ((value != value) & (best == best))
                values[i, c] = value if better else best
                winner[c] = place if better else winner[c]
        for c in range(columns):
            argmax[i, c] = begin + winner[c] if end > begin else -1


@njit(nogil=True, cache=True)
def segment_max_backward_loop(grad, argmax, indices, out, low, high):
    """Send gradients to the winning rows, for columns ``low`` to ``high`` only: no two threads share an element."""
    for i in range(grad.shape[0]):
        for c in range(U(low), U(high)):
            e = argmax[i, c]
            if e >= 0:
                out[np.int64(indices[e]), c] += grad[i, c]


@njit(nogil=True, cache=True)
def transpose_loop(indptr, indices, begins, dst, edge):
    """Stable counting sort of the edges by source; ``begins`` is S+1 zeros."""
    num_src = begins.shape[0] - 1
    for e in range(indices.shape[0]):
        begins[indices[e]] += 1
    running = np.int64(0)
    for s in range(num_src + 1):
        here = begins[s]
        begins[s] = running
        running += here
    for i in range(indptr.shape[0] - 1):
        for e in range(indptr[i], indptr[i + 1]):
            at = begins[indices[e]]
            dst[at] = i
            edge[at] = e
            begins[indices[e]] = at + 1
    for s in range(num_src, 0, -1):
        begins[s] = begins[s - 1]
    begins[0] = 0
