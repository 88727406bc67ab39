"""Products of rows that are sorted by group with a weight for every group: in one node of autograd, and one tensor.

One group after the other is the meaning; results are those of :func:`partita.nn.matmul.linear`, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from partita.nn.matmul import by_torch, linear

MANY_GROUPS = 16
"""From so many groups on ``torch.nn.functional.grouped_mm`` is faster than a loop of products: with 300 groups of 10
rows twice as fast, with 8 groups of 200 rows or more as fast (64 and 128 columns, torch 2.13, one core)."""


def grouped_linear(
    rows: Float[Tensor, "n in"],
    weight: Float[Tensor, "G out in"],
    sizes: list[int],
    bias: Float[Tensor, "G out"] | None = None,
) -> Float[Tensor, "n out"]:
    """``x W_g^T + b_g`` of rows that are sorted by group. Groups without rows get gradients of 0.

    Args:
        rows: of group 0, then of group 1, and so on.
        weight: of each group.
        sizes: rows of each group.
        bias: of each group.
    """
    if by_torch(rows, weight):
        return _Grouped.apply(rows, weight, bias, sizes)
    return linears(rows.split(sizes), weight.unbind(), [None] * len(sizes) if bias is None else bias.unbind())


def linears(
    pieces: Sequence[Float[Tensor, "_ _"]],
    weights: Sequence[Float[Tensor, "out _"]],
    biases: Sequence[Float[Tensor, "_"] | None],
) -> Float[Tensor, "n out"]:
    """``x W^T + b`` of several tensors of rows, each with a weight of its own: one tensor of all results.

    Args:
        pieces: rows; the numbers of columns may differ.
        weights: of each piece.
        biases: of each piece, or ``None`` for none.
    """
    if all(map(by_torch, pieces, weights)):
        return _Linears.apply(len(pieces), *pieces, *weights, *biases)
    # One product there must be, so that gradients are there, too.
    chosen = [at for at, piece in enumerate(pieces) if len(piece)] or [0]
    found = [linear(pieces[at], weights[at], biases[at]) for at in chosen]
    return found[0] if len(found) == 1 else torch.cat(found)


class _Grouped(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, sizes: list[int]) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.sizes, ctx.together = sizes, _together(rows, weight, sizes)
        if ctx.together and bias is None:
            return _grouped_mm(rows, weight.transpose(1, 2), sizes)
        out = rows.new_empty(rows.shape[0], weight.shape[1])
        biases = [None] * len(sizes) if bias is None else bias.unbind()
        _products(rows.split(sizes), weight.unbind(), biases, out.split(sizes))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        grad, sizes = grad.contiguous(), ctx.sizes
        of_rows = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            if ctx.together:
                of_rows = _grouped_mm(grad, weight, sizes)
            else:
                of_rows = torch.empty_like(rows)
                for piece, of_group, into in zip(grad.split(sizes), weight.unbind(), of_rows.split(sizes)):
                    if len(piece):
                        torch.mm(piece, of_group, out=into)
        if ctx.needs_input_grad[1]:
            if ctx.together:
                of_weight = _grouped_mm(grad.t(), rows, sizes)
            else:
                of_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format)
                for piece, of_group, into in zip(grad.split(sizes), rows.split(sizes), of_weight.unbind()):
                    if len(piece):
                        torch.mm(piece.t(), of_group, out=into)
        if ctx.needs_input_grad[2]:
            of_bias = torch.stack([piece.sum(0) for piece in grad.split(sizes)])
        return of_rows, of_weight, of_bias, None


class _Linears(Function):
    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor | None) -> Tensor:
        pieces, weights, biases = _thirds(tensors, count)
        ctx.save_for_backward(*pieces, *weights)
        ctx.count, sizes = count, [len(piece) for piece in pieces]
        out = pieces[0].new_empty(sum(sizes), weights[0].shape[0])
        _products(pieces, weights, biases, out.split(sizes))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved, count = ctx.saved_tensors, ctx.count
        pieces, weights = saved[:count], saved[count:]
        wanted = _thirds(ctx.needs_input_grad[1:], count)
        grads = grad.split([len(piece) for piece in pieces])
        return (
            None,
            *(each @ weight if needed else None for each, weight, needed in zip(grads, weights, wanted[0])),
            *(each.t() @ piece if needed else None for each, piece, needed in zip(grads, pieces, wanted[1])),
            *(each.sum(0) if needed else None for each, needed in zip(grads, wanted[2])),
        )


def _thirds(values: Sequence[Any], count: int) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    return values[:count], values[count : 2 * count], values[2 * count :]


def _products(
    pieces: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor | None], into: Sequence[Tensor]
) -> None:
    for piece, weight, bias, out in zip(pieces, weights, biases, into, strict=True):
        if not len(piece):
            continue
        if bias is None:
            torch.mm(piece, weight.t(), out=out)
        else:
            torch.addmm(bias, piece, weight.t(), out=out)


def _together(rows: Tensor, weight: Tensor, sizes: list[int]) -> bool:
    """Whether ``grouped_mm`` takes them, and is worth it: rows of 16 bytes or a multiple, and many groups."""
    return (
        len(sizes) >= MANY_GROUPS
        and rows.dtype == torch.float32
        and rows.device.type == "cpu"
        and len(rows) > 0
        and hasattr(functional, "grouped_mm")
        and all(width % 4 == 0 and width > 0 for width in weight.shape[1:])
    )


def _grouped_mm(rows: Tensor, others: Tensor, sizes: list[int]) -> Tensor:
    ends = torch.tensor(sizes, device=rows.device).cumsum(0).int()
    # Strides of the transposed weights of R-GCN are those of its parameter.
    return functional.grouped_mm(rows, others, offs=ends)
