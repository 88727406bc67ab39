"""Starts workers on this machine, watches them, and ends them: none is ever left behind.

Workers are processes of the same Python, which run a function that is given by name with JSON arguments; so the parent
may be any script, and nothing is pickled. On Linux they are forked from a process that has imported what all of them
need (:mod:`partita.comm.forkserver`), elsewhere each is started from nothing. They find each other through a file in a
private directory, and all their sockets listen on the loopback interface only. Every worker leads a session of its
own, so that Ctrl-C reaches it once, through the parent. Python that runs in the parent needs no torch.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from partita.comm.errors import WorkerLost
from partita.comm.forkserver import FORKS, ForkServer, Process
from partita.comm.local_worker import POLL_SECONDS, Interrupted, LocalWorker, cause_of, stacks_of
from partita.comm.signals import Stop, signals_to
from partita.comm.silence import Silence, Silent
from partita.core.asides import private_folder
from partita.core.errors import ConfigError, ResourceError
from partita.core.machine import cores, interface_of
from partita.core.options import HEARTBEAT_SECONDS

LOOK_SECONDS = 0.5
"""How often to look for workers that are silent."""
HINT_SECONDS = 3.0
"""After a request to stop that workers have not followed yet, how long until the user hears how to end them."""
GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""

Entry = Callable[..., Any] | str

IMPORTS = ("torch", "torch.distributed", "partita.comm.context", "partita.kernels.dispatch:load")
"""What every worker needs."""

in_worker = False
"""Whether this process is such a worker itself."""

_kept: ForkServer | None = None
"""That of :func:`workers_ready`."""


@contextmanager
def workers_ready(*imports: str) -> Iterator[None]:
    """Import what workers need in a process beside this one, while the block prepares what they will do.

    All workers that are started in the block share what was imported. A block inside another changes nothing.

    Args:
        imports: modules that they need beyond torch, kernels and what communicates.
    """
    global _kept
    if not FORKS or _kept is not None or in_worker:
        yield
        return
    with ForkServer((*IMPORTS, *imports)) as _kept:
        try:
            yield
        finally:
            _kept = None


def run_local(
    entry: Entry,
    size: int,
    arguments: Sequence[Any] = (),
    keywords: Mapping[str, Any] | None = None,
    *,
    hosts: int = 1,
    threads: int = 0,
    device: str = "cpu",
    purposes: Sequence[str] = ("train",),
    checked: bool = False,
    ordered: bool | None = None,
    timeout: float | None = None,
    heartbeat: float = HEARTBEAT_SECONDS,
) -> list[Any]:
    """Run a function in ``size`` workers on this machine until all have returned.

    SIGINT and SIGTERM are passed on to the workers once, which may finish what they do and return; a second one ends
    them at once. Where the workers ended because of a signal, it is delivered to this process again, so Ctrl-C
    raises ``KeyboardInterrupt`` as ever. When one worker fails, all end within seconds. If this process dies, the
    workers end within a second.

    Args:
        entry: ``"module:name"``, or a function at the top level of a module: it is called with the
            :class:`partita.comm.context.Context` of its worker and the arguments.
        size: number of workers.
        arguments: positional arguments: JSON values or paths.
        keywords: keyword arguments, likewise.
        hosts: as how many hosts the machine counts; more than one for trying out.
        threads: CPU threads of each worker; 0: those of this process, divided.
        device: what the workers compute on: ``"cpu"`` or ``"cuda"``.
        purposes: what groups are needed for, each of a thread of its own.
        checked: compare shapes and counts before every exchange.
        ordered: all workers start their exchanges in one order; see :meth:`partita.comm.context.Context.join`.
        timeout: seconds after which all are ended; ``None``: never.
        heartbeat: seconds without a sign of life after which a worker counts as lost; 0: it never does.

    Returns:
        What the entry returned in each worker, by rank, as JSON gives it back. Standard output and error of rank 0
        are those of this process; those of the others are kept, and shown where one fails.

    Raises:
        PartitaError: a worker raised one: the first, of the same type; or :class:`WorkerLost`, where one was killed,
            exited, or hangs.
        WorkerError: a worker raised anything else: a bug, with its traceback as a note.
        TimeoutError: the time was up; notes say where each worker was.
    """
    if in_worker:
        raise ConfigError("a worker cannot start workers", fix="Put the call under: if __name__ == '__main__'")
    if size < 1 or hosts < 1 or size % hosts:
        raise ConfigError(f"{size} workers on {hosts} hosts", fix="Give at least one, and the same number to each host")
    module, file, qualname = _locate(entry)
    plan: dict[str, Any] = {  # for the workers; "context" is what their own is made with
        "module": module,
        "file": file,
        "qualname": qualname,
        "arguments": list(arguments),
        "keywords": dict(keywords or {}),
        "size": size,
        "threads": threads or max(1, _own_threads() // size),
        "context": {
            "hosts": hosts, "device": device, "purposes": list(purposes), "checked": checked, "ordered": ordered,
        },
        "secret": secrets.token_hex(32),  # in a folder that nobody else can enter
        "parent": os.getpid(),
        "path": [os.path.abspath(folder) for folder in sys.path],
        "python_path": os.environ.get("PYTHONPATH"),
        "command": sys.argv,
    }  # fmt: skip
    with private_folder("partita-workers-") as folder:
        try:
            return _run(plan, folder, timeout, heartbeat)
        except Interrupted as interrupted:
            number = interrupted.args[0]
    signal.raise_signal(number)
    raise KeyboardInterrupt  # whoever handles the signal has returned


def _run(plan: dict[str, Any], folder: Path, timeout: float | None, heartbeat: float) -> list[Any]:
    (folder / "plan.json").write_text(json.dumps(plan, default=os.fspath), encoding="utf-8")
    workers: list[LocalWorker] = []
    processes: list[Process] = []
    with _server(plan["module"]) as server, signals_to(processes) as stop:
        try:
            for rank in range(plan["size"]):
                workers.append(_start(plan, rank, folder, server))
                processes.append(workers[-1].process)
            _watch(workers, stop, timeout, Silence(len(workers), heartbeat))
        finally:
            _end(processes)
    return [json.loads(worker.result.read_text(encoding="utf-8")) for worker in workers]


@contextmanager
def _server(module: str) -> Iterator[ForkServer | None]:
    """What forks: the one that is ready, where it would be the same as a new one."""
    if not FORKS:
        yield None
    elif _kept is not None and _kept.fits:
        yield _kept
    else:
        with ForkServer((*IMPORTS, *([module] if module.startswith("partita.") else []))) as server:
            yield server


def _start(plan: dict[str, Any], rank: int, folder: Path, server: ForkServer | None) -> LocalWorker:
    workers = plan["size"] // plan["context"]["hosts"]
    loopback = interface_of("127.0.0.1")
    if loopback is None:
        raise ResourceError(
            "no interface has the address 127.0.0.1", fix="Bring up the loopback interface: ip link set lo up"
        )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(plan["path"]),
        # As torchrun does, for libraries that want to know.
        "RANK": str(rank),
        "WORLD_SIZE": str(plan["size"]),
        "LOCAL_RANK": str(rank % workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "GROUP_RANK": str(rank // workers),
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
        "OMP_NUM_THREADS": str(plan["threads"]),
        # What a worker that is killed leaves behind goes with the folder.
        "TMPDIR": str(folder),
    }
    # Workers share the processors, and threads that spin while they wait take them from the others.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    output = None if rank == 0 else (folder / f"output-{rank}.txt").open("wb")
    process: Process
    try:
        if server is not None:
            process = server.fork(folder, rank, environment, None if output is None else output.fileno())
        else:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "partita.comm.worker", str(folder), str(rank)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
    except OSError as error:
        raise ResourceError(f"worker {rank} cannot be started: {error}", fix="Use fewer workers") from error
    finally:
        if output is not None:
            output.close()
    return LocalWorker(rank, process, folder)


def _watch(workers: Sequence[LocalWorker], stop: Stop, timeout: float | None, silence: Silence) -> None:
    """Return when all are done; raise as soon as one is not going to be."""
    deadline = None if timeout is None else time.monotonic() + timeout
    forwarded: float | None = None
    hinted = False
    looked, since_look = time.monotonic(), 0.0
    while True:
        running = [worker for worker in workers if worker.process.poll() is None]
        if any(worker.process.returncode is not None and not worker.done for worker in workers):
            raise cause_of(workers, stop) from None
        if not running:
            return
        if stop.again:
            raise Interrupted(stop.signal or signal.SIGINT)
        if stop.signal is not None and forwarded is None:
            forwarded = time.monotonic()
            for worker in running:
                worker.process.send_signal(stop.signal)
        if deadline is not None and time.monotonic() > deadline:
            error = TimeoutError(f"worker {', '.join(str(each.rank) for each in running)} not done in {timeout} s")
            for note in stacks_of(running):
                error.add_note(note)
            raise error
        before, looked = looked, time.monotonic()
        since_look += min(looked - before, LOOK_SECONDS)  # more where this process was stopped itself
        if since_look >= LOOK_SECONDS:
            silent = silence.look([worker.sight() for worker in workers], since_look, stopping=stop.signal is not None)
            if silent is not None:
                raise _silent(silent, workers, stop)
            since_look = 0.0
        if forwarded is not None and not hinted and looked - forwarded > HINT_SECONDS:
            hinted = True
            named = ", ".join(str(worker.rank) for worker in running)
            _say(f"waiting for worker {named} to stop; the same signal again ends all at once")
        time.sleep(POLL_SECONDS)


def _silent(silent: Silent, workers: Sequence[LocalWorker], stop: Stop) -> Exception:
    """That workers hang, as an error; or, where the run was to be stopped anyway, that it is."""
    blamed = [workers[rank] for rank in silent.ranks]
    if stop.signal is not None:
        _say(f"{silent}; it was ended")
        error: Exception = Interrupted(stop.signal)
    else:
        error = WorkerLost(str(silent), fix="See what it was doing; where it takes its time, set a larger heartbeat")
        for note in stacks_of(blamed):
            error.add_note(note)
    for worker in blamed:
        worker.process.kill()
    return error


def _say(text: str) -> None:
    sys.stderr.write(f"partita: {text}\n")
    sys.stderr.flush()


def _end(processes: Sequence[Process]) -> None:
    """End all that still run, and wait for them."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
    for process in running:
        process.wait()


def _locate(entry: Entry) -> tuple[str, str | None, str]:
    """Module, file and name of an entry."""
    if isinstance(entry, str):
        module, _, qualname = entry.partition(":")
        if not module or not qualname:
            raise ValueError(f"entry '{entry}': write module:name")
        return module, None, qualname
    if "<" in entry.__qualname__:
        raise ValueError(f"{entry.__qualname__} can only be found from inside: use a function at the top of a module")
    file = getattr(sys.modules.get(entry.__module__), "__file__", None)
    return entry.__module__, file and os.path.abspath(file), entry.__qualname__


def _own_threads() -> int:
    """Threads that this process would use alone."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return cores()
