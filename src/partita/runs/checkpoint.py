"""Checkpoints: everything a run needs to go on exactly where it was.

A checkpoint is a directory ``checkpoints/epoch-00003-step-000120`` (120 steps of epoch 3 are done) with
``model.safetensors``, ``optimizer.safetensors``, ``state.json``, and digests of all these in ``digests.json``. It is
written aside and renamed, so one that has its name is complete. No generator state is kept: samples and dropout are
functions of the position.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from partita.comm.axis import Workers
from partita.comm.context import Context
from partita.comm.tensors import share_tensors
from partita.core.asides import folder_written_aside
from partita.core.errors import ResourceError, RunError, is_disk_full
from partita.core.files import parse_json
from partita.core.records import Counts
from partita.core.typed import typed
from partita.features.learnt import LearntRows
from partita.runs.checkpoint_files import (
    check_slots,
    damaged,
    read_tensors,
    read_text,
    require_forms,
    stepped,
    write_files,
)
from partita.runs.learnt_files import LEARNT, LearntFile, WrittenFile, write_learnt

_NAME = re.compile(r"epoch-(\d+)-step-(\d+)")
_PLATEAU = ("lr_reductions", "evaluations_since_reduction")
_MODEL, _OPTIMIZER, _MEMBERS = "model.safetensors", "optimizer.safetensors", "members.safetensors"
_STATE = "state.json"


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation so far: its metric, its value, and the checkpoint that holds the weights.

    ``run.json`` and ``state.json`` hold its fields.
    """

    metric: str
    value: float
    epoch: int
    checkpoint: str


@dataclass(frozen=True, slots=True)
class TrainState:
    """How far a run has come.

    Attributes:
        epoch: 0-based epoch in progress.
        step: steps of that epoch that are done.
        loss_sum: sum over the epoch's seeds so far of their losses.
        seeds_done: seeds of the epoch so far.
        best: the best evaluation so far.
        evaluations_since_best: how many evaluations have not improved on it.
        stopped: early stopping has ended the run.
        lr_reductions: how often the schedule "plateau" has reduced the learning rate.
        evaluations_since_reduction: how many evaluations have not improved on the best one, nor on that.
        counts: edges and rows so far, over the whole run.
        stage_seconds: seconds by stage so far.
        peak_memory_bytes: most private memory seen so far.
        traffic: bytes that left one worker for another in training steps so far, by kind, over all workers.
        evaluation: the same in evaluations.
        views: where the views of isolated training are.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    seeds_done: int = 0
    best: Best | None = None
    evaluations_since_best: int = 0
    stopped: bool = False
    counts: Counts | None = None
    stage_seconds: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    traffic: dict[str, int] = field(default_factory=dict)
    evaluation: dict[str, int] = field(default_factory=dict)
    views: dict[str, Any] = field(default_factory=dict)
    lr_reductions: int = 0
    evaluations_since_reduction: int = 0

    @property
    def name(self) -> str:
        """Name of the checkpoint of this position."""
        return f"epoch-{self.epoch:05d}-step-{self.step:06d}"

    def with_(self, **changes: Any) -> TrainState:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    def adding(self, counts: Counts, traffic: dict[str, int], evaluation: dict[str, int]) -> TrainState:
        """A copy with a step's costs added."""
        return replace(
            self,
            counts=self.counts + counts if self.counts else counts,
            traffic={kind: self.traffic.get(kind, 0) + sent for kind, sent in traffic.items()},
            evaluation={kind: self.evaluation.get(kind, 0) + sent for kind, sent in evaluation.items()},
        )

    def to_json(self) -> dict[str, Any]:
        """As ``state.json`` holds it; what the schedule "plateau" counts, only where it does."""
        values = {**asdict(self), "counts": self.counts.to_json() if self.counts else None}
        return {name: value for name, value in values.items() if value or name not in _PLATEAU}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TrainState:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError: a value is of another type than :meth:`to_json` gives.
        """
        best, counts = values["best"], values["counts"]
        made = {
            "best": typed(Best, best) if best else None,
            "counts": Counts.from_json(counts) if counts else None,
        }
        state = typed(cls, {**values, **made})
        if min(state.epoch, state.step, state.seeds_done) < 0:
            raise ValueError("a position is negative")
        return state


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint holds, copied, so that training may go on while it is written.

    Attributes:
        name: of the checkpoint.
        best: name of the best one, which is kept; ``None`` where nothing was evaluated.
        tensors: by file, tensors by name: contiguous, in host memory, shared with nobody.
        state: the text of ``state.json``.
        learnt: learnt rows, which are written already; ``None`` without any.
    """

    name: str
    best: str | None
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: str
    learnt: WrittenFile | None = None


