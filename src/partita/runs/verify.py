"""Checks a run folder, or one checkpoint, and puts aside what is damaged so that the run can go on."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from partita.config import Config
from partita.core.asides import left_behind, remove_left_behind, set_aside
from partita.core.errors import PartitaError, RunError
from partita.core.files import parse_json, read_file, read_object, write_text
from partita.core.locks import is_held
from partita.core.trust import IMPORTS, refuse_code
from partita.nn.model import Model
from partita.nn.modules import model_from
from partita.runs.checkpoint import TrainState, load_model, load_optimizer, read_state
from partita.runs.checkpoint_files import DIGESTS, read_tensors
from partita.runs.folder import RunFolder
from partita.runs.learnt_files import LEARNT, LearntFile
from partita.setup.inputs import DTYPES
from partita.setup.optim import make_optimizer

_NAME = re.compile(r"epoch-\d+-step-\d+")


@dataclass(slots=True)
class _Found:
    """What a look at a run has found.

    Attributes:
        checks: a line for everything that is sound.
        problems: what is wrong, by file or checkpoint.
        states: of the sound checkpoints, by name.
        lines: the sound lines of ``metrics.jsonl``.
        left: what killed commands have left.
    """

    checks: list[str] = field(default_factory=list)
    problems: dict[Path, str] = field(default_factory=dict)
    states: dict[str, TrainState] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    left: list[Path] = field(default_factory=list)

    @property
    def newest(self) -> str | None:
        """The sound checkpoint that is farthest along, and whose best one is sound as well."""
        whole = [name for name, state in self.states.items() if not state.best or state.best.checkpoint in self.states]
        return max(whole, key=lambda name: (self.states[name].epoch, self.states[name].step), default=None)


def is_run(path: Path) -> bool:
    """Whether a directory is a run folder, sound or not."""
    return (path / "run.json").is_file() or ((path / "checkpoints").is_dir() and (path / "config.yaml").is_file())


def is_checkpoint(path: Path) -> bool:
    """Whether a directory is a checkpoint, sound or not."""
    return any((path / name).is_file() for name in ("model.safetensors", "state.json", DIGESTS))


def verify_run(path: str | os.PathLike[str]) -> list[str]:
    """Check ``run.json``, ``config.yaml``, ``metrics.jsonl``, ``analysis.json`` and all checkpoints of a run.

    Args:
        path: the run folder. TensorBoard's files and ``trace.json`` are not looked at.

    Returns:
        One line for everything that was checked.

    Raises:
        RunError: something is wrong, or another process is writing the run; the message names everything.
    """
    folder = RunFolder(path)
    _require_still(folder)
    found = _look(folder)
    if found.problems:
        raise RunError(
            "the run is damaged: " + "; ".join(f"{_short(folder, at)}: {what}" for at, what in found.problems.items()),
            where=str(folder.path),
            fix=f"See what can be saved with: partita verify {folder.path} --repair",
        )
    if found.left:
        names = ", ".join(each.name for each in found.left)
        found.checks.append(f"left by killed commands, removed by the next one or by --repair: {names}")
    return found.checks


def verify_checkpoint(path: str | os.PathLike[str]) -> list[str]:
    """Check the digests of one checkpoint; with the run folder around it, also shapes and dtypes against the model.

    Args:
        path: the directory of the checkpoint.

    Returns:
        One line that says what was checked.

    Raises:
        RunError: something is wrong; the message names the file, and the tensor.
    """
    checkpoint = Path(path).absolute()
    model: _Model | None = None
    with suppress(PartitaError):
        folder = RunFolder.open(checkpoint.parent.parent)
        model = _Model.of(folder.read_record(), _config(folder))
    return [_check(checkpoint, model)[1]]


def repair_run(path: str | os.PathLike[str]) -> list[str]:
    """Put aside what is damaged in a run, as far as the run can then go on; nothing sound is changed or lost.

    A damaged checkpoint, ``metrics.jsonl`` and ``analysis.json`` are renamed to ``damaged-...``; sound lines of
    ``metrics.jsonl`` stay; ``run.json`` says where the run stands from now on. What killed commands have left is
    removed.

    Returns:
        One line for everything that was done.

    Raises:
        RunError: another process is writing the run, or it cannot be saved; nothing was changed then.
    """
    folder = RunFolder(path)
    lock = folder.lock()
    try:
        return _repair(folder, _look(folder))
    finally:
        lock.release()


def repair_checkpoint(path: str | os.PathLike[str]) -> list[str]:
    """One checkpoint has nothing that follows from other files.

    Returns:
        That there is nothing to repair, where it is sound.

    Raises:
        RunError: it is not.
    """
    try:
        verify_checkpoint(path)
    except RunError as error:
        run = Path(path).absolute().parent.parent
        fix = f"Repair the run that it belongs to: partita verify {run} --repair"
        raise RunError(f"cannot be repaired: {error.what}", where=error.where, fix=fix) from None
    return ["there is nothing to repair"]


def _repair(folder: RunFolder, found: _Found) -> list[str]:
    for file in (folder.record, folder.config):
        if file in found.problems:
            raise RunError(
                f"cannot be repaired: {file.name} {found.problems[file]}, and no other file has what it says",
                where=str(folder.path),
                fix="Restore it from a copy, or train again; the checkpoints beside it stay as they are",
            )
    damaged = [at for at in found.problems if at.parent == folder.checkpoints]
    latest = max(found.states.values(), key=lambda state: (state.epoch, state.step), default=None)
    if latest is not None and found.newest != latest.name:
        assert latest.best is not None
        raise RunError(
            f"cannot be repaired: {latest.name} is sound, but {latest.best.checkpoint}, the best one, is not, and its "
            "weights are nowhere else",
            where=str(folder.path),
            fix=f"Restore it from a copy, or continue without the best weights: partita train --resume {folder.path}",
        )
    done = [f"removed {path.name}, left by a killed command" for path in found.left if remove_left_behind(path)]
    for at in damaged:
        done.append(f"{at.name} set aside as {set_aside(at).name}: {found.problems[at]}")
    if folder.metrics in found.problems:
        aside = set_aside(folder.metrics)
        write_text(folder.metrics, "".join(found.lines))
        done.append(f"{folder.metrics.name}: {len(found.lines):,} sound lines kept, the file as it was is {aside.name}")
    if folder.analysis in found.problems:
        aside = set_aside(folder.analysis)
        done.append(f"{folder.analysis.name} set aside as {aside.name}: partita evaluate {folder.path} makes it anew")
    if damaged:
        done.append(_stand(folder, latest))
    return done or ["there is nothing to repair"]


def _stand(folder: RunFolder, state: TrainState | None) -> str:
    """Note in ``run.json`` where a run stands whose last checkpoint is gone."""
    state = state or TrainState()
    best = None if state.best is None else asdict(state.best)
    record = folder.read_record() | {"status": "interrupted", "epoch": state.epoch, "step": state.step, "best": best}
    folder.write_record(record)
    at = f"after {state.epoch} epochs and {state.step} steps" if state.epoch or state.step else "from the beginning"
    return f"the run goes on {at} with: partita train --resume {folder.path}"


def _look(folder: RunFolder) -> _Found:
    found = _Found(left=left_behind(folder.path))
    record, config = _small_files(folder, found)
    _metrics(folder, found)
    model = _Model.of(record, config) if record is not None and config is not None else None
    names = sorted(path.name for path in folder.checkpoints.iterdir()) if folder.checkpoints.is_dir() else []
    for name in filter(_NAME.fullmatch, names):
        checkpoint = folder.checkpoints / name
        try:
            found.states[name], line = _check(checkpoint, model)
        except PartitaError as error:
            found.problems[checkpoint] = f"{Path(error.where or name).name} {error.what}"
        else:
            found.checks.append(line)
    for name, state in found.states.items():
        best = state.best.checkpoint if state.best else name
        if best not in names:
            found.problems[folder.checkpoints / best] = f"is missing, the best one according to {name}"
    return found


def _small_files(folder: RunFolder, found: _Found) -> tuple[dict[str, Any] | None, Config | None]:
    record: dict[str, Any] | None = None
    config: Config | None = None
    try:
        record = RunFolder.open(folder.path).read_record()
    except PartitaError as error:
        found.problems[folder.record], record = error.what, None
    else:
        found.checks.append(f"{folder.record.name}: status {record['status']}")
    try:
        config = _config(folder)
    except PartitaError as error:
        found.problems[folder.config] = error.what
    else:
        found.checks.append(f"{folder.config.name}: every setting is valid")
    if folder.analysis.exists():
        try:
            read_object(folder.analysis, RunError, "")
        except RunError as error:
            found.problems[folder.analysis] = error.what
        else:
            found.checks.append(f"{folder.analysis.name}: can be read")
    return record, config


def _metrics(folder: RunFolder, found: _Found) -> None:
    """Every line is an event, and none is of an earlier step than the one before it."""
    try:
        text = read_file(folder.metrics).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        found.problems[folder.metrics] = f"cannot be read: {error.strerror}"
        return
    before, wrong = (0, 0), []
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        try:
            event = parse_json(line)
            here = (event["epoch"], event["step"])
            if not isinstance(event["event"], str) or here < before or not line.endswith("\n"):
                raise ValueError
        except (ValueError, TypeError, KeyError):
            wrong.append(number)
        else:
            before = here
            found.lines.append(line)
    if wrong:
        what = "is not an event, or not in order" if len(wrong) == 1 else "and others are no events, or not in order"
        found.problems[folder.metrics] = f"line {wrong[0]:,} {what}"
    else:
        found.checks.append(f"{folder.metrics.name}: {len(found.lines):,} events, in order")


@dataclass(frozen=True, slots=True)
class _Model:
    """The model of a run, to compare checkpoints with."""

    model: Model
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, record: Mapping[str, Any], config: Config) -> _Model | None:
        """``None`` where the model is code of a user's, which is not run for this."""
        described = record["model"]
        try:
            if described.get("custom"):
                return None
            refuse_code({"model": described, "optimizer": config.optimizer}, "", None)
            model = model_from(described)
            if not isinstance(config.target_scaling, str):
                model.scale_output(*config.target_scaling)
            model = model.to(DTYPES[config.precision])
            return cls(model, make_optimizer(list(model.parameters()), config))
        except (PartitaError, ValueError, TypeError, KeyError):
            return None


