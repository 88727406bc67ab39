"""Several runs, one after the other, in workers that are started once: a worker takes seconds to start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import partita
from partita.comm.context import Context
from partita.testing.workers import run_workers
from partita.train.team import PURPOSES

Settings = dict[str, Any]


def _train(context: Context, store: str, runs: dict[str, Settings]) -> dict[str, Any]:
    return {out: partita.Trainer(store, out=out, context=context, **runs[out]).fit().record for out in runs}


def _resume(context: Context, runs: dict[str, Settings]) -> dict[str, Any]:
    return {run: partita.Trainer.resume(run, context=context, **runs[run]).fit().record for run in runs}


def train_on_workers(
    store: Path, workers: int, runs: dict[Path, Settings], *, timeout: float = 280
) -> dict[Path, dict[str, Any]]:
    """What :meth:`partita.Trainer.launch` does, for several runs on one store, by run folder.

    Returns:
        ``run.json`` of each.
    """
    return _on_workers(_train, workers, runs, str(store), timeout=timeout)


def resume_on_workers(workers: int, runs: dict[Path, Settings]) -> dict[Path, dict[str, Any]]:
    """What ``partita train --resume --workers`` does, for several runs."""
    return _on_workers(_resume, workers, runs)


def _on_workers(
    work: Any, workers: int, runs: dict[Path, Settings], *arguments: str, timeout: float = 280
) -> dict[Path, dict[str, Any]]:
    given = {str(run): {**settings, "workers": workers} for run, settings in runs.items()}
    threads = {settings.get("threads", 0) for settings in runs.values()}
    assert len(threads) == 1, "of the processes"
    records = run_workers(
        work, workers, *arguments, given, purposes=PURPOSES, threads=threads.pop(), checked=False, ordered=None,
        timeout=timeout,
    )  # fmt: skip
    return {run: records[0][str(run)] for run in runs}
