"""Learnt rows in a file, of which those are in memory that coming steps use again first.

A step's rows are known long before, because a sample is a function of its key. So rows are read while earlier steps are
computed, all that is remembered of a row with it in one piece, and a row that leaves memory is written beside later
steps. What a step computes with does not depend on what was kept.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32, Int64
from torch import Tensor

from partita.core.errors import ConfigError
from partita.core.records import DiskReads
from partita.features.announced import AnnouncedBatches
from partita.features.learnt_tables import READ_AHEAD, WRITTEN_BEHIND, Asked, RowOptimizer, move_rows
from partita.features.look_ahead import MOST_ROWS, Kept, LookAhead
from partita.features.lru import LeastRecentlyUsed
from partita.files.io_threads import small_stacks
from partita.files.record_file import RecordFile

Arrays = dict[str, Tensor]

_ROW_BYTES, _SLOT_BYTES = 4, 8
"""To find a row and to know a slot's, besides what :class:`~partita.features.look_ahead.LookAhead` takes."""


@dataclass(slots=True)
class _Plan:
    """Rows of a step.

    Attributes:
        asked: names them; held here, so that no other has its identity.
        rows: their numbers.
        found: where they are, and which of them are kept.
        missing: positions of those that must be read, ascending by number.
        number: of the step, from 1 on.
        since: of those that must be read, the step after which the file has their state; 0: it always had.
        read: gives the arrays of those that could be read, once they are, and which could not yet be.
    """

    asked: Asked
    rows: Int64[np.ndarray, "n"]
    found: Kept
    missing: Int64[np.ndarray, "k"]
    number: int
    since: Int32[np.ndarray, "k"]
    read: Future[tuple[Arrays, Bool[np.ndarray, "k"]]] | None = None


@dataclass
class _Open:
    """Rows of a step that were read and not yet moved."""

    plan: _Plan
    hits: Int64[np.ndarray, "h"]
    arrays: Arrays = field(default_factory=dict)  # of those that were missing


