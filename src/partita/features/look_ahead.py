"""Which rows of a table are kept in memory between batches that are known ahead: those that are used again first.

Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966: to give way,
take what is used again last. Here all rows of a batch are used at once, and a row that was read need not be kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Int64

from partita.features import row_loops
from partita.features.row_loops import CLASSES, NEVER

MOST_ROWS = 2**31 - 1
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Kept:
    """Where the rows of a batch are, and which of them are kept.

    Attributes:
        slots: of each row where it is kept already, -1 where it is not.
        kept: positions in the batch of rows that are not kept yet and will be, when all are read.
        into: where. A row of the batch itself may be there still.
    """

    slots: Int32[np.ndarray, "n"]
    kept: Int32[np.ndarray, "k"]
    into: Int32[np.ndarray, "k"]


class LookAhead:
    """Decides what is kept. Batches are announced in order, and taken in order; of all that are announced and not yet
    taken, it is known who uses which row.

    Between two batches those rows are kept that are used again first. Where all batches are announced, no fewer rows
    can be read. Of rows without a known use those are kept that were used most often, in powers of the square root of
    two, and of equal ones those that were there. All counts are halved when one is at its end, so that rows which are
    not used any more give way (Einziger et al., "TinyLFU", ACM Transactions on Storage 13(4), 2017, does likewise).

    A row takes 9 bytes of memory besides, one of a batch that is announced 8, and a slot 16.

    Args:
        num_rows: N, of the table; at most :data:`MOST_ROWS`.
        slots: C, how many rows there is room for.
        window: so many batches are announced at once, at most.
    """

    def __init__(self, num_rows: int, slots: int, window: int) -> None:
        self.window = window
        self._slots = slots
        self._buckets = window + 2  # of steps, by their remainder
        self._slot_of = np.full(num_rows, _NOWHERE, np.int32)
        self._last = np.zeros(num_rows, np.int32)
        self._row_of = np.full(slots, _NOWHERE, np.int32)
        self._counts = np.zeros(num_rows, np.uint8)  # batches that used a row
        self._full = False  # a count is at its end
        # Lists of slots by next use, each a ring through a place of its own behind the slots'; the last are of NEVER
        # and of what stands below it.
        self._use = np.full(slots, NEVER, np.int32)
        size = slots + self._buckets + CLASSES
        self._before, self._after = np.arange(size, dtype=np.int32), np.arange(size, dtype=np.int32)
        self._filled = 0
        self._rows, self._next = np.empty(1 << 12, np.int32), np.empty(1 << 12, np.int32)
        self._sizes = list[int]()
        self._begin = self._end = 0  # of the rows of announced batches, in a ring
        self._step = 0  # that is taken next

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held."""
        arrays = (
            self._slot_of, self._last, self._counts, self._row_of, self._use, self._before, self._after, self._rows,
            self._next,
        )  # fmt: skip
        return sum(array.nbytes for array in arrays)

    @staticmethod
    def bytes_for(num_rows: int, slots: int, announced: int) -> int:
        """Bytes of memory for a table, room for some rows, and rows that are announced at once."""
        return 9 * num_rows + 16 * slots + 8 * announced

    def announce(self, rows: Int64[np.ndarray, "n"]) -> None:
        """The rows of the next batch, none of them twice.

        Raises:
            ValueError: too many batches are announced.
        """
        if len(self._sizes) >= self.window:
            raise ValueError(f"{len(self._sizes)} batches are announced already")
        self._make_room(len(rows))
        row_loops.announce(
            rows, self._step + len(self._sizes), self._rows, self._next, self._begin, self._end, self._last,
            self._slot_of, self._use, self._before, self._after, self._slots, self._buckets,
        )  # fmt: skip
        self._end += len(rows)
        self._sizes.append(len(rows))

    def take(self) -> Kept:
        """Decide for the first of the announced batches; it is over then.

        Raises:
            IndexError: none is announced.
        """
        count = self._sizes.pop(0)
        slots, uses = np.empty(count, np.int32), np.empty(count, np.int32)
        lists = (self._use, self._before, self._after, self._slots, self._buckets)
        if self._full:
            self._counts >>= 1
            row_loops.sort_again(self._filled, self._counts, self._row_of, *lists)
        self._full = row_loops.find(
            self._rows, self._next, self._begin, slots, uses, self._counts, self._slot_of, *lists
        )
        missing = np.flatnonzero(slots < 0)
        missing = missing[np.argsort(uses[missing], kind="stable")].astype(np.int32)
        into = np.empty(min(len(missing), self._slots), np.int32)
        kept, self._filled = row_loops.keep(
            self._rows, self._begin, missing, uses, into, self._slot_of, self._row_of, self._filled,
            self._step, *lists,
        )  # fmt: skip
        self._begin += count
        self._step += 1
        return Kept(slots, missing[:kept], into[:kept])

    def forget_rows(self) -> None:
        """Nothing is kept any more."""
        self._slot_of.fill(_NOWHERE)
        self._before[:] = self._after[:] = np.arange(len(self._before), dtype=np.int32)
        self._filled = 0

    def forget_announced(self) -> None:
        """Batches that were announced will not be taken. Rows stay kept."""
        self._sizes.clear()
        self._begin = self._end
        self._step = 0
        row_loops.forget(
            self._filled, self._counts, self._row_of, self._use, self._before, self._after, self._slots, self._buckets
        )

    def _make_room(self, count: int) -> None:
        held, size = self._end - self._begin, len(self._rows)
        if held + count <= size:
            return
        places = np.arange(self._begin, self._end) % size
        rows, uses = self._rows[places], self._next[places]
        grown = max(2 * size, held + count)
        self._rows, self._next = np.empty(grown, np.int32), np.empty(grown, np.int32)
        self._rows[:held], self._next[:held] = rows, uses
        self._last[rows] = np.arange(held, dtype=np.int32)  # the latest of a row is the last that is written
        self._begin, self._end = 0, held
