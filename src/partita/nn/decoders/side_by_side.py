"""Scores that are products, those of all sides written beside each other: in one node of autograd, and one tensor."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from partita.kernels.memory import empty_scores
from partita.nn.matmul import operands, write_product


def side_by_side(
    true: Float[Tensor, "B d"],
    queries: Sequence[Float[Tensor, "B d"]],
    candidates: Sequence[Float[Tensor, "_ d"]],
    others: Sequence[Float[Tensor, "B d"]] = (),
    last: Float[Tensor, "B"] | None = None,
) -> Float[Tensor, "B K_1"]:
    """``[<q_1, true>, q_1 C_1^T, <q_1, other_1>, q_2 C_2^T, <q_2, other_2>, ..., last]``.

    Products with shared candidates are computed by the backend in use, and in the dtype of autocast where that is on;
    they are rounded to it. All else is in the dtype of the rows.

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
        queries, candidates, others = _by_side(sides, tensors)
        pairs = [operands(query, rows) for query, rows in zip(queries, candidates, strict=True)]
        ctx.backends = [backend for backend, _, _ in pairs]
        ctx.save_for_backward(true, *queries, *others, *(rows for _, *pair in pairs for rows in pair))
        ctx.sides, ctx.others, ctx.has_last = sides, len(others), last is not None
        dtype = functools.reduce(torch.promote_types, (each.dtype for each in (true, *tensors)))
        columns = 1 + sum(map(len, candidates)) + len(others) + ctx.has_last
        out = empty_scores(len(true), columns, dtype, true.device)
        torch.sum(queries[0] * true, dim=1, out=out[:, 0])
        parts, singles = _parts(out, list(map(len, candidates)), len(others))
        for (backend, query, rows), part in zip(pairs, parts, strict=True):
            write_product(backend, query, rows, part)
        for query, rows, single in zip(queries, others, singles):
            torch.sum(query * rows, dim=1, out=single)
        if last is not None:
            out[:, -1] = last
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        true, *tensors = ctx.saved_tensors
        queries, others, multiplied = _by_side(ctx.sides, tensors, ctx.others)
        pairs = list(zip(ctx.backends, multiplied[::2], multiplied[1::2], strict=True))
        parts, singles = _parts(grad, [len(rows) for _, _, rows in pairs], len(others))
        parts = [part.to(rows.dtype) for (_, _, rows), part in zip(pairs, parts, strict=True)]
        of_queries = [
            backend.by_weight(part, rows).to(grad.dtype) for (backend, _, rows), part in zip(pairs, parts, strict=True)
        ]
        of_queries[0].addcmul_(true, grad[:, :1])
        for found, rows, single in zip(of_queries, others, singles):
            found.addcmul_(rows, single.unsqueeze(1))
        of_rows = [backend.by_rows(part, query) for (backend, query, _), part in zip(pairs, parts, strict=True)]
        of_others = [query * single.unsqueeze(1) for query, single in zip(queries, singles)]
        of_last = grad[:, -1] if ctx.has_last else None
        return (None, of_last, queries[0] * grad[:, :1], *of_queries, *of_rows, *of_others)


def _by_side(
    sides: int, tensors: Sequence[Tensor], second: int | None = None
) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    """One for each side, as many again or as many as is said, and the others."""
    middle = sides + (sides if second is None else second)
    return tensors[:sides], tensors[sides:middle], tensors[middle:]


def _parts(scores: Tensor, candidates: Sequence[int], others: int) -> tuple[list[Tensor], list[Tensor]]:
    """Of each side the columns of the candidates, and that of the other one where there are any."""
    more = 1 if others else 0
    sizes = [number + more for number in candidates]
    sides = scores[:, 1 : 1 + sum(sizes)].split(sizes, dim=1)
    parts = [side[:, :number] for side, number in zip(sides, candidates, strict=True)]
    return parts, [side[:, -1] for side in sides] if others else []
