"""How optimizers move rows of a table: arguments checked, implementation called."""

from __future__ import annotations

from jaxtyping import Float, Int64
from torch import Tensor

from partita.kernels import checks
from partita.kernels.dispatch import implementation


def adam_rows(
    rows: Float[Tensor, "N w"],
    mean: Float[Tensor, "N w"],
    square: Float[Tensor, "N w"],
    at: Int64[Tensor, "n"],
    gradient: Float[Tensor, "n w"],
    *,
    betas: tuple[float, float],
    eps: float,
    size: float,
) -> None:
    """Move some rows as Adam does, and both of their moments, in place and in one pass.

    ``mean += (1 - b1) (g - mean)``, ``square += (1 - b2) (g^2 - square)``, ``row -= size mean / (sqrt(square) + eps)``.

    Args:
        rows: on the CPU, contiguous, float32 or float64; moments and gradient have the same dtype.
        mean, square: the moments, contiguous.
        at: distinct rows.
        gradient: of each.
        betas: how much of the moments is kept.
        eps: added to the denominator.
        size: of the step, with the corrections of biases.

    Raises:
        IndexError: there is no such row.
        ValueError: shapes, dtypes or strides do not fit.
    """
    checks.output_dtype(rows.dtype)
    checks.within("at", at, rows.shape[0])
    same = all(each.dtype == rows.dtype and each.shape == rows.shape for each in (mean, square))
    if not same or gradient.shape != (at.shape[0], rows.shape[1]) or gradient.dtype != rows.dtype:
        raise ValueError("rows, moments and gradient must have one dtype and fitting shapes")
    if not all(each.is_contiguous() for each in (rows, mean, square)):
        raise ValueError("rows and moments must be contiguous")
    implementation().adam_rows(rows, mean, square, at.contiguous(), gradient.contiguous(), betas, eps, size)
