"""The process that forks: what it starts, how it says that something ended, and its own end."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from partita.comm import local
from partita.comm.forkserver import FORKS, Forked, ForkServer
from partita.comm.local import run_local, workers_ready
from partita.core.errors import ResourceError

pytestmark = pytest.mark.skipif(not FORKS, reason="nothing is forked here")

ENTRY = """
import os, pathlib, sys, time
if os.environ["HOW"] == "sleep":
    pathlib.Path(os.environ["NOTE"]).write_text(str(os.getpid()))
    time.sleep(60)
os._exit(int(os.environ["HOW"]))
"""  # while it is imported: no workers are joined


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(["json"]) as server:
        yield server


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """The folder of a plan of one worker."""
    folder, module = tmp_path / "plan", tmp_path / "entry_of_a_test.py"
    folder.mkdir()
    module.write_text(ENTRY)
    text = {
        "module": "entry_of_a_test", "file": str(module), "qualname": "work", "parent": os.getpid(), "threads": 1,
        "path": [str(tmp_path), *sys.path], "command": ["test"], "python_path": None,
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(text))
    return folder


def start(server: ForkServer, plan: Path, how: str) -> Forked:
    environment = {**os.environ, "HOW": how, "NOTE": str(plan.parent / "note")}
    return server.fork(plan, 3, environment, os.open(os.devnull, os.O_WRONLY))


def wait_for(note: Path) -> psutil.Process:
    deadline = time.monotonic() + 60
    while not note.exists() or not note.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return psutil.Process(int(note.read_text()))


def test_exit_codes_and_signals_are_told(server, plan) -> None:
    assert start(server, plan, "0").wait(60) == 0
    assert start(server, plan, "7").wait(60) == 7
    sleeping = start(server, plan, "sleep")
    process = wait_for(plan.parent / "note")
    assert (process.pid, process.name()) == (sleeping.pid, "partita-3")
    assert sleeping.poll() is None
    sleeping.terminate()
    assert sleeping.wait(60) == sleeping.returncode == -signal.SIGTERM
    sleeping.kill()  # does nothing: it has ended
    assert server.fits


def test_a_number_that_an_earlier_process_had_says_nothing(server, plan) -> None:
    """The system gives numbers again; here as if all of them had been taken before."""
    server._ended = dict.fromkeys(range(1 << 22), 0)
    sleeping = start(server, plan, "sleep")
    wait_for(plan.parent / "note")
    assert sleeping.poll() is None
    sleeping.kill()
    assert sleeping.wait(60) == -signal.SIGKILL


def test_ctrl_c_right_after_the_fork_is_not_lost(server, plan) -> None:
    """It ends a worker that has just been forked as it ends one that works: with an error that is noted."""
    output, environment = plan.parent / "output", {**os.environ, "HOW": "sleep", "NOTE": str(plan.parent / "note")}
    for _ in range(40):
        worker = server.fork(plan, 3, environment, os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        worker.send_signal(signal.SIGINT)
        assert worker.wait(30) == 1
        assert "KeyboardInterrupt" in (plan / "error-3.json").read_text()
        (plan / "error-3.json").unlink()
    assert output.read_text() == ""


def test_whoever_kills_the_server_kills_its_workers(plan) -> None:
    with ForkServer(["json"]) as server:
        worker = start(server, plan, "sleep")
        process = wait_for(plan.parent / "note")
        server._process.kill()
        assert worker.wait(10) == -signal.SIGKILL
        process.wait(10)
        assert not server.fits
        with pytest.raises(ResourceError, match="the process that starts them ended with code -9"):
            start(server, plan, "0")


def test_its_end_is_that_of_its_workers_and_of_their_folder(plan) -> None:
    with ForkServer(["json"]) as server:
        start(server, plan, "sleep")
        process = wait_for(plan.parent / "note")
    assert not process.is_running()
    assert not plan.exists()


def test_what_cannot_be_imported_is_said(plan) -> None:
    with ForkServer(["no_such_module_of_a_test"]) as server, pytest.raises(ResourceError, match="ended with code 1"):
        start(server, plan, "0")


def test_it_fits_only_while_what_it_inherited_is_the_same(server, monkeypatch) -> None:
    assert server.fits
    monkeypatch.setenv("TMPDIR", "/tmp/another")
    assert server.fits  # nobody reads it while importing
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert not server.fits
    monkeypatch.undo()
    assert server.fits
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0 if soft else 4096, hard) if hard else (0, 0))
        assert server.fits == (resource.getrlimit(resource.RLIMIT_CORE)[0] == soft)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    before = os.umask(0o077)
    try:
        assert not server.fits
    finally:
        os.umask(before)
    assert server.fits


def environment_of(context, name: str) -> list[str | None]:
    return [os.environ.get(name), str(os.getppid())]


def test_workers_that_are_ready_are_used_unless_they_would_be_others(monkeypatch) -> None:
    monkeypatch.setattr(local, "_kept", None)  # not that of the session
    with workers_ready():
        first, second = (run_local(environment_of, 1, ["SETTING_OF_A_TEST"])[0] for _ in range(2))
        monkeypatch.setenv("SETTING_OF_A_TEST", "here")
        third = run_local(environment_of, 1, ["SETTING_OF_A_TEST"])[0]
    assert first == second
    assert first[0] is None
    assert third[0] == "here"
    assert third[1] != first[1]
