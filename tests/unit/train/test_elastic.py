"""``--resume auto``: a run goes on where there is a sound checkpoint, and begins where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import partita
from partita.cli.main import main
from partita.config import Config
from partita.core.errors import ConfigError, RunError
from partita.runs.checkpoint import checkpoints_in
from partita.runs.folder import RunFolder
from partita.testing.graphs import small_random_store
from partita.train import elastic

SETTINGS = {"layers": 1, "hidden": 4, "fanout": "3", "batch_size": 16, "epochs": 3, "threads": 1, "prefetch": 0}


class Crashed(Exception):
    """Stands for any end that saves nothing."""


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> partita.GraphStore:
    return small_random_store(tmp_path_factory.mktemp("graph") / "g", 120, 700, num_features=3)


@pytest.fixture(scope="module")
def undisturbed(store, tmp_path_factory) -> bytes:
    return weights(partita.Trainer(store, out=tmp_path_factory.mktemp("run") / "run", **SETTINGS).fit().path)


def weights(run: Path) -> bytes:
    return (checkpoints_in(run / "checkpoints")[-1] / "model.safetensors").read_bytes()


def attempt(store, run: Path, **changes) -> partita.Trainer:
    config = Config.make({**SETTINGS, **changes})
    return elastic.go_on_or_begin(store.path, out=run, config=config, given=config.model_fields_set)


def crash(trainer: partita.Trainer, epoch: int) -> None:
    """Let a run end with an error at the third step of an epoch."""
    original = trainer._step

    def cut(*arguments):
        if (trainer._state.epoch, trainer._state.step) == (epoch, 2):
            raise Crashed
        return original(*arguments)

    trainer._step = cut  # type: ignore[method-assign]
    with pytest.raises(Crashed):
        trainer.fit()


def test_every_attempt_is_the_same_command(store, tmp_path, undisturbed) -> None:
    run = tmp_path / "run"
    first = attempt(store, run)
    assert first.notes == []
    crash(first, 0)  # before the first checkpoint
    second = attempt(store, run)
    assert second.notes == ["no checkpoint to go on from: the run begins anew"]
    crash(second, 2)
    third = attempt(store, run)
    assert third.notes == ["goes on after 2 epochs and 0 steps, with 1 worker"]
    assert third.fit().status == "finished"
    assert weights(run) == undisturbed
    assert '"text": "goes on after 2 epochs' in (run / "metrics.jsonl").read_text()
    done = attempt(store, run).fit()  # of a finished run: nothing is left to do
    assert (done.status, done.record["epoch"]) == ("finished", 3)
    assert weights(run) == undisturbed


def test_a_damaged_checkpoint_is_set_aside(store, tmp_path, undisturbed) -> None:
    run = tmp_path / "run"
    crash(attempt(store, run), 2)
    *_, before, latest = checkpoints_in(run / "checkpoints")
    file = latest / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    trainer = attempt(store, run)
    damage, goes_on = trainer.notes
    assert "does not match its digest" in damage
    assert damage.endswith(f"it is now called damaged-{latest.name}")
    assert goes_on.startswith("goes on after 1 epochs and 0 steps")
    assert before.name == "epoch-00001-step-000000"
    assert trainer.fit().status == "finished"
    assert weights(run) == undisturbed
    assert (run / "checkpoints" / f"damaged-{latest.name}").is_dir()


def test_settings_that_may_change_and_others(store, tmp_path) -> None:
    run = tmp_path / "run"
    crash(attempt(store, run), 1)
    with pytest.raises(ConfigError, match=r"the run has hidden 4, not 8\. Give"):
        attempt(store, run, hidden=8)
    trainer = attempt(store, run, epochs=2, checkpoint_steps=5, strategy="auto", target_scaling="auto")
    assert (trainer.job.config.epochs, trainer.job.config.checkpoint_steps) == (2, 5)
    assert trainer.job.config.strategy == "gdp"  # as the run has it
    assert trainer.fit().status == "finished"


def test_the_lock_of_an_attempt_that_is_ending_is_waited_for(store, tmp_path, monkeypatch) -> None:
    run = tmp_path / "run"
    crash(attempt(store, run), 1)
    hold = (
        "import sys, time\nfrom partita.runs.folder import RunFolder\nlock = RunFolder(sys.argv[1]).lock()\n"
        "print('held', flush=True)\ntime.sleep(float(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", hold, str(run)]
    with subprocess.Popen([*command, "60"], stdout=subprocess.PIPE, text=True) as ending:
        assert ending.stdout.readline() == "held\n"
        with monkeypatch.context() as patch:
            patch.setattr(elastic, "LOCK_SECONDS", 0.0)
            with pytest.raises(RunError, match=f"another process is writing this run: process {ending.pid}"):
                attempt(store, run)
        ending.kill()
    with subprocess.Popen([*command, "1"], stdout=subprocess.PIPE, text=True) as ending:
        assert ending.stdout.readline() == "held\n"
        assert attempt(store, run).fit().status == "finished"
    assert not (run / ".lock").exists()


def test_what_is_no_run_is_not_touched(store, tmp_path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "letter.txt").write_text("mine")
    with pytest.raises(RunError, match="not a run folder"):
        attempt(store, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["letter.txt"]


def test_from_the_command_line(store, tmp_path, capsys) -> None:
    words = ["train", str(store.path), "--out", str(tmp_path / "run"), "--resume", "auto"]
    words += [part for name, value in SETTINGS.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    for said in ("epoch 3/3", "goes on after 3 epochs and 0 steps, with 1 worker"):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert not ended.value.code
        assert said in capsys.readouterr().err
    assert RunFolder.open(tmp_path / "run").read_record()["status"] == "finished"
    with pytest.raises(SystemExit) as ended:
        main(["train", "--out", str(tmp_path / "run"), "--resume", "auto"])
    assert ended.value.code == 2
    assert "a store is missing" in capsys.readouterr().err
