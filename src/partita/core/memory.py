"""How much memory this process uses and may use.

"Memory" means *private* memory: pages that belong to this process alone and have no file behind them. Pages of
memory-mapped columns can be dropped at any time and do not count.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
from jaxtyping import Shaped
from numpy.typing import DTypeLike

_STATUS = Path("/proc/self/status")
_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_FILES = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def private_bytes() -> int:
    """Private memory of this process now, in bytes (Linux: RssAnon; elsewhere: unique set size)."""
    try:
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return int(psutil.Process().memory_full_info().uss)


def available_bytes() -> int:
    """Memory that can still be taken, in bytes: what the system has left, or the cgroup's limit if that is less."""
    available = int(psutil.virtual_memory().available)
    for names in _CGROUP_FILES:
        try:
            limit, usage = ((_CGROUP / name).read_text().strip() for name in names)
        except OSError:
            continue
        if limit.isdigit():
            available = min(available, max(0, int(limit) - int(usage)))
    return available


class PeakMemory:
    """Remembers the most private memory seen above a base line: asked at the right moments, or by a clock.

    Attributes:
        peak_bytes: above what was held when this was made.
    """

    def __init__(self) -> None:
        self._base = private_bytes()
        self.peak_bytes = 0

    def look(self) -> None:
        """Note the memory in use now."""
        self.peak_bytes = max(self.peak_bytes, private_bytes() - self._base)

    @contextmanager
    def watching(self, seconds: float = 0.05) -> Iterator[None]:
        """Look every so many seconds as well, from a thread, until the end of the block."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(seconds):
                self.look()

        thread = threading.Thread(target=watch, name="partita-memory", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.look()


_MAP_FROM, _TRIM_FROM = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD of mallopt(3)
_VARIABLE = "MALLOC_MMAP_THRESHOLD_"
_KEPT_BYTES, _USUAL_BYTES = 2**30, 2**25
_keeping = False


@contextmanager
def keeping_freed() -> Iterator[None]:
    """Within the block, let malloc keep large pieces that are freed for the next ones of that size (glibc only).

    Pieces of 32 MiB and more would be mapped afresh each time, and the system clears every page of them: that takes
    longer than what a training step does with many of its tensors, or an exchange with its rows. At the end what is
    free goes back to the system. Nothing is done within another such block, nor where the user has set
    ``MALLOC_MMAP_THRESHOLD_``.
    """
    global _keeping
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    known = hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim")
    if libc is None or not known or _keeping or _VARIABLE in os.environ:
        yield
        return
    libc.mallopt(_MAP_FROM, _KEPT_BYTES)
    libc.mallopt(_TRIM_FROM, _KEPT_BYTES)
    _keeping = True
    try:
        yield
    finally:
        _keeping = False
        # What glibc comes to by itself where pieces of any size are used.
        libc.mallopt(_MAP_FROM, _USUAL_BYTES)
        libc.mallopt(_TRIM_FROM, 2 * _USUAL_BYTES)
        libc.malloc_trim(0)


_MAPPED = 2**20


def fresh_array(shape: int | tuple[int, ...], dtype: DTypeLike) -> Shaped[np.ndarray, "..."]:
    """An array of unknown contents whose memory goes back to the system when it is dropped, if it is large.

    What malloc hands out may stay with the process after it was freed, most of all when another thread frees it.

    Raises:
        MemoryError: there is not so much.
    """
    shape, dtype = (shape,) if isinstance(shape, int) else shape, np.dtype(dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _MAPPED or not hasattr(mmap, "MAP_PRIVATE"):
        return np.empty(shape, dtype)
    try:
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes:,} bytes cannot be had: {error}") from None
    return np.frombuffer(pages, dtype).reshape(shape)
