"""Differentiable operations over a :class:`~partita.core.records.Block`, on top of :mod:`partita.kernels`.

Every backward pass is a gather or a segmented sum over the block's edges, grouped by destination or by source;
nothing scatters, so that results do not depend on the number of threads. Under autocast, rows of 16 bits come in: sums
over edges are never accumulated in 16 bits, and their results are float32.

Letters: D destinations, S sources, E edges, F columns, H heads, C columns of one head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from partita import kernels
from partita.core.records import Block, LazyRows, Reduce, Transposed

Rows = Tensor | LazyRows
"""Rows of a block's sources: a tensor (S, F), or input rows that are read on demand."""


def transposed_of(block: Block) -> Transposed:
    """The block's edges grouped by source: computed at the first call, then kept on the block.

    ``Block`` is frozen, but ``transposed`` is a function of its other fields, so storing it changes nothing that
    an observer could see.
    """
    if block.transposed is None:
        object.__setattr__(block, "transposed", kernels.transpose(block.indptr, block.indices, block.num_src))
    return block.transposed  # type: ignore[return-value]


def all_rows(h: Rows) -> Float[Tensor, "S F"]:
    """The rows of every source of the block."""
    return h if isinstance(h, Tensor) else h.all()


def own_rows(block: Block, h: Rows) -> Float[Tensor, "D F"]:
    """The rows of the block's destinations: the first D sources."""
    if isinstance(h, Tensor):
        return h if h.shape[0] == block.num_dst else h[: block.num_dst]  # a slice's gradient is a copy
    return h.of_destinations()


def aggregate(block: Block, h: Rows, reduce: Reduce) -> Float[Tensor, "D F"]:
    """Reduce the rows of every destination's neighbors.

    Args:
        block: its ``weight``, where present, makes the result a weighted sum, whatever ``reduce`` says.
        h: rows of the sources. Input rows that are read on demand get no gradient.
        reduce: ``"sum"`` or ``"mean"``; 0 for a destination without edges.
    """
    if block.weight is not None:
        reduce = "sum"
    if not isinstance(h, Tensor):
        return h.aggregate(reduce)
    return _Aggregate.apply(_as_read(h), block.weight, block, reduce)


def aggregate_inputs(
    block: Block, rows: Float[Tensor, "S F"], reduce: Reduce, dtype: torch.dtype
) -> Float[Tensor, "D F"]:
    """:func:`aggregate` of input rows, also of float16, which usually want no gradient.

    Args:
        block: its ``weight``, where present, makes the result a weighted sum, whatever ``reduce`` says.
        rows: of the sources.
        reduce: ``"sum"`` or ``"mean"``.
        dtype: of the result and of the running sum, float32 or float64.
    """
    if rows.requires_grad:
        return aggregate(block, rows.to(dtype), reduce)
    reduce = reduce if block.weight is None else "sum"
    return kernels.aggregate(rows, block.indptr, block.indices, block.weight, reduce=reduce, dtype=dtype)


def pick_inputs(rows: Float[Tensor, "m F"], index: Int[Tensor, "n"], dtype: torch.dtype) -> Float[Tensor, "n F"]:
    """:func:`pick_rows` of input rows, also of float16, which usually want no gradient; as ``dtype``."""
    if rows.requires_grad:
        return pick_rows(rows.to(dtype), index)
    return kernels.gather_rows(rows, index, dtype=dtype)


def aggregate_with_own(
    block: Block, h: Float[Tensor, "S F"], reduce: Reduce
) -> tuple[Float[Tensor, "D F"], Float[Tensor, "D F"]]:
    """:func:`aggregate` and :func:`own_rows`, whose gradients backward joins in one tensor."""
    reduce = reduce if block.weight is None else "sum"
    return _AggregateWithOwn.apply(_as_read(h), block.weight, block, reduce)


def aggregate_heads(
    block: Block,
    h: Float[Tensor, "S HC"],
    weight: Float[Tensor, "E H"],
    self_weight: Float[Tensor, "D H"] | None = None,
) -> Float[Tensor, "D HC"]:
    """Sum the neighbors' rows with one weight per edge and head; differentiable in the rows and the weights.

    Args:
        block: whose destinations are the first of its sources where ``self_weight`` is given.
        h: rows of the sources.
        weight: of every edge and head.
        self_weight: weights with which the destinations' own rows join the sums.
    """
    h = kernels.widened(h)
    own = None if self_weight is None else self_weight.to(h.dtype)
    return _AggregateHeads.apply(h, weight.to(h.dtype), own, block)


def edge_products(block: Block, h: Float[Tensor, "S HC"], q: Float[Tensor, "D HC"], heads: int) -> Float[Tensor, "E H"]:
    """The product of each edge's source row and destination row, head by head.

    Args:
        block: its edges.
        h: rows of the sources.
        q: rows of the destinations.
        heads: H, which share the columns.
    """
    return _EdgeProducts.apply(h, q, block, heads)


