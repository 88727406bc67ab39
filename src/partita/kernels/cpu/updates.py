"""How optimizers move rows of a table, compiled."""

from __future__ import annotations

import math

from jaxtyping import Float, Int64
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import run
from partita.kernels.intrinsics import prefetch

_AHEAD = 3  # rows, which are long: memory answers while so many are moved


def adam_rows(
    rows: Float[Tensor, "N w"],
    mean: Float[Tensor, "N w"],
    square: Float[Tensor, "N w"],
    at: Int64[Tensor, "n"],
    gradient: Float[Tensor, "n w"],
    betas: tuple[float, float],
    eps: float,
    size: float,
) -> None:
    """See :func:`partita.kernels.adam_rows`."""
    of_dtype = rows.detach().numpy().dtype.type
    numbers = (of_dtype(1 - betas[0]), of_dtype(1 - betas[1]), of_dtype(eps), of_dtype(size))
    bounds = threads.even_bounds(len(at), 4 * gradient.numel())
    run(adam_loop, bounds, rows, mean, square, at, gradient, *numbers)


@njit(nogil=True, cache=True, error_model="numpy")  # a check for zeros would keep it from using vectors
def adam_loop(rows, mean, square, at, gradient, first, second, eps, size, low, high):
    """The rows ``at[low:high]``."""
    width = rows.shape[1]
    for i in range(low, high):
        if i + _AHEAD < high:
            for line in range(at[i + _AHEAD] * width, (at[i + _AHEAD] + 1) * width, 64 // rows.itemsize):
                prefetch(rows, line)
                prefetch(mean, line)
                prefetch(square, line)
        row, m, v, g = rows[at[i]], mean[at[i]], square[at[i]], gradient[i]
        for j in range(row.shape[0]):
            m[j] += first * (g[j] - m[j])
            v[j] += second * (g[j] * g[j] - v[j])
            row[j] -= size * m[j] / (math.sqrt(v[j]) + eps)
