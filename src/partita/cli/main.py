"""The entry point: errors become messages and exit codes."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, TextIO

from partita.cli.overview import COMPLETE, HELP_FLAGS, VERSION_FLAGS, overview
from partita.cli.shell import INTERRUPTED
from partita.core.errors import PartitaError, of_the_system, printable

_OUTPUT = "standard output"
AGAIN_SECONDS = 0.5
"""After which a signal is sent again that came where Python cannot raise."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 bad input or usage, 130 interrupted, 1 a bug."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Threads that spin while they wait make a step many times slower as soon as anything else runs on the machine.
    # This is our own process and torch is not loaded yet, so the default can be chosen here; a user's choice wins.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    sys.stdout = _standard_output()
    _check_launcher()
    with _ended_by_signals() as lost:
        try:
            try:
                _run(arguments)
            finally:
                sys.stdout.flush()
        except PartitaError as error:
            _end(error, debug)
        except BrokenPipeError:
            sys.stderr.close()
            sys.exit(1)
        except KeyboardInterrupt:
            _say_error("interrupted")
            sys.exit(INTERRUPTED)
        except Exception as error:
            if lost.is_set():  # and this is what came of it
                _say_error("interrupted")
                sys.exit(INTERRUPTED)
            if (refused := of_the_system(error)) is not None:
                if refused.where == _OUTPUT:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is not tried again
                _end(refused, debug)
            if debug:
                traceback.print_exc()
            _say_error(f"internal error: {type(error).__name__}: {error}. Please report it with what --debug prints")
            sys.exit(1)


def _run(arguments: list[str]) -> None:
    """Do what the arguments say; what needs no command is printed without importing any."""
    completing = COMPLETE in os.environ
    if not completing and (not arguments or arguments[0] in HELP_FLAGS):
        sys.stdout.write(overview())
        sys.exit(0 if arguments else 2)
    if not completing and arguments[0] in VERSION_FLAGS:
        import partita

        sys.stdout.write(f"partita {partita.__version__}\n")
        sys.exit(0)
    from partita.cli.app import command

    command()(arguments, prog_name="partita", standalone_mode=True)


class _Output(io.FileIO):
    """Standard output, which errors name."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            error.filename = _OUTPUT
            raise


def _standard_output() -> TextIO:
    """Standard output as it is used here: what its encoding does not have is printed as a question mark."""
    out = sys.stdout
    if out is None:  # closed by who started this
        return open(os.devnull, "w", encoding="utf-8")
    if out is not sys.__stdout__ or not isinstance(out, io.TextIOWrapper):
        return out  # somebody else's, for instance of tests and notebooks
    buffer = io.BufferedWriter(_Output(out.fileno(), "wb", closefd=False))
    return io.TextIOWrapper(buffer, out.encoding, errors="replace", line_buffering=out.line_buffering)


def _end(error: PartitaError, debug: bool) -> NoReturn:
    """Say what was wrong, and exit."""
    if debug:
        traceback.print_exc()
    _say_error("\n".join([str(error), *getattr(error, "__notes__", [])]))
    sys.exit(error.exit_code)


def _check_launcher() -> None:
    """See that the variables of torchrun are numbers."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        if not os.environ.get(name, "0").isdecimal():
            _say_error(f"the variable {name} is '{os.environ[name]}', not a number. Unset it, or start with torchrun")
            sys.exit(2)


@contextmanager
def _ended_by_signals() -> Iterator[threading.Event]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, so that nothing half-written is left.

    A signal may come where Python cannot raise, for instance while LLVM calls back as numba compiles. It is sent again
    then; the event says that this has happened.
    """
    lost, timers, hook = threading.Event(), list[threading.Timer](), sys.unraisablehook

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def unraisable(what: Any) -> None:
        if not issubclass(what.exc_type, KeyboardInterrupt):
            hook(what)
            return
        lost.set()
        number = signal.SIGTERM if signal.SIGTERM in before else signal.SIGINT
        main_thread = threading.main_thread().ident
        timers.append(threading.Timer(AGAIN_SECONDS, signal.pthread_kill, [main_thread, number]))
        timers[-1].daemon = True
        timers[-1].start()

    before = {}
    sys.unraisablehook = unraisable
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, interrupt)
    try:
        yield lost
    finally:
        sys.unraisablehook = hook
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _say_error(message: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"partita: {printable(message)}\n")
