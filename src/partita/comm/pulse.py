"""Signs of life: what a worker lets others see of what it does, at the cost of a few writes to memory per exchange.

A worker that is killed is noticed by its launcher. One that is stopped, or waits for something that never comes, is
still there, and the others would wait for it as long as the backend lets them. So every worker counts its exchanges
and steps; :mod:`partita.comm.silence` judges from these counts and from processor time which worker holds the others
up.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_WORD_BYTES = 8


class Signs(NamedTuple):
    """What others see of a worker.

    Attributes:
        moves: begins and ends of exchanges, and steps, so far.
        stepping: 1 while it does nothing but steps, of which one has been done: the next should not take much longer.
        main_waits: 1 while its main thread is in an exchange.
        others_wait: how many of its other threads are in one.
        connecting: 1 while its main thread waits to be connected with others.
    """

    moves: int = 0
    stepping: int = 0
    main_waits: int = 0
    others_wait: int = 0
    connecting: int = 0

    @property
    def waits(self) -> bool:
        """Whether it waits for other workers, as far as one can see."""
        return bool(self.main_waits or self.others_wait)


_MOVES, _STEPPING, _MAIN_WAITS, _OTHERS_WAIT, _CONNECTING = range(len(Signs._fields))
NUM_BYTES = _WORD_BYTES * len(Signs._fields)


class Pulse:
    """The signs of this worker. May be used from several threads.

    Args:
        path: of a file to keep them in, where another process sees every change at once; ``None``: in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        buffer: mmap.mmap | bytearray = bytearray(NUM_BYTES)
        if path is not None:
            path.write_bytes(buffer)
            with path.open("r+b") as file:
                buffer = mmap.mmap(file.fileno(), NUM_BYTES)
        self._cells = memoryview(buffer).cast("q")
        self._lock = threading.Lock()

    @property
    def signs(self) -> Signs:
        """What others see now."""
        return Signs(*self._cells)

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Around an exchange, which waits for others."""
        cell = _MAIN_WAITS if threading.current_thread() is threading.main_thread() else _OTHERS_WAIT
        self._add(cell, 1)
        try:
            yield
        finally:
            self._add(cell, -1)

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Around what connects this worker with others."""
        with self.exchanging():
            self._cells[_CONNECTING] = 1
            try:
                yield
            finally:
                self._cells[_CONNECTING] = 0

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Around a loop that calls :meth:`step` again and again."""
        try:
            yield
        finally:
            self._cells[_STEPPING] = 0

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Within such a loop, around what takes its time without being a step."""
        before, self._cells[_STEPPING] = self._cells[_STEPPING], 0
        try:
            yield
        finally:
            self._cells[_STEPPING] = before

    def step(self) -> None:
        """A step of such a loop has been done."""
        with self._lock:
            self._cells[_MOVES] += 1
            self._cells[_STEPPING] = 1

    def _add(self, cell: int, number: int) -> None:
        with self._lock:
            self._cells[_MOVES] += 1
            self._cells[cell] += number


def read_signs(path: Path) -> Signs:
    """The signs of a worker of this machine, from its file; those of one that has not begun where there is none."""
    try:
        cells = memoryview(path.read_bytes()).cast("q")
    except (FileNotFoundError, TypeError):  # not there, or not written yet
        return Signs()
    return Signs(*cells) if len(cells) == len(Signs._fields) else Signs()
