"""How optimizers move rows of a table, compiled."""

from __future__ import annotations

import math

from jaxtyping import Float, Int64
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import run


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
    for i in range(low, high):
        row, m, v, g = rows[at[i]], mean[at[i]], square[at[i]], gradient[i]
        for j in range(row.shape[0]):
            m[j] += first * (g[j] - m[j])
            v[j] += second * (g[j] * g[j] - v[j])
            row[j] -= size * m[j] / (math.sqrt(v[j]) + eps)
