"""``run.json``: what every reader of a run relies on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from partita.core.errors import RunError
from partita.core.files import RUN_FORMAT, read_object
from partita.core.typed import first_problem


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Store(_Record):
    path: str
    fingerprint: str
    features: int
    classes: int
    feature_dtype: str | None = None
    task: str | None = None
    class_names: list[str] | None = None
    feature_encoding: dict[str, Any] = {}


class _Model(_Record):
    custom: bool = False
    given: bool = False
    module: str = ""
    stages: list[dict[str, Any]] = []


class _Best(_Record):
    metric: str
    value: float
    epoch: int
    checkpoint: str


class _Classes(_Record):
    names: list[str] | None = None


class _Run(_Record):
    status: str
    started: str
    store: _Store
    model: _Model
    machine: dict[str, Any]
    resumed: list[dict[str, Any]]
    task: str = ""
    outputs: int = 0
    placements: str = ""
    ended: str | None = None
    epoch: int = 0
    step: int = 0
    best: _Best | None = None
    metrics: dict[str, dict[str, float | None]] | None = None
    classes: _Classes | None = None
    stage_seconds: dict[str, float] = {}


def read_run_record(path: Path) -> dict[str, Any]:
    """The contents of ``run.json``.

    Args:
        path: of the file.

    Raises:
        RunError: it is not there, is of another format, or has a field of another type than Partita writes.
    """
    record = read_object(path, RunError, "Train again")
    version = record.get("format")
    if version != RUN_FORMAT:
        fix = "Upgrade Partita" if isinstance(version, int) and version > RUN_FORMAT else "Train again"
        raise RunError(f"is of run format {version}; this Partita reads {RUN_FORMAT}", where=str(path), fix=fix)
    try:
        _Run.model_validate(record)
    except ValidationError as error:
        place, problem = first_problem(error)
        raise RunError(f"is damaged: {'.'.join(place)}: {problem}", where=str(path), fix="Train again") from None
    return record
