"""Typed errors: what was wrong, where, and what to change.

Every error a user can cause is a :class:`PartitaError`. The command line prints it as one message and exits
with :attr:`PartitaError.exit_code`, without a traceback. Anything else that escapes is a bug in Partita.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable


class PartitaError(Exception):
    """Base of all errors that a user can cause and mend.

    Args:
        what: what is wrong, one sentence without a full stop.
        where: file, column, row, setting: as precise as known.
        fix: what to change, one imperative sentence.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(self._message())

    def _message(self) -> str:
        message = f"{self.where}: {self.what}" if self.where else self.what
        return f"{message}. {self.fix}" if self.fix else message

    def rename(self, old: str, new: str) -> None:
        """Call something by another name in the message, for instance a temporary copy by the file it was made of."""
        self.what = self.what.replace(old, new)
        self.where = self.where and self.where.replace(old, new)
        self.fix = self.fix and self.fix.replace(old, new)
        self.args = (self._message(),)


class InputError(PartitaError):
    """A source file (edges, features, labels, splits) holds something that cannot be used."""


class StoreError(PartitaError):
    """A graph store is missing, damaged, or of a format this version does not read."""


class EdgesError(StoreError, IndexError):
    """The edges of a store lead to nodes that there are not: a column is damaged."""


class ConfigError(PartitaError):
    """A setting is unknown, out of range, or does not fit another setting or the data."""


class RunError(PartitaError):
    """A run folder is missing, incomplete, or does not belong to this store or configuration."""


class ResourceError(PartitaError):
    """Memory, disk space or another resource does not suffice: the message gives need versus have."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant.

    Returns:
        ``"did you mean 'x'?"``, or the list of known names where none is near.
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"Did you mean '{close[0]}'?"
    return f"Known names: {', '.join(known)}"


def is_disk_full(error: OSError) -> bool:
    """Whether an error means that a file could not grow: disk full, quota used up, or file size limit reached."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


_OF_THE_SYSTEM = {
    errno.ENOSPC: ("no space is left", "Free space on that disk, or choose another one"),
    errno.EDQUOT: ("the quota of disk space is used up", "Free space, or choose another disk"),
    errno.EFBIG: ("the file would be larger than files may be here", "Raise the limit (ulimit -f), or choose a disk"),
    errno.EROFS: ("the file system is read-only", "Choose a place that can be written to"),
    errno.EACCES: ("permission denied", "Change the permissions, or choose another place"),
    errno.EPERM: ("permission denied", "Change the permissions, or choose another place"),
    errno.ENOTDIR: ("a part of the path is not a directory", "Correct the path"),
    errno.EISDIR: ("is a directory", "Name a file"),
    errno.EEXIST: ("is there already", "Choose another path"),
    errno.ENOTEMPTY: ("is not empty", "Choose another path"),
    errno.ENAMETOOLONG: ("the name is too long for this file system", "Choose a shorter one"),
    errno.ELOOP: ("symbolic links lead in a circle", "Correct the path"),
    errno.ENOENT: ("no such file or directory", "Correct the path; it may have been removed meanwhile"),
    errno.EIO: ("the disk could not be read or written", "See the kernel's log, and use another disk"),
    errno.ESTALE: ("the file is no longer on the server", "Try again"),
    errno.EMFILE: ("too many files are open", "Raise the limit with ulimit -n"),
    errno.ENFILE: ("too many files are open on this machine", "End other programs"),
    errno.EAGAIN: (
        "the system has no more processes or threads",
        "Raise the limit with ulimit -u, or use fewer workers",
    ),
}
"""What the system may refuse, in words, and what to do."""


def of_the_system(error: BaseException) -> PartitaError | None:
    """What the system, or a library, has refused for want of space, memory or permission, as an error with a remedy.

    Returns:
        ``None`` for any other error, and for those that are typed already.
    """
    if isinstance(error, PartitaError):
        return None
    if _is_of_memory(error):
        return _out_of_memory(str(error))
    if isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM:
        what, fix = _OF_THE_SYSTEM[error.errno]
        return ResourceError(what, where=None if error.filename is None else os.fsdecode(error.filename), fix=fix)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        what, fix = _OF_THE_SYSTEM[errno.EAGAIN]
        return ResourceError(what, fix=fix)
    return None


def _is_of_memory(error: BaseException) -> bool:
    """Whether Python, numpy, torch or the system could not get memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    of_torch = r"DefaultCPUAllocator|out of memory|[Cc]annot allocate memory|std::bad_alloc"
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(re.search(of_torch, str(error))))


def _out_of_memory(message: str) -> ResourceError:
    from partita.core.memory import available_memory  # which draws in numpy

    wanted = re.search(r"[\d.,]+ (bytes|[KMGT]iB)", message)
    size = re.sub(r"^\d{4,}", lambda digits: f"{int(digits[0]):,}", wanted[0]) if wanted else "a piece of unknown size"
    need = f"{size} {'were' if wanted else 'was'} asked for at once"
    have, limit = available_memory()
    return ResourceError(
        f"memory ran out: {need}, {have:,} bytes can be had ({limit})",
        fix="Give a lower --memory-limit, or a smaller --batch-size, --hidden or --fanout, or fewer --workers; in "
        "isolated training also a lower --memory-per-worker, or more parts",
    )


def printable(text: str) -> str:
    """Without control characters, which names of files and ids may have, and terminals act upon."""
    return "".join(each if each.isprintable() or each in "\n\t" else f"\\x{ord(each):02x}" for each in text)
