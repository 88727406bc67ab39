"""Moves columns into partition order: each is read once, front to back, and appended to one region per part.

Nodes are sorted by (part, old id), so within a part the old order stays, and of every piece of a column each part's
share belongs right after what that part got before. A piece is grouped by part in memory and written with one write
per part: no random access to a file, and buffers of a fixed size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int, Int64, Integer, Shaped

from partita.core import progress
from partita.core.errors import StoreError
from partita.graph.columns import PlacedColumn
from partita.graph.metadata import index_dtype
from partita.kernels.compile import compiled

LEAST_BYTES = 1 << 16
"""Size of buffers at least, however little memory is allowed."""

_ROW_BYTES = 40  # of a row while a piece is grouped, besides what is moved: its place and what finds that


@dataclass(frozen=True, slots=True)
class _Piece:
    """Nodes ``first`` to ``stop``, their positions in the piece sorted by part, and where each part's begin there."""

    first: int
    stop: int
    order: Int64[np.ndarray, "n"]
    starts: Int64[np.ndarray, "P_1"]


class Scatter:
    """The way from the old order of nodes to that of the parts.

    Args:
        parts: int32 (N), in [0, P).
        num_parts: P.
        buffer_bytes: for all buffers together.

    Attributes:
        part_offsets: int64 (P+1): part p owns the new ids ``part_offsets[p]:part_offsets[p+1]``.
    """

    def __init__(self, parts: Int[np.ndarray, "N"], num_parts: int, buffer_bytes: int) -> None:
        self.num_nodes, self.num_parts = len(parts), num_parts
        self._parts = parts
        self._buffer_bytes = max(LEAST_BYTES, buffer_bytes)
        # numpy sorts integers of 16 bits by radix, in linear time
        self._sort_dtype = np.uint16 if num_parts <= 1 << 16 else np.int32
        self.part_offsets = np.zeros(num_parts + 1, dtype=np.int64)
        at_once = max(1, self._buffer_bytes // _ROW_BYTES)
        for first in range(0, len(parts), at_once):
            self.part_offsets[1:] += np.bincount(parts[first : first + at_once], minlength=num_parts)
        np.cumsum(self.part_offsets, out=self.part_offsets)

    @cached_property
    def rank(self) -> Int[np.ndarray, "N"]:
        """int32 or int64 (N): the new id of every old one."""
        rank = np.empty(self.num_nodes, dtype=index_dtype(self.num_nodes))
        cursor = self.part_offsets[:-1].copy()
        for piece in self._pieces(16):
            counts = np.diff(piece.starts)
            new = np.arange(len(piece.order)) + np.repeat(cursor - piece.starts[:-1], counts)
            rank[piece.first : piece.stop][piece.order] = new
            cursor += counts
        return rank

    def rows(
        self, column: PlacedColumn, take: Callable[[int, int], Shaped[np.ndarray, "n ..."]], task: progress.Bar
    ) -> None:
        """Write a column of one row a node; ``take(first, stop)`` are those of old ids, in the column's dtype."""
        row_bytes = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
        room = np.empty((min(self._at_once(3 * row_bytes), self.num_nodes), *column.shape[1:]), dtype=column.dtype)
        cursor = self.part_offsets[:-1].copy()
        for piece in self._pieces(3 * row_bytes):
            grouped = room[: len(piece.order)]
            np.take(take(piece.first, piece.stop), piece.order, axis=0, out=grouped, mode="clip")
            _append(column, grouped, piece.starts, cursor)
            task.advance(len(grouped))

    def offsets(self, column: PlacedColumn, offsets: Int64[np.ndarray, "N_1"], task: progress.Bar) -> None:
        """Write the offsets of rows of several items (``indptr``, ``name_offsets``), given those of the old order."""
        column.put(0, np.zeros(1, dtype=np.int64))
        end = self.item_offsets(offsets)[:-1].copy()  # of the last row that each part got
        cursor = self.part_offsets[:-1] + 1
        for piece in self._pieces(32):
            ends = np.zeros(len(piece.order) + 1, dtype=np.int64)
            np.cumsum(np.diff(offsets[piece.first : piece.stop + 1])[piece.order], out=ends[1:])
            before, after = ends[piece.starts[:-1]], ends[piece.starts[1:]]
            ends[1:] += np.repeat(end - before, np.diff(piece.starts))
            end += after - before
            _append(column, ends[1:], piece.starts, cursor)
            task.advance(len(piece.order))

    def items(
        self,
        column: PlacedColumn,
        data: Shaped[np.ndarray, "E ..."],
        offsets: Int64[np.ndarray, "N_1"],
        task: progress.Bar,
        *,
        are_nodes: bool = False,
    ) -> None:
        """Write a column whose rows have several items each, for instance one for every edge; their order stays.

        Args:
            column: to be filled.
            data: row by row in the old order.
            offsets: of the rows.
            task: advances by items.
            are_nodes: the items are ids of nodes and become new ids.

        Raises:
            StoreError: such an id is outside [0, N).
        """
        size, is_wide = data.dtype.itemsize * int(np.prod(data.shape[1:], dtype=np.int64)), data.ndim > 1
        at_once = max(1, self._buffer_bytes // (size + 16 * is_wide))
        if is_wide:  # positions are sorted, and items taken by them
            raw = np.arange(min(at_once, len(data)))
        else:
            raw = data if are_nodes else data.view(f"u{size}")  # few kernels for many dtypes
        room = np.empty(min(at_once, len(data)), dtype=raw.dtype)
        rank = self.rank if are_nodes else np.empty(0, dtype=raw.dtype)
        starts = np.zeros(self.num_parts + 1, dtype=np.int64)
        cursor = self.item_offsets(offsets)[:-1].copy()
        row = 0
        for first in range(0, len(data), at_once):
            piece = raw[: len(data) - first] if is_wide else raw[first : first + at_once]
            grouped = room[: len(piece)]
            row, wrong = group_items(offsets, row, first, piece, self._parts, rank, starts, grouped)
            if wrong >= 0:
                raise StoreError(
                    f"entry {first + wrong:,} is {piece[wrong]}, not the id of one of {self.num_nodes:,} nodes",
                    where="column 'indices'",
                    fix="Check the store with: partita verify STORE",
                )
            items = data[first : first + len(piece)][grouped] if is_wide else grouped.view(data.dtype)
            _append(column, items, starts, cursor)
            task.advance(len(piece))

    def ids(self, column: PlacedColumn, ids: Integer[np.ndarray, "S ..."], task: progress.Bar) -> None:
        """Write a list of nodes, or of pairs of nodes, by their new ids; the order of the list stays."""
        at_once = self._at_once(16)
        for first in range(0, len(ids), at_once):
            new = self.rank[ids[first : first + at_once]].astype(column.dtype)
            column.put(first, new)
            task.advance(len(new))

    def item_offsets(self, offsets: Int64[np.ndarray, "N_1"]) -> Int64[np.ndarray, "P_1"]:
        """Where each part's items begin, given the rows' offsets in the old order.

        Raises:
            StoreError: the offsets fall.
        """
        sizes = np.zeros(self.num_parts + 1, dtype=np.int64)
        at_once = self._at_once(32)
        for first in range(0, self.num_nodes, at_once):
            lengths = np.diff(offsets[first : first + at_once + 1])
            if lengths.min() < 0:
                raise StoreError(
                    f"the offsets of rows fall after entry {first + int(np.argmax(lengths < 0)):,}",
                    fix="Check the store with: partita verify STORE",
                )
            np.add.at(sizes[1:], self._parts[first : first + at_once], lengths)
        return np.cumsum(sizes, out=sizes)

    def is_identity(self, take: Callable[[int, int], Integer[np.ndarray, "n"]]) -> bool:
        """Whether ``take(first, stop)`` are the new ids of all nodes."""
        at_once = self._at_once(32)
        return all(
            np.array_equal(take(first, min(first + at_once, self.num_nodes)), self.rank[first : first + at_once])
            for first in range(0, self.num_nodes, at_once)
        )

    def _at_once(self, row_bytes: int) -> int:
        return max(1, self._buffer_bytes // (row_bytes + _ROW_BYTES))

    def _pieces(self, row_bytes: int) -> Iterator[_Piece]:
        at_once = self._at_once(row_bytes)
        starts = np.zeros(self.num_parts + 1, dtype=np.int64)
        for first in range(0, self.num_nodes, at_once):
            part = self._parts[first : first + at_once]
            order = np.argsort(part.astype(self._sort_dtype), kind="stable")
            np.cumsum(np.bincount(part, minlength=self.num_parts), out=starts[1:])
            yield _Piece(first, first + len(part), order, starts)


def _append(
    column: PlacedColumn,
    grouped: Shaped[np.ndarray, "n ..."],
    starts: Int64[np.ndarray, "P_1"],
    cursor: Int64[np.ndarray, "P"],
) -> None:
    """Write every part's share of a grouped piece at its cursor, which moves on."""
    for part in np.flatnonzero(np.diff(starts)).tolist():
        share = grouped[starts[part] : starts[part + 1]]
        column.put(int(cursor[part]), share)
        cursor[part] += len(share)


@compiled
def group_items(offsets, row, first, data, parts, rank, starts, out):
    """Sort the items ``data``, in the column from ``first`` on, by the part of their row, stably, into ``out``.

    Between ``row`` and the row of the first item there are only empty ones. ``starts`` receives where each part's share
    begins in ``out``. ``rank`` are new ids, if the items are ids to be mapped; or empty.

    Returns:
        The row of the last item, and the position in ``data`` of the first id outside [0, N), or -1.
    """
    starts[:] = 0
    stop = first + len(data)
    at, r = first, row
    while at < stop:
        end = min(offsets[r + 1], stop)
        starts[parts[r] + 1] += end - at
        at = end
        r += 1
    for p in range(1, len(starts)):
        starts[p] += starts[p - 1]
    at, r = first, row
    while at < stop:
        end = min(offsets[r + 1], stop)
        p = parts[r]
        slot = starts[p]
        starts[p] = slot + end - at
        if len(rank) > 0:
            for e in range(at - first, end - first):
                u = data[e]
                if u < 0 or u >= len(rank):
                    return r, np.int64(e)
                out[slot] = rank[u]
                slot += 1
        else:
            for e in range(at - first, end - first):
                out[slot] = data[e]
                slot += 1
        at = end
        r += 1
    for p in range(len(starts) - 1, 0, -1):
        starts[p] = starts[p - 1]
    starts[0] = 0
    return max(r - 1, row), np.int64(-1)