def segment_max(block: Block, h: Float[Tensor, "S F"], *, empty: float = 0.0) -> Float[Tensor, "D F"]:
    """The largest neighbor value per column; ``empty`` for a destination without edges.

    The gradient goes to the first edge that reaches the maximum.
    """
    return _SegmentMax.apply(kernels.widened(h), block, empty)


def source_to_edges(block: Block, values: Float[Tensor, "S H"]) -> Float[Tensor, "E H"]:
    """Give every edge its source's row."""
    return _apply(values, lambda rows: rows.index_select(0, block.indices), lambda grad: _sum_by_source(block, grad))


def pick_rows(values: Float[Tensor, "m F"], index: Int[Tensor, "n"]) -> Float[Tensor, "n F"]:
    """Rows by position, repeated or not. Gradients of a row are summed in the order of the index, on any threads."""
    return _apply(values, lambda rows: rows.index_select(0, index), partial(_sum_picks, index, values.shape[0]))


def permute_rows(
    values: Float[Tensor, "n F"], order: Int64[Tensor, "n"], place: Int64[Tensor, "n"]
) -> Float[Tensor, "n F"]:
    """Rows in another order; ``place`` is the inverse of it."""
    return _apply(values, lambda rows: rows.index_select(0, order), lambda grad: grad.index_select(0, place))


def destination_to_edges(block: Block, values: Float[Tensor, "D H"]) -> Float[Tensor, "E H"]:
    """Give every edge its destination's row."""
    return _apply(values, partial(_spread, block), partial(_sum_edges, block))


def edges_to_destination(block: Block, values: Float[Tensor, "E H"]) -> Float[Tensor, "D H"]:
    """Sum the rows of every destination's edges."""
    return _apply(values, partial(_sum_edges, block), partial(_spread, block))


def edges_max(block: Block, values: Float[Tensor, "E H"]) -> Float[Tensor, "D H"]:
    """The largest row entry over every destination's edges, -inf where it has none. No gradient flows."""
    largest, edge = kernels.segment_max(values.detach().contiguous(), block.indptr, _positions(block))
    return largest.masked_fill(edge < 0, -torch.inf)


def keyed_dropout(x: Float[Tensor, "n F"], rows_original: Int[Tensor, "n"], key: int, p: float) -> Float[Tensor, "n F"]:
    """Set entries to 0 with probability ``p`` and scale the others by 1/(1-p).

    Whether an entry is dropped is a function of (key, original index of its row, column) alone.
    """
    drop = partial(kernels.dropout, rows_original=rows_original, key=key, p=p)
    return _apply(x, drop, drop)


def relu_dropout(x: Float[Tensor, "n F"], rows_original: Int[Tensor, "n"], key: int, p: float) -> Float[Tensor, "n F"]:
    """:func:`keyed_dropout` of the positive part, in one pass."""
    return _ReluDropout.apply(kernels.widened(x), rows_original, key, p)


def norm_relu_dropout(
    x: Float[Tensor, "n F"], norm: nn.LayerNorm, rows_original: Int[Tensor, "n"], key: int, p: float
) -> Float[Tensor, "n F"]:
    """Layer normalization, then :func:`relu_dropout`, in one pass; the result has the dtype of ``x``."""
    return _NormReluDropout.apply(x, norm.weight, norm.bias, norm.eps, rows_original, key, p)


def _as_read(h: Float[Tensor, "S F"]) -> Float[Tensor, "S F"]:
    """Contiguous, of a dtype that gradients of rows are written in."""
    return kernels.widened(h) if h.dtype == torch.float16 else h.contiguous()


def _positions(block: Block) -> Int[Tensor, "E"]:
    return torch.arange(block.num_edges, device=block.indices.device)


def _sum_edges(block: Block, values: Tensor) -> Tensor:
    return kernels.aggregate(values.contiguous(), block.indptr, _positions(block), reduce="sum")


def _sum_by_source(block: Block, values: Tensor) -> Tensor:
    by_source = transposed_of(block)
    return kernels.aggregate(values.contiguous(), by_source.indptr, by_source.edge, reduce="sum")


def _sum_picks(index: Tensor, num_rows: int, values: Tensor) -> Tensor:
    each = torch.arange(index.shape[0] + 1, device=index.device)
    by_row = kernels.transpose(each, index, num_rows)
    return kernels.aggregate(values.contiguous(), by_row.indptr, by_row.edge, reduce="sum")


def _spread(block: Block, values: Tensor) -> Tensor:
    return values.index_select(0, block.edge_dst())


def _apply(rows: Tensor, linear: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor]) -> Tensor:
    """A linear map of rows, whose gradient is its adjoint's."""
    return _LinearMap.apply(kernels.widened(rows), linear, adjoint)


