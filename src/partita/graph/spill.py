"""Records kept in order, in memory while they fit and in a file beyond that."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from partita.graph.files import write_all


class Spill:
    """An append-only list of records with a buffer of fixed size; what overflows goes to a file.

    No file is held open between calls, so an abandoned list needs no cleaning up but its directory.

    Args:
        path: of the file, made when it is needed.
        dtype: structured dtype of one record.
        buffer_records: size of the buffer.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], buffer_records: int) -> None:
        self._path = path
        self._buffer = np.empty(max(1, buffer_records), dtype=dtype)
        self._buffered = 0
        self._filed = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of one record."""
        return self._buffer.dtype

    def __len__(self) -> int:
        return self._filed + self._buffered

    def append(self, columns: Mapping[str, Shaped[np.ndarray, "n"]]) -> None:
        """Append records given as one array per field."""
        total = len(next(iter(columns.values())))
        done = 0
        while done < total:
            count = min(total - done, len(self._buffer) - self._buffered)
            room = self._buffer[self._buffered : self._buffered + count]
            for name, values in columns.items():
                room[name] = values[done : done + count]
            self._buffered += count
            done += count
            if self._buffered == len(self._buffer):
                self._flush()

    def chunks(self, records: int) -> Iterator[Shaped[np.ndarray, "n"]]:
        """All records in order, in arrays of at most ``records``, which are valid until the next one."""
        if self._filed:
            chunk = np.empty(min(records, self._filed), dtype=self._buffer.dtype)
            with open(self._path, "rb", buffering=0) as file:
                yield from read_records(file.fileno(), 0, self._filed, chunk)
        for start in range(0, self._buffered, records):
            yield self._buffer[start : min(start + records, self._buffered)]

    def discard(self) -> None:
        """Free the memory and the disk space."""
        self._buffer = self._buffer[:0].copy()
        self._buffered = self._filed = 0
        self._path.unlink(missing_ok=True)

    def _flush(self) -> None:
        with open(self._path, "ab", buffering=0) as file:
            write_all(file.fileno(), self._buffer[: self._buffered].view(np.uint8).data)
        self._filed += self._buffered
        self._buffered = 0


def read_records(
    descriptor: int, first: int, stop: int, chunk: Shaped[np.ndarray, "n"]
) -> Iterator[Shaped[np.ndarray, "m"]]:
    """Read records ``first`` to ``stop`` of a file into ``chunk`` again and again; yields what was read.

    Raises:
        OSError: the file ends too early.
    """
    size = chunk.dtype.itemsize
    raw = chunk.view(np.uint8)
    while first < stop:
        count = min(len(chunk), stop - first)
        filled = 0
        while filled < count * size:
            got = os.preadv(descriptor, [raw[filled : count * size].data], first * size + filled)
            if not got:
                raise OSError(f"a temporary file ends before record {stop:,}")
            filled += got
        yield chunk[:count]
        first += count
