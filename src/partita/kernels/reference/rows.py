"""Reading and aggregating rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor


def gather_rows(
    x: Float[Tensor, "N F"], ids: Int[Tensor, "n"], scale: Float[Tensor, "N"] | None, out: Float[Tensor, "n F"]
) -> None:
    """Fill ``out``."""
    out.copy_(x[ids.long()])
    if scale is not None:
        out.mul_(scale[ids.long()][:, None])


def move_rows(
    x: Shaped[Tensor, "N F"], ids: Int[Tensor, "n"] | None, out: Shaped[Tensor, "M F"], at: Int[Tensor, "n"]
) -> None:
    """Fill some rows of ``out``."""
    out[at.long()] = x if ids is None else x[ids.long()]


def aggregate(
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    edge: Int[Tensor, "E"] | None,
    weight: Float[Tensor, "E H"] | None,
    scale: Float[Tensor, "S"] | None,
    reduce: str,
    out: Float[Tensor, "D F"],
) -> None:
    """Fill ``out``; where ``edge`` is given, the weight of edge e is ``weight[edge[e]]``.

    Sums are float64 where ``out`` is, and float32 elsewhere.
    """
    counts = indptr[1:] - indptr[:-1]
    rows = x[indices.long()].to(torch.float64 if out.dtype == torch.float64 else torch.float32)
    if scale is not None:
        rows = rows * scale[indices.long()][:, None]
    if weight is not None:
        weight = weight if edge is None else weight[edge]
        heads = weight.shape[1]
        rows = (rows.reshape(-1, heads, rows.shape[1] // heads) * weight[:, :, None]).reshape(rows.shape)
    total = rows.new_zeros(out.shape).index_add_(0, torch.repeat_interleave(counts), rows)
    if reduce == "mean":
        total.div_(counts.clamp(min=1)[:, None])
    out.copy_(total)


def aggregate_weight_grad(
    grad: Float[Tensor, "D F"],
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    reduce: str,
    out: Float[Tensor, "E H"],
) -> None:
    """Fill ``out``."""
    counts = indptr[1:] - indptr[:-1]
    dst = torch.repeat_interleave(counts)
    products = grad[dst] * x[indices.long()]
    out.copy_(products.reshape(*out.shape, x.shape[1] // out.shape[1]).sum(-1))
    if reduce == "mean":
        out.div_(counts[dst][:, None])


def segment_max(
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    values: Float[Tensor, "D F"],
    argmax: Int[Tensor, "D F"],
) -> None:
    """Fill ``values`` and ``argmax``."""
    rows, begins = x[indices.long()].numpy(), indptr.tolist()
    values.zero_()
    argmax.fill_(-1)
    for i, (begin, end) in enumerate(pairwise(begins)):
        if end > begin:
            first = rows[begin:end].argmax(0)  # numpy: the first of equals, and NaN is the largest
            values[i] = torch.from_numpy(np.take_along_axis(rows[begin:end], first[None], 0)[0])
            argmax[i] = begin + torch.from_numpy(first)


def segment_max_backward(
    grad: Float[Tensor, "D F"], argmax: Int[Tensor, "D F"], indices: Int[Tensor, "E"], out: Float[Tensor, "S F"]
) -> None:
    """Add to ``out``, which is zero."""
    row, column = torch.nonzero(argmax >= 0, as_tuple=True)
    out.index_put_((indices[argmax[row, column]].long(), column), grad[row, column], accumulate=True)


def transpose(
    indptr: Int[Tensor, "D_1"], indices: Int[Tensor, "E"], num_src: int
) -> tuple[Int[Tensor, "S_1"], Int[Tensor, "E"], Int[Tensor, "E"]]:
    """``indptr``, ``dst`` and ``edge`` of the transposed index."""
    edge = torch.argsort(indices, stable=True)
    begins = torch.zeros(num_src + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(indices, minlength=num_src), 0, out=begins[1:])
    return begins, torch.repeat_interleave(indptr[1:] - indptr[:-1])[edge].int(), edge
