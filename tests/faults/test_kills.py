"""``kill -9`` of a command, of one of its workers or of all of them: all is gone soon, and nothing is left behind.

The same command afterwards, or ``--resume``, makes the same bytes as an undisturbed one. ``PARTITA_KILLS`` says how
many there are.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import run_partita
from faults_world import TRAIN, VERBS, Verb, content, differences, left_over
from processes import SECONDS_TO_END, workers_of

CHECKPOINTS = "--checkpoint-minutes 0.0005 --keep-checkpoints 1"  # those that are kept do not depend on time
KILLED = {
    **{name: VERBS[name] for name in ("ingest", "ingest-npz", "partition", "export", "predict-parquet", "evaluate")},
    "predict-2": VERBS["predict-2"],
    "train": Verb(f"train graph --out new {TRAIN} --epochs 8 {CHECKPOINTS}", resume="train --resume new"),
    "train-2": Verb(
        f"train parts --out new {TRAIN} --epochs 8 {CHECKPOINTS} --workers 2", resume="train --resume new", workers=True
    ),
}
VICTIMS = ("command", "worker", "all workers")
NUMBER = int(os.environ.get("PARTITA_KILLS", "27"))


def cases() -> list[tuple[str, str, int]]:
    """Verb, victim, seed."""
    names = list(KILLED)
    return [
        (names[number % len(names)], VICTIMS[number // len(names) % len(VICTIMS)], number) for number in range(NUMBER)
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("verb", "victim", "seed"), cases())
def test_killed_at_a_random_moment(worlds, record_property, verb, victim, seed) -> None:
    how, draw = KILLED[verb], random.Random(seed)
    world = worlds.new()
    temporary = world.parent / f"{world.name}-temporary"
    temporary.mkdir()
    try:
        # Commands of this size import for some seconds, then work for one or two.
        process, everything = kill(world, how.arguments(), temporary, victim, draw.uniform(1, 16 if how.workers else 9))
        record_property("code", process.returncode)
        _, alive = psutil.wait_procs(everything, SECONDS_TO_END)
        assert not alive, alive
        repeat(world, how, temporary)
        assert differences(content(world), undisturbed(worlds, verb)) == []
        assert left_over(world) == []
        if how.workers:  # the next command that starts workers removes what the killed one has left
            assert not list(temporary.glob("partita-*"))
    finally:
        shutil.rmtree(world, ignore_errors=True)
        shutil.rmtree(temporary, ignore_errors=True)


def kill(
    world: Path, words: list[str], temporary: Path, victim: str, after: float
) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """Start a command from nothing and kill it, its last worker, or all of them, after some seconds."""
    command = [sys.executable, "-c", "from partita.cli import main; main()", *words]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with (
        (temporary / "errors").open("wb") as errors,
        subprocess.Popen(
            command, cwd=world, env=environment, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        ) as process,
    ):
        with suppress(subprocess.TimeoutExpired):
            process.wait(after)
        everything: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            everything = psutil.Process(process.pid).children(recursive=True)
        workers = workers_of(process.pid)
        last = [workers[max(workers)].pid] if workers else []
        targets = {"worker": last, "all workers": [each.pid for each in workers.values()]}.get(victim) or [process.pid]
        if process.poll() is None:
            for target in targets:
                with suppress(ProcessLookupError):
                    os.kill(target, signal.SIGKILL)
        begun = time.monotonic()
        process.wait(SECONDS_TO_END)
        assert time.monotonic() - begun < SECONDS_TO_END
    text = (temporary / "errors").read_text()
    assert process.returncode in (0, 2, -signal.SIGKILL), text
    assert "Traceback" not in text, text
    assert "internal error" not in text, text
    return process, everything


def repeat(world: Path, how: Verb, temporary: Path) -> None:
    """The same command again, or what goes on with what it has left, unless it was done already."""
    words = how.arguments()
    if how.resume and (record := world / "new" / "run.json").exists():
        if json.loads(record.read_text())["status"] == "finished":
            return
        words = how.resume.split()
    elif how.makes and (world / how.makes).exists() and not how.resume:
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TMPDIR", str(temporary))
        done = run_partita(*words, cwd=world)
    assert done.returncode == 0, done.stderr


_undisturbed: dict[str, dict[str, Any]] = {}


def undisturbed(worlds: Any, verb: str) -> dict[str, Any]:
    """What is in the folder when nothing happens."""
    if verb in VERBS and KILLED[verb] is VERBS[verb]:
        return worlds.undisturbed(verb)
    if verb not in _undisturbed:
        world = worlds.new()
        done = run_partita(*KILLED[verb].arguments(), cwd=world)
        assert done.returncode == 0, done.stderr
        _undisturbed[verb] = content(world)
        shutil.rmtree(world)
    return _undisturbed[verb]
