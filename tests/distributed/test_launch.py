"""Local workers: they start, they fail with their error shown once, they end, and they leave nothing behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from processes import SECONDS_TO_END

from partita.comm import local
from partita.comm.context import Context
from partita.comm.errors import WorkerError, WorkerLost
from partita.comm.launch import launch
from partita.core.errors import ConfigError, ResourceError, StoreError
from partita.testing.workers import run_workers
from partita.train.interrupt import stop_requests


def folders() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("partita-workers-")}


@pytest.fixture(autouse=True)
def _no_folders() -> Iterator[None]:
    before = folders()
    yield
    assert folders() == before


@pytest.fixture(params=["forked", "spawned"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How workers are started: forked where libraries survive that, each from nothing elsewhere."""
    monkeypatch.setattr(local, "FORKS", local.FORKS and request.param == "forked")
    return "forked" if local.FORKS else "spawned"


def test_a_limit_of_open_files_that_is_too_low_is_said_before_workers_start(monkeypatch) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(local, "_start", None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, before[1]))
    try:
        with pytest.raises(ResourceError, match=r"each of 2 workers may open 64 .*, 60 are allowed\. .*ulimit -n 1024"):
            launch(look_around, 2, arguments={"greeting": "", "path": ""})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# What workers are like


def look_around(context: Context, *, greeting: str, path: str) -> dict[str, Any]:
    pids = context.group().gather(os.getpid())
    context.group(purpose="sample").gather(0)
    listening = [
        connection.laddr.ip
        for pid in [*pids, *(parent.pid for parent in psutil.Process().parents()[:2])]
        for connection in psutil.Process(pid).net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    for _ in range(10):  # nobody leaves before rank 0 has looked
        context.group().gather(0)
    sys.stdout.write(f"rank {context.mesh.rank} is here\n")
    return {
        "greeting": greeting,
        "path": path,
        "rank": context.mesh.rank,
        "threads": torch.get_num_threads(),
        "parents": [parent.pid for parent in psutil.Process().parents()[:2]],
        "listening": listening,
        "variables": {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "OMP_WAIT_POLICY", "PYTHONPATH")},
        "folder_mode": oct(Path(os.environ["TMPDIR"]).stat().st_mode & 0o777),
    }


