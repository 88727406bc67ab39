"""How much memory this process uses and may use.

"Memory" means *private* memory: pages that belong to this process alone and have no file behind them. Pages of
memory-mapped columns can be dropped at any time and do not count.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from jaxtyping import Shaped
from numpy.typing import DTypeLike

_PROC = Path("/proc/self")
_FILES = {
    "cgroup2": ("memory.max", "memory.current", ""),
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}
"""By type of file system: limit and use of a control group, and what the names in its ``memory.stat`` begin with."""


class Available(NamedTuple):
    """How much memory a process can still take.

    Attributes:
        bytes: so much.
        limit: what allows no more, for messages.
    """

    bytes: int
    limit: str


def private_bytes() -> int:
    """Private memory of this process now, in bytes (Linux: RssAnon; elsewhere: unique set size)."""
    found = _status("RssAnon")
    return int(psutil.Process().memory_full_info().uss) if found is None else found


def held_bytes() -> int:
    """Memory of this process as ``RLIMIT_DATA`` counts it, in bytes (Linux: VmData; elsewhere as private memory).

    That is what may be written to and has no file behind it, whether or not it was touched, stacks of threads
    included: more than :func:`private_bytes`.
    """
    found = _status("VmData")
    return private_bytes() if found is None else found


def available_bytes(sharers: int = 1) -> int:
    """Memory that this process can still take, in bytes; see :func:`available_memory`."""
    return available_memory(sharers).bytes


def available_memory(sharers: int = 1, *, fresh: bool = False) -> Available:
    """Memory that this process can still take, and what limits it.

    That is the least of what the system has left; of what the control group of this process has left (version 1 or
    2), and all groups that hold it; and of what the limits of the process (``RLIMIT_DATA``, ``RLIMIT_AS``) leave.

    Args:
        sharers: processes that take alike from what the system and the control groups have left. Limits of a process
            are its own.
        fresh: for a process that is not there yet, which has taken nothing of its own limits.
    """
    shared = _shared()
    found = [Available(each.bytes // sharers, each.limit) for each in shared] + _of_process(fresh)
    return min(found)


def bytes_for_files() -> int:
    """Memory in which the system can keep pages of files that this process reads, in bytes."""
    return min(_shared()).bytes


def _shared() -> list[Available]:
    """What processes share."""
    return [Available(int(psutil.virtual_memory().available), "free memory of the machine"), *_of_groups()]


def _of_process(fresh: bool) -> list[Available]:
    """What is left under the limits of this process."""
    try:
        import resource
    except ImportError:  # Windows has none
        return []
    found = []
    for kind, field, command in (("RLIMIT_DATA", "VmData", "ulimit -d"), ("RLIMIT_AS", "VmSize", "ulimit -v")):
        limit, used = resource.getrlimit(getattr(resource, kind))[0], 0 if fresh else _status(field)
        if limit != resource.RLIM_INFINITY and used is not None:
            found.append(Available(max(0, limit - used), f"{kind} of {limit:,} bytes ({command})"))
    return found


def _of_groups() -> list[Available]:
    """What is left in the control group of this process, and in those that hold it."""
    found = []
    for folder, top, names in _groups():
        for group in (folder, *folder.parents):
            limit, usage = (_number(group / name) for name in names[:2])
            if limit is not None and usage is not None:
                # Pages of files that are kept for later reading are dropped before memory is short.
                kept = _pages_of_files(group / "memory.stat", names[2])
                found.append(Available(max(0, limit - max(0, usage - kept)), f"limit of the control group {group}"))
            if group == top:
                break
    return found


def _groups() -> Iterator[tuple[Path, Path, tuple[str, str, str]]]:
    """The folder of each group of this process that counts memory, where its hierarchy is mounted, and its files."""
    try:
        mounts = (_PROC / "mountinfo").read_text(encoding="utf-8").splitlines()
        groups = [line.split(":", 2) for line in (_PROC / "cgroup").read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        return
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        kind, *_, options = after.split()
        root, top = map(_unescaped, before.split()[3:5])
        if kind not in _FILES or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        for _, controllers, path in groups:
            if (controllers == "") if kind == "cgroup2" else ("memory" in controllers.split(",")):
                inside = os.path.relpath(path, root)
                # In a container the path may be one of the host, and the group that is mounted is its own.
                outside = inside.startswith("..")
                yield Path(top) if outside else Path(os.path.normpath(Path(top) / inside)), Path(top), _FILES[kind]


def _unescaped(path: str) -> str:
    """A path of ``mountinfo``, where blanks are written as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _number(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max": no limit


def _pages_of_files(file: Path, prefix: str) -> int:
    try:
        lines = dict(line.split(None, 1) for line in file.read_text(encoding="ascii").splitlines())
        return sum(int(lines[f"{prefix}{state}_file"]) for state in ("inactive", "active"))
    except (OSError, ValueError, KeyError):
        return 0


def _status(field: str) -> int | None:
    """A size of ``/proc/self/status`` in bytes; ``None`` where there is none."""
    try:
        for line in (_PROC / "status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


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


_MAP_FROM, _TRIM_FROM, _ARENAS = -3, -1, -8  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_ARENA_MAX of mallopt(3)
_VARIABLE = "MALLOC_MMAP_THRESHOLD_"
_KEPT_BYTES, _USUAL_BYTES = 2**30, 2**25
_keeping = False


@contextmanager
def keeping_freed() -> Iterator[None]:
    """Within the block, let malloc keep large pieces that are freed for the next ones of that size (glibc only).

    Pieces of 32 MiB and more would be mapped afresh each time, and the system clears every page of them: that takes
    longer than what a training step does with many of its tensors, or an exchange with its rows. Threads that begin
    from here on, after the block too, share an arena of malloc: no piece of an arena of their own is larger than
    64 MiB. At the end what is free goes back to the system. Nothing is done within another such block, nor where the
    user has set ``MALLOC_MMAP_THRESHOLD_``.
    """
    global _keeping
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    known = hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim")
    if libc is None or not known or _keeping or _VARIABLE in os.environ:
        yield
        return
    libc.mallopt(_MAP_FROM, _KEPT_BYTES)
    libc.mallopt(_TRIM_FROM, _KEPT_BYTES)
    libc.mallopt(_ARENAS, 1)
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
