"""Products of rows of nodes with those of their relations: arguments checked, implementation called."""

from __future__ import annotations

from types import ModuleType

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from partita.kernels import checks, reference
from partita.kernels.dispatch import implementation


def complex_rows(
    x: Float[Tensor, "n d"], table: Float[Tensor, "R d"], index: Int64[Tensor, "n"], *, conjugate: bool = False
) -> Float[Tensor, "n d"]:
    """``x_i y_i``, or ``x_i conj(y_i)``, with y_i row ``index[i]`` of the table: real parts, then imaginary ones.

    Args:
        x: rows, float32 or float64.
        table: rows of the same width and dtype.
        index: rows of the table.
        conjugate: take the conjugates of those of the table.

    Raises:
        IndexError: the table has no such row.
        ValueError: dtypes, lengths or widths do not fit, or the width is odd.
    """
    _fits(x, table, index)
    checks.within("index", index, table.shape[0])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _chosen(x).complex_rows(x.contiguous(), table.contiguous(), index.contiguous(), conjugate, out)
    return out


def complex_rows_backward(
    grad: Float[Tensor, "n d"],
    x: Float[Tensor, "n d"],
    table: Float[Tensor, "R d"],
    index: Int64[Tensor, "n"],
    *,
    conjugate: bool = False,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "R d"]]:
    """Gradients of :func:`complex_rows` with respect to ``x`` and the table; those of a row are summed in order.

    Args:
        grad: gradient of the result.
        x, table, index, conjugate: as given there; what it has taken is not looked through again.
    """
    _fits(x, table, index)
    of_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    of_table = torch.empty(table.shape, dtype=x.dtype, device=x.device)
    _chosen(x).complex_rows_backward(
        grad.contiguous(), x.contiguous(), table.contiguous(), index.contiguous(), conjugate, of_x, of_table
    )
    return of_x, of_table


def _fits(x: Tensor, table: Tensor, index: Tensor) -> None:
    checks.output_dtype(x.dtype)
    if x.dtype != table.dtype or len(index) != len(x) or x.shape[1] != table.shape[1] or x.shape[1] % 2:
        raise ValueError(f"{tuple(x.shape)} {x.dtype} with {len(index)} rows of {tuple(table.shape)} {table.dtype}")


def _chosen(x: Tensor) -> ModuleType:
    return reference if x.is_cuda else implementation(x)
