"""Metrics by the time at which seeds are asked about: whether a model gets worse as time goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, Num, Shaped
from torch import Tensor

from partita.graph.store import GraphStore
from partita.graph.times import ALWAYS, DATES
from partita.tasks.metrics import judge
from partita.tasks.task import Task

MOST_PERIODS = 40
"""Periods that times are divided into."""
_CALENDAR = ("D", "W", "M", "Y")
"""NumPy's units: days, weeks, months, years."""
_STEPS = (1, 2, 5)
_MONDAY = np.datetime64("1969-12-29", "D")
"""The last one before 1970; NumPy's weeks begin on Thursdays."""


def periods(times: Int64[np.ndarray, "n"], *, dates: bool) -> tuple[list[str], Int64[np.ndarray, "n"]]:
    """Divide times into at most :data:`MOST_PERIODS` periods.

    Each time is a period if they are so few. Otherwise dates are divided into days, weeks (from Monday on), months or
    years, and numbers by a width of 1, 2 or 5 times a power of ten; the narrowest that is wide enough.

    Args:
        times: in the unit of a store; none of them is "always".
        dates: they are microseconds since 1970.

    Returns:
        What to call each period, in order: when it begins. And which of them each time is in.
    """
    distinct, places = np.unique(times, return_inverse=True)
    if len(distinct) <= MOST_PERIODS:
        names = [str(np.datetime64(int(time), "us")) if dates else str(time) for time in distinct]
        midnight = all(name.endswith("T00:00:00.000000") for name in names)
        return [name[:10] if dates and midnight else name[:19] if dates else name for name in names], places
    begins: Shaped[np.ndarray, "n"]
    if dates:
        days = times.astype("datetime64[us]").astype("datetime64[D]")
        for unit in _CALENDAR:
            week = unit == "W"
            begins = _MONDAY + (days - _MONDAY) // 7 * 7 if week else days.astype(f"datetime64[{unit}]")
            distinct, places = np.unique(begins, return_inverse=True)
            if len(distinct) <= MOST_PERIODS or unit == _CALENDAR[-1]:
                break
        if len(distinct) <= MOST_PERIODS:
            return [str(each) for each in distinct], places
        times = begins.astype("datetime64[Y]").astype(np.int64) + 1970
    lowest, highest = int(times.min()), int(times.max())
    width = next(
        step * 10**power
        for power in range(20)
        for step in _STEPS
        if highest // (step * 10**power) - lowest // (step * 10**power) < MOST_PERIODS
    )
    distinct, places = np.unique(times // width, return_inverse=True)
    return [str(int(each) * width) for each in distinct], places


def judge_by_time(
    task: Task, seeds: Int[Tensor, "R ..."], output: Float[Tensor, "R C"], targets: Num[Tensor, "R ..."]
) -> list[dict[str, Any]]:
    """Metrics of the seeds of each period, in order of time; none where seeds have no times.

    Args:
        task: what is judged.
        seeds: nodes, store ids.
        output: of the model.
        targets: what is known of them.

    Returns:
        For each period ``time``, when it begins; ``nodes``, how many seeds it has; the metrics; and for two classes
        ``share``, of the second one, and ``expected``, the mean of its probabilities; for values the means of both.
    """
    times = seed_times_of(task.store, seeds)
    if times is None:
        return []
    there = np.flatnonzero(times != ALWAYS)
    if not len(there):
        return []
    names, places = periods(times[there], dates=bool(task.store.metadata.notes.get(DATES)))
    order, found = np.argsort(places, kind="stable"), list[dict[str, Any]]()
    bounds = np.searchsorted(places[order], np.arange(len(names) + 1))
    for name, first, last in zip(names, bounds, bounds[1:]):
        mine = torch.from_numpy(there[order[first:last]])
        some, known = output[mine], targets[mine]
        found.append(
            {"time": name, "nodes": len(mine), **judge(task, some, known).metrics, **_means(task, some, known)}
        )
    return found


def seed_times_of(store: GraphStore, seeds: Int[Tensor, "R ..."]) -> Int64[np.ndarray, "R"] | None:
    """When seeds are asked about, as far as seeds are nodes, and nodes have times."""
    if seeds.ndim != 1 or store.seed_time is None:
        return None
    return np.asarray(store.seed_time[seeds.cpu().numpy()], np.int64)


def _means(task: Task, output: Float[Tensor, "R C"], targets: Num[Tensor, "R ..."]) -> dict[str, float]:
    scores = task.scores(output.float()).double()
    if targets.ndim != 1:
        return {}
    if targets.is_floating_point():
        return {"share": float(targets.double().mean()), "expected": float(scores.mean())}
    if len(task.class_names) != 2 or scores.shape[1] != 2:
        return {}
    return {"share": float((targets == 1).double().mean()), "expected": float(scores[:, 1].mean())}
