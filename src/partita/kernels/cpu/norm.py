"""Keyed dropout, also after layer normalization and ReLU in one pass over the rows, compiled.

bfloat16 rows come as int16. Loops that sum write nothing. Where a loop also writes, the compiled code looks how far
the arrays are apart and takes another loop, which adds in another order, if they are close: the bits would depend on
where memory was free.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import bits, run
from partita.kernels.cpu.draws import LANE_BITS, LANE_MASK, U, fold
from partita.kernels.intrinsics import narrow, widen

CHUNK = 512  # rows whose gradients of the parameters are summed together: no sum depends on the number of threads


def norm_relu_dropout(
    x: Float[Tensor, "n F"],
    weight: Float[Tensor, "F"],
    bias: Float[Tensor, "F"],
    eps: float,
    rows_original: Int[Tensor, "n"],
    key: int,
    threshold: int,
    factor: float,
    out: Float[Tensor, "n F"],
    moments: Float[Tensor, "n 2"],
) -> None:
    """See :func:`partita.kernels.reference.norm_relu_dropout`."""
    rows, scale, shift, original = bits(x), weight.numpy(), bias.numpy(), rows_original.numpy()
    result, found = bits(out), moments.numpy()
    real = found.dtype.type
    seed, limit = np.uint64(key), np.uint64(threshold)
    threads.run(
        lambda low, high: forward_loop(
            rows, scale, shift, real(eps), original, seed, limit, real(factor), result, found,
            np.empty(rows.shape[1], real), low, high,
        ),
        threads.even_bounds(rows.shape[0], rows.size),
    )  # fmt: skip


def norm_relu_dropout_backward(
    grad: Float[Tensor, "n F"],
    out: Float[Tensor, "n F"],
    x: Float[Tensor, "n F"],
    weight: Float[Tensor, "F"],
    moments: Float[Tensor, "n 2"],
    factor: float,
    grad_x: Float[Tensor, "n F"],
) -> tuple[Float[Tensor, "F"], Float[Tensor, "F"]]:
    """See :func:`partita.kernels.reference.norm_relu_dropout_backward`."""
    grads, passed, rows, scale, found = bits(grad), bits(out), bits(x), weight.numpy(), moments.numpy()
    result, real = bits(grad_x), found.dtype.type
    chunks = -(-rows.shape[0] // CHUNK)
    parts = np.empty((2, chunks, rows.shape[1]), found.dtype)
    threads.run(
        lambda low, high: backward_loop(
            grads, passed, rows, scale, found, real(factor), result, parts[0], parts[1],
            np.empty(rows.shape[1], real), low, high,
        ),
        threads.even_bounds(chunks, rows.size),
    )  # fmt: skip
    of_weight, of_bias = torch.from_numpy(parts.sum(1))
    return of_weight, of_bias


def dropout(
    x: Float[Tensor, "n F"],
    rows_original: Int[Tensor, "n"],
    key: int,
    threshold: int,
    factor: float,
    relu: bool,
    out: Float[Tensor, "n F"],
) -> None:
    """See :func:`partita.kernels.reference.dropout`."""
    scale, bounds = out.numpy().dtype.type(factor), threads.even_bounds(x.shape[0], x.numel())
    run(drop_rows_loop, bounds, x, rows_original, U(key), U(threshold), scale, relu, out)


def edge_dropout(
    indptr: Int[Tensor, "D_1"],
    dst_original: Int[Tensor, "D"],
    key: int,
    threshold: int,
    factor: float,
    out: Float[Tensor, "E H"],
) -> None:
    """See :func:`partita.kernels.reference.edge_dropout`."""
    scale, bounds = out.numpy().dtype.type(factor), threads.balanced_bounds(indptr.numpy(), out.shape[1])
    run(drop_edges_loop, bounds, indptr, dst_original, U(key), U(threshold), scale, out)


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"})
def forward_loop(x, weight, bias, eps, original, key, threshold, factor, out, moments, row, low, high):
    """Rows ``low`` to ``high`` of the result; ``moments`` receives each row's mean and inverse deviation.

    ``row`` is scratch for a row.
    """
    columns = x.shape[1]
    kind = moments.dtype.type
    draws = np.empty((columns + 3) // 4, np.uint64)
    lanes = draws.view(np.uint16)
    limit, zero, one, width = np.uint32(threshold), kind(0), kind(1), kind(columns)
    for i in range(low, high):
        for c in range(columns):
            row[c] = widen(x[i, c])
        total = zero
        for c in range(columns):
            total += row[c]
        mean = total / width
        squares = zero
        for c in range(columns):
            squares += (row[c] - mean) * (row[c] - mean)
        inverse = one / np.sqrt(squares / width + eps)
        moments[i, 0], moments[i, 1] = mean, inverse
        for c in range(columns):
            row[c] = (row[c] - mean) * inverse * weight[c] + bias[c]
        if threshold == 0:
            for c in range(columns):
                out[i, c] = narrow(zero if row[c] <= zero else row[c], out)  # a NaN is kept
            continue
        row_key = fold(key, U(original[i]))
        for group in range(draws.shape[0]):
            draws[group] = fold(row_key, U(group))
        for c in range(columns):
            keep = (np.uint32(lanes[c]) >= limit) & ~(row[c] <= zero)
            out[i, c] = narrow(row[c] * factor if keep else zero, out)


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"})
def backward_loop(grad, out, x, weight, moments, factor, grad_x, grad_weight, grad_bias, passed, low, high):
    """Gradients of the rows of chunks ``low`` to ``high``, and each chunk's part of those of the parameters.

    ``passed`` is scratch for a row.
    """
    columns = x.shape[1]
    zero, width = moments.dtype.type(0), moments.dtype.type(columns)
    for chunk in range(low, high):
        of_weight, of_bias = grad_weight[chunk], grad_bias[chunk]
        for c in range(columns):
            of_weight[c] = zero
            of_bias[c] = zero
        for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, x.shape[0])):
            mean, inverse = moments[i, 0], moments[i, 1]
            # Loops that write to one or two arrays each: the compiler vectorizes these, and a row stays in the cache.
            for c in range(columns):
                passed[c] = zero if widen(out[i, c]) <= zero else widen(grad[i, c]) * factor
            plain = along = zero
            for c in range(columns):
                value = passed[c] * weight[c]
                plain += value
                along += value * (widen(x[i, c]) - mean)
            for c in range(columns):
                of_weight[c] += passed[c] * ((widen(x[i, c]) - mean) * inverse)
                of_bias[c] += passed[c]
            plain /= width
            along *= inverse * inverse / width
            for c in range(columns):
                centered = passed[c] * weight[c] - plain - (widen(x[i, c]) - mean) * along
                grad_x[i, c] = narrow(centered * inverse, grad_x)


@njit(nogil=True, cache=True)
def drop_rows_loop(x, original, key, threshold, factor, relu, out, low, high):
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
def drop_edges_loop(indptr, original, key, threshold, factor, out, low, high):
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
