"""Values of rows of small integers."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor


def expand_rows(
    x: Integer[Tensor, "N B"],
    ids: Int[Tensor, "n"],
    step: Float[Tensor, "F"],
    offset: Float[Tensor, "F"],
    first: int,
    scale: Float[Tensor, "N"] | None,
    out: Float[Tensor, "n F"],
) -> None:
    """Fill ``out``."""
    rows, columns = x[ids.long()], slice(first, first + step.shape[0])
    if x.dtype == torch.uint8:
        pairs = torch.stack([rows & 15, rows >> 4], dim=2).reshape(rows.shape[0], 2 * rows.shape[1])
        steps = pairs[:, columns].to(out.dtype)
    else:
        steps = rows[:, columns].to(out.dtype) + 128
    torch.mul(steps, step, out=out)
    out.add_(offset)
    if scale is not None:
        out.mul_(scale[ids.long()][:, None])
