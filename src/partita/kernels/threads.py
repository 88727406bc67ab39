"""The thread pool that all CPU kernels share.

Kernels release the GIL and work on a range of rows, so a call is cut into ranges. numba's own parallel layers are
not used, because most of them must not be entered from several Python threads, and the pipeline does that.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int

_lock = threading.Lock()
_threads: int | None = None
_pool: ThreadPoolExecutor | None = None
_pool_size = 0
_limit: ContextVar[int | None] = ContextVar("partita_kernel_threads", default=None)


def set_threads(count: int | None) -> None:
    """Set how many threads one kernel call may use; ``None`` follows ``torch.get_num_threads()``."""
    global _threads
    if count is not None and count < 1:
        raise ValueError(f"{count} threads: at least 1")
    _threads = count


@contextmanager
def limited(count: int) -> Iterator[None]:
    """Let kernels called from the current thread use at most ``count`` threads inside the ``with`` block.

    For callers that run several kernels side by side, one per Python thread (``limited(1)``).
    """
    token = _limit.set(count)
    try:
        yield
    finally:
        _limit.reset(token)


def num_threads() -> int:
    """Threads that a kernel call from here may use."""
    count = _threads or torch.get_num_threads()
    limit = _limit.get()
    return count if limit is None else min(count, limit)


def run(kernel: Callable[[int, int], object], bounds: list[int]) -> None:
    """Call ``kernel(bounds[i], bounds[i+1])`` for every i, side by side; the caller's thread takes part.

    Kernels never call :func:`run` themselves, so a full pool only means that the caller does the work.
    """
    ranges = list(pairwise(bounds))
    if len(ranges) == 1:
        kernel(*ranges[0])
        return
    futures = [_executor(len(ranges) - 1).submit(kernel, low, high) for low, high in ranges[1:]]
    try:
        kernel(*ranges[0])
        for future, (low, high) in zip(futures, ranges[1:]):
            if future.cancel():  # not begun: other callers keep the pool busy
                kernel(low, high)
            else:
                future.result()
    finally:
        for future in futures:  # never leave while somebody writes into the caller's arrays
            if not future.cancel():
                future.exception()


def even_bounds(rows: int, work: int, grain: int = 1 << 16) -> list[int]:
    """Cut ``rows`` rows into equal ranges, one per thread; one range where ``work`` is below ``grain`` per thread.

    Args:
        rows: number of rows.
        work: elements that all rows touch together.
        grain: elements worth the hand-over to a thread (tens of microseconds).
    """
    parts = max(1, min(num_threads(), rows, work // grain))
    return [rows * i // parts for i in range(parts + 1)]


def balanced_bounds(indptr: Int[np.ndarray, "D_1"], width: int, grain: int = 1 << 16) -> list[int]:
    """Cut the rows of ``indptr`` into ranges of about equal work, where a row costs (1 + its edges) x ``width``."""
    rows = indptr.shape[0] - 1
    total = int(indptr[-1]) + rows
    parts = max(1, min(num_threads(), rows, total * width // grain))
    bounds = [0]
    for part in range(1, parts):
        goal = total * part // parts
        bounds.append(bisect_left(range(rows), goal, lo=bounds[-1], key=lambda row: int(indptr[row]) + row))
    bounds.append(rows)
    return bounds


def _executor(workers: int) -> ThreadPoolExecutor:
    """The shared pool, with at least ``workers`` threads."""
    global _pool, _pool_size
    with _lock:
        if _pool is None or _pool_size < workers:
            # A smaller pool ends by itself once its last task is done.
            _pool = ThreadPoolExecutor(workers, thread_name_prefix="partita-kernel")
            _pool_size = workers
        return _pool


def _forget_pool() -> None:
    """A forked child has none of its parent's threads."""
    global _pool, _pool_size, _lock
    _lock = threading.Lock()
    _pool, _pool_size = None, 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
