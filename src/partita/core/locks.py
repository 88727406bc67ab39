"""One process at a time writes a folder; who it is stands in the lock."""

from __future__ import annotations

import atexit
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from partita.core.errors import PartitaError
from partita.core.files import parse_json, read_file
from partita.core.machine import now

try:
    import fcntl
except ImportError:  # no locks on this system: only the record of the owner is looked at
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = ".lock"


class FolderLock:
    """Holds a folder for this process until it is released, or the process ends, however it ends.

    The file ``.lock`` in the folder is locked by the system, and says who holds it: ``pid``, ``host``, ``since``. One
    that was left behind by a process that was killed is not held. On file systems without locks, the record decides:
    it holds while its process is alive on this host. A lock of this process, for instance of an object that was
    forgotten in a notebook, is taken over.

    Args:
        folder: that is there.
        error: type to raise.
        what: what the folder is, for the message: ``"run"``.

    Raises:
        PartitaError: of the given type: another process holds the folder.
    """

    def __init__(self, folder: Path, error: type[PartitaError], what: str) -> None:
        self._path = folder / LOCK_NAME
        self._error, self._what = error, what
        self._file: int | None = None
        self._pid = os.getpid()
        while self._file is None:
            file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o666)
            try:
                place = os.fstat(file)
                self._key = (place.st_dev, place.st_ino)
                if (other := _held.get(self._key)) is not None:
                    self._file, other._file = other._file, None
                elif not _lock(file, self._path):
                    raise error(
                        f"another process is writing this {what}: {_shown(_owner(self._path))}",
                        where=str(folder),
                        fix="Wait until it has ended, or end it",
                    )
                elif self.is_here:  # its holder may have removed the file between the two calls above
                    self._file, file = file, -1
            finally:
                if file >= 0:
                    os.close(file)
        _held[self._key] = self
        record = {"pid": os.getpid(), "host": socket.gethostname(), "since": now()}
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(record).encode(), 0)
        except OSError as reason:
            self.release()
            reason.filename = str(self._path)
            raise

    @property
    def is_here(self) -> bool:
        """Whether the folder is still the one that was locked, and not removed or replaced."""
        try:
            place = os.stat(self._path)
        except OSError:
            return False
        return (place.st_dev, place.st_ino) == self._key

    def require_here(self) -> None:
        """See that the folder is still the one that was locked.

        Raises:
            PartitaError: of the type given: it was removed, or another one is in its place.
        """
        if not self.is_here:
            raise self._error(
                f"the folder of the {self._what} was removed or replaced while it was being written",
                where=str(self._path.parent),
                fix="Start again, and leave the folder in its place until the command has ended",
            )

    def release(self) -> None:
        """Let others write. Doing so twice does no harm."""
        if self._file is None or self._pid != os.getpid():
            return
        if self.is_here:  # not where the folder was removed, or is another one
            with suppress(OSError):
                self._path.unlink()
        os.close(self._file)
        self._file = None
        _held.pop(self._key, None)

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.release()


@atexit.register
def _release_all() -> None:
    """A process that ends in whatever way it chooses leaves no lock."""
    for lock in list(_held.values()):
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether another process holds a folder; nothing is written."""
    path = folder / LOCK_NAME
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        place = os.fstat(file)
        return (place.st_dev, place.st_ino) not in _held and not _lock(file, path)
    finally:
        os.close(file)


_held: WeakValueDictionary[tuple[int, int], FolderLock] = WeakValueDictionary()
"""Those of this process, by device and number of the file."""


def _lock(file: int, path: Path) -> bool:
    """Lock an open file; ``False``: another process has done so."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # a file system without locks
        else:
            return True
    owner = _owner(path)
    return owner.get("host") != socket.gethostname() or not _alive(owner.get("pid"))


def _alive(pid: Any) -> bool:
    if not isinstance(pid, int) or pid <= 0 or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _owner(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_file(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _shown(owner: dict[str, Any]) -> str:
    if not owner:
        return "it has just begun"
    return f"process {owner.get('pid')} on {owner.get('host')}, since {owner.get('since')}"
