"""The plots of a report, as the data that plotly.js draws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, cycle
from typing import Any

from partita.core.plan import STAGES
from partita.report.labels import metric_label, stage_label
from partita.report.records import RunFiles
from partita.report.tables import part_spreads
from partita.report.terminal import format_count

COLORS = ("#3b82c4", "#e08214", "#1f9e77", "#c04fa0", "#d6604d", "#7a6fc9", "#8c8c2c", "#5aa9a3", "#a6733f", "#888888")
"""Told apart on white and on black, and by most who see few colors; in this order."""

MiB = 2.0**20
Data = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A plot.

    Attributes:
        title: what it shows.
        note: how to read it; a sentence or two.
        data: plotly's traces.
        layout: plotly's layout, without colors of text and ground, which the page sets.
        height: pixels.
    """

    title: str
    note: str
    data: list[Data]
    layout: Data = field(default_factory=dict)
    height: int = 320


def curves(runs: Sequence[RunFiles]) -> list[Figure]:
    """Loss by epoch; the first metric by epoch, and, of several runs, by the seconds trained; the learning rate."""
    found = [_loss(runs)]
    metrics = list(dict.fromkeys(name for run in runs for name in run.metrics[:1]))
    for metric in metrics:
        found.append(_metric(runs, metric, by_seconds=False))
        if len(runs) > 1:
            found.append(_metric(runs, metric, by_seconds=True))
    rates = _learning_rate(runs)
    return found if rates is None else [*found, rates]


def _loss(runs: Sequence[RunFiles]) -> Figure:
    data = []
    for run, color in zip(runs, cycle(COLORS)):
        x = [epoch["epoch"] + 1 for epoch in run.epochs]
        data.append(_line(_label(runs, run, "training"), x, [epoch["loss"] for epoch in run.epochs], color))
        checked = [epoch for epoch in run.epochs if "val_loss" in epoch]
        if checked:
            x, y = [epoch["epoch"] + 1 for epoch in checked], [epoch["val_loss"] for epoch in checked]
            data.append(_line(_label(runs, run, "validation"), x, y, color, dash="dot"))
    noun = runs[0].seed_noun
    note = f"Mean per {noun}. The training loss is measured during the epoch, with dropout."
    return Figure("Loss", note + _apart(data), data, {"xaxis": _titled("epoch"), "yaxis": _titled("loss")})


def _metric(runs: Sequence[RunFiles], metric: str, *, by_seconds: bool) -> Figure:
    shown, data, stars = metric_label(metric), list[Data](), list[Data]()
    for run, color in zip(runs, cycle(COLORS)):
        ends = accumulate(epoch["seconds"] for epoch in run.epochs)
        points = [
            (end if by_seconds else epoch["epoch"] + 1, epoch[f"val_{metric}"])
            for epoch, end in zip(run.epochs, ends)
            if f"val_{metric}" in epoch
        ]
        if not points:
            continue
        data.append(_line(run.name, [x for x, _ in points], [y for _, y in points], color))
        best = run.record.get("best") or {}
        if best.get("metric") == metric and not by_seconds:
            mark = {"color": color, "size": 12, "symbol": "star"}
            stars.append(
                {"type": "scatter", "mode": "markers", "x": [best["epoch"]], "y": [best["value"]], "marker": mark,
                 "name": "best", "showlegend": False, "hovertemplate": f"best {shown} %{{y:.4f}}<extra></extra>"}
            )  # fmt: skip
    note = f"On validation {runs[0].seed_noun}s, with all neighbors." + ("" if by_seconds else " Star: best epoch.")
    over = "training time (s)" if by_seconds else "epoch"
    title = f"Validation {shown}" + (" over time" if by_seconds else "")
    note += _apart(data)
    return Figure(title, note, [*data, *stars], {"xaxis": _titled(over), "yaxis": _titled(shown)})


def _learning_rate(runs: Sequence[RunFiles]) -> Figure | None:
    """The learning rate by epoch, unless no run has changed it."""
    data = []
    for run, color in zip(runs, cycle(COLORS)):
        known = [epoch for epoch in run.epochs if "learning_rate" in epoch]
        x, y = [epoch["epoch"] + 1 for epoch in known], [epoch["learning_rate"] for epoch in known]
        data.append(_line(run.name, x, y, color))
    if all(len(set(trace["y"])) < 2 for trace in data):
        return None
    layout = {"xaxis": _titled("epoch"), "yaxis": _titled("learning rate")}
    return Figure("Learning rate", ("At the end of each epoch." + _apart(data)), data, layout)


