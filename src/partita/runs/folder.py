"""The run folder: where everything of a run lies, written so that a kill never leaves half a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.core.errors import RunError
from partita.core.files import RUN_FORMAT, read_object, write_text


class RunFolder:
    """Paths and small files of one run.

    ``config.yaml`` (all settings, resolved), ``run.json`` (what ran, where, and how it ended), ``metrics.jsonl``
    (one JSON object per event), ``events/`` (TensorBoard), ``checkpoints/``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.record = self.path / "run.json"
        self.metrics = self.path / "metrics.jsonl"
        self.events = self.path / "events"
        self.checkpoints = self.path / "checkpoints"

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Make a new run folder.

        Raises:
            RunError: something is there already; an earlier run is never overwritten.
        """
        folder = cls(path)
        if folder.path.exists() and not folder._is_free():
            fix = f"Choose another --out, or resume it: partita train --resume {path}"
            raise RunError("already exists and is not empty", where=str(path), fix=fix)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        return folder

    def _is_free(self) -> bool:
        """Whether nothing is in the folder but what a run leaves that was killed before it wrote ``run.json``."""
        if not self.path.is_dir():
            return False
        found = {each.name for each in self.path.iterdir() if ".partial-" not in each.name}
        if not found <= {self.config.name, self.checkpoints.name}:
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
        version = folder.read_record().get("format")
        if version != RUN_FORMAT:
            fix = "Upgrade Partita" if isinstance(version, int) and version > RUN_FORMAT else "Train again"
            raise RunError(f"is of run format {version}; this Partita reads {RUN_FORMAT}", where=str(path), fix=fix)
        return folder

    def read_record(self) -> dict[str, Any]:
        """The contents of ``run.json``."""
        return read_object(self.record, RunError, "Train again")

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Replace ``run.json``."""
        write_text(self.record, json.dumps({"format": RUN_FORMAT, **record}, indent=2) + "\n")


class MetricsLog:
    """``metrics.jsonl``: one JSON object per line, flushed as it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    @staticmethod
    def cut(path: Path, epoch: int, step: int) -> None:
        """Drop what was logged at or after a step, because a resumed run will log it again."""
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the line that a kill cut short
            if (event["epoch"], event["step"]) <= (epoch, step):
                kept.append(line + "\n")
        write_text(path, "".join(kept))

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event; it must have ``event``, ``epoch`` and ``step`` (steps done in that epoch)."""
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
