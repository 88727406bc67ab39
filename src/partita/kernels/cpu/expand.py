"""Values of rows of small integers, compiled."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import or_empty, run
from partita.kernels.cpu.rows import U, _prefetch_row, _rows_ahead


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
    bounds, scales = threads.even_bounds(out.shape[0], out.numel()), or_empty(scale, (0,), out.numpy().dtype)
    loop = pairs_loop if x.dtype == torch.uint8 else bytes_loop
    run(loop, bounds, x, ids, step, offset, first, scales, out)


@njit(nogil=True, cache=True)
def bytes_loop(x, ids, step, offset, first, scale, out, low, high):
    """One value a byte, less 128; an empty ``scale`` means 1."""
    columns, scaled = U(out.shape[1]), scale.shape[0] > 0
    begin, ahead = U(first), _rows_ahead(x)
    for i in range(low, high):
        _prefetch_row(x, np.int64(ids[min(i + ahead, high - 1)]))
        row = np.int64(ids[i])
        for c in range(columns):
            out[i, c] = out.dtype.type(np.int32(x[row, begin + c]) + np.int32(128)) * step[c] + offset[c]
        if scaled:
            factor = scale[row]
            for c in range(columns):
                out[i, c] *= factor


@njit(nogil=True, cache=True)
def pairs_loop(x, ids, step, offset, first, scale, out, low, high):
    """Two values a byte, the first in the low half; an empty ``scale`` means 1."""
    columns, scaled = U(out.shape[1]), scale.shape[0] > 0
    begin, ahead = U(first), _rows_ahead(x)
    for i in range(low, high):
        _prefetch_row(x, np.int64(ids[min(i + ahead, high - 1)]))
        row = np.int64(ids[i])
        for c in range(columns):
            at = begin + c
            value = (np.uint32(x[row, at >> U(1)]) >> np.uint32((at & U(1)) << U(2))) & np.uint32(15)
            out[i, c] = out.dtype.type(value) * step[c] + offset[c]
        if scaled:
            factor = scale[row]
            for c in range(columns):
                out[i, c] *= factor