def _apart(data: Sequence[Data]) -> str:
    """Let lines that lie on one another be seen, the first one the widest; returns which these are."""
    same: dict[str, list[Data]] = {}
    for trace in data:
        points = [f"{float(value):.5g}" for axis in ("x", "y") for value in trace[axis]]
        same.setdefault(" ".join(points), []).append(trace)
    said = []
    for equal in same.values():
        for place, trace in enumerate(reversed(equal)):
            if place:
                trace["line"] = {**trace["line"], "width": 2 + 5 * place}
                trace["opacity"] = 0.45
        if len(equal) > 1:
            said.append(" = ".join(trace["name"] for trace in equal))
    return f" Identical curves: {'; '.join(said)}." if said else ""


SMALLEST_PIECE = 0.005
"""Share of all bars below which a piece of them is left out."""


def stages(runs: Sequence[RunFiles]) -> Figure:
    """Where the seconds of the training loop went."""
    spent = {
        run.name: {stage_label(name): took for name, took in (run.record.get("stage_seconds") or {}).items()}
        for run in runs
    }
    note = "Wall time of the training loop on worker 0. Background sampling and loading count only where training "
    return _stacked("Time per stage", note + "waited for them.", spent, "time (s)", "s")


def planned(run: RunFiles) -> Figure | None:
    """What the plan estimated of an epoch, beside what it took; ``None`` without a plan."""
    plan = run.record.get("plan")
    if not plan or "measured_epoch_seconds" not in plan:
        return None
    estimated, measured = plan["estimated_epoch_seconds"], plan["measured_epoch_seconds"]
    names = {name: label for name, label in {**STAGES, "total": "epoch"}.items() if name in estimated}
    data = [
        {
            "type": "bar", "name": label, "x": list(names.values()), "y": [of.get(name, 0.0) for name in names],
            "marker": {"color": color}, "hovertemplate": "%{x}: %{y:.3f} s<extra>" + label + "</extra>",
        }
        for label, of, color in (("estimated", estimated, COLORS[9]), ("measured", measured, COLORS[0]))
    ]  # fmt: skip
    note = "Time per epoch; measured: median over the epochs since the strategy was last chosen."
    return Figure("Plan: estimated vs. measured", note, data, {"barmode": "group", "yaxis": _titled("time (s)")})


def work(run: RunFiles) -> list[Figure]:
    """Rows that each worker computes, by layer, and input rows that it reads, by where they come from."""
    workers = run.record.get("workers") or []
    if len(workers) < 2:
        return []
    names = [f"worker {rank}" for rank in range(len(workers))]
    rows = {
        name: {f"layer {layer}": rows for layer, rows in enumerate(worker["counts"]["computed_destinations"], start=1)}
        for name, worker in zip(names, workers)
    }
    reads = {name: worker["counts"]["rows_from"] for name, worker in zip(names, workers)}
    since = " Since the last start of the workers."
    return [
        _stacked("Rows computed", "Layer 1 is the one next to the input." + since, rows, "rows", ""),
        _stacked("Feature rows read", "By where a worker read them from." + since, reads, "rows", ""),
    ]


def traffic(runs: Sequence[RunFiles]) -> Figure | None:
    """Bytes between workers in training steps, by kind; of several hosts also by link."""
    sent: dict[str, dict[str, float]] = {}
    for run in runs:
        links: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for worker in run.record.get("workers") or []:
            for kind, by_link in worker["traffic_bytes"].get("training", {}).items():
                for link, num_bytes in by_link.items():
                    links[link][kind] += num_bytes / MiB
        used = {link: kinds for link, kinds in links.items() if any(kinds.values())}
        for link, kinds in used.items():
            name = run.name if link == "same_host" and len(used) == 1 else f"{run.name}, {link.replace('_', ' ')}"
            sent[name] = kinds
    if not sent:
        return None
    note = "All workers together, in training steps since their last start."
    return _stacked("Communication between workers", note, sent, "MiB", "MiB")


