"""Reads what runs have left in their folders, for a report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partita.core.errors import ConfigError, RunError
from partita.core.files import ANALYSIS, ANALYSIS_FORMAT, parse_json, parse_yaml, read_file, read_object
from partita.core.run_record import read_run_record
from partita.core.typed import fitting, problem


@dataclass(frozen=True)
class RunFiles:
    """What a run's folder holds.

    Attributes:
        name: what the report calls it.
        path: the folder.
        record: ``run.json``.
        settings: ``config.yaml``.
        events: ``metrics.jsonl``, in order.
        trace: events of ``trace.json``; none where the run was not traced.
        analysis: ``analysis.json``; empty where there is none of the run's best model.
    """

    name: str
    path: Path
    record: dict[str, Any]
    settings: dict[str, Any]
    events: list[dict[str, Any]]
    trace: list[dict[str, Any]]
    analysis: dict[str, Any] = field(default_factory=dict)

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The events of epochs that have ended."""
        return [event for event in self.events if event["event"] == "epoch"]

    @property
    def task(self) -> str:
        """What was learned, by name."""
        return str(self.record.get("task", self.record["store"]["task"]))

    @property
    def seed_noun(self) -> str:
        """What the model was asked about."""
        return "edge" if "decoder" in self.record["model"] else "node"

    @property
    def workers(self) -> int:
        """How many there were last."""
        return len(self.record.get("workers") or [None])

    @property
    def shown_split(self) -> str:
        """The split whose answers are shown: the test nodes, or the first one that was measured."""
        known = [*self.record.get("metrics", {}), *self.analysis.get("splits", {}), "test"]
        return "test" if "test" in known[:-1] else known[0]

    @property
    def answers(self) -> dict[str, Any]:
        """The analysis of :attr:`shown_split`; empty where there is none."""
        return dict(self.analysis.get("splits", {}).get(self.shown_split, {}))

    @property
    def metrics(self) -> list[str]:
        """Names of what was measured on validation nodes after epochs, that which picks the best epoch first."""
        found = dict.fromkeys(name for epoch in self.epochs for name in epoch if name.startswith("val_"))
        names = [name.removeprefix("val_") for name in found if name != "val_loss"]
        best = (self.record.get("best") or {}).get("metric")
        return sorted(names, key=lambda name: name != best)


def read_run(path: str | os.PathLike[str], name: str | None = None) -> RunFiles:
    """Read a run's folder.

    Args:
        path: the folder.
        name: what to call it; default: the folder's name.

    Raises:
        RunError: it is none, of another format, cannot be read, or no epoch has ended in it.
    """
    path = Path(path)
    if not (path / "run.json").is_file():
        raise RunError("is not a run folder", where=str(path), fix="Make one with: partita train STORE --out RUN")
    record = read_run_record(path / "run.json")
    events = _read_lines(path / "metrics.jsonl")
    if not any(event["event"] == "epoch" for event in events):
        raise RunError(
            "no epoch of it has ended, so there is nothing to show",
            where=str(path / "metrics.jsonl"),
            fix=f"Continue it with: partita train --resume {path}",
        )
    try:
        settings = parse_yaml((path / "config.yaml").read_text(encoding="utf-8")) or {}
    except (OSError, ValueError) as error:
        raise RunError(f"cannot be read: {error}", where=str(path / "config.yaml")) from None
    trace = path / "trace.json"
    spans = read_object(trace, RunError, "Train again, or remove it")["traceEvents"] if trace.exists() else []
    return RunFiles(name or path.resolve().name, path, record, settings, events, spans, _analysis(path, record))


def of_files(runs: Sequence[str | os.PathLike[str]]) -> AbstractContextManager[None]:
    """Around what shows records of runs; see :func:`partita.core.typed.fitting`."""
    return fitting(
        ", ".join(map(str, runs)),
        RunError,
        "See which file is damaged with: partita verify RUN; if none is, remove analysis.json, which "
        "partita evaluate RUN makes anew",
    )


def _analysis(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """``analysis.json`` of a run; nothing where it is of another format, or of a model that is not the best any more.

    Raises:
        RunError: it cannot be read.
    """
    if not (path / ANALYSIS).exists():
        return {}
    found = read_object(path / ANALYSIS, RunError, "Remove it, and make it anew with: partita evaluate RUN")
    best = (record.get("best") or {}).get("checkpoint", found.get("checkpoint"))
    return found if found.get("format") == ANALYSIS_FORMAT and found.get("checkpoint") == best else {}


def read_runs(paths: Sequence[str | os.PathLike[str]]) -> list[RunFiles]:
    """Read the folders of runs that are to be compared.

    Runs are called by as many of the last parts of their paths as tell them apart.

    Raises:
        RunError: see :func:`read_run`.
        ConfigError: the same run twice, or runs of different tasks.
    """
    whole = [Path(path).resolve() for path in paths]
    for path in whole:
        if whole.count(path) > 1:
            raise ConfigError("the same run twice", where=str(path), fix="Name every run once")
    depth = 1
    while len({_tail(path, depth) for path in whole}) < len(whole):
        depth += 1
    runs = [read_run(path, _tail(resolved, depth)) for path, resolved in zip(paths, whole, strict=True)]
    for run in runs:
        if run.task != runs[0].task:
            raise ConfigError(
                f"run {runs[0].name} has the task {runs[0].task}, run {run.name} {run.task}",
                where="report",
                fix="Make a report for each task",
            )
    return runs


def _tail(path: Path, depth: int) -> str:
    return "/".join(path.parts[-depth:])


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """One event a line; without the last one, where a run that is going on has not yet written all of it."""
    if not path.exists():
        return []
    try:
        found, lines = list[dict[str, Any]](), read_file(path).decode("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise RunError(f"cannot be read: {error}", where=str(path), fix="Leave the run out") from None
    for number, line in enumerate(lines, start=1):
        try:
            event = parse_json(line)
            found.append({**event, "event": event["event"], "epoch": int(event["epoch"])})
        except (ValueError, TypeError, KeyError) as error:
            if number < len(lines):
                raise RunError(f"is not an event: {problem(error)}", where=f"{path}, line {number}") from None
    return found
