"""What the system refuses, and what names hold: a message with path and remedy and exit code 2, never a bug report."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partita.cli import main
from partita.core.errors import ResourceError, of_the_system
from partita.core.files import map_array, parse_json, read_file
from partita.testing.graphs import small_random_store

DEEP = "[" * 200_000


def said(capsys: pytest.CaptureFixture[str], *words: object, code: int = 2) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    assert (ended.value.code or 0) == code, captured.err
    assert "internal error" not in captured.err
    return captured.out + captured.err


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return small_random_store(tmp_path / "graph", 40, 200, num_features=2).path


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EIO]
)
def test_what_the_system_refuses_has_a_remedy(number) -> None:
    error = of_the_system(OSError(number, os.strerror(number), "/some/where"))
    assert isinstance(error, ResourceError)
    assert error.where == "/some/where"
    assert error.fix


def test_memory_and_threads_and_what_is_none_of_these() -> None:
    message = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 123456 bytes."
    assert "123,456 bytes" in str(of_the_system(RuntimeError(message)))
    assert "threads" in str(of_the_system(RuntimeError("can't start new thread")))
    for other in (RuntimeError("another"), ValueError("x"), OSError(errno.EBADF, "bad"), KeyError("x")):
        assert of_the_system(other) is None


def test_an_end_of_file_inside_a_command_is_an_internal_error(store, capsys, monkeypatch) -> None:
    def ends(*_: object, **__: object) -> None:
        raise EOFError("marshal data too short")  # as Python says of a module whose bytecode is cut off

    monkeypatch.setattr("partita.graph.store.GraphStore.open", ends)
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(store)])
    assert ended.value.code == 1
    errors = capsys.readouterr().err
    assert "internal error: UnexpectedEnd: marshal data too short. Please report it" in errors
    assert "Abort" not in errors


def test_places_that_cannot_be_written_to(store, tmp_path, capsys) -> None:
    (tmp_path / "file").write_text("x")
    long = "n" * 300
    for words in (
        ["train", store, "--out", tmp_path / "file" / "run"],
        ["train", store, "--out", tmp_path / long, "--epochs", "1", "--fanout", "2,2", "--layers", "2"],
        ["export", store, "--out", tmp_path / f"{long}.npz"],
        ["partition", store, tmp_path / long, "--parts", "2", "--algorithm", "random"],
        ["generate", "sbm", tmp_path / "file" / "g", "--nodes", "100"],
    ):
        text = said(capsys, *words)
        assert str(tmp_path) in text


@pytest.mark.parametrize("content", [DEEP, "{", "[]", "\\udcff", '{"format": ' + DEEP])
def test_json_that_is_none(store, capsys, content) -> None:
    (store / "metadata.json").write_text(content)
    assert "metadata.json" in said(capsys, "inspect", store)


def test_a_pipe_is_not_waited_for(store, capsys) -> None:
    (store / "metadata.json").unlink()
    os.mkfifo(store / "metadata.json")
    assert "not a regular file" in said(capsys, "verify", store)
    with pytest.raises(OSError, match="not a regular file"):
        read_file(store / "metadata.json")


def test_headers_that_make_the_reader_stumble(tmp_path, store, capsys) -> None:
    whole = (store / "x.npy").read_bytes()
    for change in (
        b"{'descr': (",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999, 9)",
        b"'" * 60,
        DEEP.encode()[:90],
    ):
        (store / "x.npy").write_bytes(whole[:10] + change.ljust(118)[:118] + whole[128:])
        assert "column 'x'" in said(capsys, "verify", store)
        with pytest.raises((ValueError, OSError)):
            map_array(store / "x.npy")


def test_json_is_no_deeper_than_can_be_read() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(DEEP)


@pytest.mark.parametrize("name", ["q[", "a[b]c", "[red]x[/red]", "x[/]y"])
def test_names_are_no_markup(tmp_path, capsys, name) -> None:
    store = small_random_store(tmp_path / name / "x]", 40, 200, num_features=2) if "/" not in name else None
    if store is None:
        (tmp_path / name).mkdir(parents=True)
        store = small_random_store(tmp_path / name / "x", 40, 200, num_features=2)
    for verb in ("verify", "inspect"):
        assert str(store.path) in said(capsys, verb, store.path, code=0)


def test_control_characters_do_not_reach_the_terminal(tmp_path, capsys) -> None:
    assert "\\x1b[31m" in said(capsys, "verify", tmp_path / "a\x1b[31mb")


def test_a_variable_of_torchrun_that_is_no_number(monkeypatch, store, capsys) -> None:
    monkeypatch.setenv("RANK", "x")
    assert "the variable RANK is 'x', not a number" in said(capsys, "inspect", store)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_leaves_nothing(tmp_path, number) -> None:
    command = [sys.executable, "-c", "from partita.cli import main; main()"]
    process = subprocess.Popen(
        [*command, "generate", "sbm", str(tmp_path / "graph"), "--nodes", "1000000"], stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not any(tmp_path.iterdir()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(20) == 130
    assert list(tmp_path.iterdir()) == []


def test_no_name_commands_the_terminal(tmp_path, capsys, monkeypatch) -> None:
    """Paths, ids and columns with control characters, in everything that verbs print."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    folder = tmp_path / "a\x1b[2Jb"
    folder.mkdir()
    ids = [f"n{number}\x1b]0;t\x07" for number in range(50)]
    (folder / "e\x07.csv").write_text("src,dst\n" + "".join(f"{ids[a]},{ids[7 * a % 50 - 1]}\n" for a in range(50)))
    (folder / "n.csv").write_text("id,x\x1b[1A,y\n" + "".join(f"{ids[a]},{a},c{a % 3}\x1b[3J\n" for a in range(50)))
    small = ["--layers", 1, "--hidden", 4, "--fanout", 2, "--epochs", 1, "--threads", 1]
    verbs: list[list[object]] = [
        ["ingest", folder / "e\x07.csv", folder / "g\x08", "--nodes", folder / "n.csv", "--id-column", "id",
         "--label-column", "y", "--header"],
        ["inspect", folder / "g\x08"],
        ["verify", folder / "g\x08"],
        ["train", folder / "g\x08", "--out", folder / "run\x1bc", *small],
        ["train", "--resume", folder / "run\x1bc"],
        ["evaluate", folder / "run\x1bc"],
        ["predict", folder / "run\x1bc", "--out", folder / "p\x1b.csv"],
        ["inspect", folder / "run\x1bc"],
        ["report", folder / "run\x1bc", "--out", folder / "r\x1b.html"],
        ["verify", folder / "run\x1bc"],
    ]  # fmt: skip
    own = re.compile(r"\x1b\[(\d+(;\d+)*)?m|\x1b\[\?25[lh]|\x1b\[\d*[AK]\r?|\r")  # colors; of progress, its cursor
    for words in verbs:
        printed = own.sub("", said(capsys, *words, code=0))
        assert all(each.isprintable() or each in "\n\t" for each in printed), (words, printed)


LOST = """
import ctypes, signal, sys, time
from partita.cli import main

module = sys.modules["partita.cli.main"]

@ctypes.CFUNCTYPE(None)
def called_back():
    signal.raise_signal(int(sys.argv[1]))
    sum(range(100))

def command(arguments):
    called_back()  # the interrupt is raised in there, where nothing can be raised
    if arguments == ["fail"]:
        raise RuntimeError("what was to be done was not")
    time.sleep(60)

module._run = command
main(sys.argv[2:])
"""


@pytest.mark.parametrize("how", ["fail", "go on"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_comes_while_c_calls_back_is_not_lost(number, how) -> None:
    command = [sys.executable, "-c", LOST, str(int(number)), how]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (130, "partita: interrupted\n")