def memory(runs: Sequence[RunFiles]) -> Figure | None:
    """The most private memory of the first worker, beside what it was allowed."""
    names = [run.name for run in runs]
    peaks = [run.record.get("peak_memory_bytes") for run in runs]
    if not any(peaks):
        return None
    data: list[Data] = [
        {
            "type": "bar", "orientation": "h", "name": "used", "y": names, "x": [(peak or 0) / MiB for peak in peaks],
            "marker": {"color": COLORS[0]}, "hovertemplate": "%{y}: %{x:,.0f} MiB<extra></extra>",
        }
    ]  # fmt: skip
    budgets = {run.name: run.settings.get("memory_per_worker") for run in runs}
    allowed = {name: budget for name, budget in budgets.items() if budget}
    if allowed:
        data.append(
            {
                "type": "scatter", "mode": "markers", "name": "allowed", "y": list(allowed),
                "x": [budget / MiB for budget in allowed.values()],
                "marker": {"symbol": "line-ns-open", "size": 26, "line": {"width": 3}, "color": COLORS[4]},
                "hovertemplate": "%{y}: %{x:,.0f} MiB allowed<extra></extra>",
            }
        )  # fmt: skip
    note = "Peak private memory of worker 0 above what it held before training; memory-mapped files do not count."
    layout = {"xaxis": _titled("memory (MiB)"), "yaxis": _reversed(), "showlegend": bool(allowed)}
    return Figure("Peak memory", note, data, layout, _bars_height(len(runs)))


TIMELINE_STEPS = 8


