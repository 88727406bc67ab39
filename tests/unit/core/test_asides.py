"""Files are written aside; what killed processes leave goes with the next one who writes, and nothing else does."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from partita.core import asides
from partita.core.asides import (
    folder_written_aside,
    left_behind,
    private_folder,
    remove_left_behind,
    set_aside,
    written_aside,
)

KILLED = """
import os, signal, sys
from pathlib import Path
from partita.core.asides import private_folder, written_aside
path = Path(sys.argv[1])
with written_aside(path / "e.npz") as file, private_folder("partita-workers-", path) as folder:
    file.write_bytes(b"half")
    (folder / "plan.json").write_text("{}")
    if sys.argv[2] == "wait":
        print("ready", flush=True)
        sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def process(folder: Path, what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder), what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_the_file_is_replaced_as_a_whole_or_not_at_all(tmp_path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def half() -> None:
        with written_aside(path) as aside:
            aside.write_text("ha")
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert path.read_text() == "old"
    with written_aside(path) as aside:
        aside.write_text("new")
        assert path.read_text() == "old"
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("a.txt", "new")]


def test_errors_name_the_file_that_was_wanted(tmp_path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(OSError, match="no space") as full, written_aside(path):
        raise OSError(errno.ENOSPC, "no space")
    assert full.value.filename == str(path)
    path.mkdir()
    with pytest.raises(IsADirectoryError) as taken, written_aside(path):
        pass
    assert taken.value.filename == str(path)
    path.rmdir()
    with pytest.raises(FileNotFoundError) as other, written_aside(path):
        (tmp_path / "another").read_text()
    assert other.value.filename == str(tmp_path / "another")
    with pytest.raises(FileNotFoundError) as nowhere, written_aside(tmp_path / "no" / "a.txt"):
        pass
    assert nowhere.value.filename == str(tmp_path / "no" / "a.txt")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_is_not(tmp_path) -> None:
    with process(tmp_path, "die") as killed:
        killed.communicate()
    with process(tmp_path, "wait") as alive:
        assert alive.stdout.readline() == "ready\n"
        mine = tmp_path / ".e.npz.partial-notes"
        mine.write_text("a file of the user")
        of_dead, of_alive = (
            {path for path in tmp_path.iterdir() if f"-{pid}-" in path.name} for pid in (killed.pid, alive.pid)
        )
        assert len(of_alive) == 2
        assert not of_dead  # the second process has removed them
        assert left_behind(tmp_path) == []
        with written_aside(tmp_path / "e.npz") as aside, private_folder("partita-workers-", tmp_path):
            aside.write_text("whole")
        assert {path for path in tmp_path.iterdir() if f"-{alive.pid}-" in path.name} == of_alive
        alive.communicate()
    assert set(left_behind(tmp_path)) == of_alive
    assert all(remove_left_behind(path) for path in of_alive)
    assert {path.name for path in tmp_path.iterdir()} == {"e.npz", mine.name}


def test_a_link_is_not_followed(tmp_path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    (tmp_path / "partita-workers-1-00000000").symlink_to(tmp_path / "elsewhere")
    with private_folder("partita-workers-", tmp_path):
        pass
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_many_at_once_do_not_take_each_others(tmp_path) -> None:
    failed = []

    def use() -> None:
        try:
            for _ in range(50):
                with private_folder("partita-workers-", tmp_path) as folder:
                    (folder / "a").touch()
                    assert (folder / "a").exists()
                with written_aside(tmp_path / "f") as aside:
                    aside.write_text("whole")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert os.listdir(tmp_path) == ["f"]


def test_a_folder_is_private(tmp_path) -> None:
    with private_folder("partita-workers-", tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_a_directory_is_replaced_as_a_whole_or_not_at_all(tmp_path) -> None:
    path = tmp_path / "a"
    path.mkdir()
    (path / "old").write_text("1")
    with pytest.raises(ValueError, match="half"), folder_written_aside(path) as folder:  # noqa: PT012
        (folder / "new").write_text("2")
        raise ValueError("half")
    assert [each.name for each in tmp_path.rglob("*")] == ["a", "old"]
    with folder_written_aside(path) as folder:
        (folder / "new").write_text("2")
        assert left_behind(tmp_path) == []
    assert [each.name for each in tmp_path.rglob("*")] == ["a", "new"]


def test_a_signal_at_the_worst_moment_leaves_nothing(tmp_path, monkeypatch) -> None:
    """Between making something, and holding it."""

    def interrupted(*_: object) -> None:
        assert len(list(tmp_path.iterdir())) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(asides.fcntl, "flock", interrupted)
    for aside in (
        written_aside(tmp_path / "a.txt"),
        folder_written_aside(tmp_path / "a"),
        private_folder("b-", tmp_path),
    ):
        with pytest.raises(KeyboardInterrupt), aside:
            pass
        assert list(tmp_path.iterdir()) == []


def test_what_is_set_aside_gets_names_of_its_own(tmp_path) -> None:
    found = []
    for number in range(3):
        (tmp_path / "a.json").write_text(str(number))
        found.append(set_aside(tmp_path / "a.json"))
    assert [each.name for each in found] == ["damaged-a.json", "damaged-2-a.json", "damaged-3-a.json"]
    assert [each.read_text() for each in found] == ["0", "1", "2"]
