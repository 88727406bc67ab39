"""Room for rows of many nodes: memory, or a temporary file that has no name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from partita.comm.group import Group
from partita.core.errors import ResourceError
from partita.core.mapped_rows import map_rows, mapped_rows, reserve, without_space
from partita.infer.memory_need import stays_in_memory

_PREFIX = "partita-infer-"
_FIX = "Free space there, set TMPDIR to another disk, or raise --memory-limit"


class Scratch:
    """Makes arrays of rows for one worker, and for all workers of its host together.

    What goes to disk is a memory-mapped file without a name: it vanishes with its last map, also when processes are
    killed. Its pages belong to the page cache, not to the private memory of a process.

    Args:
        memory_limit: bytes of private memory; an array stays in memory while six such fit.
        folder: for files; ``None``: the system's directory for temporary files.
        host: the workers of this host, who all make the same shared arrays in the same order.
    """

    def __init__(self, memory_limit: int, folder: Path | None, host: Group) -> None:
        self._memory_limit = memory_limit
        self._folder = folder
        self._host = host

    def private(self, what: str, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """Rows for this worker alone, with undefined contents.

        Args:
            what: is in them, for messages.
            rows: number of rows.
            width: columns.
            dtype: of an element.

        Raises:
            ResourceError: there is no space on the disk.
        """
        size = rows * width * dtype.itemsize
        if size == 0 or stays_in_memory(size, self._memory_limit):
            return torch.empty((rows, width), dtype=dtype)
        return mapped_rows(what, rows, width, dtype, prefix=_PREFIX, folder=self._folder, fix=_FIX)

    def of_host(self, what: str, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """Rows that all workers of this host read and write; zeros where there is more than one.

        All of them call this. What one writes the others see after the next :meth:`barrier`.

        Args:
            what: see :meth:`private`; likewise the others.
            rows: the same on all.
            width: likewise.
            dtype: likewise.

        Raises:
            ResourceError: there is no space on the disk, or the workers do not see the same files.
        """
        size = rows * width * dtype.itemsize
        if self._host.size == 1 or size == 0:
            return self.private(what, rows, width, dtype)
        path: str | None = None
        leads = self._host.rank == 0
        try:
            if leads:
                # Empty as long as it has a name: should all be killed just now, nothing of any size stays behind.
                handle, path = tempfile.mkstemp(prefix=_PREFIX, dir=self._folder)
                os.close(handle)
            path = self._host.broadcast(path)
            assert path is not None
            with open(path, "r+b") as file:
                self.barrier()  # all have it open: it needs no name any more
                Path(path).unlink(missing_ok=True)
                if leads:
                    reserve(file, size)
                self.barrier()
                return map_rows(file, rows, width, dtype)
        except FileNotFoundError:
            raise ResourceError(
                f"{what}: a file made by another worker of this host is not there",
                where=path,
                fix="Give the workers of a host the same TMPDIR, on a disk that all of them see",
            ) from None
        except OSError as error:
            raise without_space(what, size, error, self._folder, _FIX) from None
        finally:
            if path is not None:
                Path(path).unlink(missing_ok=True)

    def barrier(self) -> None:
        """Wait for the other workers of this host."""
        self._host.gather(None)
