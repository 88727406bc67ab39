"""A folder has one writer: who else comes is told who it is; what a killed one leaves behind holds nobody."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from partita.core import locks
from partita.core.errors import RunError
from partita.core.locks import LOCK_NAME, FolderLock

HOLD = """
import sys
from pathlib import Path
from partita.core.errors import RunError
from partita.core.locks import FolderLock
try:
    lock = FolderLock(Path(sys.argv[1]), RunError, "run")
    print("held", flush=True)
except RunError as error:
    print(error, flush=True)
sys.stdin.read()
"""


@contextmanager
def other(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that tries to hold a folder, and what it says."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(params=["locks", "no locks"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system with locks, and one without, where the record of the owner decides."""
    if request.param == "no locks":
        monkeypatch.setattr(locks, "fcntl", None)
    return request.param


def test_another_process_is_refused_and_told_who_writes(tmp_path: Path, system: str) -> None:
    with other(tmp_path) as (process, said):
        assert said == "held"
        with pytest.raises(RunError) as caught:
            FolderLock(tmp_path, RunError, "run")
        assert f"another process is writing this run: process {process.pid} on {socket.gethostname()}" in str(
            caught.value
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / LOCK_NAME).exists()  # what it left
        lock = FolderLock(tmp_path, RunError, "run")
    assert json.loads((tmp_path / LOCK_NAME).read_text())["pid"] == os.getpid()
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_this_process_refuses_others_and_lets_them_in_afterwards(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, RunError, "run")
    with other(tmp_path) as (_, said):
        assert f"process {os.getpid()} on" in said
    lock.release()
    with other(tmp_path) as (_, said):
        assert said == "held"


def test_an_object_that_was_forgotten_gives_way(tmp_path: Path) -> None:
    first = FolderLock(tmp_path, RunError, "run")
    second = FolderLock(tmp_path, RunError, "run")
    first.release()  # has nothing any more
    with other(tmp_path) as (_, said):
        assert "another process is writing" in said
    del second
    gc.collect()
    with other(tmp_path) as (_, said):
        assert said == "held"


@pytest.mark.parametrize("content", ["", "{", "[]", "\0\0", '{"pid": "x"}', "[" * 100_000, '{"pid": -1, "host": null}'])
def test_a_damaged_record_holds_nobody(tmp_path: Path, system: str, content: str) -> None:
    (tmp_path / LOCK_NAME).write_text(content)
    lock = FolderLock(tmp_path, RunError, "run")
    assert lock.is_here
    lock.release()


def test_a_folder_that_was_removed_or_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    lock = FolderLock(folder, RunError, "run")
    (folder / LOCK_NAME).unlink()
    (folder / LOCK_NAME).write_text("another's")
    lock.release()
    assert (folder / LOCK_NAME).read_text() == "another's"


def test_of_many_at_once_one_gets_in(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    try:
        said = [process.stdout.readline().strip() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert said.count("held") == 1
    assert sum("another process is writing this run" in each for each in said) == 7
