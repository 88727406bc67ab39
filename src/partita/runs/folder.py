"""The run folder: where everything of a run lies, written so that a kill never leaves half a file."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partita.core.errors import RunError
from partita.core.files import ANALYSIS, RUN_FORMAT, parse_json, write_text
from partita.core.locks import LOCK_NAME, FolderLock
from partita.core.run_record import read_run_record


class RunFolder:
    """Paths and small files of one run.

    ``config.yaml`` (all settings, resolved), ``run.json`` (what ran, where, and how it ended), ``metrics.jsonl``
    (one JSON object per event), ``events/`` (TensorBoard), ``checkpoints/``, ``analysis.json`` (what reports
    show of the answers of the best model).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.record = self.path / "run.json"
        self.metrics = self.path / "metrics.jsonl"
        self.events = self.path / "events"
        self.checkpoints = self.path / "checkpoints"
        self.analysis = self.path / ANALYSIS

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[RunFolder, FolderLock]:
        """Make a new run folder, and lock it for this process.

        Args:
            path: of the folder.
            overwrite: delete a run that is there already.

        Raises:
            RunError: something is there already, and it is not a run or must not be overwritten; or another process is
                writing it.
        """
        folder = cls(path)
        folder.require_free(overwrite=overwrite)
        folder.path.mkdir(parents=True, exist_ok=True)
        lock = folder.lock()
        try:
            folder.require_free(overwrite=overwrite)  # nobody else can make one now
            if folder.record.is_file():
                folder._clear()
            folder.checkpoints.mkdir(exist_ok=True)
        except BaseException:
            lock.release()
            raise
        return folder, lock

    def lock(self) -> FolderLock:
        """Keep other processes from writing the run.

        Raises:
            RunError: another one is writing it.
        """
        return FolderLock(self.path, RunError, "run")

    def require_free(self, *, overwrite: bool = False) -> None:
        """See that a run folder can be made here.

        Args:
            overwrite: a run that is there already may be deleted.

        Raises:
            RunError: something is there already, and it is not a run or must not be overwritten.
        """
        if not self.path.exists() or self._is_free():
            return
        is_run = self.record.is_file()
        if not overwrite or not is_run:
            what = "already exists and is not empty" if is_run else "already exists, and is not a run folder"
            fix = f"Choose another --out, use --overwrite, or resume it: partita train --resume {self.path}"
            raise RunError(what, where=str(self.path), fix=fix if is_run else "Choose another --out")

    def _clear(self) -> None:
        """Delete a run, and no other file; ``run.json`` last, so that what is left of it can be deleted later."""
        for directory in (self.events, self.checkpoints):
            shutil.rmtree(directory, ignore_errors=True)
        for file in (self.metrics, self.analysis, self.path / "trace.json", self.config, self.record):
            file.unlink(missing_ok=True)

    def _is_free(self) -> bool:
        """Whether nothing is in the folder but what a run leaves that was killed before it wrote ``run.json``."""
        if not self.path.is_dir():
            return False
        found = {each.name for each in self.path.iterdir() if ".partial-" not in each.name}
        if not found <= {self.config.name, self.checkpoints.name, LOCK_NAME}:
            return False
        return not (self.checkpoints.is_dir() and any(self.checkpoints.iterdir()))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Open an existing run folder.

        Raises:
            RunError: there is none, or it is not a run folder of a version that this Partita reads.
        """
        folder = cls(path)
        if not folder.record.is_file():
            raise RunError("is not a run folder", where=str(path), fix="Make one with: partita train STORE --out RUN")
        folder.read_record()
        return folder

    def read_record(self) -> dict[str, Any]:
        """The contents of ``run.json``; see :func:`partita.core.run_record.read_run_record`."""
        return read_run_record(self.record)

    def store_path(self, record: Mapping[str, Any]) -> Path:
        """Where the store of the run is, by ``run.json``; see :func:`recorded_path`."""
        return self.path / record["store"]["path"]

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Replace ``run.json``."""
        write_text(self.record, json.dumps({"format": RUN_FORMAT, **record}, indent=2) + "\n")


def recorded_path(path: Path, run: Path, *, relative: bool) -> str:
    """How ``run.json`` names a directory.

    Args:
        path: of it.
        run: the run folder.
        relative: no absolute path is to be seen: it is named as seen from the run folder, or by its last part where the
            two have no directory in common but the root.
    """
    path, run = path.resolve(), run.resolve()
    if not relative:
        return str(path)
    try:
        common = Path(os.path.commonpath([path, run]))
    except ValueError:  # other drives
        return path.name
    return path.name if common == Path(common.anchor) else os.path.relpath(path, run)


def recorded_command(words: Sequence[str], *, relative: bool) -> list[str]:
    """How ``run.json`` names the command: with ``relative``, only the last part of every absolute path."""
    shown = [os.path.basename(words[0]), *words[1:]] if words else []
    return [re.sub(r"(?:^|(?<=[=:,]))/.*/(?=[^/])", "", word) for word in shown] if relative else shown


OF_THE_END = ("baseline", "warning")
"""Events that are logged when a run ends, about the whole of it."""


class MetricsLog:
    """``metrics.jsonl``: one JSON object per line, flushed as it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    @staticmethod
    def cut(path: Path, epoch: int, step: int) -> None:
        """Drop what was logged after a step, and of the end of a run, because a resumed run will log it again."""
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                event = parse_json(line)
                here = (int(event["epoch"]), int(event["step"]))
            except (ValueError, TypeError, KeyError):
                continue  # the line that a kill cut short
            if here <= (epoch, step) and event.get("event") not in OF_THE_END:
                kept.append(line + "\n")
        write_text(path, "".join(kept))

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event; it must have ``event``, ``epoch`` and ``step`` (steps done in that epoch)."""
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