def timeline(run: RunFiles) -> Figure | None:
    """What the threads of every worker did during some steps of a traced run; ``None`` if it was not traced."""
    lanes = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in run.trace
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    spans = [event for event in run.trace if event["ph"] == "X" and "step" in event.get("args", {})]
    if not spans:
        return None
    # Steps in the middle: the first ones warm up, and there the stages are not yet ahead.
    forward = sorted((each for each in spans if each["name"] == "forward"), key=lambda each: each["ts"])
    forward = [each for each in forward if each["pid"] == min(event["pid"] for event in spans)]
    if not forward:
        return None
    first = forward[len(forward) // 2 : len(forward) // 2 + TIMELINE_STEPS]
    begin, end = first[0]["ts"], first[-1]["ts"] + first[-1]["dur"]
    shown = [each for each in spans if each["ts"] < end and each["ts"] + each["dur"] > begin]
    data = []
    for name, color in zip(dict.fromkeys(each["name"] for each in shown), cycle(COLORS)):
        of = [each for each in shown if each["name"] == name]
        data.append(
            {
                "type": "bar", "orientation": "h", "name": stage_label(name), "marker": {"color": color},
                "y": [f"{each['pid']}: {lanes[each['pid'], each['tid']]}" for each in of],
                "base": [(max(each["ts"], begin) - begin) / 1e3 for each in of],
                "x": [(min(each["ts"] + each["dur"], end) - max(each["ts"], begin)) / 1e3 for each in of],
                "customdata": [[each["args"]["step"], each["dur"] / 1e3] for each in of],
                "hovertemplate": "step %{customdata[0]}: %{customdata[1]:.2f} ms<extra>" + name + "</extra>",
            }
        )  # fmt: skip
    order = [f"{pid}: {lane}" for (pid, _), lane in sorted(lanes.items())]
    used = {y for trace in data for y in trace["y"]}
    note = f"{len(first)} steps in the middle of the run, by worker and thread. Prefetch threads work on later batches."
    layout = {
        "barmode": "overlay",
        "showlegend": True,
        "xaxis": _titled("time (ms)"),
        "yaxis": {**_reversed(), "categoryorder": "array", "categoryarray": [each for each in order if each in used]},
    }
    return Figure("Thread timeline", note, data, layout, _bars_height(len(used), len(data)))


MOST_PARTS = 64


def parts(name: str, quality: Mapping[str, Any]) -> Figure:
    """What every part of a store has, as multiples of the mean."""
    data, number = [], quality["num_parts"]
    names = [f"part {part}" for part in range(min(number, MOST_PARTS))]
    spreads = {key: value for key, value in part_spreads(quality).items() if value["total"]}
    for (key, spread), color in zip(spreads.items(), cycle(COLORS)):
        mean = spread["total"] / number
        data.append(
            {
                "type": "bar", "name": key, "x": names, "marker": {"color": color},
                "y": [count / mean for count in spread["counts"][:MOST_PARTS]],
                "customdata": spread["counts"][:MOST_PARTS],
                "hovertemplate": "%{x}: %{customdata:,} (%{y:.2f} of the mean)<extra>" + key + "</extra>",
            }
        )  # fmt: skip
    note = "Relative to the mean of all parts; 1 everywhere is perfectly balanced."
    if number > MOST_PARTS:
        note += f" The first {MOST_PARTS} of {number:,} parts."
    return Figure(f"Balance of {name}", note, data, {"barmode": "group", "yaxis": _titled("relative to the mean")})


def between_parts(name: str, quality: Mapping[str, Any]) -> Figure | None:
    """Edges from every part into every other one; ``None`` where they were not counted."""
    edges = quality.get("edges_between")
    if not edges or len(edges) < 2:
        return None
    inside = sum(row[part] for part, row in enumerate(edges))
    total = max(1, sum(map(sum, edges)))
    number = len(edges)
    data: Data = {
        "type": "heatmap", "z": [[each / max(1, sum(row)) for each in row] for row in edges], "zmin": 0, "zmax": 1,
        "colorscale": [[0.0, "rgba(59,130,196,0)"], [1.0, "rgba(59,130,196,0.9)"]], "showscale": False,
        "xgap": 1, "ygap": 1, "customdata": edges,
        "hovertemplate": "part %{x} → part %{y}: %{customdata:,} edges<extra></extra>",
    }  # fmt: skip
    if number <= 12:
        data |= {"text": [[format_count(each) for each in row] for row in edges], "texttemplate": "%{text}"}
    note = "Rows: part of the destination; columns: part of the source. Color: share of the row. "
    note += f"Within parts: {inside / total:.1%} of edges."
    layout = {
        "xaxis": {**_titled("source part"), "dtick": max(1, number // 16), "showgrid": False, "zeroline": False},
        "yaxis": {
            **_titled("destination part"), **_reversed(), "dtick": max(1, number // 16), "showgrid": False,
            "zeroline": False,
        },
    }  # fmt: skip
    return Figure(f"Edges between parts of {name}", note, [data], layout, 150 + max(12, 36 - number) * max(number, 4))


def _stacked(title: str, note: str, values: Mapping[str, Mapping[str, float]], unit: str, short: str) -> Figure:
    """Horizontal bars, one for each name, of pieces on one another; pieces that nobody could see are left out."""
    totals = {piece: sum(of.get(piece, 0.0) for of in values.values()) for of in values.values() for piece in of}
    every = sum(totals.values())
    pieces = [piece for piece, total in totals.items() if total > SMALLEST_PIECE * every]
    data = [
        {
            "type": "bar", "orientation": "h", "name": piece.replace("_", " "), "y": list(values),
            "x": [of.get(piece, 0.0) for of in values.values()], "marker": {"color": color},
            "hovertemplate": "%{y}: %{x:,.4~g} " + short + "<extra>%{fullData.name}</extra>",
        }
        for piece, color in zip(pieces, cycle(COLORS))
    ]  # fmt: skip
    layout = {"barmode": "stack", "xaxis": _titled(unit), "yaxis": _reversed(), "showlegend": True}
    return Figure(title, note, data, layout, _bars_height(len(values), len(pieces)))


def _bars_height(bars: int, pieces: int = 1) -> int:
    """Pixels for so many bars below a legend of so many pieces, of which two stand in a line where it is narrow."""
    return 110 + 34 * min(bars, 40) + 10 * pieces


def _line(name: str, x: list[Any], y: list[Any], color: str, dash: str = "solid") -> Data:
    mode = "lines" if len(x) > 40 else "lines+markers"  # a single epoch is a point
    shown = {"color": color, "dash": dash, "width": 2}
    return {
        "type": "scatter", "mode": mode, "name": name, "x": x, "y": y, "line": shown, "marker": {"size": 5},
        "hovertemplate": "%{x:.4~g}: %{y:.4f}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def _label(runs: Sequence[RunFiles], run: RunFiles, of: str) -> str:
    return of if len(runs) == 1 else f"{run.name}, {of}"


def _titled(text: str) -> Data:
    return {"title": {"text": text}}


def _reversed() -> Data:
    return {"autorange": "reversed", "automargin": True}
