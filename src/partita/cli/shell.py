"""What all verbs share: progress, tables, JSON output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from partita.core import progress
from partita.core.errors import printable

INTERRUPTED = 130
WIDE = 10_000
"""Columns of what is not a terminal: nothing is wrapped there."""


@contextmanager
def shown(quiet: bool = False, terminal: bool | None = None) -> Iterator[Any]:
    """Show progress on standard error; yields the console for further lines (``None`` when quiet).

    ``terminal`` says whether that is a terminal, where the process cannot find out by itself: in a worker that this
    command has started.

    Ctrl-C inside the block ends the process with a message and exit code 130; a worker leaves that to who started it.
    """
    try:
        if quiet:
            yield None
            return
        from partita.report.console import SafeConsole
        from partita.report.terminal import display

        console = SafeConsole(stderr=True, force_terminal=terminal)
        if not console.is_terminal:  # a line of a log stays a line
            console.width = WIDE
        with display(console) as bars, progress.shown_by(bars):
            yield console
    except KeyboardInterrupt as interrupt:
        if terminal is not None:
            raise
        advice = "; ".join(getattr(interrupt, "__notes__", [])) or "No partial files are left"
        sys.stderr.write(f"partita: interrupted. {advice}\n")
        sys.exit(INTERRUPTED)


def finish(value: Mapping[str, Any], title: str, *, as_json: bool) -> None:
    """Print a result on standard output: one JSON object, or a table of it."""
    if as_json:
        sys.stdout.write(json.dumps(value) + "\n")
        return
    from partita.report.labels import task_label
    from partita.report.terminal import pairs_table

    if value.get("task") is not None:
        value = {**value, "task": task_label(str(value["task"]))}
    print_table(pairs_table(title, {name.replace("_", " "): show(item) for name, item in value.items()}))


def show(value: object) -> object:
    """A value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {show(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        items = [str(show(item)) for item in value]
        return ("\n" if any(len(item) > 30 for item in items) else ", ").join(items) or "-"
    return value


def say(notes: Sequence[str]) -> None:
    """Write notes to standard error, a line each; of several processes of torchrun, the first does."""
    if int(os.environ.get("RANK", "0")) == 0:
        for note in notes:
            sys.stderr.write(f"partita: note: {printable(note)}\n")


def tell(text: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(f"{printable(text)}\n")


def print_table(table: Any) -> None:
    """Print a table on standard output; where that is not a terminal, no line is wrapped."""
    from partita.report.console import SafeConsole

    if sys.stdout.isatty():
        SafeConsole().print(table)
        return
    console = SafeConsole(width=WIDE, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
