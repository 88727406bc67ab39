"""Values of rows of small integers, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int, Integer
from torch import Tensor

from partita.kernels.gpu.launch import blocks, launch, power_of_two
from partita.kernels.gpu.rows import GATHERED, MOST_ROWS


def expand_rows(
    x: Integer[Tensor, "N B"],
    ids: Int[Tensor, "n"],
    step: Float[Tensor, "F"],
    offset: Float[Tensor, "F"],
    first: int,
    scale: Float[Tensor, "N"] | None,
    out: Float[Tensor, "n F"],
) -> None:
    """See :func:`partita.kernels.reference.expand_rows`."""
    num, columns = out.shape
    wide = min(power_of_two(columns), 256)
    rows = min(GATHERED // wide, MOST_ROWS)
    grid = (blocks(num, rows), blocks(columns, wide))
    launch(
        expand_kernel, grid, out, x, ids, step, offset, first, scale, out, num, columns, x.shape[1],
        PAIRS=x.dtype == torch.uint8, ROWS=rows, COLUMNS=wide, num_warps=2,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num", "first"])
def expand_kernel(
    x, ids, step, offset, first, scale, out, num, columns, row_bytes,
    PAIRS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One value a byte, less 128; or ``PAIRS``, two, the first in the low half. ``scale`` may be ``None``."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = i < num
    there = inside[:, None] & (c < columns)[None, :]
    row = tl.load(ids + i, mask=inside, other=0).to(tl.int64)
    at = first + c
    if PAIRS:
        both = tl.load(x + row[:, None] * row_bytes + (at // 2)[None, :], mask=there, other=0).to(tl.int32)
        value = (both >> ((at % 2) * 4)[None, :]) & 15
    else:
        value = tl.load(x + row[:, None] * row_bytes + at[None, :], mask=there, other=0).to(tl.int32) + 128
    times = tl.load(step + c, mask=c < columns, other=0.0)[None, :]
    values = value.to(out.dtype.element_ty) * times + tl.load(offset + c, mask=c < columns, other=0.0)[None, :]
    if scale is not None:
        values = values * tl.load(scale + row, mask=inside, other=0.0).to(out.dtype.element_ty)[:, None]
    tl.store(out + i[:, None] * columns + c[None, :], values, mask=there)
