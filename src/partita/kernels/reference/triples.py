"""Products of rows of nodes with those of their relations, in torch."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def complex_rows(
    x: Float[Tensor, "n d"], table: Float[Tensor, "R d"], index: Int64[Tensor, "n"], conjugate: bool,
    out: Float[Tensor, "n d"],
) -> None:  # fmt: skip
    """See :func:`partita.kernels.complex_rows`."""
    _multiply(x, table.index_select(0, index), conjugate, out)


def complex_rows_backward(
    grad: Float[Tensor, "n d"], x: Float[Tensor, "n d"], table: Float[Tensor, "R d"], index: Int64[Tensor, "n"],
    conjugate: bool, of_x: Float[Tensor, "n d"], of_table: Float[Tensor, "R d"],
) -> None:  # fmt: skip
    """See :func:`partita.kernels.complex_rows_backward`."""
    # With z = x y: grad_x = grad conj(y), grad_y = grad conj(x); with z = x conj(y): grad y, and conj(grad) x.
    _multiply(grad, table.index_select(0, index), not conjugate, of_x)
    first, second = (x, grad) if conjugate else (grad, x)
    each = torch.empty_like(of_x)
    _multiply(first, second, True, each)
    of_table.zero_().index_put_((index,), each, accumulate=True)


def _multiply(x: Tensor, y: Tensor, conjugate: bool, out: Tensor) -> None:
    (a, b), (c, e), sign = x.chunk(2, 1), y.chunk(2, 1), -1 if conjugate else 1
    real, imaginary = out.chunk(2, 1)
    torch.mul(a, c, out=real).addcmul_(b, e, value=-sign)
    torch.mul(b, c, out=imaginary).addcmul_(a, e, value=sign)
