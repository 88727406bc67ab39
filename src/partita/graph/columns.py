"""Column files of a graph store while they are being written: front to back, or in pieces at known places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Shaped
from numpy.typing import DTypeLike

from partita.core import progress
from partita.core.files import map_array
from partita.graph.files import allocate_file, write_all
from partita.graph.metadata import ColumnRecord

HEADER_BYTES = 128
"""Size of the ``.npy`` header of every column; the data begin there, aligned to 64 bytes as the format asks."""

CHUNK_BYTES = 8 << 20
"""How much of a column is read or written at once."""

Completed = Callable[[Path], None]
"""Told the file of a column that was closed because it is complete."""


class NewColumnFile:
    """The file of a column that is being written.

    Attributes:
        dtype: of the elements.
    """

    def __init__(
        self, path: Path, mode: str, dtype: np.dtype[Any], row_shape: tuple[int, ...], completed: Completed | None
    ) -> None:
        self.dtype = dtype
        self._path = path
        self._row_shape = row_shape
        self._completed = completed
        self._file = open(path, mode, buffering=0)  # noqa: SIM115 (closed by close)

    def close(self) -> None:
        """The column is complete. Closing twice does no harm."""
        if self._file.closed:
            return
        try:
            self._finish()
        finally:
            self._file.close()
        if self._completed is not None:
            self._completed(self._path)

    def abandon(self) -> None:
        """Let go of the file, which stays incomplete."""
        self._file.close()

    def _finish(self) -> None:
        """Write what is known only now."""

    def _write(self, rows: Shaped[np.ndarray, "rows ..."], offset: int | None = None) -> None:
        if rows.shape[1:] != self._row_shape or rows.dtype != self.dtype:
            raise ValueError(
                f"{self._path.stem}: {rows.dtype} rows of shape {rows.shape[1:]} "
                f"do not fit {self.dtype} rows of shape {self._row_shape}"
            )
        data = np.ascontiguousarray(rows, dtype=self.dtype).reshape(-1).view(np.uint8).data
        write_all(self._file.fileno(), data, offset)


class ColumnStream(NewColumnFile):
    """A column written front to back; see :meth:`~partita.graph.writer.StoreWriter.append`.

    Attributes:
        rows: number of rows appended so far.
    """

    def __init__(
        self, path: Path, dtype: DTypeLike, row_shape: tuple[int, ...], completed: Completed | None = None
    ) -> None:
        super().__init__(path, "xb", little_endian(dtype), row_shape, completed)
        self.rows = 0
        self._finish()

    def append(self, array: Shaped[np.ndarray, "rows ..."]) -> None:
        """Write more rows.

        Raises:
            ValueError: the rows have another shape or dtype than the column.
        """
        self._write(array)
        self.rows += len(array)

    def _finish(self) -> None:
        self._file.seek(0)
        write_all(self._file.fileno(), header(self.dtype, (self.rows, *self._row_shape)))


class PlacedColumn(NewColumnFile):
    """A column of known size, written in pieces in any order; see :meth:`~partita.graph.writer.StoreWriter.place`."""

    def __init__(
        self, path: Path, shape: tuple[int, ...], dtype: DTypeLike, completed: Completed | None = None
    ) -> None:
        self.shape = shape
        allocate_column(path, shape, little_endian(dtype))
        super().__init__(path, "r+b", little_endian(dtype), shape[1:], completed)

    def put(self, first_row: int, rows: Shaped[np.ndarray, "rows ..."]) -> None:
        """Write rows ``first_row`` and following.

        Raises:
            ValueError: the rows have another shape or dtype than the column, or do not lie within it.
        """
        if first_row < 0 or first_row + len(rows) > self.shape[0]:
            raise ValueError(f"{self._path.stem}: rows {first_row} to {first_row + len(rows)} of {self.shape[0]}")
        self._write(rows, column_bytes((first_row, *self._row_shape), self.dtype))


def allocate_column(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Make a column file of zeros whose space on disk is really taken.

    Args:
        path: of the file, which must not exist.
        shape: of the whole column.
        dtype: of the elements, little-endian.

    Raises:
        ResourceError: the disk has no room for it.
    """
    allocate_file(path, column_bytes(shape, dtype))
    with open(path, "r+b", buffering=0) as file:
        write_all(file.fileno(), header(dtype, shape))


def map_new_column(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.memmap[Any, Any]:
    """A writable map of what :func:`allocate_column` makes."""
    allocate_column(path, shape, dtype)
    return np.memmap(path, dtype=dtype, mode="r+", offset=HEADER_BYTES, shape=shape)


def column_bytes(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Size of the file of a column."""
    return HEADER_BYTES + int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def record_of(path: Path, task: progress.Bar | None = None) -> ColumnRecord:
    """What the metadata will promise about a column file; reads it all for its checksum."""
    mapped = map_array(path)
    return ColumnRecord(
        dtype=mapped.dtype.str,
        shape=tuple(mapped.shape),
        bytes=path.stat().st_size,
        checksum=file_checksum(path, task),
    )


def file_checksum(path: Path, task: progress.Bar | None = None) -> str:
    """xxh3_64 of a whole file, 16 hexadecimal digits, read in chunks; ``task`` advances by bytes."""
    digest = xxhash.xxh3_64()
    buffer = bytearray(CHUNK_BYTES)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
            if task is not None:
                task.advance(count)
    return digest.hexdigest()


def little_endian(dtype: DTypeLike) -> np.dtype[Any]:
    """The dtype in the byte order of the format."""
    return np.dtype(dtype).newbyteorder("<")


def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """A version 1.0 ``.npy`` header of fixed size, so that it can be rewritten when the length is known."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    room = HEADER_BYTES - 10 - 1
    if len(text) > room:
        raise ValueError(f"a column of shape {shape} has too long a header")
    return b"\x93NUMPY\x01\x00" + (room + 1).to_bytes(2, "little") + text.ljust(room) + b"\n"
