"""Rows in a memory-mapped temporary file that has no name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from partita.core.errors import ResourceError, is_disk_full


def mapped_rows(
    what: str, rows: int, width: int, dtype: torch.dtype, *, prefix: str, folder: Path | None, fix: str
) -> Tensor:
    """Rows of zeros in a file that vanishes with its last map, also when processes are killed.

    Its pages belong to the page cache, not to the private memory of a process.

    Args:
        what: is in them, for messages.
        rows: number of rows, at least 1.
        width: columns, at least 1.
        dtype: of an element.
        prefix: of the file's name, for the moment that it has one.
        folder: where the file is; ``None``: the system's directory for temporary files.
        fix: what helps where there is no space.

    Raises:
        ResourceError: there is no space on the disk.
    """
    size = rows * width * dtype.itemsize
    try:
        with tempfile.TemporaryFile(prefix=prefix, dir=folder) as file:
            reserve(file, size)
            return map_rows(file, rows, width, dtype)
    except OSError as error:
        raise without_space(what, size, error, folder, fix) from None


def reserve(file: IO[Any], size: int) -> None:
    """Give a file so many bytes of zeros."""
    if hasattr(os, "posix_fallocate"):
        # A full disk is an error here; on a hole in the file it would be a crash later.
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def map_rows(file: IO[Any], rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """A file's contents as rows that can be written to; what is written others see who have the file mapped."""
    return torch.from_numpy(np.memmap(file, np.uint8, "r+", shape=(rows, width * dtype.itemsize))).view(dtype)


def without_space(what: str, size: int, error: OSError, folder: Path | None, fix: str) -> Exception:
    """What to raise instead of an error of the file system."""
    if not is_disk_full(error):
        return error
    return ResourceError(
        f"{what}: {size:,} bytes of disk are needed and there is no space for them",
        where=str(folder or tempfile.gettempdir()),
        fix=fix,
    )
