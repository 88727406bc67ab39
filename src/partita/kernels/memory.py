"""Memory of the host that a device reads: which it can, and how what it cannot gets there."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor


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