def take_snapshot(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    members: Mapping[str, Tensor] | None = None,
    learnt: WrittenFile | None = None,
) -> Snapshot:
    """Copy what a checkpoint is to hold.

    Args:
        model: its weights are saved.
        optimizer: over its parameters.
        state: the position.
        members: further tensors by name: the models of the views of isolated training.
        learnt: learnt rows, which are written already.
    """
    tensors = {_MODEL: _copied(model.state_dict()), _OPTIMIZER: _copied(_flatten_optimizer(model, optimizer))}
    if members:
        tensors[_MEMBERS] = _copied(members)
    best = state.best.checkpoint if state.best else None
    return Snapshot(state.name, best, tensors, json.dumps(state.to_json(), indent=2), learnt)


def write_checkpoint(checkpoints: Path, snapshot: Snapshot, *, keep: int = 1) -> Path:
    """Write a checkpoint, then drop all but the latest ones and the best one.

    Args:
        checkpoints: folder of the run.
        snapshot: what it holds.
        keep: how many of the latest ones stay, this one included.

    Raises:
        ResourceError: the disk is full; earlier checkpoints are untouched.
    """
    target = checkpoints / snapshot.name
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        with folder_written_aside(target) as aside:
            learnt = snapshot.learnt
            written = {} if learnt is None else {LEARNT: (learnt.path, learnt.digests)}
            write_files(aside, snapshot.tensors, {_STATE: snapshot.state}, written)
    except OSError as error:
        raise _without_space(checkpoints, error) from None
    kept = {snapshot.name, snapshot.best, *(path.name for path in checkpoints_in(checkpoints)[-keep:])}
    for other in checkpoints.iterdir():
        half_written = other.name.startswith(".epoch-")  # by a process that was killed
        if half_written or (_NAME.fullmatch(other.name) and other.name not in kept):
            shutil.rmtree(other, ignore_errors=True) if other.is_dir() else other.unlink(missing_ok=True)
    return target


def _without_space(checkpoints: Path, error: OSError) -> Exception:
    """What to raise instead of an error of the file system."""
    if not is_disk_full(error):
        return error
    free = shutil.disk_usage(checkpoints).free
    return ResourceError(
        f"no space left for a checkpoint ({free:,} bytes free)",
        where=str(checkpoints),
        fix="Free space on that disk and continue with: partita train --resume RUN",
    )


def write_learnt_aside(checkpoints: Path, state: TrainState, learnt: LearntRows, *, leads: bool) -> WrittenFile | None:
    """Write learnt rows for the checkpoint of a position; the file is returned on the first worker. All call this.

    Raises:
        ResourceError: the disk is full; earlier checkpoints are untouched.
    """
    try:
        return write_learnt(learnt, checkpoints / f".{state.name}.{LEARNT}" if leads else None)
    except OSError as error:
        raise _without_space(checkpoints, error) from None


def save_checkpoint(
    checkpoints: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    members: Mapping[str, Tensor] | None = None,
) -> Path:
    """Take a snapshot and write it; see :func:`take_snapshot` and :func:`write_checkpoint`."""
    return write_checkpoint(checkpoints, take_snapshot(model, optimizer, state, members))


def checkpoints_in(checkpoints: Path) -> list[Path]:
    """All complete checkpoints of a run, the one that is farthest along last."""
    found = []
    for path in checkpoints.iterdir() if checkpoints.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match:
            found.append((int(match[1]), int(match[2]), path))
    return [path for _, _, path in sorted(found)]


def latest_checkpoint(checkpoints: Path) -> Path | None:
    """The checkpoint that is farthest along, or ``None`` where there is none."""
    found = checkpoints_in(checkpoints)
    return found[-1] if found else None