class PagedTable:
    """See :class:`~partita.features.learnt_tables.LearntTable`.

    Args:
        what: the rows are, for messages.
        num_rows: of the table; zeros at first.
        widths, dtype: see :class:`~partita.features.learnt_tables.LearntTable`.
        budget: bytes of memory for rows that are kept, and for finding them; what finding them takes is taken anyhow.
        fix: what helps where there is no space on the disk.

    Raises:
        ConfigError: there are too many rows.
        ResourceError: there is no space on the disk.
    """

    def __init__(
        self, what: str, num_rows: int, widths: Mapping[str, int], dtype: torch.dtype, budget: int, *, fix: str
    ) -> None:
        if num_rows > MOST_ROWS:
            raise ConfigError(
                f"{what}: {num_rows:,} rows are more than the {MOST_ROWS:,} that can be looked ahead for",
                where="embed_memory",
                fix="Leave it out, or train with more workers",
            )
        self.widths, self.dtype, self.num_rows = widths, dtype, num_rows
        self._ends = list(accumulate((width * dtype.itemsize for width in widths.values()), initial=0))
        record = self._ends[-1]
        lists = LookAhead.bytes_for(num_rows, 0, 0) + _ROW_BYTES * num_rows
        of_slot = LookAhead.bytes_for(0, 1, 0) + _SLOT_BYTES
        self._slots = min(num_rows, max(0, budget - lists) // (of_slot + record))
        self._list_bytes = lists + self._slots * of_slot
        self._file = RecordFile(what, num_rows, record, prefix="partita-learnt-", fix=fix)
        self._kept = {name: torch.zeros((self._slots, width), dtype=dtype) for name, width in widths.items()}
        # Which row a slot has, now and behind all plans; and the last step that is planned to end with a row written.
        self._row_in, self._row_planned = (np.full(self._slots, -1, np.int32) for _ in range(2))
        self._leaves_at = np.zeros(num_rows, np.int32)
        self._planned = self._written = 0
        self._places: tuple[Int64[np.ndarray, "s"], Int64[np.ndarray, "s"]] | None = None
        self._lru = LeastRecentlyUsed(self._slots)
        self._asked = self._hits = 0
        self._seconds = 0.0
        self.window = 1
        self._ahead = self._looking(self.window)
        self._plans, self._unread = dict[int, _Plan](), deque[_Plan]()
        self._reading, self._lock = 0, threading.Lock()
        self._open: _Open | None = None
        self._reader, self._writer = _Line("read"), _Line("write")
        self._writing = deque[Future[None]]()
        weakref.finalize(self, self._reader.end)
        weakref.finalize(self, self._writer.end)

    def look_at(self, window: int) -> None:
        """See :class:`~partita.features.learnt_tables.LearntTable`. Nothing is kept of before."""
        self.restart()
        self._forget()
        self.window = window
        self._ahead = self._looking(window)

    def _looking(self, window: int) -> AnnouncedBatches[Asked]:
        return AnnouncedBatches(self.num_rows, self._slots, window, 1, lambda asked: asked.rows.numpy())

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held; without rows of the steps that are read or written."""
        return self._slots * self._ends[-1] + self._list_bytes

    def announce(self, asked: Asked) -> None:
        """See :class:`~partita.features.learnt_tables.LearntTable`."""
        self._ahead.announce(asked)

    def prepare(self, asked: Asked) -> None:
        """See :class:`~partita.features.learnt_tables.LearntTable`."""
        if not self._ahead.is_next(asked):
            return
        plan = self._plan(asked)
        with self._lock:
            self._plans[id(asked)] = plan
            self._unread.append(plan)
        self._begin_reads()

    def _plan(self, asked: Asked) -> _Plan:
        rows, ((_, found),) = asked.rows.numpy(), self._ahead.decide()
        missing = np.flatnonzero(found.slots < 0)
        missing = missing[np.argsort(rows[missing])]
        self._planned += 1
        plan = _Plan(asked, rows, found, missing, self._planned, self._leaves_at[rows[missing]])
        given_way = self._row_planned[found.into]
        self._row_planned[found.into] = rows[found.kept]
        self._leaves_at[rows[missing]] = self._planned
        self._leaves_at[given_way[given_way >= 0]] = self._planned
        return plan

    def _begin_reads(self) -> None:
        with self._lock:
            while self._unread and self._reading < READ_AHEAD:
                plan = self._unread.popleft()
                plan.read = self._reader.submit(partial(self._read_missing, plan))
                self._reading += 1

    def _read_missing(self, plan: _Plan) -> tuple[Arrays, Bool[np.ndarray, "k"]]:
        """Read what a step misses and the file has already; the rest is in memory, for a step before."""
        rows, there = plan.rows[plan.missing], plan.since <= self._written
        arrays = {name: torch.empty((len(rows), width), dtype=self.dtype) for name, width in self.widths.items()}
        self._read_file(rows[there], np.flatnonzero(there), arrays)
        return arrays, ~there

    def read(self, at: Int64[Tensor, "n"], asked: Asked | None = None) -> Float[Tensor, "n w"]:
        """See :class:`~partita.features.learnt_tables.LearntTable`."""
        plan = None if asked is None else self._plans.pop(id(asked), None)
        if plan is None:
            return self._states(at.numpy())["rows"]
        if self._open is not None:
            raise RuntimeError("learnt rows of another step are read before those of the last one were moved")
        assert plan.read is not None
        arrays, late = plan.read.result()
        with self._lock:
            self._reading -= 1
        self._begin_reads()
        if late.any():  # they have left memory since
            self._wait()
            self._read_file(plan.rows[plan.missing[late]], np.flatnonzero(late), arrays)
        hits = np.flatnonzero(plan.found.slots >= 0)
        self._open = _Open(plan, hits, arrays)
        out = torch.empty((len(at), self.widths["rows"]), dtype=self.dtype)
        out.numpy()[hits] = self._kept["rows"].numpy()[plan.found.slots[hits]]
        out.numpy()[plan.missing] = arrays["rows"].numpy()
        self._lru.use(plan.rows)
        self._asked += len(plan.rows)
        self._hits += len(hits)
        return out

    def move(
        self, optimizer: RowOptimizer, at: Int64[Tensor, "n"], gradient: Float[Tensor, "n w"], lr: float, step: int
    ) -> None:
        """See :class:`~partita.features.learnt_tables.LearntTable`."""
        opened = self._open
        if opened is None:
            if self._plans:
                raise RuntimeError("learnt rows are moved that nobody has announced, and others are read ahead")
            arrays = self._states(at.numpy())
            self._move(optimizer, arrays, torch.arange(len(at)), gradient, lr, step)
            self._overwrite(at.numpy(), arrays)
            return
        plan = opened.plan
        if len(at) != len(plan.rows) or not np.array_equal(at.numpy(), plan.rows):
            raise RuntimeError("learnt rows are moved that are not those that were read")
        hits, missing = torch.from_numpy(opened.hits), torch.from_numpy(plan.missing)
        slots = torch.from_numpy(plan.found.slots[opened.hits]).long()
        self._move(optimizer, self._kept, slots, gradient.index_select(0, hits), lr, step)
        own = torch.arange(len(missing))
        self._move(optimizer, opened.arrays, own, gradient.index_select(0, missing), lr, step)
        self._keep(opened)
        self._open = None

    def _move(
        self, optimizer: RowOptimizer, arrays: Arrays, at: Tensor, gradient: Tensor, lr: float, step: int
    ) -> None:
        slots = {name: array for name, array in arrays.items() if name != "rows"}
        move_rows(optimizer, arrays["rows"], slots, at, gradient, lr, step)

    def _keep(self, opened: _Open) -> None:
        """Put the rows into their slots that are to be kept; what gives way to them, and others, leave memory."""
        plan, into = opened.plan, opened.plan.found.into
        of_position = np.full(len(plan.rows), -1, np.int64)
        of_position[plan.missing] = np.arange(len(plan.missing))
        kept = of_position[plan.found.kept]
        full = into[self._row_in[into] >= 0]
        leaves = np.ones(len(plan.missing), np.bool_)
        leaves[kept] = False
        rest = np.flatnonzero(leaves)
        arrays = {
            name: torch.from_numpy(np.concatenate([self._kept[name].numpy()[full], array.numpy()[rest]]))
            for name, array in opened.arrays.items()
        }
        self._leave(np.concatenate([self._row_in[full], plan.rows[plan.missing[leaves]]]), arrays, plan.number)
        for name, array in opened.arrays.items():
            self._kept[name].numpy()[into] = array.numpy()[kept]
        self._row_in[into] = plan.rows[plan.found.kept]
        self._places = None

    def _leave(self, rows: Int[np.ndarray, "k"], arrays: Arrays, number: int = 0) -> None:
        """Have rows written that memory has no longer after a step."""
        self._wait(most=WRITTEN_BEHIND)
        self._writing.append(self._writer.submit(partial(self._write_file, rows, arrays, number)))

    def _wait(self, most: int = 0) -> None:
        """Until what has left memory is written, but for the last so many times."""
        while len(self._writing) > most:
            self._writing.popleft().result()

    def piece(self, start: int, stop: int) -> Mapping[str, Float[Tensor, "n _"]]:
        """See :class:`~partita.features.learnt_tables.LearntTable`."""
        return self._states(np.arange(start, stop))

    def put(self, start: int, arrays: Mapping[str, Float[Tensor, "n _"]]) -> None:
        """See :class:`~partita.features.learnt_tables.LearntTable`."""
        self.restart()
        rows = np.arange(start, start + len(next(iter(arrays.values()))))
        others = {} if arrays.keys() == self.widths.keys() else self._states(rows)
        self._overwrite(rows, {**others, **{name: array.to(self.dtype) for name, array in arrays.items()}})

    def _states(self, rows: Int64[np.ndarray, "n"]) -> Arrays:
        """The arrays of any rows as they are, of which no step has read without moving them."""
        arrays = {name: torch.empty((len(rows), width), dtype=self.dtype) for name, width in self.widths.items()}
        slots = self._slots_of(rows)
        hits, missing = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        for name, array in arrays.items():
            array.numpy()[hits] = self._kept[name].numpy()[slots[hits]]
        self._wait()
        missing = missing[np.argsort(rows[missing], kind="stable")]
        self._read_file(rows[missing], missing, arrays)
        return arrays

    def _overwrite(self, rows: Int64[np.ndarray, "n"], arrays: Arrays) -> None:
        """Change distinct rows, where they are."""
        slots = self._slots_of(rows)
        hits, missing = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        for name, array in arrays.items():
            self._kept[name].numpy()[slots[hits]] = array.numpy()[hits]
        self._leave(rows[missing], {name: torch.from_numpy(array.numpy()[missing]) for name, array in arrays.items()})
        self._wait()

    def _slots_of(self, rows: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Which slot has the latest state of each row now, -1 where none has. What is planned may run ahead of that."""
        if self._places is None:
            filled = np.flatnonzero(self._row_in >= 0)
            order = filled[np.argsort(self._row_in[filled])]
            self._places = self._row_in[order], order
        known, order = self._places
        if not len(known):
            return np.full(len(rows), -1, np.int64)
        at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
        return np.where(known[at] == rows, order[at], -1)

    def restart(self) -> None:
        """See :class:`~partita.features.learnt_tables.LearntTable`."""
        plans = list(self._plans.values())
        for plan in plans:
            if plan.read is not None:
                plan.read.result()
        lost = bool(plans) or self._open is not None  # what they wanted to keep was never read, or never moved
        self._ahead.restart(lost=lost)
        if lost:
            self._forget()
        self._plans.clear()
        self._unread.clear()
        self._reading, self._open = 0, None

    def _forget(self) -> None:
        """Write all that is in slots, which are empty then."""
        filled = np.flatnonzero(self._row_in >= 0)
        self._leave(self._row_in[filled], {name: self._kept_at(name, filled) for name in self._kept})
        self._wait()
        self._row_in[:], self._row_planned[:], self._places = -1, -1, None
        self._leaves_at[:] = self._planned = self._written = 0

    def disk_reads(self) -> DiskReads:
        """See :class:`~partita.features.learnt_tables.LearntTable`."""
        counts = self._file.counts
        return DiskReads(
            self._asked, self._hits, self._lru.hits, counts.rows, counts.reads, counts.bytes, round(1e3 * self._seconds)
        )

    def _kept_at(self, name: str, slots: Int[np.ndarray, "k"]) -> Float[Tensor, "k _"]:
        """What slots hold of an array; a copy."""
        return torch.from_numpy(self._kept[name].numpy()[slots])

    def _columns(self) -> list[tuple[str, int, int]]:
        """Of each array, which bytes of a record are its."""
        return [(name, *ends) for name, ends in zip(self.widths, pairwise(self._ends), strict=True)]

    def _read_file(self, rows: Int64[np.ndarray, "k"], places: Int64[np.ndarray, "k"], arrays: Arrays) -> None:
        """Read rows, ascending, into their places in arrays."""
        if not len(rows):
            return
        begun = time.perf_counter()
        records = self._file.records(len(rows))
        self._file.read(rows, records)
        for name, low, high in self._columns():
            array = arrays[name].numpy()
            array[places] = records[:, low:high].view(array.dtype)
        self._seconds += time.perf_counter() - begun

    def _write_file(self, rows: Int[np.ndarray, "k"], arrays: Arrays, number: int) -> None:
        order = np.argsort(rows)
        if not len(rows):
            self._written = max(self._written, number)
            return
        records = self._file.records(len(rows))
        for name, low, high in self._columns():
            array = arrays[name].numpy()
            records[:, low:high].view(array.dtype)[:] = array[order]
        self._file.write(rows[order].astype(np.int64), records)
        self._written = max(self._written, number)


class _Line:
    """Does one thing after another in a thread of its own, which begins with the first."""

    def __init__(self, name: str) -> None:
        self._name = f"partita-rows-{name}"
        self._todo: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Have something done."""
        if self._thread is None:
            self._thread = threading.Thread(target=_work, args=(self._todo,), name=self._name, daemon=True)
            with small_stacks():
                self._thread.start()
        future: Future[Any] = Future()
        self._todo.put((future, work))
        return future

    def end(self) -> None:
        """Let the thread end when all is done, and wait: torch aborts if it lets go of tensors as Python ends."""
        self._todo.put(None)
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()


def _work(todo: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (given := todo.get()) is not None:
        future, work = given
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        del given, future, work  # they hold what they worked on