class _LinearMap(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, linear: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor]) -> Any:
        ctx.adjoint = adjoint
        return linear(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.adjoint(grad), None, None


class _Aggregate(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor | None, block: Block, reduce: Reduce) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.block, ctx.reduce, ctx.num_src, ctx.dtype = block, reduce, h.shape[0], h.dtype
        return kernels.aggregate(h, block.indptr, block.indices, weight, reduce=reduce)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (weight,) = ctx.saved_tensors
        block: Block = ctx.block
        grad_h = kernels.aggregate_backward(
            grad.contiguous(), transposed_of(block), block.indptr, ctx.num_src, weight,
            reduce=ctx.reduce, dtype=ctx.dtype,
        )  # fmt: skip
        return grad_h, None, None, None


class _AggregateWithOwn(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor | None, block: Block, reduce: Reduce) -> tuple[Tensor, Tensor]:
        return _Aggregate.forward(ctx, h, weight, block, reduce), h[: block.num_dst]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, own: Tensor) -> tuple[Tensor, None, None, None]:
        grad_h = _Aggregate.backward(ctx, grad)[0]
        grad_h[: own.shape[0]] += own
        return grad_h, None, None, None


class _AggregateHeads(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, self_weight: Tensor | None, block: Block) -> Tensor:
        ctx.save_for_backward(h, weight, self_weight)
        ctx.block = block
        sums = kernels.aggregate(h, block.indptr, block.indices, weight, reduce="sum")
        if self_weight is not None:
            _by_head(sums, self_weight).addcmul_(_by_head(h[: block.num_dst], self_weight), self_weight.unsqueeze(2))
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        h, weight, self_weight = ctx.saved_tensors
        block: Block = ctx.block
        grad, num_dst, heads = grad.contiguous(), block.num_dst, weight.shape[1]
        grad_h = grad_weight = grad_own = None
        if ctx.needs_input_grad[0]:
            grad_h = kernels.aggregate_backward(
                grad, transposed_of(block), block.indptr, h.shape[0], weight, reduce="sum"
            )
            if self_weight is not None:
                _by_head(grad_h[:num_dst], weight).addcmul_(_by_head(grad, weight), self_weight.unsqueeze(2))
        if ctx.needs_input_grad[1]:
            grad_weight = kernels.aggregate_weight_grad(grad, h, block.indptr, block.indices, heads)
        if ctx.needs_input_grad[2]:
            each = torch.arange(num_dst + 1, device=grad.device)  # one edge for every destination: its own row
            grad_own = kernels.aggregate_weight_grad(grad, h, each, each[:-1], heads)
        return grad_h, grad_weight, grad_own, None


class _EdgeProducts(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, q: Tensor, block: Block, heads: int) -> Tensor:
        ctx.save_for_backward(h, q)
        ctx.block = block
        return kernels.aggregate_weight_grad(q.contiguous(), h, block.indptr, block.indices, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        h, q = ctx.saved_tensors
        block, grad = ctx.block, grad.contiguous()
        grad_q = kernels.aggregate(h, block.indptr, block.indices, grad, reduce="sum")
        grad_h = kernels.aggregate_backward(
            q.contiguous(), transposed_of(block), block.indptr, h.shape[0], grad, reduce="sum"
        )
        return grad_h, grad_q, None, None


def _by_head(rows: Float[Tensor, "n HC"], weight: Float[Tensor, "m H"]) -> Float[Tensor, "n H C"]:
    return rows.unflatten(1, (weight.shape[1], -1))


class _SegmentMax(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, block: Block, empty: float) -> Tensor:
        values, argmax = kernels.segment_max(h, block.indptr, block.indices)
        ctx.save_for_backward(argmax, block.indices)
        ctx.num_src = h.shape[0]
        return values if empty == 0.0 else values.masked_fill(argmax < 0, empty)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        argmax, indices = ctx.saved_tensors
        return kernels.segment_max_backward(grad.contiguous(), argmax, indices, ctx.num_src), None, None


class _ReluDropout(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows_original: Tensor, key: int, p: float) -> Tensor:
        result = kernels.dropout(x, rows_original, key, p, relu=True)
        ctx.save_for_backward(result)
        ctx.p = p
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (result,) = ctx.saved_tensors
        # What is positive was kept: no draw need be made again.
        passed = torch.ops.aten.threshold_backward(grad, result, 0)
        return passed.mul_(kernels.dropout_factor(ctx.p)), None, None, None


class _NormReluDropout(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, rows_original: Tensor, key: int, p: float
    ) -> Tensor:
        result, moments = kernels.norm_relu_dropout(x, weight, bias, eps, rows_original, key, p)
        ctx.save_for_backward(result, x, weight, moments)
        ctx.p = p
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        result, x, weight, moments = ctx.saved_tensors
        grads = kernels.norm_relu_dropout_backward(grad, result, x, weight, moments, ctx.p)
        return (*grads, None, None, None, None)
