"""Plain file operations that fail early and completely: whole writes, real allocation, durable renames."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from partita.core.errors import ResourceError, is_disk_full

try:
    import fcntl
except ImportError:  # not a POSIX system: there are no locks
    fcntl = None  # type: ignore[assignment]

_ZEROS_BYTES = 4 << 20


def write_all(descriptor: int, data: bytes | memoryview, offset: int | None = None) -> None:
    """Write every byte, where a single system call may write fewer.

    Args:
        descriptor: of an open file.
        data: bytes to write.
        offset: position in the file; ``None`` writes at the current position and moves it.
    """
    view = memoryview(data)
    while len(view):
        if offset is None:
            count = os.write(descriptor, view)
        else:
            count = os.pwrite(descriptor, view, offset)
            offset += count
        view = view[count:]


def allocate_file(path: Path, nbytes: int) -> None:
    """Make a file of zeros whose space is taken at once, so that writing through a map cannot fail later.

    A sparse file would do as long as the disk has room, but a full disk then kills the process with SIGBUS.

    Args:
        path: of the file, which must not exist.
        nbytes: its size.

    Raises:
        ResourceError: there is not enough room; the message gives need versus have.
    """
    free = shutil.disk_usage(path.parent).free
    try:
        with open(path, "xb", buffering=0) as file:
            if nbytes:
                _take_space(file.fileno(), nbytes)
    except OSError as error:
        if not is_disk_full(error):
            raise
        what = f"'{path.stem}' needs {nbytes:,} bytes, {free:,} bytes are free ({error.strerror})"
        raise no_room(what, path.parent) from error


def no_room(what: str, directory: Path) -> ResourceError:
    """That a disk is too full for a store."""
    return ResourceError(what, where=str(directory), fix="Free space there, or write the store to another disk")


def _take_space(descriptor: int, nbytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
    zeros = memoryview(bytes(min(nbytes, _ZEROS_BYTES)))
    for start in range(0, nbytes, _ZEROS_BYTES):
        write_all(descriptor, zeros[: nbytes - start])


def take_lock(path: Path, flags: int) -> int | None:
    """Open a file or a directory with ``flags``, and lock it for this process.

    Returns:
        A descriptor that holds the lock until it is closed; ``None`` where there are no locks.

    Raises:
        BlockingIOError: another process holds the lock.
    """
    if fcntl is None:
        return None
    lock = os.open(path, flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise
    except OSError:  # a file system without locks
        pass
    return lock


def fsync_path(path: Path) -> None:
    """Make a file or a directory's entries durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
