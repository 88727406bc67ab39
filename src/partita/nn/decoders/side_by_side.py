"""Scores that are products, those of all sides written beside each other: in one node of autograd, and one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def side_by_side(
    true: Float[Tensor, "B d"],
    queries: Sequence[Float[Tensor, "B d"]],
    candidates: Sequence[Float[Tensor, "_ d"]],
    last: Float[Tensor, "B"] | None = None,
) -> Float[Tensor, "B K_1"]:
    """``[<q_1, true>, q_1 C_1^T, q_2 C_2^T, ..., last]``.

    Args:
        true: one more candidate of every row for the first side.
        queries: of each side, at least of one.
        candidates: of each side, the same for all rows.
        last: one more column.
    """
    found: Tensor = _SideBySide.apply(last, true, *queries, *candidates)
    return found


class _SideBySide(Function):
    """Products go to where they belong, and their gradients come from there: nothing is joined or split by copies."""

    @staticmethod
    def forward(ctx: Any, last: Tensor | None, true: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(true, *tensors)
        ctx.has_last = last is not None
        pairs = _pairs(tensors)
        out = true.new_empty(len(true), 1 + sum(len(rows) for _, rows in pairs) + ctx.has_last)
        torch.sum(tensors[0] * true, dim=1, out=out[:, 0])
        for (query, rows), part in zip(pairs, _parts(out, pairs), strict=True):
            torch.mm(query, rows.t(), out=part)
        if last is not None:
            out[:, -1] = last
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        true, *tensors = ctx.saved_tensors
        pairs = _pairs(tensors)
        parts, own = _parts(grad, pairs), grad[:, :1]
        of_queries = [part @ rows for (_, rows), part in zip(pairs, parts, strict=True)]
        of_queries[0].addcmul_(true, own)
        of_rows = [part.t() @ query for (query, _), part in zip(pairs, parts, strict=True)]
        return (grad[:, -1] if ctx.has_last else None, tensors[0] * own, *of_queries, *of_rows)


def _pairs(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    half = len(tensors) // 2
    return list(zip(tensors[:half], tensors[half:], strict=True))


def _parts(scores: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> Sequence[Tensor]:
    """The columns of each side."""
    sizes = [len(rows) for _, rows in pairs]
    return scores[:, 1 : 1 + sum(sizes)].split(sizes, dim=1)
