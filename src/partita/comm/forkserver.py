"""A process that has imported what workers need, and becomes a worker by forking: started once, it starts many.

Importing torch, numba and Partita takes several seconds of processor time, and would be done by every worker. What is
imported here is shared by all of them, memory included. The process holds no thread, no device and no connection, so
that all that makes a worker what it is happens after the fork. Linux only: elsewhere libraries do not survive a fork,
and :mod:`partita.comm.local` starts every worker as a process of its own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from partita.core.errors import ResourceError
from partita.core.machine import own_limits

FORKS = sys.platform == "linux"
"""Whether workers can be forked here."""

LENGTH_BYTES = 8
"""Of the number before a request: how many bytes follow."""

_NOT_INHERITED = {
    *("PYTEST_CURRENT_TEST", "TMPDIR", "PWD", "OLDPWD"),
    *("KINETO_LOG_LEVEL", "TORCHINDUCTOR_CACHE_DIR"),  # torch sets them, when parts of it are imported
}
"""Variables of the environment that no library reads while it is imported."""


class ForkServer:
    """The process; a context manager that ends it, and with it whatever it has started.

    Args:
        imports: modules to import, and functions to call, as ``module:name``, before the first fork.

    Raises:
        ResourceError: it cannot be started.
    """

    def __init__(self, imports: Sequence[str]) -> None:
        self._surroundings = _surroundings()
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}
        self._received = b""
        self._channel, theirs = socket.socketpair()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(os.path.abspath(folder) for folder in sys.path),
            "OMP_NUM_THREADS": "1",  # libraries start no threads, which would not survive a fork
        }
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "partita.comm.worker", "--fork", str(theirs.fileno()), *imports],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            self._channel.close()
            raise ResourceError(f"workers cannot be started: {error}", fix="Use fewer workers") from error
        finally:
            theirs.close()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()  # which it notices
        self._process.wait()

    @property
    def fits(self) -> bool:
        """Whether it is alive, and what it inherited is still what this process has."""
        return self._process.poll() is None and self._surroundings == _surroundings()

    def fork(self, folder: Path, rank: int, environment: Mapping[str, str], output: int | None) -> Forked:
        """Start worker ``rank`` of the plan in ``folder``; see :mod:`partita.comm.worker`.

        Args:
            folder: that of the plan. It is removed should this process die.
            rank: which worker of the plan.
            environment: the variables of the worker's environment, all of them.
            output: a file for standard output and error; ``None``: those of this process.

        Raises:
            ResourceError: the process that forks has ended, or there can be no more processes.
        """
        request = {"folder": str(folder), "rank": rank, "cwd": _cwd(), "environment": dict(environment)}
        text = json.dumps(request).encode()
        streams = [1, 2] if output is None else [output, output]
        with self._lock:
            try:
                socket.send_fds(self._channel, [len(text).to_bytes(LENGTH_BYTES, "big")], streams)
                self._channel.sendall(text)
                while True:
                    message = self._next(None)
                    if message is not None and "forked" in message:
                        break
            except (OSError, EOFError) as error:
                code = self._process.wait()
                raise ResourceError(
                    f"workers cannot be started: the process that starts them ended with code {code}",
                    fix="See its output above",
                ) from error
        if message["forked"] is None:
            raise ResourceError(f"worker {rank} cannot be started: {message['why']}", fix="Use fewer workers")
        return Forked(self, int(message["forked"]))

    def ended(self, pid: int) -> int | None:
        """How a process that was forked has ended, as ``subprocess`` has it; ``None``: it has not."""
        with self._lock, suppress(EOFError, OSError):
            while self._next(0.0) is not None:
                pass
        if pid not in self._ended and self._process.poll() is not None:
            return -int(signal.SIGKILL)  # which the kernel sends when the process that forks ends
        return self._ended.get(pid)

    def _next(self, timeout: float | None) -> dict[str, Any] | None:
        """The next message; ends of processes are noted. ``None``: there is none yet."""
        while b"\n" not in self._received:
            if not select.select([self._channel], [], [], timeout)[0]:
                return None
            received = self._channel.recv(65536)
            if not received:
                raise EOFError
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if "ended" in message:
            self._ended[message["ended"]] = message["code"]
        elif message.get("forked") is not None:  # the system gives numbers of processes that have ended to others
            self._ended.pop(message["forked"], None)
        return message


class Forked:
    """A process that was forked for this one, with the methods of ``subprocess.Popen`` that its callers use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: Any = None  # as Popen's is annotated

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; ``None`` while it runs."""
        if self.returncode is None:
            self.returncode = self._server.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self._server.ended(self.pid)) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0.0)
            time.sleep(0.005)
        self.returncode = code
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


Process = subprocess.Popen[bytes] | Forked
"""A worker's process, however it was started."""


def _surroundings() -> tuple[Any, ...]:
    """What a process inherits at its start and libraries look at only then."""
    variables = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return variables, own_limits()


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None
