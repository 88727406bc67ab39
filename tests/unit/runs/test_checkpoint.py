"""Checkpoints: complete or absent, exact, and only the needed ones are kept."""

from __future__ import annotations

import pytest
import torch

from partita.core.errors import ResourceError, RunError
from partita.core.records import Counts
from partita.runs import checkpoint as module
from partita.runs.checkpoint import (
    Best,
    TrainState,
    latest_checkpoint,
    load_model,
    load_optimizer,
    read_state,
    save_checkpoint,
)


def _trained(optimizer_type, steps: int):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = optimizer_type(model.parameters())
    _train(model, optimizer, 0, steps)
    return model, optimizer


def _train(model, optimizer, start: int, stop: int) -> None:
    for step in range(start, stop):
        x = torch.arange(18, dtype=torch.float32).reshape(6, 3).sin() + step
        optimizer.zero_grad()
        model(x).pow(2).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "optimizer_type",
    [
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ],
)
def test_going_on_from_a_checkpoint_is_bit_identical(tmp_path, optimizer_type) -> None:
    model, optimizer = _trained(optimizer_type, 3)
    path = save_checkpoint(tmp_path, model, optimizer, TrainState(epoch=1))
    _train(model, optimizer, 3, 6)

    other, other_optimizer = _trained(optimizer_type, 0)
    load_model(path, other)
    load_optimizer(path, other, other_optimizer)
    _train(other, other_optimizer, 3, 6)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_state_round_trip(tmp_path) -> None:
    model, optimizer = _trained(torch.optim.Adam, 1)
    state = TrainState(
        epoch=2,
        step=7,
        loss_sum=0.1 + 0.2,
        seeds_done=9,
        best=Best("accuracy", 1 / 3, 2, "epoch-00002-step-000007"),
        evaluations_since_best=1,
        counts=Counts(5, (1, 2), 3, 4),
        stage_seconds={"forward": 0.1},
        peak_memory_bytes=11,
    )
    path = save_checkpoint(tmp_path, model, optimizer, state)
    assert path.name == "epoch-00002-step-000007"
    assert read_state(path) == state


def test_only_the_latest_and_the_best_are_kept(tmp_path) -> None:
    model, optimizer = _trained(torch.optim.Adam, 1)
    best = Best("accuracy", 0.5, 1, "epoch-00001-step-000000")
    for epoch in (1, 2, 3):
        save_checkpoint(tmp_path, model, optimizer, TrainState(epoch=epoch, best=best))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-00001-step-000000", "epoch-00003-step-000000"]
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.name == "epoch-00003-step-000000"


def test_a_failed_write_leaves_the_earlier_checkpoint(tmp_path, monkeypatch) -> None:
    model, optimizer = _trained(torch.optim.Adam, 1)
    save_checkpoint(tmp_path, model, optimizer, TrainState(epoch=1))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(ResourceError, match=r"no space left.*--resume"):
        save_checkpoint(tmp_path, model, optimizer, TrainState(epoch=2))
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00001-step-000000"]


def test_half_a_checkpoint_is_no_checkpoint(tmp_path) -> None:
    (tmp_path / ".epoch-00009-step-000000.partial-1").mkdir()
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "absent") is None


def test_another_model_or_a_damaged_file_is_refused(tmp_path) -> None:
    model, optimizer = _trained(torch.optim.Adam, 1)
    path = save_checkpoint(tmp_path, model, optimizer, TrainState())
    with pytest.raises(RunError, match="a different model"):
        load_model(path, torch.nn.Linear(3, 4))
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:40])
    with pytest.raises(RunError, match=r"model\.safetensors: is damaged"):
        load_model(path, model)
    (path / "state.json").write_text("{}")
    with pytest.raises(RunError, match=r"state\.json: is damaged"):
        read_state(path)
