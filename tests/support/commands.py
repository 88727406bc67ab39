"""The ``partita`` command, run many times: every one in a process of its own, which need not import libraries again.

Importing torch, numba and what they draw in takes several seconds, longer than most commands that tests run. So one
process imports them once, and forks for every command. Nothing of Partita is imported beforehand: each command still
finds its own modules, reads its arguments, and ends by itself. Commands that start from nothing are tested too: by the
demo, where they are interrupted, and in tests/recipes/test_without_numba.py.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Self

LIBRARIES = (
    *("numpy", "yaml", "psutil", "pydantic", "rich.progress", "rich.table", "typer", "safetensors.torch", "jaxtyping"),
    *("torch", "torch.distributed", "numba"),
)

FORKS = sys.platform == "linux"
"""Elsewhere libraries do not survive a fork, and every command starts from nothing."""

_running: list[Commands] = []


class Commands:
    """The process that has imported the libraries; a context manager.

    Args:
        more: modules that it imports besides; they must start no threads.
    """

    def __init__(self, *more: str) -> None:
        self._more = more

    def __enter__(self) -> Self:
        # Without buffers: whether there is more to read, the pipe alone knows.
        self._process = subprocess.Popen(
            [sys.executable, __file__, *self._more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        _running.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _running.remove(self)
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def run(
        self,
        arguments: list[str],
        cwd: str,
        timeout: float,
        *,
        prepare: str | None = None,
        during: Callable[[int], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one command; standard input is empty.

        Args:
            arguments: of the command.
            cwd: its working directory.
            timeout: seconds.
            prepare: ``module:name=argument``, called in the process of the command before it begins; the module is one
                of this folder.
            during: called with the id of the process, as soon as that has begun.

        Raises:
            subprocess.TimeoutExpired: it was killed.
        """
        with tempfile.TemporaryDirectory() as folder:
            streams = [os.path.join(folder, name) for name in ("output", "errors")]
            request = {"arguments": arguments, "cwd": cwd, "environment": dict(os.environ), "streams": streams}
            request["prepare"] = prepare
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            pid, late = int(self._process.stdout.readline()), True
            try:
                if during is not None:
                    during(pid)
                late = not select.select([self._process.stdout], [], [], timeout)[0]
            finally:
                if late:  # or the test was stopped
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(int(self._process.stdout.readline()))
            output, errors = (Path(stream).read_text() for stream in streams)
        if late:
            raise subprocess.TimeoutExpired(arguments, timeout, output, errors)
        return subprocess.CompletedProcess(["partita", *arguments], code, output, errors)


def run_partita(
    *arguments: object, cwd: Path | None = None, timeout: float = 240, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own. The test needs the fixture ``libraries``; options: see Commands.run."""
    words, folder = [*map(str, arguments)], str(cwd or Path.cwd())
    if not FORKS:
        command = [sys.executable, "-c", "from partita.cli import main; main()", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=timeout)
    assert _running, "the test needs the fixture 'libraries'"
    return _running[-1].run(words, folder, timeout, **options)


def partita(*arguments: object, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command and check its exit code."""
    done = run_partita(*arguments, cwd=cwd)
    assert done.returncode == code, done.stderr + done.stdout
    return done


def as_json(*arguments: object) -> dict[str, Any]:
    """What a command prints with --json: one object and nothing else."""
    done = partita(*arguments, "--json")
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


# The process that imports and forks


def _serve() -> None:
    """Fork for every request; print the id of the process, and how it has ended."""
    with warnings.catch_warnings(action="ignore"):
        for name in (*LIBRARIES, *sys.argv[1:]):
            importlib.import_module(name)
        from numba.core.registry import cpu_target  # what it imports with the first kernel, scipy.linalg for one

        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()
    # Threads do not survive a fork. Those of OpenBLAS are started again; pyarrow, which has one too, is left out.
    assert threading.active_count() == 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then close the pipe
    while line := sys.stdin.readline():
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _command(request)
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


def _command(request: dict[str, Any]) -> NoReturn:
    """In the forked process: become the command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in enumerate([os.devnull, *request["streams"]]):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        file = os.open(path, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    if request["prepare"]:
        name, _, argument = request["prepare"].partition("=")
        module, _, name = name.partition(":")
        getattr(importlib.import_module(module), name)(argument)
    sys.path[0] = ""
    sys.argv[:] = ["partita", *request["arguments"]]
    from partita.cli import main

    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
        assert isinstance(code, int), code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    # As the interpreter ends, but without taking all modules apart, which takes as long as to import them.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
    os._exit(0)  # at once: there is nothing to clean up
