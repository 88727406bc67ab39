"""Errors that cross process borders: written down as JSON by one worker, raised as the same type by another."""

from __future__ import annotations

import importlib
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from partita.core.errors import PartitaError, of_the_system

Record = dict[str, Any]
"""An error as JSON: what :func:`pack_error` makes."""


class WorkerError(Exception):
    """A worker failed with an error that no user can mend: a bug.

    Attributes:
        rank: the worker that failed.
        kind: name of the type that it raised.
        remote_traceback: where it was raised, as Python prints it; also a note of this error.
    """

    def __init__(self, rank: int, kind: str, message: str, remote_traceback: str) -> None:
        self.rank = rank
        self.kind = kind
        self.remote_traceback = remote_traceback
        super().__init__(f"worker {rank} failed: {kind}: {message}" if message else f"worker {rank} failed: {kind}")
        self.add_note(f"Traceback of worker {rank}:\n{remote_traceback.rstrip()}")


class WorkerLost(PartitaError):
    """A worker ended before its work was done, without an error of its own: it was killed, it exited, or it hangs."""


class PeerLost(PartitaError):
    """Communication failed, most often because another worker has ended.

    It is a consequence: where any other error is known, that one is shown instead.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"communication with another worker failed: {reason}",
            fix="Look for the error of the worker that ended first",
        )


class PeerUnproven(PeerLost):
    """A connection was made by something that is no worker of the run, or could not be made. A consequence as well."""

    def __init__(self, reason: str) -> None:
        PartitaError.__init__(
            self,
            f"a worker could not be connected, or another process connected in its place: {reason}",
            fix="Look for a worker that ended first; if there is none, start again",
        )


def first_line(error: RuntimeError) -> str:
    """What the backend says, without the source line of the library, and the advice that follows."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[\S+\]\s*", "", first).split(". ")[0].rstrip(".")


@contextmanager
def peer_errors() -> Iterator[None]:
    """Around a call of the backend, whose arguments are known to be right: what it raises means that a peer is gone."""
    try:
        yield
    except RuntimeError as error:
        if (refused := of_the_system(error)) is not None:
            raise refused from error
        raise PeerLost(first_line(error)) from error


def pack_error(error: BaseException, rank: int) -> Record:
    """Write an error down as JSON values.

    Args:
        error: the error. One that came from :func:`unpack_error` is packed as what it was at first.
        rank: the worker that raised it.
    """
    if (typed := of_the_system(error)) is not None:
        error = typed.with_traceback(error.__traceback__)
    record = getattr(error, "_record", None)
    if record is not None:
        return {**record, "notes": list(getattr(error, "__notes__", []))}
    fields = {"what": error.what, "where": error.where, "fix": error.fix} if isinstance(error, PartitaError) else None
    return {
        "rank": rank,
        "time": time.time(),
        "types": [f"{kind.__module__}:{kind.__qualname__}" for kind in type(error).__mro__],
        "kind": type(error).__name__,
        "message": str(error),
        "fields": fields,
        "notes": list(getattr(error, "__notes__", [])),
        "traceback": "".join(traceback.format_exception(error)),
        "consequence": _is_consequence(error),
    }


def unpack_error(record: Record, *, alone: bool = False) -> Exception:
    """Make the error again.

    Args:
        record: from :func:`pack_error`.
        alone: there was one worker only, so none is named.

    Returns:
        For a :class:`PartitaError` one of the same type with the same fields, or of its nearest base class known
        here; for anything else a :class:`WorkerError`. A note names the worker.
    """
    error: PartitaError | WorkerError
    if record["fields"] is not None:
        kind = next(filter(None, map(_typed_error, record["types"])), PartitaError)
        error = typed = kind.__new__(kind)
        PartitaError.__init__(typed, **record["fields"])
    else:
        error = WorkerError(record["rank"], record["kind"], record["message"], record["traceback"])
    notes = list(record["notes"])
    if not alone and not isinstance(error, WorkerError):
        notes.append(f"In worker {record['rank']}")
    for note in notes:
        if note not in getattr(error, "__notes__", []):
            error.add_note(note)
    error.__dict__["_record"] = record
    return error


def _typed_error(name: str) -> type[PartitaError] | None:
    """The class of that name, where it is a :class:`PartitaError`; modules of others are not imported for it."""
    module, _, qualname = name.partition(":")
    if not module.startswith("partita."):
        return None
    try:
        found: Any = attrgetter(qualname)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return None
    return found if isinstance(found, type) and issubclass(found, PartitaError) else None


def _is_consequence(error: BaseException | None) -> bool:
    """Whether the error is, or was caused by, the loss of a peer."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, PeerLost):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
