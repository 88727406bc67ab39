"""Checkpoints within epochs, written beside training: a run goes on from one as if nothing had been."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import partita
from partita.core.errors import ResourceError
from partita.graph.store import GraphStore
from partita.runs import checkpoint as module
from partita.runs.checkpoint import checkpoints_in, read_state
from partita.testing.graphs import small_random_store
from partita.train import phase

SETTINGS = {"layers": 2, "hidden": 8, "fanout": "4,3", "batch_size": 16, "epochs": 2, "prefetch": 0, "threads": 1}
AVERAGE = {"views": "cyclic", "sync": "model-average", "average_every": 2, "batch_size": 10}


class Crashed(Exception):
    """Stands for any end that saves nothing."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[str, GraphStore]:
    """120 training nodes: 8 steps of an epoch; and the same graph in 3 parts."""
    folder = tmp_path_factory.mktemp("stores")
    whole = small_random_store(folder / "g", 200, 1200)
    partita.partition(whole, folder / "parts", parts=3, algorithm="spring")
    return {"whole": whole, "parts": GraphStore.open(folder / "parts")}


def crash_after(trainer: partita.Trainer, epoch: int, step: int) -> None:
    """Let a run end with an error when so many steps of an epoch are done."""
    original = trainer._step

    def cut(*arguments):
        if (trainer._state.epoch, trainer._state.step) == (epoch, step):
            raise Crashed
        return original(*arguments)

    trainer._step = cut  # type: ignore[method-assign]


def files(run: Path) -> dict[str, bytes]:
    """What is trained, of every checkpoint."""
    found = sorted((run / "checkpoints").rglob("*.safetensors"))
    return {str(path.relative_to(run)): path.read_bytes() for path in found}


def epochs_of(run: Path) -> list[dict]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    timed = ("seconds", "seeds_per_second")
    return [{k: v for k, v in line.items() if k not in timed} for line in lines if line["event"] == "epoch"]


@pytest.mark.parametrize(("graph", "more"), [("whole", {}), ("parts", AVERAGE)], ids=["whole", "average"])
def test_a_run_that_ends_within_an_epoch_loses_no_more_than_the_steps_since(
    stores, tmp_path, graph, more, monkeypatch
) -> None:
    monkeypatch.setattr(phase, "SETTLE_STEPS", 1)
    settings = {**SETTINGS, **more, "checkpoint_steps": 3}
    partita.Trainer(stores[graph], out=tmp_path / "whole", **settings).fit()
    cut = partita.Trainer(stores[graph], out=tmp_path / "cut", **settings)
    crash_after(cut, 1, 5)
    with pytest.raises(Crashed):
        cut.fit()
    assert cut.recorder.record["status"] == "failed: Crashed"
    positions = [(state.epoch, state.step) for state in map(read_state, checkpoints_in(tmp_path / "cut/checkpoints"))]
    assert positions == [(1, 0), (1, 3)]
    assert partita.Trainer.resume(tmp_path / "cut").fit().status == "finished"
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert epochs_of(tmp_path / "cut") == epochs_of(tmp_path / "whole")


def test_what_the_writing_thread_meets_ends_the_run(stores, tmp_path, monkeypatch) -> None:
    original = module.write_files

    def full(folder, *contents) -> None:
        if "step-000006" in folder.name:
            raise OSError(28, "No space left on device")
        original(folder, *contents)

    monkeypatch.setattr(module, "write_files", full)
    trainer = partita.Trainer(stores["whole"], out=tmp_path / "run", checkpoint_steps=3, **SETTINGS)
    with pytest.raises(ResourceError, match="no space left for a checkpoint"):
        trainer.fit()
    assert trainer.recorder.record["status"] == "failed: ResourceError"
    assert [path.name for path in checkpoints_in(tmp_path / "run" / "checkpoints")] == ["epoch-00000-step-000003"]
    monkeypatch.setattr(module, "write_files", original)
    assert partita.Trainer.resume(tmp_path / "run").fit().status == "finished"


@pytest.mark.parametrize("keep", [1, 3])
def test_as_many_are_kept_as_was_asked_for_and_the_best(stores, tmp_path, keep) -> None:
    settings = {**SETTINGS, "epochs": 4, "lr": 1e-9, "keep_checkpoints": keep}  # so the first epoch is the best
    summary = partita.Trainer(stores["whole"], out=tmp_path / "run", **settings).fit()
    names = [path.name for path in checkpoints_in(tmp_path / "run" / "checkpoints")]
    latest = [f"epoch-0000{epoch}-step-000000" for epoch in range(5 - keep, 5)]
    assert names == sorted({summary.record["best"]["checkpoint"], *latest})
