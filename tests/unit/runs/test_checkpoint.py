"""Checkpoints: complete or absent, exact, and only the needed ones are kept."""

from __future__ import annotations

import json
import os
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

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

    monkeypatch.setattr(module, "write_files", full)
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


STATES = {
    "epoch": "one",
    "step": -1,
    "loss_sum": None,
    "best": {"metric": "accuracy", "value": "high", "epoch": 1, "checkpoint": "epoch-00001-step-000000"},
    "stage_seconds": {"forward": "long"},
    "traffic": [],
    "counts": {"sampled_edges": 1, "computed_destinations": [[]], "input_rows_read": 1, "row_reads": 1},
    "views": 7,
    "another": 0,
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_other_types_is_refused(tmp_path, name) -> None:
    path = save_checkpoint(tmp_path, *_trained(torch.optim.Adam, 1), TrainState(counts=Counts.zero(2)))
    assert read_state(path).counts == Counts.zero(2)
    file = path / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: STATES[name]}))
    (path / "digests.json").unlink()  # as nobody would have noticed
    with pytest.raises(RunError, match=r"state\.json: is damaged"):
        read_state(path)


# Damage: nothing that kernels would write beyond, or that is not what was written, gets into a model or an optimizer.

SLOTS = {
    "one element": lambda tensors: {**tensors, "0.weight/exp_avg": torch.zeros(1)},
    "empty": lambda tensors: {**tensors, "0.weight/exp_avg_sq": torch.zeros(0)},
    "transposed": lambda tensors: {**tensors, "0.weight/exp_avg": tensors["0.weight/exp_avg"].T.contiguous()},
    "exchanged": lambda tensors: {
        **tensors,
        "0.weight/exp_avg": tensors["0.bias/exp_avg"],
        "0.bias/exp_avg": tensors["0.weight/exp_avg"],
    },
    "another dtype": lambda tensors: {**tensors, "1.bias/exp_avg": tensors["1.bias/exp_avg"].half()},
    "integers": lambda tensors: {**tensors, "1.bias/exp_avg": tensors["1.bias/exp_avg"].long()},
    "two steps": lambda tensors: {**tensors, "1.bias/step": torch.zeros(2)},
    "a slot less": lambda tensors: {name: value for name, value in tensors.items() if name != "1.bias/step"},
    "a slot more": lambda tensors: {**tensors, "1.bias/max_exp_avg_sq": tensors["1.bias/exp_avg"].clone()},
    "unknown": lambda tensors: {**tensors, "9.bias/exp_avg": tensors["1.bias/exp_avg"].clone()},
    "no slot": lambda tensors: {**tensors, "exp_avg": tensors["1.bias/exp_avg"].clone()},
}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("what", SLOTS)
def test_what_an_optimizer_cannot_use_never_reaches_it(tmp_path, what, fused) -> None:
    """Also where nobody noticed the damage by its digest: the fused kernel writes beyond a tensor that is too short."""
    model, optimizer = _trained(lambda parameters: torch.optim.Adam(parameters, fused=fused), 2)
    path = save_checkpoint(tmp_path, model, optimizer, TrainState())
    file = path / "optimizer.safetensors"
    save_file(SLOTS[what](load_file(file)), file)
    for digests in ("kept", "gone"):
        if digests == "gone":
            (path / "digests.json").unlink()
        other, other_optimizer = _trained(lambda parameters: torch.optim.Adam(parameters, fused=fused), 0)
        with pytest.raises(RunError, match=r"optimizer\.safetensors: is damaged"):
            load_optimizer(path, other, other_optimizer)
        assert not other_optimizer.state


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.float64])
def test_weights_of_another_dtype_are_refused(tmp_path, dtype) -> None:
    model, optimizer = _trained(torch.optim.Adam, 1)
    path = save_checkpoint(tmp_path, model, optimizer, TrainState())
    file = path / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "0.bias": tensors["0.bias"].to(dtype)}, file)
    (path / "digests.json").unlink()
    with pytest.raises(RunError, match=r"tensor '0\.bias' is \w+ \(4,\), the model has float32 \(4,\)"):
        load_model(path, model)


def test_every_flipped_bit_is_noticed(tmp_path) -> None:
    model, optimizer = _trained(torch.optim.Adam, 2)
    path = save_checkpoint(tmp_path, model, optimizer, TrainState(epoch=3, loss_sum=0.25))

    def read() -> None:
        read_state(path)
        other, other_optimizer = _trained(torch.optim.Adam, 0)
        load_model(path, other)
        load_optimizer(path, other, other_optimizer)

    read()
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for position in range(0, len(whole), max(1, len(whole) // 40)):
            file.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
            with pytest.raises(RunError, match=re.escape(str(path))):
                read()
        file.write_bytes(whole)
    read()


def test_a_checkpoint_without_digests_is_read_as_before(tmp_path) -> None:
    model, optimizer = _trained(torch.optim.Adam, 2)
    path = save_checkpoint(tmp_path, model, optimizer, TrainState(epoch=3))
    (path / "digests.json").unlink()
    other, other_optimizer = _trained(torch.optim.Adam, 0)
    load_model(path, other)
    load_optimizer(path, other, other_optimizer)
    assert read_state(path).epoch == 3
    assert torch.equal(other[0].weight, model[0].weight)


def test_files_follow_the_mask_of_new_files(tmp_path) -> None:
    model, optimizer = _trained(torch.optim.Adam, 1)
    before = os.umask(0o027)
    try:
        path = save_checkpoint(tmp_path, model, optimizer, TrainState())
    finally:
        os.umask(before)
    assert {oct(file.stat().st_mode & 0o777) for file in path.iterdir()} == {"0o640"}
