"""Typed errors: what was wrong, where, and what to change.

Every error a user can cause is a :class:`PartitaError`. The command line prints it as one message and exits
with :attr:`PartitaError.exit_code`, without a traceback. Anything else that escapes is a bug in Partita.
"""

from __future__ import annotations

import difflib
import errno
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
    """Memory or disk space does not suffice: the message gives need versus have."""


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
