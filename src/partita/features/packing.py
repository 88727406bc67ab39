"""Rows of many batches, read from files in one pass and written to a temporary file, batch behind batch.

A batch's rows lie far apart, so each of them takes a read of its own; those of many batches together are dense, and are
read in few large pieces. DiskGNN packs an epoch's rows so (Liu et al., "DiskGNN: bridging I/O efficiency and model
accuracy for out-of-core GNN training", SIGMOD 2025, section 4); here a batch has those rows only that are not kept in
memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import IO

import numpy as np
from jaxtyping import Int64, UInt8

from partita.core.errors import ResourceError, is_disk_full
from partita.core.mapped_rows import reserve, without_space
from partita.files import read_loops
from partita.files.row_file import GAP_BYTES, SPAN_BYTES, RowFile, aligned

THREADS = 4
"""That read and write at once, each of them every batch's share of its rows."""
_BLOCK = 4096
_ROOM_BYTES, _ALL_ROOM_BYTES = 64 << 10, 32 << 20
"""Of a batch and a thread before it is written, and of all of them together, at most."""
_WRITE_COST = 4
"""What it takes to write a byte and to read it again, in bytes that are read."""
_PREFIX = "partita-rows-"
_OTHER = "Set TMPDIR to another disk"
_FIX = "Free space there, set TMPDIR to another disk, or lower --look-ahead"


def is_worth_it(files: Sequence[RowFile], batches: Sequence[Sequence[Int64[np.ndarray, "_"]]]) -> bool:
    """Whether packing reads less than reading each batch by itself, where a read costs what a gap does.

    Args:
        files: of the rows.
        batches: of each batch, of each file, the rows that it takes from there, ascending.
    """
    together = _cost_together(files, batches)
    return together is not None and together < sum(_cost_alone(files, batch) for batch in batches)


