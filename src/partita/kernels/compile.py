"""Compiles plain loops where numba is at hand; where it is not, they run as they are, slowly."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None  # type: ignore[assignment]

try:
    from numba import njit
    from numba.core import event
    from numba.core.caching import FunctionCache

    from partita.kernels.intrinsics import prefetch
except ImportError:  # numba has no wheel for this Python yet
    njit = None
    FunctionCache = object

    def prefetch(array: Any, offset: int) -> None:
        """Nothing, where nothing is compiled."""


COMPILES = njit is not None
"""Whether loops are compiled here."""

AHEAD = 16
"""How many edges ahead loops over edges should :func:`prefetch` what they will look up by node id."""

__all__ = ["AHEAD", "COMPILES", "compilations", "compiled", "prefetch"]


def compilations() -> int:
    """How many functions this process has compiled so far, other than those that were found on disk."""
    return 0 if _WATCH is None else _WATCH.count


def _watch() -> Any:
    class Watch(event.Listener):  # type: ignore[misc]
        count = 0

        def on_start(self, event: Any) -> None:
            self.count += 1

        def on_end(self, event: Any) -> None:
            pass

    watch = Watch()
    event.register("numba:compile", watch)
    return watch


_WATCH = _watch() if COMPILES else None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from this block, where the file system has locks."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = (folder / ".lock").open("ab")
    except OSError:  # nothing can be kept there
        yield
        return
    with lock:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Cache(FunctionCache):  # type: ignore[misc]
    """Numba's own, for several processes: two that compiled a function for different arguments at the same time took
    the same file for it, and from then on calls for the one found what was compiled for the other.
    """

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled for some arguments."""
        with _alone(Path(self.cache_path)):
            super().save_overload(sig, data)


def compiled(loops: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers and numpy arrays, compiled at its first call and kept on disk; runs without the GIL.

    The function may call other compiled functions. ``.py_func`` is what was compiled.
    """
    loops = inspect.unwrap(loops)  # from the checks that tests wrap around every function of a module
    if not COMPILES:
        loops.py_func = loops  # type: ignore[attr-defined]
        return loops
    found = njit(nogil=True)(loops)
    found._cache = _Cache(loops)
    return found  # type: ignore[no-any-return]
