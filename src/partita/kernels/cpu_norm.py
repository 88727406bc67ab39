"""Layer normalization, ReLU and keyed dropout in one pass over the rows, compiled. bfloat16 rows come as int16.

Loops that sum write nothing. Where a loop also writes, the compiled code looks how far the arrays are apart and takes
another loop, which adds in another order, if they are close: the bits would depend on where memory was free.
"""
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit

from partita.kernels.cpu_draws import U, fold
from partita.kernels.intrinsics import narrow, widen

CHUNK = 512  # rows whose gradients of the parameters are summed together: no sum depends on the number of threads


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"})
def forward(x, weight, bias, eps, original, key, threshold, factor, out, moments, row, low, high):
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
def backward(grad, out, x, weight, moments, factor, grad_x, grad_weight, grad_bias, passed, low, high):
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
