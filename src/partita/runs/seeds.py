"""Several runs that differ in their seed only: where they are, and their metrics with mean and standard deviation."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partita.core.files import write_text
from partita.runs.folder import RunFolder

SUMMARY = "summary.json"
"""Name of the file beside the runs."""
SUMMARY_FORMAT = 1
"""Version of :data:`SUMMARY`."""


def run_of_seed(out: Path, seed: int) -> Path:
    """The folder of one of the runs in ``out``."""
    return out / f"seed-{seed}"


def require_free(out: Path, seeds: Sequence[int], *, overwrite: bool = False) -> None:
    """See that all runs can be made.

    Raises:
        RunError: one is there already, or something else is, and it must not be overwritten.
    """
    for seed in seeds:
        RunFolder(run_of_seed(out, seed)).require_free(overwrite=overwrite)


def summarize(out: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """What finished runs came to, also written to ``out/summary.json``.

    Args:
        out: the folder of the runs.
        seeds: of the runs.

    Returns:
        ``runs``, each with ``run``, ``seed``, ``epochs``, ``best_epoch`` and ``metrics``; and ``metrics``: by split and
        name, ``mean``, ``deviation`` (of the sample: divided by the number of runs less one; ``None`` of one run) and
        ``runs``, how many have the metric.

    Raises:
        RunError: one of the runs is not there.
    """
    runs = []
    for seed in seeds:
        path = run_of_seed(out, seed)
        record = RunFolder.open(path).read_record()
        best = record.get("best")
        runs.append({
            "run": path.name, "seed": seed, "epochs": record["epoch"], "best_epoch": best["epoch"] if best else None,
            "metrics": record["metrics"],
        })  # fmt: skip
    summary = {"format": SUMMARY_FORMAT, "runs": runs, "metrics": _over_runs([run["metrics"] for run in runs])}
    write_text(out / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return summary


def _over_runs(found: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, dict[str, Any]]]:
    over: dict[str, dict[str, dict[str, Any]]] = {}
    for split in dict.fromkeys(split for metrics in found for split in metrics):
        names = dict.fromkeys(name for metrics in found for name in metrics.get(split, {}))
        for name in names:
            values = [metrics[split][name] for metrics in found if name in metrics.get(split, {})]
            deviation = statistics.stdev(values) if len(values) > 1 else None
            of_metric = {"mean": statistics.fmean(values), "deviation": deviation, "runs": len(values)}
            over.setdefault(split, {})[name] = of_metric
    return over
