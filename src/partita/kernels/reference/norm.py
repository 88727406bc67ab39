"""Keyed dropout, also after layer normalization and ReLU; the rule is in :mod:`partita.kernels.reference`."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from partita.kernels.reference.draws import fold_all, lanes


def dropout(
    x: Float[Tensor, "n F"],
    rows_original: Int[Tensor, "n"],
    key: int,
    threshold: int,
    factor: float,
    relu: bool,
    out: Float[Tensor, "n F"],
) -> None:
    """Fill ``out``, which may be ``x``."""
    row_key = fold_all(np.full(rows_original.shape, key, np.uint64), rows_original.numpy().astype(np.uint64))
    keep = torch.from_numpy(lanes(row_key[:, None], x.shape[1]) >= threshold)
    out.copy_(torch.where(keep, (x.relu() if relu else x) * factor, torch.zeros((), dtype=x.dtype)))


def edge_dropout(
    indptr: Int[Tensor, "D_1"],
    dst_original: Int[Tensor, "D"],
    key: int,
    threshold: int,
    factor: float,
    out: Float[Tensor, "E H"],
) -> None:
    """Fill ``out``."""
    dst = torch.repeat_interleave(indptr[1:] - indptr[:-1])
    slot = (torch.arange(out.shape[0]) - indptr[dst]).numpy().astype(np.uint64)
    original = dst_original[dst].numpy().astype(np.uint64)
    edge_key = fold_all(fold_all(np.full(original.shape, key, np.uint64), original), slot)
    keep = torch.from_numpy(lanes(edge_key[:, None], out.shape[1]) >= threshold)
    out.copy_(keep.to(out.dtype) * factor)


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
    """Fill ``out`` and ``moments`` (mean, 1 / sqrt(variance + eps)); all is computed in the dtype of ``moments``."""
    rows = x.to(moments.dtype)
    moments[:, 0] = rows.mean(1)
    moments[:, 1] = (rows.var(1, correction=0) + eps).rsqrt()
    normal = (rows - moments[:, :1]) * moments[:, 1:] * weight + bias
    if threshold:
        dropout(normal, rows_original, key, threshold, factor, True, normal)
    out.copy_(normal.relu())


def norm_relu_dropout_backward(
    grad: Float[Tensor, "n F"],
    out: Float[Tensor, "n F"],
    x: Float[Tensor, "n F"],
    weight: Float[Tensor, "F"],
    moments: Float[Tensor, "n 2"],
    factor: float,
    grad_x: Float[Tensor, "n F"],
) -> tuple[Float[Tensor, "F"], Float[Tensor, "F"]]:
    """Fill ``grad_x``; the gradients of weight and bias."""
    passed = torch.where(out <= 0, 0.0, grad.to(moments.dtype) * factor)
    normal = (x.to(moments.dtype) - moments[:, :1]) * moments[:, 1:]
    weighted = passed * weight
    along = (weighted * normal).mean(1, keepdim=True)
    grad_x.copy_((weighted - weighted.mean(1, keepdim=True) - normal * along) * moments[:, 1:])
    return (passed * normal).sum(0), passed.sum(0)
