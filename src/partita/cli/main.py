"""The entry point: errors become messages and exit codes."""

from __future__ import annotations

import os
import sys
import traceback

from partita.cli.overview import COMPLETE, HELP_FLAGS, VERSION_FLAGS, overview
from partita.core.errors import PartitaError


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
    completing = COMPLETE in os.environ
    if not completing and (not arguments or arguments[0] in HELP_FLAGS):
        sys.stdout.write(overview())
        sys.exit(0 if arguments else 2)
    if not completing and arguments[0] in VERSION_FLAGS:
        import partita

        sys.stdout.write(f"partita {partita.__version__}\n")
        sys.exit(0)
    from partita.cli.app import command

    try:
        command()(arguments, prog_name="partita", standalone_mode=True)
    except PartitaError as error:
        if debug:
            traceback.print_exc()
        _say_error("\n".join([str(error), *getattr(error, "__notes__", [])]))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except MemoryError:
        if debug:
            traceback.print_exc()
        _say_error(
            "out of memory. Give a lower --memory-limit, or a smaller --batch-size or --fanout; in isolated training "
            "also a lower --memory-per-worker, or more parts"
        )
        sys.exit(2)
    except Exception as error:
        if debug:
            traceback.print_exc()
        _say_error(f"internal error: {type(error).__name__}: {error}. Please report it with what --debug prints")
        sys.exit(1)


def _say_error(message: str) -> None:
    sys.stderr.write(f"partita: {message}\n")
