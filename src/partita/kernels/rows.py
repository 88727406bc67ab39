"""Reading, aggregating and dropping rows: arguments checked, implementation called."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from partita.core.records import Reduce, Transposed
from partita.kernels import checks
from partita.kernels.dispatch import implementation
from partita.kernels.expand import SMALL


def gather_rows(
    x: Shaped[Tensor, "N F"],
    ids: Int[Tensor, "n"],
    *,
    scale: Float[Tensor, "N"] | None = None,
    dtype: torch.dtype = torch.float32,
    out: Shaped[Tensor, "n F"] | None = None,
) -> Shaped[Tensor, "n F"]:
    """Rows of ``x``, as ``dtype`` and multiplied by ``scale``: ``out[i] = scale[ids[i]] * x[ids[i]]``.

    Args:
        x: float16, float32 or float64; int8 or uint8, see :func:`partita.kernels.expand_rows`, are only copied. May
            lie in a read-only memory map or, where the ids are on a device, in pinned host memory, as may ``scale``.
        ids: rows to read.
        scale: factor per row of ``x``.
        dtype: of the result, float32 or float64; or that of ``x`` where this is float16, int8 or uint8 and there is
            no ``scale``: rows are copied.
        out: where to write, contiguous, of ``dtype``.

    Raises:
        IndexError: an id is no row of ``x``.
        ValueError: ``dtype`` is none of these, or ``out`` does not fit.
    """
    if dtype != x.dtype or dtype not in (torch.float16, *SMALL) or scale is not None:
        checks.output_dtype(dtype)
        if x.dtype in SMALL:
            raise ValueError(f"rows of {x.dtype} are small integers, whose values expand_rows gives")
    checks.within("ids", ids, x.shape[0])
    shape = (ids.shape[0], x.shape[1])
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=ids.device)
    elif out.shape != shape or out.dtype != dtype or not out.is_contiguous():
        raise ValueError(f"out must be a contiguous {shape} {dtype}, not {tuple(out.shape)} {out.dtype}")
    if scale is not None:
        scale = (scale if ids.is_cuda else scale.to(dtype)).contiguous()  # a device widens what it reads
    implementation(ids).gather_rows(x.contiguous(), checks.as_ids(ids), scale, out)
    return out


def move_rows(
    x: Shaped[Tensor, "N F"], ids: Int[Tensor, "n"] | None, out: Shaped[Tensor, "M F"], at: Int[Tensor, "n"]
) -> None:
    """Some rows of ``x`` to other places: ``out[at[i]] = x[ids[i]]``.

    Args:
        x: of any dtype, on the device of the others.
        ids: rows to read; ``None``: all, in their order.
        out: where to write, contiguous, of the dtype of ``x``; not the same memory.
        at: where each row goes; no place twice.

    Raises:
        IndexError: an id is no row of ``x``, or a place no row of ``out``.
        ValueError: ``out`` does not fit.
    """
    count = x.shape[0] if ids is None else ids.shape[0]
    if out.dtype != x.dtype or out.shape[1:] != x.shape[1:] or not out.is_contiguous() or at.shape[0] != count:
        raise ValueError(f"{count} rows of {x.dtype} do not go to {at.shape[0]} of {tuple(out.shape)} {out.dtype}")
    if at.is_meta:
        return
    if ids is not None:
        checks.within("ids", ids, x.shape[0])
        ids = checks.as_ids(ids)
    checks.within("at", at, out.shape[0])
    if count == 0 or x.shape[1] == 0:
        return
    implementation(at).move_rows(x.contiguous(), ids, out, checks.as_ids(at))


def aggregate(
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    weight: Float[Tensor, "E"] | Float[Tensor, "E H"] | None = None,
    *,
    reduce: Reduce = "sum",
    scale: Float[Tensor, "S"] | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "D F"]:
    """Weighted sum or mean of the source rows of every destination.

    ``out[i] = sum over e in row i of weight[e] * scale[indices[e]] * x[indices[e]]``, divided by the number of edges
    of the row where ``reduce`` is ``"mean"``; rows without edges are 0.

    Args:
        x: rows of 16, 32 or 64 bits: the sources of a block, or the whole feature column where ``indices``
            are store ids. May lie in pinned host memory where the indices are on a device, as may ``scale``.
        indptr: rows of the block.
        indices: row of ``x`` for every edge.
        weight: coefficient of every edge, or of every edge and head: head h scales columns ``h*F/H : (h+1)*F/H``.
        reduce: ``"sum"`` or ``"mean"``.
        scale: factor per row of ``x``.
        dtype: of the result and the running sum, float32 or float64; by default that of ``x`` (float32 for 16 bits).

    Raises:
        IndexError: an index is no row of ``x``.
        ValueError: lengths, heads, ``dtype`` or ``reduce`` do not fit.
    """
    if dtype is None:
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    checks.output_dtype(dtype)
    checks.known_reduce(reduce)
    checks.edges_match(indptr, indices)
    checks.sources(indices, x.shape[0])  # which are store ids where x is the feature column
    weight = checks.edge_weight(weight, indices.shape[0], x.shape[1], dtype)
    if scale is not None and scale.dtype != dtype and not indices.is_cuda:  # never convert that of a whole store
        per_edge = scale[indices.long()].to(dtype)[:, None]
        weight, scale = per_edge if weight is None else weight * per_edge, None
    scale = None if scale is None else scale.contiguous()
    out = torch.empty(indptr.shape[0] - 1, x.shape[1], dtype=dtype, device=indices.device)
    implementation(indices).aggregate(
        x.contiguous(), checks.as_int64(indptr), checks.as_ids(indices), None, weight, scale, reduce, out
    )
    return out


def aggregate_backward(
    grad: Float[Tensor, "D F"],
    transposed: Transposed,
    indptr: Int[Tensor, "D_1"],
    num_src: int,
    weight: Float[Tensor, "E"] | Float[Tensor, "E H"] | None = None,
    *,
    reduce: Reduce = "sum",
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "S F"]:
    """Gradient of :func:`aggregate` with respect to ``x``, summed per source in the order of the edges.

    Args:
        grad: gradient of the result, float32 or float64.
        transposed: the block's edges by source.
        indptr: rows of the block (the counts of a mean).
        num_src: S.
        weight, reduce: as given to :func:`aggregate`.
        dtype: of the result, by default that of ``grad``; or bfloat16, to which sums in float32 are rounded.
    """
    checks.known_reduce(reduce)
    weight = checks.edge_weight(weight, transposed.edge.shape[0], grad.shape[1], grad.dtype)
    scale = None
    if reduce == "mean":
        scale = (indptr[1:] - indptr[:-1]).clamp_(min=1).to(grad.dtype).reciprocal_()
    if transposed.indptr.shape[0] != num_src + 1:
        raise ValueError(f"a transposed index of {transposed.indptr.shape[0] - 1} sources for {num_src}")
    out = torch.empty(num_src, grad.shape[1], dtype=dtype or grad.dtype, device=grad.device)
    implementation(grad).aggregate(
        grad.contiguous(), transposed.indptr, transposed.dst, transposed.edge, weight, scale, "sum", out
    )
    return out


def aggregate_weight_grad(
    grad: Float[Tensor, "D F"],
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    heads: int,
    *,
    reduce: Reduce = "sum",
) -> Float[Tensor, "E H"]:
    """Gradient of :func:`aggregate` with respect to ``weight``: one dot product per edge and head.

    Args:
        grad: gradient of the result, float32 or float64.
        x, indptr, indices, reduce: as given to :func:`aggregate`.
        heads: H; divides F.
    """
    checks.known_reduce(reduce)
    checks.edges_match(indptr, indices)
    checks.within("indices", indices, x.shape[0])
    checks.heads_divide(heads, x.shape[1])
    out = torch.empty(indices.shape[0], heads, dtype=grad.dtype, device=grad.device)
    implementation(grad).aggregate_weight_grad(
        grad.contiguous(), x.to(grad.dtype).contiguous(), checks.as_int64(indptr), checks.as_ids(indices), reduce, out
    )
    return out


def segment_max(
    x: Float[Tensor, "S F"], indptr: Int[Tensor, "D_1"], indices: Int[Tensor, "E"]
) -> tuple[Float[Tensor, "D F"], Int[Tensor, "D F"]]:
    """Largest value per destination and column, and the edge it came from.

    Returns:
        values (0 where a row has no edges; a NaN counts as the largest), int64 edge positions (the first of equals;
        -1 where a row has no edges).
    """
    checks.edges_match(indptr, indices)
    checks.within("indices", indices, x.shape[0])
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    shape = (indptr.shape[0] - 1, x.shape[1])
    values, argmax = x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)
    implementation(x).segment_max(x.contiguous(), checks.as_int64(indptr), checks.as_ids(indices), values, argmax)
    return values, argmax


def segment_max_backward(
    grad: Float[Tensor, "D F"], argmax: Int[Tensor, "D F"], indices: Int[Tensor, "E"], num_src: int
) -> Float[Tensor, "S F"]:
    """Gradient of :func:`segment_max` with respect to ``x``: all of it goes to the edge that won."""
    checks.within("indices", indices, num_src)
    out = torch.zeros(num_src, grad.shape[1], dtype=grad.dtype, device=grad.device)
    implementation(grad).segment_max_backward(grad.contiguous(), argmax.contiguous(), checks.as_ids(indices), out)
    return out


def transpose(indptr: Int[Tensor, "D_1"], indices: Int[Tensor, "E"], num_src: int) -> Transposed:
    """A block's edges grouped by source, in ascending order of the edge (a stable counting sort).

    Raises:
        IndexError: an index is not below ``num_src``.
    """
    checks.edges_match(indptr, indices)
    checks.within("indices", indices, num_src)
    return Transposed(*implementation(indices).transpose(checks.as_int64(indptr), checks.as_ids(indices), num_src))


def dropout(
    x: Float[Tensor, "n F"],
    rows_original: Int[Tensor, "n"],
    key: int,
    p: float,
    *,
    relu: bool = False,
    out: Float[Tensor, "n F"] | None = None,
) -> Float[Tensor, "n F"]:
    """Zero elements with probability ``p`` and scale the others by 1/(1-p), keyed by node and column.

    Without ``relu``, the same call on the gradient is the backward pass. ``p`` is rounded to a multiple of 2^-16.

    Args:
        x: rows, float32 or float64.
        rows_original: original index of the node of every row.
        key: 64-bit key of the step and layer.
        p: probability of zero, 0 to 1.
        relu: make negative elements 0 as well.
        out: where to write, contiguous, like ``x``; may be ``x``.
    """
    threshold, factor = checks.dropout_rule(p)
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    elif out.shape != x.shape or out.dtype != x.dtype or not out.is_contiguous():
        raise ValueError("out must be contiguous and of the shape and dtype of x")
    checks.rows_match(x, rows_original)
    implementation(x).dropout(x.contiguous(), checks.as_int64(rows_original), key, threshold, factor, relu, out)
    return out


def norm_relu_dropout(
    x: Float[Tensor, "n F"],
    weight: Float[Tensor, "F"],
    bias: Float[Tensor, "F"],
    eps: float,
    rows_original: Int[Tensor, "n"],
    key: int,
    p: float,
) -> tuple[Float[Tensor, "n F"], Float[Tensor, "n 2"]]:
    """Layer normalization, then ReLU, then :func:`dropout`, in one pass over the rows.

    Args:
        x: rows, float32, float64 or bfloat16.
        weight, bias: of the normalization.
        eps: added to the variance of a row.
        rows_original: original index of the node of every row.
        key: 64-bit key of the step and layer.
        p: probability of zero, 0 to 1; 0 draws nothing.

    Returns:
        rows of the dtype of ``x``; and every row's mean and inverse standard deviation, float64 where ``x`` is and
        float32 elsewhere, for :func:`norm_relu_dropout_backward`.
    """
    threshold, factor = checks.dropout_rule(p)
    checks.rows_match(x, rows_original)
    exact = torch.float64 if x.dtype == torch.float64 else torch.float32
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    moments = torch.zeros(x.shape[0], 2, dtype=exact, device=x.device)
    if x.numel():
        implementation(x).norm_relu_dropout(
            x.contiguous(), weight.to(exact).contiguous(), bias.to(exact).contiguous(), eps,
            checks.as_int64(rows_original), key, threshold, factor, out, moments,
        )  # fmt: skip
    return out, moments


def norm_relu_dropout_backward(
    grad: Float[Tensor, "n F"],
    out: Float[Tensor, "n F"],
    x: Float[Tensor, "n F"],
    weight: Float[Tensor, "F"],
    moments: Float[Tensor, "n 2"],
    p: float,
) -> tuple[Float[Tensor, "n F"], Float[Tensor, "F"], Float[Tensor, "F"]]:
    """Gradients of :func:`norm_relu_dropout` with respect to ``x``, ``weight`` and ``bias``.

    What is positive in ``out`` was kept, so that nothing is drawn again.

    Args:
        grad: gradient of the result, of its dtype.
        out: the result.
        x, weight, p: as given there.
        moments: as returned there.
    """
    columns, weight = x.shape[1], weight.to(moments.dtype).contiguous()
    if not x.numel():
        return torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(weight)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    of_weight, of_bias = implementation(x).norm_relu_dropout_backward(
        grad.contiguous(), out, x.contiguous(), weight, moments, checks.dropout_rule(p)[1], grad_x
    )
    return grad_x, of_weight.reshape(columns), of_bias.reshape(columns)


def dropout_factor(p: float) -> float:
    """What :func:`dropout` scales by: 1/(1-p), with ``p`` rounded as there; 0 where nothing is kept."""
    return checks.dropout_rule(p)[1]


def edge_dropout(
    indptr: Int[Tensor, "D_1"],
    dst_original: Int[Tensor, "D"],
    key: int,
    p: float,
    heads: int,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "E H"]:
    """Dropout multipliers, 0 or 1/(1-p), keyed by destination, place of the edge in its row, and head.

    Args:
        indptr: rows of the block.
        dst_original: original indices of the destinations.
        key: 64-bit key of the step and layer.
        p: probability of zero, 0 to 1, rounded to a multiple of 2^-16.
        heads: H.
        dtype: of the result, float32 or float64.
    """
    checks.output_dtype(dtype)
    threshold, factor = checks.dropout_rule(p)
    indptr = checks.as_int64(indptr)
    out = torch.empty(int(indptr[-1]), heads, dtype=dtype, device=indptr.device)
    implementation(indptr).edge_dropout(indptr, checks.as_int64(dst_original), key, threshold, factor, out)
    return out


def widened(x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """The tensor, contiguous, in float32 where it was of half precision. Differentiable."""
    return (x.float() if x.dtype in (torch.bfloat16, torch.float16) else x).contiguous()
