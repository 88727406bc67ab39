"""Checkpoints are written in a thread: what is written is what was there when it was taken, and errors are raised."""

from __future__ import annotations

import threading

import pytest
import torch

from partita.core.errors import ResourceError
from partita.runs import checkpoint as module
from partita.runs.checkpoint import Best, TrainState, checkpoints_in, load_model, take_snapshot
from partita.runs.checkpoint_writer import CheckpointWriter


@pytest.fixture
def model():
    return torch.nn.Linear(3, 4)


def _snapshot(model, state):
    return take_snapshot(model, torch.optim.Adam(model.parameters()), state, {"a": model.weight})


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("partita-checkpoint")]


def test_what_is_written_is_what_was_there(tmp_path, model, monkeypatch) -> None:
    may_write, original = threading.Event(), module.write_files

    def late(*arguments) -> None:
        assert may_write.wait(60)
        original(*arguments)

    monkeypatch.setattr(module, "write_files", late)
    before = model.weight.detach().clone()
    writer = CheckpointWriter(tmp_path, keep=1)
    writer.write(_snapshot(model, TrainState(epoch=1)))  # returns though nothing can be written yet
    assert checkpoints_in(tmp_path) == []
    writer.check()  # does not wait
    with torch.no_grad():
        model.weight.add_(1)
    may_write.set()
    writer.wait()
    (path,) = checkpoints_in(tmp_path)
    load_model(path, model)
    assert torch.equal(model.weight, before)
    assert torch.equal(module.read_tensors(path, "members.safetensors")["a"], before)
    writer.close()
    assert not _threads()


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_latest_ones_and_the_best_are_kept(tmp_path, model, keep) -> None:
    best = Best("accuracy", 0.5, 1, "epoch-00001-step-000000")
    writer = CheckpointWriter(tmp_path, keep)
    for epoch, step in ((0, 5), (1, 0), (1, 50), (2, 0), (10, 0)):
        state = TrainState(epoch=epoch, step=step, best=best if epoch else None)
        writer.write(_snapshot(model, state))
    writer.close()
    names = [path.name for path in checkpoints_in(tmp_path)]
    latest = ["epoch-00001-step-000050", "epoch-00002-step-000000", "epoch-00010-step-000000"][-keep:]
    assert names == [best.checkpoint, *latest]


@pytest.mark.parametrize("noticed", ["wait", "check", "write"])
def test_what_the_thread_meets_is_raised_once(tmp_path, model, monkeypatch, noticed) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_files", full)
    writer = CheckpointWriter(tmp_path, keep=1)
    writer.write(_snapshot(model, TrainState(epoch=1)))
    threading.Event().wait(0.2 if noticed == "check" else 0)
    arguments = [_snapshot(model, TrainState(epoch=2))] if noticed == "write" else []
    with pytest.raises(ResourceError, match=r"no space left for a checkpoint.*--resume"):
        getattr(writer, noticed)(*arguments)
    writer.wait()
    writer.close()
    assert list(tmp_path.iterdir()) == []
