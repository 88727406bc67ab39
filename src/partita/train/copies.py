"""Copies of a run on every host, where hosts share no disk: losing one of them, also the first, loses nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partita.comm.context import Context
from partita.comm.tensors import gather_tensors, share_tensors
from partita.core.asides import folder_written_aside
from partita.core.errors import RunError
from partita.core.files import write_text
from partita.core.locks import FolderLock
from partita.runs.checkpoint import Snapshot, check_checkpoint, checkpoints_in
from partita.runs.checkpoint_writer import CheckpointWriter
from partita.runs.folder import RunFolder

_ABOUT, _TEXTS = "about", ("config", "record")
"""What a message holds besides tensors: name, best and state of a checkpoint; attributes of a folder."""


class HostCopies:
    """Sends what is saved to the first worker of every other host, which writes it there.

    The first workers of all hosts make one, with the same path or each with its own, and then :meth:`open` it. A host
    on which the run folder is that of the first host (a file system that hosts share) writes nothing.

    Args:
        context: of this worker, the first one of its host.
        folder: of the run, on this host.
        keep: how many of the latest checkpoints stay; the best one stays besides.
    """

    def __init__(self, context: Context, folder: RunFolder, keep: int) -> None:
        self._folder, self._group = folder, context.group("hosts")
        self._leads = self._group.rank == 0
        self._sent = 0  # bytes of the log
        self._lock: FolderLock | None = None
        record = self._group.broadcast(folder.record.read_text("utf-8") if self._leads else None)
        writes = not self._leads and not _holds(folder, record)
        self._wanted = any(self._group.gather(writes))
        self._writer = CheckpointWriter(folder.checkpoints, keep) if writes else None
        self._started = json.loads(record)["started"]

    def open(self) -> None:
        """Make the folder of the copy, and lock it. Exchanges nothing.

        Raises:
            RunError: there is something else than a run, or another process is writing it.
        """
        if self._writer is None:
            return
        if _started(self._folder) == self._started:  # an earlier copy, of use until there is another
            self._lock = self._folder.lock()
        else:
            self._lock = RunFolder.create(self._folder.path, overwrite=True)[1]

    def send(self, snapshot: Snapshot | None) -> None:
        """Copy a checkpoint and the records to the other hosts; the first workers of all hosts call this.

        Returns when everything was received; it is written in a thread.

        Args:
            snapshot: what is saved, on the first host.

        Raises:
            ResourceError, OSError: the checkpoint before could not be written here.
        """
        if not self._wanted:
            return
        received = share_tensors(self._group, {} if snapshot is None else self._packed(snapshot))
        if self._writer is None:
            return
        about = json.loads(_text(received.pop(_ABOUT)))
        for name in _TEXTS:
            write_text(getattr(self._folder, name), _text(received.pop(name)))
        log = received.pop("metrics")
        with self._folder.metrics.open("ab" if self._sent else "wb") as file:
            file.write(log.numpy().tobytes())
        self._sent += len(log)
        tensors: dict[str, dict[str, Tensor]] = {}
        for key, tensor in received.items():
            file_name, _, name = key.partition("/")
            tensors.setdefault(file_name, {})[name] = tensor
        self._writer.write(Snapshot(about["name"], about["best"], tensors, about["state"]))

    def check(self) -> None:
        """Raise what went wrong with the last checkpoint here; never waits."""
        if self._writer is not None:
            self._writer.check()

    def close(self) -> None:
        """Wait until all is written, and let others write the folder."""
        if self._writer is not None:
            self._writer.close()
        if self._lock is not None:
            self._lock.release()

    def _packed(self, snapshot: Snapshot) -> dict[str, Tensor]:
        about = {"name": snapshot.name, "best": snapshot.best, "state": snapshot.state}
        with self._folder.metrics.open("rb") as file:
            file.seek(self._sent)
            log = file.read()
        self._sent += len(log)
        texts = {name: _bytes(getattr(self._folder, name).read_bytes()) for name in _TEXTS}
        tensors = {f"{file}/{name}": tensor for file, each in snapshot.tensors.items() for name, tensor in each.items()}
        return {_ABOUT: _bytes(json.dumps(about).encode()), **texts, "metrics": _bytes(log), **tensors}


def bring_to_first(context: Context, folder: RunFolder) -> str | None:
    """Give the first host the copy of a run that is farthest along, where it has none or an older one.

    All workers call this. Of several runs the one that was begun last counts, of its sound checkpoints the latest.

    Args:
        context: of this worker.
        folder: of the run, on this host.

    Returns:
        On the first worker, what was done, if something was.
    """
    group = context.group("hosts")
    if context.mesh.worker > 0 or group.size == 1:
        return None
    known: list[list[Any] | None] = group.gather(_newest(folder))
    positions = [each[:3] if each is not None else [] for each in known]
    source = positions.index(max(positions))
    if source == 0:
        return None
    newest = known[group.rank] if group.rank == source else None
    files = {} if newest is None else _files(folder, newest[3])
    received = gather_tensors(group, files)
    if group.rank > 0:
        return None
    _write(folder, received)
    return f"the run was brought here from host {source}"


def _newest(folder: RunFolder) -> list[Any] | None:
    """When a run was begun, epoch and step of its latest sound checkpoint, and the names of this and the best one."""
    started = _started(folder)
    if started is None:
        return None
    for path in reversed(checkpoints_in(folder.checkpoints)):
        try:
            state = check_checkpoint(path)
        except RunError:
            continue
        best = state.best.checkpoint if state.best else path.name
        return [started, state.epoch, state.step, sorted({path.name, best})]
    return None


def _files(folder: RunFolder, checkpoints: list[str]) -> dict[str, Tensor]:
    """What another host needs to go on, by paths within the run folder."""
    paths = [folder.record, folder.config, folder.metrics]
    for name in checkpoints:
        paths += sorted((folder.checkpoints / name).iterdir())
    return {str(path.relative_to(folder.path)): _bytes(path.read_bytes()) for path in paths if path.exists()}


def _write(folder: RunFolder, files: Mapping[str, Tensor]) -> None:
    """Make a run of what another host has sent; ``run.json`` first, so that a kill leaves a run without checkpoint."""
    _, lock = RunFolder.create(folder.path, overwrite=True)
    try:
        by_folder: dict[Path, list[str]] = {folder.path: []}  # which is written first
        for name in sorted(files, key=lambda name: name != folder.record.name):
            by_folder.setdefault((folder.path / name).parent, []).append(name)
        for parent, names in by_folder.items():
            aside = folder_written_aside(parent) if parent.parent == folder.checkpoints else nullcontext(parent)
            with aside as written:
                for name in names:
                    (written / Path(name).name).write_bytes(files[name].numpy().tobytes())
    finally:
        lock.release()


def _holds(folder: RunFolder, record: str) -> bool:
    """Whether ``run.json`` here is that of the first host, which has just written it."""
    return folder.record.is_file() and folder.record.read_text("utf-8") == record


def _started(folder: RunFolder) -> str | None:
    """When the run here was begun; ``None`` where there is none that can be read."""
    try:
        return str(RunFolder.open(folder.path).read_record()["started"])
    except (RunError, KeyError):
        return None


def _bytes(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def _text(tensor: Tensor) -> str:
    return tensor.numpy().tobytes().decode()
