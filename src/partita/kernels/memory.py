"""Memory of the host: how rows lie in it; which of it a device reads, and how what it cannot gets there."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor

_LINE = 64
"""Bytes that a processor's cache reads at once, and PyTorch aligns memory to."""


def empty_scores(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Shaped[Tensor, "rows columns"]:
    """A matrix of unknown contents whose rows begin, from their second column on, with a line of the cache.

    What is multiplied begins there, behind a column of its own: a product reads and writes such rows a tenth faster. On
    a device it makes no difference.
    """
    if device.type != "cpu":
        return torch.empty((rows, columns), dtype=dtype, device=device)
    line = _LINE // dtype.itemsize
    stride = -(-columns // line) * line
    memory = torch.empty(line - 1 + rows * stride, dtype=dtype).untyped_storage()
    # No view: what is one may not be changed in place behind a node of autograd.
    return torch.empty(0, dtype=dtype).set_(memory, line - 1, (rows, columns), (stride, 1))


def readable_on(device: torch.device, *columns: Tensor | None) -> bool:
    """Whether kernels of a device read columns in place: they are there, or in pinned host memory.

    Args:
        device: where the kernels run.
        columns: ``None`` stands for a column that is not there.
    """
    given = [column for column in columns if column is not None]
    return all(column.device == device or is_pinned(column) for column in given)


def is_pinned(column: Tensor) -> bool:
    """Whether a column lies in pinned host memory, which a device addresses."""
    return column.numel() == 0 or (column.device.type == "cpu" and column.is_pinned())


def pinned_bytes(num_bytes: int) -> int:
    """Bytes that :func:`pinned` takes for a column: PyTorch rounds up to a power of two."""
    return 1 << max(num_bytes - 1, 0).bit_length() if num_bytes else 0


def pinned(column: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """A copy in pinned host memory."""
    return column.pin_memory()


def to_device(rows: Shaped[Tensor, "..."], device: torch.device) -> Shaped[Tensor, "..."]:
    """A copy on a device; rows of the host go through pinned memory, twice as fast as from pages that may move.

    PyTorch keeps pinned pages for the next copy, and until this one is done.
    """
    if rows.device == device:
        return rows
    if device.type != "cuda" or rows.device.type != "cpu":
        return rows.to(device)
    return rows.pin_memory().to(device, non_blocking=True)
