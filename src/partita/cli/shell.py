"""What all verbs share: error messages, exit codes, progress, JSON output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from partita.core import progress
from partita.core.errors import PartitaError

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 bad input or usage, 130 interrupted, 1 a bug."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Threads that spin while they wait make a step many times slower as soon as anything else runs on the machine.
    # This is our own process and torch is not loaded yet, so the default can be chosen here; a user's choice wins.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    from partita.cli.app import app

    try:
        app(arguments, prog_name="partita", standalone_mode=True)
    except PartitaError as error:
        if debug:
            raise
        _say_error(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        if debug:
            raise
        _say_error("interrupted; nothing was left half-written")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except MemoryError:
        if debug:
            raise
        _say_error("out of memory. Give a lower --memory-limit, or a smaller --batch-size or --fanout")
        sys.exit(2)
    except Exception as error:
        if debug:
            raise
        _say_error(f"internal error: {type(error).__name__}: {error}. Please report it with what --debug prints")
        sys.exit(1)


def _say_error(message: str) -> None:
    sys.stderr.write(f"partita: {message}\n")


@contextmanager
def shown(quiet: bool = False) -> Iterator[Any]:
    """Show progress on standard error; yields the console for further lines (``None`` when quiet)."""
    if quiet:
        yield None
        return
    from rich.console import Console

    from partita.report.terminal import display

    console = Console(stderr=True)
    with display(console) as bars, progress.shown_by(bars):
        yield console


def finish(value: Mapping[str, Any], title: str, *, as_json: bool) -> None:
    """Print a result on standard output: one JSON object, or a table of it."""
    if as_json:
        sys.stdout.write(json.dumps(value) + "\n")
        return
    from rich.console import Console

    from partita.report.terminal import pairs_table

    Console().print(pairs_table(title, {name.replace("_", " "): show(item) for name, item in value.items()}))


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


def print_table(table: Any) -> None:
    """Print a table on standard output."""
    from rich.console import Console

    Console().print(table)
