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
    others: Sequence[Float[Tensor, "B d"]] = (),
    last: Float[Tensor, "B"] | None = None,
) -> Float[Tensor, "B K_1"]:
    """``[<q_1, true>, q_1 C_1^T, <q_1, other_1>, q_2 C_2^T, <q_2, other_2>, ..., last]``.

    Args:
        true: one more candidate of every row for the first side.
        queries: of each side, at least of one.
        candidates: of each side, the same for all rows.
        others: one more candidate of every row for each side; none at all by default.
        last: one more column.
    """
    found: Tensor = _SideBySide.apply(len(queries), last, true, *queries, *candidates, *others)
    return found


class _SideBySide(Function):
    """Products go to where they belong, and their gradients come from there: nothing is joined or split by copies."""

    @staticmethod
    def forward(ctx: Any, sides: int, last: Tensor | None, true: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(true, *tensors)
        ctx.sides, ctx.has_last = sides, last is not None
        queries, candidates, others = _by_side(sides, tensors)
        out = true.new_empty(len(true), 1 + sum(map(len, candidates)) + len(others) + ctx.has_last)
        torch.sum(queries[0] * true, dim=1, out=out[:, 0])
        parts, singles = _parts(out, candidates, len(others))
        for query, rows, part in zip(queries, candidates, parts, strict=True):
            torch.mm(query, rows.t(), out=part)
        for query, rows, single in zip(queries, others, singles):
            torch.sum(query * rows, dim=1, out=single)
        if last is not None:
            out[:, -1] = last
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        true, *tensors = ctx.saved_tensors
        queries, candidates, others = _by_side(ctx.sides, tensors)
        parts, singles = _parts(grad, candidates, len(others))
        of_queries = [part @ rows for rows, part in zip(candidates, parts, strict=True)]
        of_queries[0].addcmul_(true, grad[:, :1])
        for found, rows, single in zip(of_queries, others, singles):
            found.addcmul_(rows, single.unsqueeze(1))
        of_rows = [part.t() @ query for query, part in zip(queries, parts, strict=True)]
        of_others = [query * single.unsqueeze(1) for query, single in zip(queries, singles)]
        of_last = grad[:, -1] if ctx.has_last else None
        return (None, of_last, queries[0] * grad[:, :1], *of_queries, *of_rows, *of_others)


def _by_side(sides: int, tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    return tensors[:sides], tensors[sides : 2 * sides], tensors[2 * sides :]


def _parts(scores: Tensor, candidates: Sequence[Tensor], others: int) -> tuple[list[Tensor], list[Tensor]]:
    """Of each side the columns of the candidates, and that of the other one where there are any."""
    more = 1 if others else 0
    sizes = [len(rows) + more for rows in candidates]
    sides = scores[:, 1 : 1 + sum(sizes)].split(sizes, dim=1)
    parts = [side[:, : len(rows)] for side, rows in zip(sides, candidates, strict=True)]
    return parts, [side[:, -1] for side in sides] if others else []
