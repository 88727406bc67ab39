"""Reads that several threads ask for at once, made together: what they ask for lies denser than what each does."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt8

from partita.files.row_file import RowFile

MOST_ROWS = 1 << 20
"""Rows of several threads that are read at a time, about."""


@dataclass
class _Request:
    """Rows that a thread waits for.

    Attributes:
        rows, out, places: see :meth:`RowFile.read <partita.files.row_file.RowFile.read>`.
        done: they are there, or could not be read.
        failed: why not.
    """

    rows: Int64[np.ndarray, "k"]
    out: UInt8[np.ndarray, "n width"]
    places: Int64[np.ndarray, "k"]
    done: bool = False
    failed: BaseException | None = None


class JoinedReads:
    """Rows of a file for any number of threads.

    A thread that asks while none reads does so at once. Those that ask while one reads wait; then one of them reads for
    all that wait, in one pass over the file. So many threads that want rows from all over it share passes.

    Args:
        file: where the rows are.
    """

    def __init__(self, file: RowFile) -> None:
        self._file, self._changed = file, threading.Condition()
        self._waiting, self._busy = list[_Request](), False

    def read(
        self, rows: Int64[np.ndarray, "k"], out: UInt8[np.ndarray, "n width"], places: Int64[np.ndarray, "k"]
    ) -> tuple[int, int]:
        """Read some rows; see :meth:`RowFile.read <partita.files.row_file.RowFile.read>`.

        Returns:
            How many reads this thread has made, for itself and others, and of how many bytes.

        Raises:
            StoreError, OSError: see there; all threads of a pass get it.
        """
        own = _Request(rows, out, places)
        with self._changed:
            self._waiting.append(own)
            self._changed.wait_for(lambda: own.done or not self._busy)
            if own.done:
                if own.failed is not None:
                    raise own.failed
                return 0, 0
            together, self._waiting = self._waiting, []
            self._busy = True
        failed: BaseException | None = None
        try:
            return self._pass(together)
        except BaseException as error:
            failed = error
            raise
        finally:
            with self._changed:
                for each in together:
                    each.done, each.failed = True, failed
                self._busy = False
                self._changed.notify_all()

    def _pass(self, together: list[_Request]) -> tuple[int, int]:
        if len(together) == 1:
            return self._file.read(together[0].rows, together[0].out, together[0].places)
        longest = max((each.rows for each in together), key=len)
        pieces = max(1, -(-sum(len(each.rows) for each in together) // MOST_ROWS))
        bounds = longest[len(longest) * np.arange(1, pieces) // pieces]
        cuts = [[0, *np.searchsorted(each.rows, bounds).tolist(), len(each.rows)] for each in together]
        reads = count = 0
        for piece in range(pieces):
            parts = [slice(cut[piece], cut[piece + 1]) for cut in cuts]
            rows = np.concatenate([each.rows[part] for each, part in zip(together, parts, strict=True)])
            order = np.argsort(rows, kind="stable")  # merges, as each part is in order
            found = np.empty((len(rows), self._file.width), np.uint8)
            made, size = self._file.read(rows[order], found, order)
            reads, count, first = reads + made, count + size, 0
            for each, part in zip(together, parts, strict=True):
                last = first + part.stop - part.start
                each.out[each.places[part]] = found[first:last]
                first = last
        return reads, count
