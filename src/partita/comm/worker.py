"""The process of a local worker, which :mod:`partita.comm.local` starts.

``python -m partita.comm.worker FOLDER RANK`` is a worker. ``python -m partita.comm.worker --fork CHANNEL NAMES``, with
the number of an open socket, imports the named modules, calls the named functions, and then becomes a worker in a new
process for every request; see :mod:`partita.comm.forkserver`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from partita.core.imports import uncollected

PARENT_SECONDS = 0.5
"""How often to see whether the parent is alive."""

_WAITING = {signal.SIGINT}
"""Signals that wait until a process that was forked is a worker."""


def main(folder: Path, rank: int) -> None:
    """Run the entry of the plan in ``folder`` as worker ``rank``; leave its result or its error there."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITING)
        from partita.comm import local

        local.in_worker = True
        plan: dict[str, Any] = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        if os.getppid() == plan["parent"]:  # otherwise the kernel ends this process; see _become
            threading.Thread(target=_end_with, args=(plan["parent"], folder), daemon=True).start()
        stacks = (folder / f"stacks-{rank}.txt").open("w")
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        sys.path[:] = plan["path"]
        sys.argv[:] = plan["command"]  # what the user has started, for records and messages
        os.environ.pop("PYTHONPATH", None)
        if plan["python_path"] is not None:
            os.environ["PYTHONPATH"] = plan["python_path"]
        _write(folder / f"result-{rank}.json", json.dumps(_work(plan, rank, folder)))
    except SystemExit as request:
        if isinstance(request.code, str):
            sys.stderr.write(request.code + "\n")
        _leave(request.code if isinstance(request.code, int) else int(request.code is not None))
    except BaseException as error:
        from partita.comm.errors import pack_error

        _write(folder / f"error-{rank}.json", json.dumps(pack_error(error, rank)))
        # Not through the interpreter's end, which would wait for threads that wait for other workers.
        _leave(1)


def _work(plan: dict[str, Any], rank: int, folder: Path) -> Any:
    import torch

    from partita.comm.context import Context
    from partita.comm.pulse import Pulse
    from partita.core.memory import keeping_freed

    torch.set_num_threads(plan["threads"])
    entry = attrgetter(plan["qualname"])(_module(plan["module"], plan["file"]))
    pulse = Pulse(folder / f"pulse-{rank}")
    context = Context.join(
        folder / "rendezvous", rank, plan["size"], **plan["context"], pulse=pulse, secret=plan["secret"].encode()
    )
    with keeping_freed():  # the exchange of 64 MiB is three times as fast
        value = entry(context, *plan["arguments"], **plan["keywords"])
    context.close()  # not where the entry failed: other threads may still wait for other workers
    return value


def _module(name: str, file: str | None) -> ModuleType:
    """The module of the entry: by its name, or else, for scripts and tests, by its file."""
    if name != "__main__":
        try:
            module = importlib.import_module(name)
            own = getattr(module, "__file__", None)
            if file is None or (own is not None and os.path.abspath(own) == file):
                return module
        except ModuleNotFoundError:
            if file is None:
                raise
    if file is None:
        raise ImportError(f"module {name} has no file: define the entry in one")
    # Not as __main__: what a script does under "if __name__" is for its own process.
    name = "__worker_main__" if name == "__main__" else name
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _end_with(parent: int, folder: Path) -> None:
    """End this process when its parent has ended, and remove what the parent would have removed."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


@contextmanager
def _ended_with(channel: socket.socket) -> Iterator[None]:
    """In the block, which imports for some seconds, end this process as soon as the other end is closed."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(PARENT_SECONDS):
            with suppress(BlockingIOError):
                if not channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()  # no thread survives a fork


def _write(path: Path, text: str) -> None:
    """Write a file that is either there or not; it is not, where the parent has ended and its folder has gone."""
    temporary = path.with_suffix(".partial")
    with suppress(FileNotFoundError):
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# Forking


def serve(channel: socket.socket, imports: Sequence[str]) -> tuple[Path, int] | None:
    """Import, then fork for every request until the other end is closed, which ends all that were forked.

    Returns:
        In every process that was forked: the folder of its plan and its rank. In this one ``None``.
    """
    with warnings.catch_warnings(action="ignore"), uncollected(), _ended_with(channel):
        for name in imports:
            module, _, function = name.partition(":")
            found = importlib.import_module(module)
            if function:
                getattr(found, function)()
    gc.freeze()  # what is shared is not written to only to be counted
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    running: dict[int, str] = {}  # the folders of plans
    while True:
        ready = select.select([channel, woken], [], [])[0]
        if woken in ready:
            woken.recv(4096)
            _report_ends(channel, running)
        if channel not in ready:
            continue
        request = _receive(channel)
        if request is None:
            _end_all(running)
            return None
        # Until there is somebody to note it, KeyboardInterrupt would be lost in what Python does after a fork.
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAITING)
        try:
            pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITING)
            _send(channel, {"forked": None, "why": str(error)})
            continue
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITING)
        else:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (channel, woken, waker):
                each.close()
            return _become(request)
        running[pid] = request["folder"]
        for stream in set(request["streams"]):
            os.close(stream)
        _send(channel, {"forked": pid})


def _receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next request, with its open files as ``streams``; ``None`` where the other end is closed."""
    from partita.comm.forkserver import LENGTH_BYTES

    try:
        head, streams, _, _ = socket.recv_fds(channel, LENGTH_BYTES, 2)
        if not head:
            return None
        length, parts = int.from_bytes(head, "big"), bytearray()
        while len(parts) < length:
            part = channel.recv(length - len(parts))
            if not part:
                return None
            parts += part
    except OSError:
        return None
    return {**json.loads(parts), "streams": streams}


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    with suppress(OSError):  # the other end is closed, which the next look at it shows
        channel.sendall(json.dumps(message).encode() + b"\n")


def _report_ends(channel: socket.socket, running: dict[int, str]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        running.pop(pid, None)
        _send(channel, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _end_all(running: dict[int, str]) -> None:
    """The parent has died: end its workers, and remove what it would have removed."""
    for pid in running:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in running:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
    for folder in set(running.values()):
        shutil.rmtree(folder, ignore_errors=True)


def _become(request: dict[str, Any]) -> tuple[Path, int]:
    """In the forked process: take on what a process that was started would have."""
    server, rank = os.getppid(), int(request["rank"])
    os.setsid()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_NAME, f"partita-{rank}".encode())
    if os.getppid() != server:  # it died before it was asked for
        os._exit(1)
    for number, stream in zip((1, 2), request["streams"], strict=True):
        os.dup2(stream, number)
    for stream in set(request["streams"]) - {1, 2}:
        os.close(stream)
    if request["cwd"] is not None:
        os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # found anew
    return Path(request["folder"]), rank


_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
"""Of prctl(2): the signal that a process gets when its parent ends, and the name that ``ps`` shows."""


if __name__ == "__main__":
    if sys.argv[1] == "--fork":
        asked = serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
        if asked is None:
            os._exit(0)  # at once: there is nothing to clean up
        main(*asked)
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]))
