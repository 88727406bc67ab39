"""A run is written by one process at a time: another that goes on with it, or makes it, is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import partita
from partita.core.errors import RunError, StoreError
from partita.testing.graphs import small_random_store

SETTINGS = {"layers": 2, "hidden": 4, "fanout": "3,3", "batch_size": 32, "epochs": 2, "prefetch": 0, "eval_every": 0}

HOLD = """
import sys
from partita.runs.folder import RunFolder
lock = RunFolder(sys.argv[1]).lock()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> partita.GraphStore:
    return small_random_store(tmp_path_factory.mktemp("graph") / "store", 120, 700, num_features=3)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes the run ``run``."""
    (tmp_path / "run").mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def run(store, tmp_path: Path) -> Path:
    return partita.Trainer(store, out=tmp_path / "run", **SETTINGS).fit().path


def test_a_run_that_is_being_written_is_not_gone_on_with(store, run, request) -> None:
    assert not (run / ".lock").exists()  # nobody writes it any more
    writer = request.getfixturevalue("writer")
    before = content(run)
    with pytest.raises(RunError, match=f"another process is writing this run: process {writer.pid} on"):
        partita.Trainer.resume(run, epochs=3)
    with pytest.raises(RunError, match="already exists and is not empty"):
        partita.Trainer(store, out=run, **SETTINGS)
    with pytest.raises(RunError, match="another process is writing this run"):
        partita.Trainer(store, out=run, overwrite=True, **SETTINGS)
    assert content(run) == before
    writer.kill()
    writer.wait()
    assert partita.Trainer.resume(run, epochs=3).fit().status == "finished"
    assert not (run / ".lock").exists()


def test_a_folder_in_which_another_process_makes_a_run(store, tmp_path, writer) -> None:
    with pytest.raises(RunError, match="another process is writing this run"):
        partita.Trainer(store, out=tmp_path / "run", **SETTINGS)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock"}
    writer.kill()
    writer.wait()
    assert partita.Trainer(store, out=tmp_path / "run", **SETTINGS).fit().status == "finished"


def test_a_run_that_cannot_be_gone_on_with_is_let_go(run) -> None:
    with pytest.raises(StoreError):
        partita.Trainer.resume(run, store=run / "nothing", epochs=3)
    assert not (run / ".lock").exists()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_goes_while_it_is_written_is_one_message(store, tmp_path: Path, replaced) -> None:
    run = tmp_path / "run"

    def remove(event: dict[str, object]) -> None:
        if event["event"] == "epoch" and not (tmp_path / "elsewhere").exists():
            run.rename(tmp_path / "elsewhere")
            if replaced:
                run.mkdir()
                (run / "run.json").write_text("{}")

    trainer = partita.Trainer(store, out=run, callbacks=[remove], **SETTINGS)
    with pytest.raises(RunError, match="removed or replaced while it was being written") as found:
        trainer.fit()
    assert str(found.value.where) == str(run)
    assert content(run) == ({"run.json": b"{}"} if replaced else {})  # nothing is written into another one's
    assert (tmp_path / "elsewhere" / "config.yaml").exists()