def foreseen_costs(files: Sequence[RowFile], batches: Sequence[Sequence[Int64[np.ndarray, "_"]]]) -> list[int]:
    """Bytes that reading each batch takes, in the way that is worth it, where a read costs what a gap does.

    Args:
        files, batches: as of :func:`is_worth_it`.
    """
    alone, together = [_cost_alone(files, batch) for batch in batches], _cost_together(files, batches)
    if together is None or together >= sum(alone):
        return alone
    sizes = [sum(map(len, batch)) for batch in batches]
    return [together * size // sum(sizes) for size in sizes]


def _cost_alone(files: Sequence[RowFile], batch: Sequence[Int64[np.ndarray, "_"]]) -> int:
    return sum(read_cost(file, rows) for file, rows in zip(files, batch, strict=True))


def _cost_together(files: Sequence[RowFile], batches: Sequence[Sequence[Int64[np.ndarray, "_"]]]) -> int | None:
    """Of packing; ``None`` where there is nothing to pack."""
    if len(batches) < 2 or not files[0].width:
        return None
    together = 0
    for number, file in enumerate(files):
        rows = np.concatenate([batch[number] for batch in batches])
        together += read_cost(file, np.sort(rows)) + _WRITE_COST * file.width * len(rows)
    return together


def read_cost(file: RowFile, rows: Int64[np.ndarray, "k"]) -> int:
    """Bytes that reading some ascending rows of a file takes, where a read costs what a gap does."""
    reads, count = read_loops.spans(file.row_bytes, file.width, rows, SPAN_BYTES, 1, GAP_BYTES)
    return int(reads) * GAP_BYTES + int(count)


@dataclass(frozen=True)
class PackedRows:
    """Rows of some batches in a temporary file without a name, which vanishes with this object.

    Attributes:
        file: the file.
        width: bytes of a row.
        regions: (pieces, batches) where the rows begin that a batch has in each piece.
        counts: (pieces, batches) how many.
    """

    file: IO[bytes]
    width: int
    regions: Int64[np.ndarray, "P B"]
    counts: Int64[np.ndarray, "P B"]

    @classmethod
    def of(cls, files: Sequence[RowFile], batches: Sequence[Sequence[Int64[np.ndarray, "_"]]]) -> PackedRows:
        """Read the rows of all batches and write them.

        Args:
            files, batches: as of :func:`is_worth_it`.

        Raises:
            ResourceError: there is no space on the disk for temporary files, or they cannot be written.
            StoreError: a file is cut short.
        """
        pieces = [piece for number, file in enumerate(files) for piece in _pieces(file, [b[number] for b in batches])]
        width = files[0].width
        counts = np.array([np.bincount(owners, minlength=len(batches)) for _, _, owners in pieces], np.int64)
        sizes = -(-counts * width // _BLOCK) * _BLOCK
        ends = np.cumsum(sizes).reshape(sizes.shape)
        total = int(ends[-1, -1])
        file = tempfile.TemporaryFile(prefix=_PREFIX)  # noqa: SIM115 (it lives as long as what it holds)
        try:
            reserve(file, max(1, total))
            _go_past_cache(file)
            found = cls(file, width, ends - sizes, counts)
            with ThreadPoolExecutor(THREADS, thread_name_prefix="partita-pack") as pool:
                list(pool.map(found._write, range(len(pieces)), pieces))
        except OSError as error:
            file.close()
            if is_disk_full(error):
                raise without_space("rows of batches to come", total, error, None, _FIX) from None
            raise
        return found

    def __del__(self) -> None:
        self.file.close()

    def _write(self, number: int, piece: tuple[RowFile, Int64[np.ndarray, "k"], Int64[np.ndarray, "k"]]) -> None:
        file, rows, owners = piece
        batches = self.counts.shape[1]
        room = min(_ROOM_BYTES, max(_BLOCK, _ALL_ROOM_BYTES // THREADS // batches // _BLOCK * _BLOCK))
        reads, count, failed = read_loops.pack(
            file.descriptor, file.first_byte + file.begin, file.row_bytes, file.width, rows, owners,
            aligned(max(SPAN_BYTES, file.width + 2 * _BLOCK)), _BLOCK, GAP_BYTES, self.file.fileno(),
            self.regions[number].copy(), aligned(batches * room).reshape(batches, room),
            np.zeros(batches, np.int64),
        )  # fmt: skip
        if failed == 1:
            file.refuse()
        if failed:
            raise ResourceError("rows of batches to come could not be written", where=tempfile.gettempdir(), fix=_OTHER)
        file.counts.add(len(rows), int(reads), int(count))

    def read(self, batch: int, places: Int64[np.ndarray, "k"], out: UInt8[np.ndarray, "n width"]) -> tuple[int, int]:
        """Read the rows of a batch.

        Args:
            batch: number of it.
            places: where they go, in the order of files and rows.
            out: rows of bytes.

        Returns:
            Reads, and bytes.
        """
        buffer, begin, reads = aligned(SPAN_BYTES), 0, 0
        for region, count in zip(self.regions[:, batch].tolist(), self.counts[:, batch].tolist(), strict=True):
            made = read_loops.unpack(
                self.file.fileno(), region, self.width, places[begin : begin + count], out, buffer, _BLOCK
            )
            if made < 0:
                raise ResourceError(
                    "rows of batches to come could not be read again", where=tempfile.gettempdir(), fix=_OTHER
                )
            begin += count
            reads += int(made)
        return reads, begin * self.width


def _pieces(
    file: RowFile, batches: Sequence[Int64[np.ndarray, "_"]]
) -> list[tuple[RowFile, Int64[np.ndarray, "k"], Int64[np.ndarray, "k"]]]:
    """Shares of the rows of all batches, ascending, and the numbers of their batches."""
    rows = np.concatenate(batches)
    owners = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    order = np.argsort(rows, kind="stable")
    rows, owners = rows[order], owners[order]
    cuts = np.linspace(0, len(rows), THREADS + 1).astype(int).tolist()
    return [(file, rows[low:high], owners[low:high]) for low, high in pairwise(cuts)]


def _go_past_cache(file: IO[bytes]) -> None:
    """Have a file read and written past the system's cache of pages, where it can be."""
    with suppress(ImportError, OSError, AttributeError):
        import fcntl

        flags = fcntl.fcntl(file.fileno(), fcntl.F_GETFL)
        fcntl.fcntl(file.fileno(), fcntl.F_SETFL, flags | os.O_DIRECT)
