"""How optimizers move rows of a table."""

from __future__ import annotations

from jaxtyping import Float, Int64
from torch import Tensor


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
    first, second = betas
    new_mean = mean.index_select(0, at).lerp_(gradient, 1 - first)
    new_square = square.index_select(0, at).lerp_(gradient.square(), 1 - second)
    mean.index_copy_(0, at, new_mean)
    square.index_copy_(0, at, new_square)
    moved = rows.index_select(0, at).addcdiv_(new_mean, new_square.sqrt_().add_(eps), value=-size)
    rows.index_copy_(0, at, moved)
