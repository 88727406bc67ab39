"""Dropout, also after normalization and ReLU, and permutations on a CUDA device."""
# mypy: ignore-errors

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partita.kernels import gpu_draws
from partita.kernels.gpu_launch import BLOCK, blocks, launch, signed


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
        gpu_draws.drop_rows, (blocks(groups, BLOCK),), out,
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
        gpu_draws.drop_edges, (blocks(num, BLOCK), blocks(heads, 4)), out,
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


def keyed_permutation(start: int, n: int, key: int, out: Int[Tensor, "m"]) -> None:
    """See :func:`partita.kernels.reference.keyed_permutation`."""
    num, bits = out.shape[0], max(1, ((n - 1).bit_length() + 1) // 2)
    launch(
        gpu_draws.permute, (blocks(num, BLOCK),), out, out, signed(key), start, n, bits, num, BLOCK=BLOCK
    )  # fmt: skip