def read_state(checkpoint: Path) -> TrainState:
    """The position and bookkeeping of a checkpoint.

    Raises:
        RunError: the file is damaged.
    """
    text = read_text(checkpoint, _STATE)
    try:
        return TrainState.from_json(parse_json(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(checkpoint / _STATE, error) from None


def check_checkpoint(checkpoint: Path) -> TrainState:
    """Read all of a checkpoint, and compare it with its digests.

    Returns:
        Its position and bookkeeping.

    Raises:
        RunError: a file is missing or damaged.
    """
    state = read_state(checkpoint)
    for name in (_MODEL, _OPTIMIZER, *([_MEMBERS] if (checkpoint / _MEMBERS).exists() else [])):
        read_tensors(checkpoint, name)
    if (checkpoint / LEARNT).exists():
        LearntFile.open(checkpoint, None, verify=True)
    return state


def load_model(checkpoint: Path, model: nn.Module) -> None:
    """Put the weights of a checkpoint into a model of the same shape.

    Raises:
        RunError: the file is damaged or belongs to another model.
    """
    tensors = read_tensors(checkpoint, _MODEL)
    own = model.state_dict()
    if {k: tuple(v.shape) for k, v in own.items()} != {k: tuple(v.shape) for k, v in tensors.items()}:
        raise RunError(
            "holds the weights of a different model",
            where=str(checkpoint),
            fix="Give the same model= and settings as when the run was started",
        )
    require_forms(tensors, own, "the model", checkpoint / _MODEL)
    model.load_state_dict(tensors)


def load_optimizer(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put the state of a checkpoint into an optimizer over the parameters of ``model``.

    Raises:
        RunError: the file is damaged.
    """
    tensors = read_tensors(checkpoint, _OPTIMIZER)
    check_slots(tensors, _flatten_optimizer(*stepped(model, optimizer)), checkpoint / _OPTIMIZER)
    _fill_optimizer(tensors, model, optimizer)


def share_model(context: Workers, model: nn.Module) -> None:
    """Give all workers the weights that the first one has. All call this; nothing is read from disk."""
    shared = share_tensors(context.group("all"), model.state_dict())
    if context.mesh.rank > 0:
        model.load_state_dict(shared)


def share_checkpoint(
    context: Context, checkpoints: Path, model: nn.Module, optimizer: torch.optim.Optimizer, layers: int | None = None
) -> tuple[TrainState, dict[str, Tensor]] | None:
    """Load the latest checkpoint, which only the first worker needs to see, on all workers. All call this.

    Args:
        context: of this worker.
        checkpoints: folder of the run, on the first worker's host.
        model, optimizer: take the weights, and the state.
        layers: that the model has, for which there are counts; ``None``: whatever there are.

    Returns:
        The position and the tensors besides, or ``None`` where there is no checkpoint.

    Raises:
        RunError: on all workers: a file is damaged, or belongs to another model.
    """

    def load() -> dict[str, Any] | None:
        latest = latest_checkpoint(checkpoints)
        if latest is None:
            return None
        state = read_state(latest)
        if layers is not None and state.counts is not None and state.counts.layers != layers:
            what = f"counts of {state.counts.layers} layers, and the model has {layers}"
            raise damaged(latest / _STATE, ValueError(what))
        load_model(latest, model)
        load_optimizer(latest, model, optimizer)
        if (latest / _MEMBERS).exists():
            members.update(read_tensors(latest, _MEMBERS))
        return state.to_json()

    members: dict[str, Tensor] = {}
    values = context.agree(load)
    if values is None:
        return None
    share_model(context, model)
    tensors = share_tensors(context.group("all"), _flatten_optimizer(model, optimizer))
    if context.mesh.rank > 0:
        _fill_optimizer(tensors, model, optimizer)
    return TrainState.from_json(values), share_tensors(context.group("all"), members)


def _flatten_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {}
    for name, parameter in model.named_parameters():
        for slot, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"{name}/{slot}"] = torch.as_tensor(value).detach().cpu().contiguous()
    return tensors


def _fill_optimizer(tensors: Mapping[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The inverse of :func:`_flatten_optimizer`."""
    places = {name: place for place, (name, _) in enumerate(model.named_parameters())}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, slot = key.rpartition("/")
        state.setdefault(places[name], {})[slot] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
