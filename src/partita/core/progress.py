"""Progress of anything that can take more than two seconds: one call for the worker, one for the display.

Library code says ``with progress.task("sort edges", total=n, unit="edges") as task: ... task.advance(k)``.
Nothing is shown unless a display has been installed (the command line installs one on a terminal).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, runtime_checkable


@runtime_checkable
class Bar(Protocol):
    """One running piece of work."""

    def advance(self, amount: float = 1) -> None:
        """Say that ``amount`` more units are done."""
        ...


@runtime_checkable
class Display(Protocol):
    """Shows tasks; see :mod:`partita.report.terminal` for the one used on a terminal."""

    def start(self, description: str, total: float | None, unit: str) -> Bar:
        """Begin to show a task."""
        ...

    def stop(self, task: Bar) -> None:
        """The task has ended, successfully or not."""
        ...


@runtime_checkable
class Lines(Protocol):
    """A display that shows lines as well."""

    def say(self, text: str) -> None:
        """Show a line."""
        ...


def is_watched() -> bool:
    """Whether a person watches: standard error is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def say(text: str) -> None:
    """Show a line, where the display shows lines."""
    display = _display.get()
    if isinstance(display, Lines):
        display.say(text)


class _Silent:
    def advance(self, amount: float = 1) -> None:
        pass


_display: ContextVar[Display | None] = ContextVar("partita_progress_display", default=None)


@contextmanager
def shown_by(display: Display | None) -> Iterator[None]:
    """Show the progress of everything inside the ``with`` block on ``display`` (``None``: show nothing)."""
    token = _display.set(display)
    try:
        yield
    finally:
        _display.reset(token)


@contextmanager
def task(description: str, *, total: float | None = None, unit: str = "") -> Iterator[Bar]:
    """Announce a piece of work.

    Args:
        description: a few words, for instance ``"sort edges"``.
        total: number of units to do; ``None`` where it is not known.
        unit: what is counted, plural, for instance ``"edges"``.
    """
    display = _display.get()
    if display is None:
        yield _Silent()
        return
    started = display.start(description, total, unit)
    try:
        yield started
    finally:
        display.stop(started)
