"""Compiles plain loops where numba is at hand; where it is not, they run as they are, slowly."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

try:
    from numba import njit
    from numba.core import event

    from partita.kernels.intrinsics import prefetch
except ImportError:  # numba has no wheel for this Python yet
    njit = None

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


def compiled(loops: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers and numpy arrays, compiled at its first call and kept on disk; runs without the GIL.

    The function may call other compiled functions. ``.py_func`` is what was compiled.
    """
    loops = inspect.unwrap(loops)  # from the checks that tests wrap around every function of a module
    if not COMPILES:
        loops.py_func = loops  # type: ignore[attr-defined]
        return loops
    return njit(cache=True, nogil=True)(loops)  # type: ignore[no-any-return]
