"""Rows that are written and read again, in a file without a name."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from partita.core.mapped_rows import reserve, without_space
from partita.files.io_threads import at_once, shares
from partita.files.row_file import ReadCounts, RowFile, aligned

_MOST_PADDING = 3
"""A row is padded to blocks of the file where that makes it longer by one part in so many at most."""


class RecordFile:
    """Rows of equal size in a file that vanishes with the process; zeros at first.

    Reads and writes go past the system's cache of pages where rows fill whole blocks or nearly so: what the cache would
    hold of the file would be memory that nobody has granted, and a row that is written within a page is read before.
    Several threads may read and write, as long as they are not after the same rows.

    Args:
        what: is in it, for messages.
        num_rows: of the file.
        record_bytes: of a row.
        prefix: of the file's name, for the moment that it has one.
        fix: what helps where there is no space.

    Attributes:
        record_bytes: as given.
        direct: reads and writes go past the system's cache.
        counts: what was read.

    Raises:
        ResourceError: there is no space on the disk.
    """

    def __init__(self, what: str, num_rows: int, record_bytes: int, *, prefix: str, fix: str) -> None:
        self.record_bytes, self._descriptor, self.counts = record_bytes, -1, ReadCounts()
        handle, name = tempfile.mkstemp(prefix=prefix)
        path = Path(name)
        try:
            with os.fdopen(handle, "r+b") as file:
                block = self._block(path)
                padded = -(-record_bytes // block) * block
                self.direct = block > 1 and (padded - record_bytes) * _MOST_PADDING <= record_bytes
                self._row_bytes = padded if self.direct else record_bytes
                try:
                    reserve(file, max(1, num_rows * self._row_bytes))
                except OSError as error:
                    raise without_space(what, num_rows * self._row_bytes, error, None, fix) from None
                direct = getattr(os, "O_DIRECT", 0) if self.direct else 0
                self._descriptor = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | direct)
        finally:
            path.unlink()

    @staticmethod
    def _block(path: Path) -> int:
        """What places and lengths of reads past the cache are multiples of; 1 where there are none."""
        with path.open("r+b") as file:
            file.truncate(1 << 16)
        probe = RowFile(path, 0, 1, 1)
        probe.open()
        with_direct = probe.block
        probe.close()
        return with_direct

    def records(self, count: int) -> UInt8[np.ndarray, "n record"]:
        """Memory for so many rows, as reads and writes want it."""
        return aligned(count * self._row_bytes).reshape(count, self._row_bytes)[:, : self.record_bytes]

    def read(self, rows: Int64[np.ndarray, "k"], records: UInt8[np.ndarray, "k record"]) -> None:
        """Read some rows.

        Args:
            rows: ascending.
            records: where they go, in memory from :meth:`records`.

        Raises:
            OSError: the system cannot.
        """
        reads = self._transfer(rows, records, writes=False)
        self.counts.add(len(rows), reads, len(rows) * self._row_bytes)

    def write(self, rows: Int64[np.ndarray, "k"], records: UInt8[np.ndarray, "k record"]) -> None:
        """Write some rows.

        Args:
            rows: ascending, none of them twice.
            records: their contents, in memory from :meth:`records`.

        Raises:
            OSError: the system cannot.
        """
        self._transfer(rows, records, writes=True)

    def _transfer(self, rows: Int64[np.ndarray, "k"], records: UInt8[np.ndarray, "k record"], *, writes: bool) -> int:
        from partita.files.read_loops import transfer  # imports numba, which runs without files have no need of

        works = [
            partial(transfer, self._descriptor, self._row_bytes, rows[each], records[each], writes)
            for each in shares(rows)
        ]
        times = at_once(works, f"partita-{'write' if writes else 'read'}")
        if min(times) < 0:
            raise OSError(f"rows could not be {'written to' if writes else 'read from'} their temporary file")
        return sum(times)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
