"""Sums of cubes of the sizes of numbers, real or complex."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def cubes(rows: Float[Tensor, "n d"], *, parts: int = 1) -> Float[Tensor, "n"]:
    """``sum_k |z_k|^3`` of every row.

    Args:
        rows: numbers.
        parts: 2 where they are the real parts of complex numbers, then the imaginary ones.
    """
    found: Tensor = _Cubes.apply(rows, parts)
    return found


class _Cubes(Function):
    """The gradient is ``3 |z| z``, also of 0; autograd would take a root's there, and passes over all steps between."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, parts: int) -> Tensor:
        squares = rows.square()
        if parts > 1:
            squares = squares.unflatten(1, (parts, -1)).sum(1)
        sizes = squares.sqrt()
        ctx.save_for_backward(rows, sizes)
        ctx.parts = parts
        return squares.mul_(sizes).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        rows, sizes = ctx.saved_tensors
        factors = sizes * (3 * grad).unsqueeze(1)
        return (rows.unflatten(1, (ctx.parts, -1)) * factors.unsqueeze(1)).flatten(1), None
