"""Rows of a table in a file, read from there in few large reads and past the system's page cache."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import NoReturn

import numpy as np
from jaxtyping import Int64, Shaped, UInt8

from partita.core.errors import StoreError
from partita.files.io_threads import at_once, shares

GAP_BYTES = 32 << 10
"""What lies between two rows is read with them if it is no longer: a read costs about as much as so many bytes."""
SPAN_BYTES = 1 << 20
"""Of a read, at most, unless a row is longer."""
_BLOCKS = (512, 4096)
"""What the place and the length of a read past the cache must be multiples of, the least that a file allows."""


_COUNTING = Lock()


@dataclass(slots=True)
class ReadCounts:
    """What was read.

    Attributes:
        rows: that were asked for.
        reads: of the file.
        bytes: of all reads.
    """

    rows: int = 0
    reads: int = 0
    bytes: int = 0

    def add(self, rows: int, reads: int, count: int) -> None:
        """Note some reads; from any thread."""
        with _COUNTING:
            self.rows += rows
            self.reads += reads
            self.bytes += count


def aligned(size: int) -> UInt8[np.ndarray, "_"]:
    """Memory that begins where a block may, as reads past the cache want it."""
    space = np.empty(size + _BLOCKS[-1], np.uint8)
    start = -space.ctypes.data % _BLOCKS[-1]
    return space[start : start + size]


@dataclass
class RowFile:
    """Rows of equal size in a file, one behind the other.

    Attributes:
        path: of the file.
        first_byte: where the first row begins.
        row_bytes: of a row in the file.
        num_rows: of the table.
        begin, width: which bytes of a row are read.
        counts: of all reads so far.
    """

    path: Path
    first_byte: int
    row_bytes: int
    num_rows: int
    begin: int = 0
    width: int = -1
    counts: ReadCounts = field(default_factory=ReadCounts)

    def __post_init__(self) -> None:
        if self.width < 0:
            self.width = self.row_bytes - self.begin

    @classmethod
    def of(cls, array: Shaped[np.ndarray, "n _"]) -> RowFile | None:
        """The file that rows are mapped from; ``None`` where they are not mapped, or do not follow on each other."""
        found: object = array
        while isinstance(found, np.ndarray):
            if isinstance(found, np.memmap) and isinstance(found.base, mmap.mmap) and found.filename is not None:
                break
            found = found.base
        if not isinstance(found, np.memmap) or not array.flags.c_contiguous or array.ndim != 2:
            return None
        away = array.__array_interface__["data"][0] - found.__array_interface__["data"][0]
        assert found.filename is not None
        row_bytes = array.shape[1] * array.itemsize
        return cls(Path(found.filename), found.offset + away, row_bytes, len(array))

    def columns(self, begin: int, width: int) -> RowFile:
        """The same rows, of which only some bytes are read."""
        return RowFile(self.path, self.first_byte, self.row_bytes, self.num_rows, begin, width)

    def read(
        self, rows: Int64[np.ndarray, "k"], out: UInt8[np.ndarray, "n width"], places: Int64[np.ndarray, "k"]
    ) -> tuple[int, int]:
        """Read some rows.

        Args:
            rows: numbers of rows, ascending.
            out: where they go.
            places: of each row, which row of ``out`` it becomes.

        Returns:
            How many reads that took, and of how many bytes.

        Raises:
            StoreError: the file is cut short.
            OSError: it cannot be read.
        """
        if not len(rows) or not self.width:
            return 0, 0
        works = [partial(self._read, rows[each], places[each], out) for each in shares(rows)]
        done = at_once(works, "partita-read")
        reads, count = (sum(each) for each in zip(*done, strict=True))
        self.counts.add(len(rows), reads, count)
        return reads, count

    def _read(
        self, rows: Int64[np.ndarray, "k"], places: Int64[np.ndarray, "k"], out: UInt8[np.ndarray, "n width"]
    ) -> tuple[int, int]:
        from partita.files.read_loops import read_rows  # imports numba, which runs without files have no need of

        buffer = aligned(max(SPAN_BYTES, self.width + 2 * _BLOCKS[-1]))
        first = self.first_byte + self.begin
        reads, count, failed = read_rows(
            self.descriptor, first, self.row_bytes, rows, places, out, buffer, self.block, GAP_BYTES
        )
        if failed >= 0:
            self.refuse()
        return reads, count

    def refuse(self) -> NoReturn:
        """What there is to say where rows could not be read.

        Raises:
            StoreError: the file is cut short.
            OSError: the system cannot read it.
        """
        with self.path.open("rb") as file:
            file.seek(self.first_byte + self.num_rows * self.row_bytes - 1)
            short = not file.read(1)
        if short:
            raise StoreError("the file is cut short", where=str(self.path), fix="Ingest again, or copy it again")
        raise OSError(f"{self.path}: rows could not be read")

    @cached_property
    def direct(self) -> bool:
        """Whether reads go past the system's cache of pages."""
        return self.block > 1

    @property
    def block(self) -> int:
        """What places and lengths of reads are multiples of; 1 where they go through the system's cache of pages."""
        return self._opened[1]

    @property
    def descriptor(self) -> int:
        """Of the file, opened for reading."""
        return self._opened[0]

    @cached_property
    def _opened(self) -> tuple[int, int]:
        """The file, and the size of its blocks, 1 where reads go through the cache."""
        flag, closed = getattr(os, "O_DIRECT", 0), getattr(os, "O_CLOEXEC", 0)
        if flag:
            with suppress(OSError):  # a file system that cannot do so
                found = os.open(self.path, os.O_RDONLY | closed | flag)
                for block in _BLOCKS:
                    with suppress(OSError):
                        os.preadv(found, [mmap.mmap(-1, block)], block)
                        return found, block
                os.close(found)
        return os.open(self.path, os.O_RDONLY | closed), 1

    def open(self) -> None:
        """Open the file, unless it is.

        Raises:
            OSError: it cannot be opened.
        """
        _ = self._opened

    def close(self) -> None:
        """Let go of the file; it is opened again where rows are read again."""
        if "_opened" in self.__dict__:
            os.close(self.__dict__.pop("_opened")[0])
            self.__dict__.pop("direct", None)

    def __del__(self) -> None:
        self.close()
