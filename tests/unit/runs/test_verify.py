"""Runs and checkpoints are verified; what is damaged is named, set aside, and the run goes on from what is sound."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import partita
from partita.core.errors import RunError
from partita.core.locks import FolderLock
from partita.runs.checkpoint import read_state
from partita.runs.verify import is_checkpoint, is_run, repair_checkpoint, repair_run, verify_checkpoint, verify_run
from partita.testing.graphs import small_random_store

LAST = "epoch-00003-step-000000"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A run of three epochs, and beside it the checkpoint of the second, which is the best one."""
    folder = tmp_path_factory.mktemp("runs")
    store = small_random_store(folder / "graph", 60, 400, num_features=3)
    settings = {"layers": 2, "hidden": 4, "fanout": (2, 2), "batch_size": 16, "seed": 4}
    partita.Trainer(store.path, out=folder / "run", epochs=2, eval_every=0, **settings).fit()
    earlier = shutil.copytree(folder / "run" / "checkpoints", folder / "earlier")
    partita.Trainer.resume(folder / "run", epochs=3).fit()
    shutil.copytree(earlier, folder / "run" / "checkpoints", dirs_exist_ok=True)
    return folder / "run"


@pytest.fixture
def run(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def flip(path: Path, at: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_sound_run_says_what_was_checked_and_is_left_as_it_is(run) -> None:
    before = files(run)
    checks = "\n".join(verify_run(run))
    for what in ("run.json: status finished", "config.yaml", "events, in order", LAST, "fit the model and its optim"):
        assert what in checks
    assert repair_run(run) == ["there is nothing to repair"]
    assert files(run) == before
    assert is_run(run)
    assert not is_checkpoint(run)
    assert is_checkpoint(run / "checkpoints" / LAST)
    assert "fit the model" in verify_checkpoint(run / "checkpoints" / LAST)[0]
    alone = shutil.copytree(run / "checkpoints" / LAST, run.parent / LAST)
    assert "not compared with the model" in verify_checkpoint(alone)[0]


@pytest.mark.parametrize(
    ("file", "content", "what"),
    [
        ("run.json", "{", "run.json: cannot be read"),
        ("run.json", '{"format": 1}', "run.json: is damaged: status: Field required"),
        ("config.yaml", "nonsense: 1\n", "config.yaml: unknown setting 'nonsense'"),
        ("config.yaml", "[", "config.yaml: is not valid YAML"),
    ],
)
def test_what_is_nowhere_else_is_named_and_not_repaired(run, file, content, what) -> None:
    (run / file).write_text(content)
    before = files(run)
    with pytest.raises(RunError) as found:
        verify_run(run)
    assert what in str(found.value)
    assert "--repair" in str(found.value)
    with pytest.raises(RunError, match="cannot be repaired"):
        repair_run(run)
    assert files(run) == before


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json", "digests.json"])
def test_a_run_goes_on_from_the_newest_sound_checkpoint(run, made, file) -> None:
    flip(run / "checkpoints" / LAST / file, 40)
    with pytest.raises(RunError, match=rf"checkpoints/{LAST}: .*{file}"):
        verify_run(run)
    with pytest.raises(RunError, match=r"cannot be repaired.*Repair the run"):
        repair_checkpoint(run / "checkpoints" / LAST)
    before = files(run / "checkpoints" / LAST)
    done = "\n".join(repair_run(run))
    assert f"set aside as damaged-{LAST}" in done
    assert "goes on after 2 epochs" in done
    assert files(run / "checkpoints" / f"damaged-{LAST}") == before
    verify_run(run)
    record = json.loads((run / "run.json").read_text())
    assert (record["status"], record["epoch"], record["best"]) == ("interrupted", 2, None)
    partita.Trainer.resume(run).fit()
    found, expected = (files(each / "checkpoints" / LAST) for each in (run, made))
    assert found["model.safetensors"] == expected["model.safetensors"]
    assert found["optimizer.safetensors"] == expected["optimizer.safetensors"]


def test_without_a_sound_checkpoint_it_begins_again(run) -> None:
    for checkpoint in (run / "checkpoints").iterdir():
        (checkpoint / "model.safetensors").unlink()
    done = "\n".join(repair_run(run))
    assert "goes on from the beginning" in done
    assert partita.Trainer.resume(run).fit().status == "finished"
    verify_run(run)


def test_best_weights_that_are_gone_are_not_replaced_by_others(run) -> None:
    state = read_state(run / "checkpoints" / LAST)
    missing = "epoch-00001-step-000000"
    shutil.rmtree(run / "checkpoints" / missing)
    values = state.to_json() | {"best": {"metric": "m", "value": 1.0, "epoch": 1, "checkpoint": missing}}
    (run / "checkpoints" / LAST / "state.json").write_text(json.dumps(values))
    (run / "checkpoints" / LAST / "digests.json").unlink()
    with pytest.raises(RunError, match=rf"{missing}: is missing, the best one according to {LAST}"):
        verify_run(run)
    before = files(run)
    with pytest.raises(RunError, match="its weights are nowhere else"):
        repair_run(run)
    assert files(run) == before


def test_lines_of_metrics(run) -> None:
    log = run / "metrics.jsonl"
    whole = log.read_text().splitlines(keepends=True)
    damaged = [whole[0], '{"event": "epoch", "epo\n', *whole[1:], '{"event": "step", "ep']
    log.write_text("".join(damaged))
    with pytest.raises(RunError, match=r"metrics.jsonl: line 2 and others are no events"):
        verify_run(run)
    assert f"{len(whole):,} sound lines kept" in "\n".join(repair_run(run))
    assert log.read_text().splitlines(keepends=True) == whole
    assert (run / "damaged-metrics.jsonl").read_text() == "".join(damaged)
    log.write_text("".join([*whole, whole[0]]))  # an earlier step
    with pytest.raises(RunError, match=f"line {len(whole) + 1} is not an event, or not in order"):
        verify_run(run)
    repair_run(run)
    assert (run / "damaged-2-metrics.jsonl").exists()
    verify_run(run)


def test_a_run_that_is_written_is_left_alone(run) -> None:
    code = (
        "import sys\nfrom partita.core.locks import FolderLock\nfrom partita.core.errors import RunError\n"
        "from pathlib import Path\nlock = FolderLock(Path(sys.argv[1]), RunError, 'run')\n"
        "print('held', flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        for look in (verify_run, repair_run):
            with pytest.raises(RunError, match="another process is writing this run"):
                look(run)
        other.communicate()
    verify_run(run)  # what it has left of its lock is nobody's
    assert not os.path.lexists(run / ".lock") or FolderLock(run, RunError, "run").release() is None


def test_what_killed_commands_left_is_removed(run) -> None:
    (run / ".run.json.partial-1-0123abcd").write_text("{")
    assert ".run.json.partial-1-0123abcd" in verify_run(run)[-1]
    assert "removed .run.json.partial-1-0123abcd" in repair_run(run)[0]
    assert not list(run.glob(".run*"))
