"""Products of rows of nodes with those of their relations, compiled."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int64
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import run


def complex_rows(
    x: Float[Tensor, "n d"], table: Float[Tensor, "R d"], index: Int64[Tensor, "n"], conjugate: bool,
    out: Float[Tensor, "n d"],
) -> None:  # fmt: skip
    """See :func:`partita.kernels.complex_rows`."""
    run(product_loop, threads.even_bounds(len(x), x.numel()), x, table, index, _sign(x, conjugate), out)


def complex_rows_backward(
    grad: Float[Tensor, "n d"], x: Float[Tensor, "n d"], table: Float[Tensor, "R d"], index: Int64[Tensor, "n"],
    conjugate: bool, of_x: Float[Tensor, "n d"], of_table: Float[Tensor, "R d"],
) -> None:  # fmt: skip
    """See :func:`partita.kernels.complex_rows_backward`."""
    # Ranges of columns, so that the gradients of a relation are summed in the order of the rows on any threads.
    bounds = threads.even_bounds(x.shape[1] // 2, 4 * x.numel())
    run(gradient_loop, bounds, grad, x, table, index, _sign(x, conjugate), of_x, of_table)


def _sign(x: Tensor, conjugate: bool) -> np.floating:
    return x.detach().numpy().dtype.type(-1 if conjugate else 1)


@njit(nogil=True, cache=True)
def product_loop(x, table, index, sign, out, low, high):
    """The rows from ``low`` to ``high``."""
    half = x.shape[1] // 2
    for row in range(low, high):
        a, b, c, e = x[row][:half], x[row][half:], table[index[row]][:half], table[index[row]][half:]
        real, imaginary = out[row][:half], out[row][half:]
        for j in range(half):
            real[j] = a[j] * c[j] - sign * b[j] * e[j]
        for j in range(half):
            imaginary[j] = b[j] * c[j] + sign * a[j] * e[j]


@njit(nogil=True, cache=True)
def gradient_loop(grad, x, table, index, sign, of_x, of_table, low, high):
    """The columns from ``low`` to ``high`` of both halves."""
    half = x.shape[1] // 2
    of_table[:, low:high] = 0
    of_table[:, half + low : half + high] = 0
    for row in range(x.shape[0]):
        kind = index[row]
        a, b = x[row][low:high], x[row][half + low : half + high]
        c, e = table[kind][low:high], table[kind][half + low : half + high]
        g, h = grad[row][low:high], grad[row][half + low : half + high]
        real, imaginary = of_x[row][low:high], of_x[row][half + low : half + high]
        for j in range(high - low):
            real[j] = g[j] * c[j] + sign * h[j] * e[j]
        for j in range(high - low):
            imaginary[j] = h[j] * c[j] - sign * g[j] * e[j]
        real, imaginary = of_table[kind][low:high], of_table[kind][half + low : half + high]
        for j in range(high - low):
            real[j] += g[j] * a[j] + h[j] * b[j]
        for j in range(high - low):
            imaginary[j] += sign * (h[j] * a[j] - g[j] * b[j])
