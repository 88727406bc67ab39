"""The folder in which commands are disturbed, made once; copies of it are cheap."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import run_partita
from faults_world import VERBS, content, make_world, moved


class Worlds:
    """Copies of one folder, and what undisturbed commands do in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._first = make_world(folder / "world")
        self._number = 0
        self._undisturbed: dict[str, dict[str, Any]] = {}

    def new(self, folder: Path | None = None) -> Path:
        """A copy in a directory that anybody can enter, or in the one that is given."""
        self._number += 1
        target = folder or self.folder / f"copy-{self._number}"
        shutil.copytree(self._first, target, dirs_exist_ok=True)
        return moved(target)

    def undisturbed(self, verb: str) -> dict[str, Any]:
        """What is in the folder after a command that nothing disturbs."""
        if verb not in self._undisturbed:
            world = self.new()
            done = run_partita(*VERBS[verb].arguments(), cwd=world)
            assert done.returncode == 0, done.stderr
            self._undisturbed[verb] = content(world)
            shutil.rmtree(world)
        return self._undisturbed[verb]


@pytest.fixture(scope="session")
def worlds(libraries) -> Iterator[Worlds]:
    before = os.umask(0o022)
    folder = Path(tempfile.mkdtemp(prefix="partita-faults-", dir="/tmp"))
    folder.chmod(0o755)  # other users enter it, too
    try:
        yield Worlds(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.umask(before)


@pytest.fixture
def world(worlds) -> Iterator[Path]:
    made = worlds.new()
    yield made
    shutil.rmtree(made, ignore_errors=True)