def _check(checkpoint: Path, model: _Model | None) -> tuple[TrainState, str]:
    """The state of a checkpoint, and what was checked of it.

    Raises:
        RunError: it is damaged.
    """
    state = read_state(checkpoint)
    if _NAME.fullmatch(checkpoint.name) and state.name != checkpoint.name:
        raise RunError(f"is of {state.name}", where=str(checkpoint / "state.json"))
    files = sorted(path.name for path in checkpoint.glob("*.safetensors"))
    if "model.safetensors" not in files:
        raise RunError("is missing", where=str(checkpoint / "model.safetensors"))
    learnt = [LearntFile.open(checkpoint, None, verify=True).arrays for name in files if name == LEARNT]
    tensors = sum(map(len, [*learnt, *(read_tensors(checkpoint, name) for name in files if name != LEARNT)]))
    how = "match their digests" if (checkpoint / DIGESTS).exists() else "can be read (there are no digests)"
    if model is None:
        return state, f"{checkpoint.name}: {tensors:,} tensors and the state {how}; not compared with the model"
    load_model(checkpoint, model.model)
    load_optimizer(checkpoint, model.model, model.optimizer)
    return state, f"{checkpoint.name}: {tensors:,} tensors and the state {how}, and fit the model and its optimizer"


def _config(folder: RunFolder) -> Config:
    return Config.load(folder.config, trust=IMPORTS)  # settings are compared, nothing that they name is imported


def _require_still(folder: RunFolder) -> None:
    if is_held(folder.path):
        what, fix = "another process is writing this run", "Wait until it has ended"
        raise RunError(what, where=str(folder.path), fix=fix)


def _short(folder: RunFolder, path: Path) -> str:
    return str(path.relative_to(folder.path))
