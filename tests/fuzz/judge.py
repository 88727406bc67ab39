"""Runs a command on a damaged input, and judges what came of it."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from commands import Commands
from kinds import KINDS, MADE_BY, copy_world, file_of, make_world

PRELOADED = tuple(
    f"partita.{name}"
    for name in (
        *("cli.main", "cli.data", "cli.runs", "cli.plans", "cli.partitions", "sources.ingest", "graph.verify"),
        *("graph.export", "train.trainer", "infer.predict", "report.page"),
    )
)
SECONDS = 60
"""After which a command counts as hanging."""
MORE_BYTES = 600 * 2**20
"""Private memory that a command on inputs of some KB may have, beyond what libraries take."""
OUTCOMES = ("refused", "accepted", "internal error", "crash", "hang", "traceback", "silent", "left over")
GOOD = ("refused", "accepted")


@dataclass(frozen=True)
class Finding:
    """What came of a case.

    Attributes:
        kind, seed: of the case.
        outcome: one of :data:`OUTCOMES`.
        what: which mutation of which file, and the command.
        said: what the command printed on standard error, or what is wrong with what it made.
    """

    kind: str
    seed: int
    outcome: str
    what: str
    said: str


class Judge:
    """Sound inputs, and the process that runs commands on damaged copies; see :func:`judging`."""

    def __init__(self, commands: Commands, folder: Path) -> None:
        self._commands, self._folder = commands, folder
        self._world = make_world(folder / "world")
        for words in MADE_BY:
            done = commands.run(words.split(), str(self._world), 10 * SECONDS)
            assert done.returncode == 0, done.stderr

    def _run(self, words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return self._commands.run(words.split(), str(cwd), SECONDS, prepare=f"fuzz_limits:limit_memory={MORE_BYTES}")

    def try_case(self, kind: str, seed: int) -> Finding:
        """Damage one file of a copy of the world, run one command there, and judge."""
        draw, each = random.Random(f"{kind} {seed}"), KINDS[kind]
        name, command = file_of(self._world, draw.choice(each.files)), draw.choice(each.commands)
        ways = next(ways for end, ways in each.mutations.items() if name.endswith(end))
        changes = [draw.choice(ways) for _ in range(draw.choice((1, 1, 1, 2)))]
        what = f"{' and '.join(change.__name__ for change in changes)} in {name}; partita {command}"
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            case = Path(folder) / "case"
            copy_world(self._world, case, name.split("/")[0] + " " + command)
            data = (case / name).read_bytes()
            for change in changes:
                try:
                    data = change(data, draw)
                except (ValueError, RecursionError, LookupError):  # an edit of a text that is no JSON any more
                    break
            if data == (case / name).read_bytes():  # a byte was put in the place of the same byte
                data += b"\x00"
            (case / name).write_bytes(data)
            if each.sign is not None:
                each.sign(case, name)
            before = {path.name for path in case.iterdir()}
            try:
                done = self._run(command.format(out="out"), case)
            except subprocess.TimeoutExpired as late:
                return Finding(kind, seed, "hang", what, str(late.stderr))
            left = {path.name for path in case.iterdir()} - before
            outcome, said = self._judge(kind, done, case, left)
            if outcome not in GOOD:
                kept = self._folder / "failures" / f"{kind.replace(' ', '-')}-{seed}"
                shutil.copytree(case, kept, dirs_exist_ok=True)
            return Finding(kind, seed, outcome, what, said)

    def _judge(self, kind: str, done: subprocess.CompletedProcess[str], case: Path, left: set[str]) -> tuple[str, str]:
        said = done.stderr
        if done.returncode < 0:
            return "crash", f"signal {-done.returncode}: {said}"
        if "Traceback (most" in said:
            return "traceback", said
        if done.returncode not in (0, 2):
            return "internal error", said
        if any(name.startswith(".") or "partial" in name for name in left):
            return "left over", f"{left}: {said}"
        if done.returncode == 2:
            return (
                ("refused", said)
                if "partita:" in said or "Usage" in said or "error" in said
                else ("silent", "no message")
            )
        try:
            wrong = KINDS[kind].accepted(case, self._world)
        except Exception as error:  # the independent reading makes nothing of it
            wrong = f"an independent reading ends with {type(error).__name__}: {error}"
        return ("accepted", "") if wrong is None else ("silent", wrong)


@contextmanager
def judging(folder: Path) -> Iterator[Judge]:
    """A judge whose sound inputs are in a new folder."""
    with Commands(*PRELOADED) as commands:
        yield Judge(commands, folder)
