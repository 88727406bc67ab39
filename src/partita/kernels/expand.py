"""Making numbers of rows that are stored as small integers: arguments checked, implementation called."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from partita.kernels import checks
from partita.kernels.dispatch import implementation

SMALL = (torch.int8, torch.uint8)
"""Dtypes of rows of small integers: one value a byte, less 128; or two values a byte, the first in the low half."""


def expand_rows(
    x: Integer[Tensor, "N B"],
    ids: Int[Tensor, "n"],
    step: Float[Tensor, "F"],
    offset: Float[Tensor, "F"],
    *,
    first: int = 0,
    scale: Float[Tensor, "N"] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "n F"]:
    """Values of rows of small integers: ``out[i, c] = (q[ids[i], first + c] * step[c] + offset[c]) * scale[ids[i]]``.

    A product and a sum are rounded by themselves, so that every implementation gives the same bits.

    Args:
        x: int8, where q is ``x + 128``; or uint8 with two values a byte, the first in the low half. May lie in a
            read-only memory map or, where the ids are on a device, in pinned host memory, as may ``scale``.
        ids: rows to read.
        step, offset: float32, of each column of the result.
        first: column of ``x`` that is the first of the result; of two values a byte, any.
        scale: factor per row of ``x``.
        dtype: of the result, float32 or float64.

    Raises:
        IndexError: an id is no row of ``x``.
        ValueError: ``x`` or ``dtype`` is none of these, or ``x`` does not have the columns.
    """
    checks.output_dtype(dtype)
    if x.dtype not in SMALL:
        raise ValueError(f"rows of {x.dtype} are no small integers: must be int8 or uint8")
    checks.within("ids", ids, x.shape[0])
    columns = x.shape[1] * (1 if x.dtype == torch.int8 else 2)
    if step.shape != offset.shape or not 0 <= first <= first + step.shape[0] <= columns:
        raise ValueError(f"columns {first} to {first + step.shape[0]} of {columns}, with {offset.shape[0]} offsets")
    out = torch.empty(ids.shape[0], step.shape[0], dtype=dtype, device=ids.device)
    step, offset = (each.to(ids.device, dtype).contiguous() for each in (step, offset))
    if scale is not None:
        scale = (scale if ids.is_cuda else scale.to(dtype)).contiguous()  # a device widens what it reads
    implementation(ids).expand_rows(x.contiguous(), checks.as_ids(ids), step, offset, first, scale, out)
    return out
