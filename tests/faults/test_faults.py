"""Every command under everything that a system refuses: one message with path and remedy, and nothing half-written.

A command that cannot do its work exits with code 2 (130 after a signal), says where and what to do, leaves what was
there as it was and nothing hidden beside it; once the fault is gone, it makes the same bytes as if nothing had been.
``make faults`` runs all of this; ``make test`` a small part.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from commands import run_partita
from faults_world import READERS, VERBS, Verb, content, differences, left_over, messages

from faults import can_mount, disk, nearly_full, read_only


@dataclass
class Disturbed:
    """How a command is run.

    Attributes:
        world: the folder of the command.
        words: its arguments.
        options: of :func:`commands.run_partita`.
        environment: variables.
        code: how it must end; ``None``: with 2, or with 0 if all has been done.
    """

    world: Path
    words: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    code: int | None = 2


Fault = Callable[[Any, Verb], Any]


@contextmanager
def on_a_disk(worlds: Any, verb: Verb, size: str = "12m") -> Iterator[Disturbed]:
    if not can_mount():
        pytest.skip("no mount namespace of its own: make faults makes one")
    worlds.mounted = getattr(worlds, "mounted", 0) + 1
    with disk(worlds.folder / f"disk-{worlds.mounted}", size) as path:
        yield Disturbed(worlds.new(path), verb.arguments())


@contextmanager
def full(worlds: Any, verb: Verb, room: int = 0) -> Iterator[Disturbed]:
    with on_a_disk(worlds, verb) as disturbed:
        with nearly_full(disturbed.world, room):
            yield disturbed
        check_repeat(worlds, verb, disturbed.world)


@contextmanager
def nearly(worlds: Any, verb: Verb) -> Iterator[Disturbed]:
    with full(worlds, verb, 24 << 10) as disturbed:
        disturbed.code = None
        yield disturbed


@contextmanager
def not_writable(worlds: Any, verb: Verb) -> Iterator[Disturbed]:
    with on_a_disk(worlds, verb) as disturbed:
        with read_only(disturbed.world):
            yield disturbed
        check_repeat(worlds, verb, disturbed.world)


@contextmanager
def in_a_copy(worlds: Any, verb: Verb) -> Iterator[Disturbed]:
    world = worlds.new()
    yield Disturbed(world, verb.arguments())
    check_repeat(worlds, verb, world)
    shutil.rmtree(world)


@contextmanager
def without_permission(worlds: Any, verb: Verb) -> Iterator[Disturbed]:
    with in_a_copy(worlds, verb) as disturbed:
        for path in [disturbed.world, *disturbed.world.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        disturbed.options["prepare"] = "faults:no_rights"
        yield disturbed
        for path in [disturbed.world, *disturbed.world.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


@contextmanager
def file_for_directory(worlds: Any, verb: Verb) -> Iterator[Disturbed]:
    with in_a_copy(worlds, verb) as disturbed:
        if verb.makes is None:
            pytest.skip("makes no directory")
        disturbed.words = verb.arguments(new=f"nodes.csv/{verb.makes}")
        yield disturbed


@contextmanager
def long_name(worlds: Any, verb: Verb) -> Iterator[Disturbed]:
    with in_a_copy(worlds, verb) as disturbed:
        if verb.makes is None:
            pytest.skip("makes nothing that has a name")
        disturbed.words = verb.arguments(new=f"{'n' * 300}{Path(verb.makes).suffix}")
        yield disturbed


@contextmanager
def small_files(worlds: Any, verb: Verb) -> Iterator[Disturbed]:
    with in_a_copy(worlds, verb) as disturbed:
        disturbed.options["prepare"] = "faults:small_files=600"
        disturbed.code = None
        yield disturbed


@contextmanager
def no_temporary(worlds: Any, verb: Verb) -> Iterator[Disturbed]:
    with in_a_copy(worlds, verb) as disturbed:
        disturbed.environment["TMPDIR"] = str(disturbed.world / "nowhere")
        disturbed.code = None
        yield disturbed


@contextmanager
def full_temporary(worlds: Any, verb: Verb) -> Iterator[Disturbed]:
    with on_a_disk(worlds, verb) as other:
        with nearly_full(other.world, 0):
            world = worlds.new()
            disturbed = Disturbed(world, verb.arguments(), environment={"TMPDIR": str(other.world)}, code=None)
            yield disturbed
        check_repeat(worlds, verb, world)
        shutil.rmtree(world)


@contextmanager
def deleted_directory(worlds: Any, verb: Verb) -> Iterator[Disturbed]:
    with in_a_copy(worlds, verb) as disturbed:
        disturbed.options["prepare"] = f"faults:gone_directory={disturbed.world / 'gone'}"
        yield disturbed


@contextmanager
def full_output(worlds: Any, verb: Verb) -> Iterator[Disturbed]:
    with in_a_copy(worlds, verb) as disturbed:
        disturbed.options["prepare"] = "faults:output_to=/dev/full"
        disturbed.code = None  # the work is done before its result is printed
        yield disturbed


FAULTS: dict[str, Fault] = {
    "disk-full": full, "disk-nearly-full": nearly, "read-only": not_writable, "no-permission": without_permission,
    "file-for-directory": file_for_directory, "long-name": long_name, "file-size": small_files,
    "no-tmpdir": no_temporary, "full-tmpdir": full_temporary, "deleted-directory": deleted_directory,
    "full-output": full_output,
}  # fmt: skip

SLOW = pytest.mark.slow
QUICK = {
    ("file-size", "export"), ("file-size", "predict-parquet"), ("file-size", "train"), ("no-permission", "report"),
    ("no-permission", "resume"), ("long-name", "ingest"), ("file-for-directory", "partition-file"),
    ("full-output", "evaluate"),
}  # fmt: skip
CASES = [
    pytest.param(fault, verb, id=f"{verb}-{fault}", marks=() if (fault, verb) in QUICK else SLOW)
    for verb in VERBS
    for fault in FAULTS
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("fault", "verb"), CASES)
def test_a_command_that_cannot_do_its_work(worlds, monkeypatch, fault, verb) -> None:
    how = VERBS[verb]
    with FAULTS[fault](worlds, how) as disturbed:
        before = content(disturbed.world)
        with monkeypatch.context() as patched:
            for name, value in disturbed.environment.items():
                patched.setenv(name, value)
            done = run_partita(*disturbed.words, cwd=disturbed.world, **disturbed.options)
        check_end(disturbed, done, keeps=how.keeps)
        if fault != "full-output":
            check_left(disturbed, how, before, done.returncode)


def check_end(disturbed: Disturbed, done: subprocess.CompletedProcess[str], *, keeps: bool = True) -> None:
    assert "Traceback" not in done.stderr, done.stderr
    assert "internal error" not in done.stderr, done.stderr
    if done.returncode == 0 and (disturbed.code is None or not keeps):
        return
    assert done.returncode == (disturbed.code or 2), done.stderr
    said = list(messages(done.stderr))
    assert said, done.stderr
    assert re.search(r": .+\. [A-Z]", said[-1]), f"no place or remedy: {said[-1]}"


def check_left(disturbed: Disturbed, how: Verb, before: dict[str, Any], code: int) -> None:
    assert left_over(disturbed.world) == []
    if code == 0:
        return
    changed = differences(content(disturbed.world), before)
    allowed = how.resume and [name for name in changed if name.split("/")[0] in ("new", "begun")]
    assert changed == (allowed or []), changed


def check_repeat(worlds: Any, verb: Verb, world: Path) -> None:
    """Without the fault, the command makes what it would have made."""
    name = next(name for name, each in VERBS.items() if each is verb)
    found = content(world)
    expected = worlds.undisturbed(name)
    if differences(found, expected):
        words = verb.arguments()
        if verb.resume and (world / "new" / "run.json").exists():
            words = verb.resume.split()
        done = run_partita(*words, cwd=world)
        assert done.returncode == 0, done.stderr
        found = content(world)
    assert differences(found, expected) == []
    assert left_over(world) == []


# Signals


SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_signal_at_a_random_moment(worlds, verb, number) -> None:
    how, draw = VERBS[verb], random.Random(f"{verb}-{number}")
    with in_a_copy(worlds, how) as disturbed:
        before = content(disturbed.world)

        def interrupt(pid: int) -> None:
            wait_for_command(pid)
            time.sleep(draw.uniform(0, 4 if how.workers else 1.5))
            with suppress(ProcessLookupError):
                os.kill(pid, number)

        done = run_partita(*disturbed.words, cwd=disturbed.world, during=interrupt)
        if done.returncode == -number:  # after the work, when nothing handles signals any more
            assert differences(content(disturbed.world), worlds.undisturbed(verb)) == []
            return
        assert done.returncode in (0, 130), done.stderr
        assert "Traceback" not in done.stderr
        assert "internal error" not in done.stderr
        disturbed.code = None
        check_left(disturbed, how, before, done.returncode)


def wait_for_command(pid: int) -> None:
    """Until the process has become the command, whose handlers are in place."""
    deadline = time.monotonic() + 30
    handled = 1 << (signal.SIGTERM - 1)
    while is_alive(pid) and time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            status = Path(f"/proc/{pid}/status").read_text()
            if int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) & handled:
                return
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


# Files that go, locks that are held, and what is printed


@contextmanager
def holder(code: str, *arguments: object) -> Iterator[None]:
    """Another process that runs some lines of Python, then waits."""
    lines = f"import sys\n{code}\nprint('held', flush=True)\nsys.stdin.read()"
    command = [sys.executable, "-c", lines, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.communicate()


@pytest.mark.parametrize(
    ("verb", "code", "folder"),
    [
        ("resume", "from partita.runs.folder import RunFolder\nlock = RunFolder(sys.argv[1]).lock()", "begun"),
        ("presample", "import os\nfrom pathlib import Path\nfrom partita.graph.files import take_lock\n"
         "lock = take_lock(Path(sys.argv[1]), os.O_RDONLY)", "graph"),
    ],
)  # fmt: skip
def test_a_lock_that_is_held(worlds, verb, code, folder) -> None:
    with in_a_copy(worlds, VERBS[verb]) as disturbed:
        before = content(disturbed.world)
        with holder(code, disturbed.world / folder):
            done = run_partita(*disturbed.words, cwd=disturbed.world)
        check_end(disturbed, done)
        assert "another process" in done.stderr
        (disturbed.world / folder / ".lock").unlink(missing_ok=True)
        check_left(disturbed, VERBS[verb], before, done.returncode)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "verb", ["ingest", "generate-sbm", "export", "partition", "shard", "split", "train", "train-2", "predict-2"]
)
def test_the_output_is_removed_while_it_is_written(worlds, verb) -> None:
    how = VERBS[verb]
    with in_a_copy(worlds, how) as disturbed:
        inputs = set(disturbed.world.iterdir())

        def remove(pid: int) -> None:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and is_alive(pid):
                if made := set(disturbed.world.iterdir()) - inputs:
                    time.sleep(0.05)
                    for path in made:
                        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
                    return

        disturbed.code = None
        done = run_partita(*disturbed.words, cwd=disturbed.world, during=remove)
        check_end(disturbed, done)
        for path in set(disturbed.world.iterdir()) - inputs:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    "words", [words if words in ("inspect run", "--help") else pytest.param(words, marks=SLOW) for words in READERS]
)
def test_a_full_device_as_standard_output(worlds, world, words) -> None:
    done = run_partita(*words.split(), cwd=world, prepare="faults:output_to=/dev/full")
    check_end(Disturbed(world, []), done)
    assert "standard output" in done.stderr


@pytest.mark.parametrize("words", ["train --help", *(pytest.param(words, marks=SLOW) for words in READERS)])
def test_an_output_of_ascii_only(worlds, world, monkeypatch, words) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    command = [sys.executable, "-c", "from partita.cli import main; main()", *words.split()]
    done = subprocess.run(command, cwd=world, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
