"""Pages of memory-mapped files: asked for before their rows are read, and given back afterwards.

This is for Linux; elsewhere no rows count as mapped, and nothing is done.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

GAP_BYTES = 32 << 10
"""What lies between two rows is read with them if it is no longer: a read costs about as much as so many bytes."""
_ASKED_BYTES = 128 << 10
"""Of a call, at most: the system reads no more than its usual read-ahead, whatever it is asked for."""
_MAPS = Path("/proc/self/maps")


@dataclass(frozen=True, slots=True)
class MappedPages:
    """The pages that the rows of a tensor lie in.

    Attributes:
        start: address of the first row.
        row_bytes: of a row.
        num_bytes: of all rows.
    """

    start: int
    row_bytes: int
    num_bytes: int

    @classmethod
    def of(cls, rows: Shaped[Tensor, "n _"]) -> MappedPages | None:
        """The pages of rows that lie one behind the other in a shared map of a file; ``None`` of any others.

        A private map is none of these: its pages may differ from the file, and would be lost.
        """
        if not sys.platform.startswith("linux") or not rows.is_contiguous() or not rows.nbytes or rows.is_cuda:
            return None
        start = rows.data_ptr()
        for line in _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            span, rights, _, _, inode = line.split(maxsplit=5)[:5]
            first, last = (int(each, 16) for each in span.split("-"))
            if first <= start < last:
                fits = rights.endswith("s") and inode != "0" and start + rows.nbytes <= last
                return cls(start, rows.nbytes // len(rows), rows.nbytes) if fits else None
        return None

    def ask(self, at: Int64[Tensor, "k"]) -> None:
        """Ask for the pages of some rows, so that they are read in large pieces while something else is done.

        Args:
            at: numbers of the rows, ascending.
        """
        if not len(at):
            return
        breaks = torch.nonzero(at.diff() * self.row_bytes > self.row_bytes + GAP_BYTES).view(-1) + 1
        edge = breaks.new_tensor([0])
        first = at[torch.cat([edge, breaks])] * self.row_bytes
        last = (at[torch.cat([breaks - 1, edge - 1])] + 1) * self.row_bytes
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            for piece in range(begin, end, _ASKED_BYTES):
                self._advise(piece, min(end, piece + _ASKED_BYTES), mmap.MADV_WILLNEED)

    def give_back(self) -> None:
        """Take the pages out of the memory of this process; the file keeps what was written to them."""
        self._advise(0, self.num_bytes, mmap.MADV_DONTNEED)

    def _advise(self, begin: int, end: int, advice: int) -> None:
        """Of bytes from the first row on. Advice that the system does not take changes no row."""
        begin = (self.start + begin) // mmap.PAGESIZE * mmap.PAGESIZE
        _madvise()(ctypes.c_void_p(begin), ctypes.c_size_t(self.start + end - begin), advice)


@cache
def _madvise() -> Callable[..., int]:
    """The system's function."""
    found: Callable[..., int] = ctypes.CDLL(None).madvise
    return found
