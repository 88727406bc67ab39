"""Threads that wait for files: many, with little memory each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

import numpy as np
from jaxtyping import Int64

T = TypeVar("T")

THREADS = 8
"""Reads, or writes, of a file at once."""
_ROWS_OF_A_THREAD = 64
"""For fewer rows none is started."""
_STACK_BYTES = 1 << 20
"""Of a thread; the system's default, often eight times as much, counts as memory of the process before it is used."""
_STARTING = threading.Lock()


@contextmanager
def small_stacks() -> Iterator[None]:
    """Threads that begin in the block have small stacks."""
    with _STARTING:
        before = threading.stack_size(_STACK_BYTES)
        try:
            yield
        finally:
            threading.stack_size(before)


def shares(rows: Int64[np.ndarray, "n"]) -> list[slice]:
    """How threads share ascending rows of a file; one thread takes rows that lie behind one another."""
    together = len(rows) > 0 and int(rows[-1] - rows[0]) == len(rows) - 1
    threads = 1 if together else min(THREADS, len(rows) // _ROWS_OF_A_THREAD + 1)
    bounds = np.linspace(0, len(rows), threads + 1).astype(int).tolist()
    return [slice(*ends) for ends in pairwise(bounds)]


def at_once(works: Sequence[Callable[[], T]], name: str) -> list[T]:
    """What each of some functions returns, each called in a thread of its own; a single one is called here.

    Args:
        works: the functions.
        name: of the threads.
    """
    if len(works) == 1:
        return [works[0]()]
    with ThreadPoolExecutor(len(works), thread_name_prefix=name) as pool:
        with small_stacks():
            futures = [pool.submit(work) for work in works]
        return [future.result() for future in futures]
