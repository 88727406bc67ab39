"""Keyed dropout in Triton, and layer normalization, ReLU and dropout by PyTorch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from partita.kernels.gpu.draws import fold, unsigned
from partita.kernels.gpu.launch import BLOCK, blocks, launch, signed


def dropout(
    x: Float[Tensor, "n F"],
    rows_original: Int[Tensor, "n"],
    key: int,
    threshold: int,
    factor: float,
    relu: bool,
    out: Float[Tensor, "n F"],
) -> None:
    """See :func:`partita.kernels.reference.dropout`."""
    columns = x.shape[1]
    groups = x.shape[0] * blocks(columns, 4)
    launch(
        drop_rows_kernel, (blocks(groups, BLOCK),), out,
        x, rows_original, out, signed(key), threshold, groups, columns, RELU=relu, BLOCK=BLOCK,
    )  # fmt: skip


def edge_dropout(
    indptr: Int[Tensor, "D_1"],
    dst_original: Int[Tensor, "D"],
    key: int,
    threshold: int,
    factor: float,
    out: Float[Tensor, "E H"],
) -> None:
    """See :func:`partita.kernels.reference.edge_dropout`."""
    num, heads = out.shape
    row = torch.repeat_interleave(indptr.diff(), output_size=num)
    launch(
        drop_edges_kernel, (blocks(num, BLOCK), blocks(heads, 4)), out,
        indptr, row, dst_original, out, signed(key), threshold, num, heads, BLOCK=BLOCK,
    )  # fmt: skip


def norm_relu_dropout(
    x: Float[Tensor, "n F"],
    weight: Float[Tensor, "F"],
    bias: Float[Tensor, "F"],
    eps: float,
    rows_original: Int[Tensor, "n"],
    key: int,
    threshold: int,
    factor: float,
    out: Float[Tensor, "n F"],
    moments: Float[Tensor, "n 2"],
) -> None:
    """See :func:`partita.kernels.reference.norm_relu_dropout`."""
    normal, mean, inverse = torch.native_layer_norm(x.to(moments.dtype), x.shape[1:], weight, bias, eps)
    torch.cat([mean, inverse], 1, out=moments)
    if threshold:
        dropout(normal, rows_original, key, threshold, factor, True, normal)
    out.copy_(normal.relu_())


def norm_relu_dropout_backward(
    grad: Float[Tensor, "n F"],
    out: Float[Tensor, "n F"],
    x: Float[Tensor, "n F"],
    weight: Float[Tensor, "F"],
    moments: Float[Tensor, "n 2"],
    factor: float,
    grad_x: Float[Tensor, "n F"],
) -> tuple[Float[Tensor, "F"], Float[Tensor, "F"]]:
    """See :func:`partita.kernels.reference.norm_relu_dropout_backward`."""
    exact = moments.dtype
    passed = torch.ops.aten.threshold_backward(grad.to(exact), out.to(exact), 0).mul_(factor)
    of_rows, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
        passed, x.to(exact), x.shape[1:], moments[:, :1].contiguous(), moments[:, 1:].contiguous(), weight,
        torch.zeros_like(weight), [True, True, True],
    )  # fmt: skip
    grad_x.copy_(of_rows)
    return of_weight, of_bias


@triton.jit(do_not_specialize=["key", "threshold", "num"])
def drop_rows_kernel(x, original, out, key, threshold, num, columns, RELU: tl.constexpr, BLOCK: tl.constexpr):
    """Dropout of ``num`` groups of four columns: one draw has the lanes of a group."""
    groups = (columns + 3) // 4
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num
    row, group = at // groups, at % groups
    draw = fold(fold(unsigned(key), tl.load(original + row, mask=inside, other=0)), group)
    lane = tl.arange(0, 4)
    column = group[:, None] * 4 + lane[None, :]
    there = inside[:, None] & (column < columns)
    keep = ((draw[:, None] >> (16 * lane[None, :]).to(tl.uint64)) & 0xFFFF).to(tl.int32) >= threshold
    place = row[:, None] * columns + column
    values = tl.load(x + place, mask=there, other=0.0)
    if RELU:
        values = tl.where(values <= 0, 0.0, values)  # a NaN stays one
    kept = tl.where(keep, values * _factor(threshold).to(values.dtype), 0.0)
    tl.store(out + place, kept, mask=there)


@triton.jit(do_not_specialize=["key", "threshold", "num"])
def drop_edges_kernel(indptr, row, original, out, key, threshold, num, heads, BLOCK: tl.constexpr):
    """Multipliers of ``num`` edges, whose destinations are ``row``, for four heads per program."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    group = tl.program_id(1)
    inside = e < num
    i = tl.load(row + e, mask=inside, other=0).to(tl.int64)
    slot = tl.where(inside, e - tl.load(indptr + i, mask=inside, other=0), 0)
    node_key = fold(unsigned(key), tl.load(original + i, mask=inside, other=0))
    draw = fold(fold(node_key, slot), group)
    lane = tl.arange(0, 4)
    head = group * 4 + lane
    there = inside[:, None] & (head < heads)[None, :]
    keep = ((draw[:, None] >> (16 * lane[None, :]).to(tl.uint64)) & 0xFFFF).to(tl.int32) >= threshold
    factor = _factor(threshold).to(out.dtype.element_ty)
    tl.store(out + e[:, None] * heads + head[None, :], tl.where(keep, factor, 0.0), mask=there)


@triton.jit
def _factor(threshold):
    """What kept values are multiplied by, float64: an argument would arrive as float32."""
    return 65536.0 / tl.maximum(65536 - threshold, 1).to(tl.float64)