def test_a_worker_and_its_surroundings(
    how: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    # Without a choice of ours gloo would listen on this one.
    others = [name for name, state in psutil.net_if_stats().items() if state.isup and not name.startswith("lo")]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", others[0] if others else "lo")
    before = dict(os.environ)
    seen = launch(look_around, 2, arguments={"greeting": "olé", "path": tmp_path}, purposes=("train", "sample", "load"))
    assert dict(os.environ) == before
    assert (seen["greeting"], seen["path"], seen["rank"]) == ("olé", str(tmp_path), 0)
    assert os.getpid() == seen["parents"][1 if how == "forked" else 0]
    assert seen["threads"] == 2  # four, divided by two workers
    assert seen["folder_mode"] == "0o700"
    assert seen["variables"]["RANK"] == seen["variables"]["LOCAL_RANK"] == "0"
    assert seen["variables"]["OMP_WAIT_POLICY"] == os.environ["OMP_WAIT_POLICY"]
    assert seen["variables"]["PYTHONPATH"] == os.environ.get("PYTHONPATH")
    assert len(seen["listening"]) >= 8  # a listener for each group of both workers
    assert set(seen["listening"]) <= {"127.0.0.1", "::1"}
    output = capfd.readouterr().out
    assert "rank 0 is here" in output
    assert "rank 1 is here" not in output


def leave_a_file(context: Context, note: str) -> None:
    Path(note).write_text(tempfile.mkdtemp(prefix="partita-left-"))
    os.kill(os.getpid(), signal.SIGKILL)


def test_temporary_files_of_a_killed_worker_go_with_it(tmp_path) -> None:
    with pytest.raises(WorkerLost, match="SIGKILL"):
        launch(leave_a_file, 1, arguments={"note": tmp_path / "note"})
    left = Path((tmp_path / "note").read_text())
    assert left.name.startswith("partita-left-")
    assert not left.exists()


# How they fail


def fail(context: Context, rank: int, how: str) -> None:
    group = context.group()
    group.gather(0)
    if context.mesh.rank == rank:
        sys.stderr.write("about to fail\n")
        if how == "typed":
            raise StoreError("is damaged", where="graph/x.npy", fix="Ingest again")
        if how == "bug":
            raise KeyError("fanout")
        if how == "late bug":  # the others lose this worker, and end, before it has said why
            found = psutil.Process().net_connections(kind="inet")
            # All are copied before any is shut down: gloo then closes others by itself.
            copies = [os.dup(each.fd) for each in found if each.status == psutil.CONN_ESTABLISHED]
            for copy in copies:
                with socket.socket(fileno=copy) as own, suppress(OSError):
                    own.shutdown(socket.SHUT_RDWR)
            time.sleep(0.5)
            raise KeyError("fanout")
        if how == "exit":
            os._exit(0)
    group.gather(1)


@pytest.mark.parametrize(
    ("rank", "how", "kind", "message"),
    [
        (1, "typed", StoreError, "graph/x.npy: is damaged. Ingest again"),
        (0, "bug", WorkerError, "worker 0 failed: KeyError: 'fanout'"),
        (1, "late bug", WorkerError, "worker 1 failed: KeyError: 'fanout'"),
        (1, "exit", WorkerLost, "worker 1 exited with code 0 before its work was done"),
    ],
)
def test_the_first_error_is_raised(
    rank: int, how: str, kind: type[Exception], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(kind) as caught:
        launch(fail, 2, arguments={"rank": rank, "how": how})
    assert type(caught.value) is kind
    assert str(caught.value) == message
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    notes = "\n".join(caught.value.__notes__)
    assert ("about to fail" in notes) == (rank == 1 and how != "typed")
    if how == "typed":
        assert notes == "In worker 1"
    if how.endswith("bug"):
        assert notes.count('raise KeyError("fanout")') == 1
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "PeerLost" not in said + notes


def die(context: Context, rank: int, stage: str) -> None:
    """Rank ``rank`` is killed while it sleeps and others wait for it, or while it waits for the others."""
    group = context.group()
    group.gather(0)
    dies = context.mesh.rank == rank
    if dies:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if dies == (stage == "in an exchange"):
        group.gather("hello")
    time.sleep(60)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("stage", ["in an exchange", "asleep", "at the start"])
@pytest.mark.usefixtures("how")
def test_a_killed_worker_ends_all(rank: int, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, before = time.monotonic(), set(psutil.Process().children())
    if stage == "at the start":
        name = f"dies_{rank}"
        (tmp_path / f"{name}.py").write_text(
            f"import os\nif os.environ['RANK'] == '{rank}':\n    os.kill(os.getpid(), 9)\ndef work(context): pass\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(WorkerLost, match=rf"worker {rank} was killed by signal 9 \(SIGKILL\)"):
            launch(f"{name}:work", 2)
    else:
        with pytest.raises(WorkerLost, match=rf"worker {rank} was killed by signal 9 \(SIGKILL\)"):
            launch(die, 2, arguments={"rank": rank, "stage": stage})
    assert time.monotonic() - started < SECONDS_TO_END + 5  # the start of the workers included
    assert set(psutil.Process().children()) == before


def hang(context: Context) -> None:
    if context.mesh.rank == 0:
        wait_for_nothing()
    context.group().gather(0)


def wait_for_nothing() -> None:
    time.sleep(60)


@pytest.mark.usefixtures("how")
def test_time_is_up() -> None:
    notes = ""
    for seconds in (5, 30):  # on a busy machine workers may not have begun after 5 seconds
        with pytest.raises(TimeoutError) as caught:
            run_workers(hang, 2, timeout=seconds)
        notes = "\n".join(caught.value.__notes__)
        if "wait_for_nothing" in notes:
            break
    assert "wait_for_nothing" in notes
    assert "in gather" in notes


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: launch(hang, 0), ConfigError, "0 workers"),
        (lambda: launch(hang, 3, hosts=2), ConfigError, "3 workers on 2 hosts"),
        (lambda: launch(hang, 10**7), ResourceError, "10000000 workers need .* Use at most"),
        (lambda: launch(lambda context: None, 2), ValueError, "top of a module"),
        (lambda: launch("partita.train", 2), ValueError, "write module:name"),
    ],
)
def test_what_cannot_be_started(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


# The parent: signals and death. Each of these runs a script of its own.


def wait_until_stopped(context: Context, folder: str, answer: bool) -> dict[str, Any]:
    """Work in steps until asked to stop, as the trainer does; or only note that one was asked."""
    rank = context.mesh.rank
    group = context.group()
    with stop_requests() as stop:
        (Path(folder) / f"{rank}.partial").write_text(str(os.getpid()))
        (Path(folder) / f"{rank}.partial").rename(Path(folder) / str(rank))
        while not any(group.gather(bool(stop))):
            time.sleep(0.01)
        number = stop.signal
        if not answer:
            (Path(folder) / f"asked-{rank}").touch()
            time.sleep(60)
    return {"signals": group.gather(number)}


PARENT = """
import json, sys
from partita.comm.launch import launch
arguments = {"folder": sys.argv[1], "answer": sys.argv[2] == "answer"}
print(json.dumps(launch("test_launch_entries:wait_until_stopped", 2, arguments=arguments)))
"""  # without "if __name__": it is not run again


class Parent:
    """A script that launches two workers, in a process group of its own."""

    def __init__(self, folder: Path, answer: str) -> None:
        script = folder / "parent.py"
        script.write_text(PARENT)
        entries = folder / "test_launch_entries.py"
        entries.write_text(
            "import importlib.util, sys\n"
            f"sys.path[:] = {sys.path!r}\n"  # what this file imports lies there
            f"spec = importlib.util.spec_from_file_location('entries', {__file__!r})\n"
            "module = importlib.util.module_from_spec(spec)\n"
            "spec.loader.exec_module(module)\n"
            "wait_until_stopped = module.wait_until_stopped\n"
        )
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, script, folder, answer],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def know_workers(self) -> None:
        self.wait_for("0", "1")
        self.workers = [psutil.Process(int((self.folder / str(rank)).read_text())) for rank in range(2)]

    def wait_for(self, *names: str) -> None:
        deadline = time.monotonic() + 30
        while not all((self.folder / name).exists() for name in names):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def end(self) -> tuple[int, str, str]:
        output, errors = self.process.communicate(timeout=SECONDS_TO_END)
        self.see_workers_gone()
        return self.process.returncode, output, errors

    def see_workers_gone(self) -> None:
        _, alive = psutil.wait_procs(self.workers, timeout=5)
        assert not alive


@pytest.fixture
def start_parent(tmp_path: Path) -> Iterator[Callable[[str], Parent]]:
    started = []

    def start(answer: str) -> Parent:
        started.append(Parent(tmp_path, answer))
        started[-1].know_workers()
        return started[-1]

    yield start
    for parent in started:
        parent.process.kill()
        parent.process.communicate()


def test_ctrl_c_reaches_all_workers_once(start_parent: Callable[[str], Parent]) -> None:
    parent = start_parent("answer")
    # Ctrl-Z pauses them all.
    os.killpg(parent.process.pid, signal.SIGTSTP)
    deadline = time.monotonic() + 5
    while {worker.status() for worker in parent.workers} != {psutil.STATUS_STOPPED}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(parent.process.pid, signal.SIGCONT)
    os.killpg(parent.process.pid, signal.SIGINT)
    code, output, errors = parent.end()
    assert code == 0, errors
    assert signal.SIGINT in json.loads(output)["signals"]
    assert errors == ""


def test_a_second_ctrl_c_ends_all(start_parent: Callable[[str], Parent], tmp_path: Path) -> None:
    parent = start_parent("ignore")
    os.killpg(parent.process.pid, signal.SIGINT)
    deadline = time.monotonic() + 5
    while not any((tmp_path / f"asked-{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(parent.process.pid, signal.SIGINT)
    code, output, errors = parent.end()
    assert code == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert output == ""


def test_a_killed_parent_leaves_nothing(start_parent: Callable[[str], Parent]) -> None:
    parent = start_parent("answer")
    parent.process.kill()
    parent.end()


def terminate_parent(context: Context) -> None:
    context.group().gather(0)
    if context.mesh.rank == 0:
        parents = psutil.Process().parents()
        os.kill(parents[1 if local.FORKS else 0].pid, signal.SIGTERM)
    time.sleep(60)


def test_termination_is_delivered_again() -> None:
    """Workers that do not catch SIGTERM end by it; then the parent's own handler acts."""

    class Terminated(Exception):
        pass

    def handler(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(Terminated):
            launch(terminate_parent, 2)
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


# Launched by others

TORCHRUN = """
import json, os
import torch.distributed as dist
from partita.comm.context import Context
with Context.from_environment(checked=True) as context:
    seen = context.group().gather([context.mesh.rank, context.mesh.host, context.mesh.worker, os.environ["LOCAL_RANK"]])
    if context.mesh.rank == 0:
        print(json.dumps(seen))
assert not dist.is_initialized()
"""


def test_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TORCHRUN)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[0, 0, 0, "0"], [1, 0, 1, "1"]]


NO_GUARD = """
from partita.comm.launch import launch
def work(context):
    return 1
launch(work, 1)
"""


def test_a_script_without_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(NO_GUARD)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "a worker cannot start workers. Put the call under: if __name__ == '__main__'" in done.stderr
