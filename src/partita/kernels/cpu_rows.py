"""RowPick and aggregation of rows, compiled.

float16 rows arrive as uint16 and bfloat16 rows as int16; they are widened as they are read.
"""
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit

from partita.kernels.intrinsics import narrow, prefetch, widen

U = np.uint64  # numba counts negative indices from the end; a loop over unsigned columns needs no such check
ROWS_AHEAD = 6  # rows ahead whose cache lines are asked for
LINES_AHEAD = 8  # of each; the processor itself asks for those that follow


@njit(inline="always")
def _prefetch_row(x, row):
    columns = x.shape[1]
    step = 64 // x.itemsize
    for c in range(0, min(columns, LINES_AHEAD * step), step):
        prefetch(x, row * columns + c)


@njit(nogil=True, cache=True)
def gather(x, ids, scale, out, low, high):
    """``out[i] = scale[ids[i]] * x[ids[i]]``; an empty ``scale`` means 1."""
    columns = x.shape[1]
    scaled = scale.shape[0] > 0
    for i in range(low, high):
        _prefetch_row(x, np.int64(ids[min(i + ROWS_AHEAD, high - 1)]))
        row = np.int64(ids[i])
        if scaled:
            factor = scale[row]
            for c in range(columns):
                out[i, c] = factor * widen(x[row, c])
        else:
            for c in range(columns):
                out[i, c] = widen(x[row, c])


@njit(nogil=True, cache=True, fastmath={"contract"})
def aggregate(x, indptr, indices, edge, weight, scale, mean, out, low, high):
    """Weighted sums of rows of ``x`` for destinations ``low`` to ``high``, added in the order of the edges.

    Empty ``edge``, ``weight``, ``scale`` mean the identity, ones, ones.
    """
    columns, last = x.shape[1], indices.shape[0] - 1
    weighted, mapped, scaled = weight.shape[0] > 0, edge.shape[0] > 0, scale.shape[0] > 0
    heads = weight.shape[1] if weighted else 1
    width = columns // heads
    total = np.empty(columns, weight.dtype)  # of ``out``, or float32 where that is of 16 bits
    one = weight.dtype.type(1)
    for i in range(low, high):
        begin, end = indptr[i], indptr[i + 1]
        total[:] = 0
        for e in range(begin, end):
            _prefetch_row(x, np.int64(indices[min(e + ROWS_AHEAD, last)]))
            row = np.int64(indices[e])
            row_factor = scale[row] if scaled else one
            at = edge[e] if mapped else e
            for h in range(heads):
                factor = row_factor * weight[at, h] if weighted else row_factor
                for c in range(U(h * width), U((h + 1) * width)):
                    total[c] += factor * widen(x[row, c])
        if mean and end > begin:
            total /= weight.dtype.type(end - begin)
        for c in range(columns):
            out[i, c] = narrow(total[c], out)


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"})
def weight_grad(grad, x, indptr, indices, mean, out, low, high):
    """Dot products of destination gradients and source rows, per edge and head."""
    heads = out.shape[1]
    width = x.shape[1] // heads
    last = indices.shape[0] - 1
    for i in range(low, high):
        begin, end = indptr[i], indptr[i + 1]
        for e in range(begin, end):
            _prefetch_row(x, np.int64(indices[min(e + ROWS_AHEAD, last)]))
            row = np.int64(indices[e])
            for h in range(heads):
                total = out.dtype.type(0)
                for c in range(U(h * width), U((h + 1) * width)):
                    total += grad[i, c] * x[row, c]
                out[e, h] = total / out.dtype.type(end - begin) if mean else total


@njit(nogil=True, cache=True)
def segment_max(x, indptr, indices, values, argmax, low, high):
    """Largest value and its first edge, per destination and column."""
    columns, last = x.shape[1], indices.shape[0] - 1
    winner = np.empty(columns, np.int32)  # place within the row: half as wide as a position, so twice as fast
    for i in range(low, high):
        begin, end = indptr[i], indptr[i + 1]
        for c in range(columns):
            values[i, c] = x.dtype.type(0)
            winner[c] = -1
        for e in range(begin, end):
            _prefetch_row(x, np.int64(indices[min(e + ROWS_AHEAD, last)]))
            row, place = np.int64(indices[e]), np.int32(e - begin)
            for c in range(columns):
                value, best = x[row, c], values[i, c]
                better = (winner[c] < 0) | (value > best) | ((value != value) & (best == best))
                values[i, c] = value if better else best
                winner[c] = place if better else winner[c]
        for c in range(columns):
            argmax[i, c] = begin + winner[c] if end > begin else -1


@njit(nogil=True, cache=True)
def segment_max_backward(grad, argmax, indices, out, low, high):
    """Send gradients to the winning rows, for columns ``low`` to ``high`` only: no two threads share an element."""
    for i in range(grad.shape[0]):
        for c in range(U(low), U(high)):
            e = argmax[i, c]
            if e >= 0:
                out[np.int64(indices[e]), c] += grad[i, c]
