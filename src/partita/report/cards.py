"""The headline of a run: a few numbers, each with what it is to be compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from partita.report.labels import metric_label
from partita.report.records import RunFiles
from partita.report.text import IN_PERCENT, LOWER_IS_BETTER, count, duration, percent, score, sentence


@dataclass(frozen=True)
class Card:
    """A number.

    Attributes:
        label: what it is.
        value: in large type.
        note: what it is to be compared with.
        mood: ``"good"``, ``"bad"`` or nothing.
    """

    label: str
    value: str
    note: str = ""
    mood: str = ""


def headline(run: RunFiles) -> list[Card]:
    """The metric of the test nodes, the baseline, the best epoch, the time, and, unless all is well, the status."""
    cards = []
    status = str(run.record["status"])
    if status != "finished":
        done = f"{count(len(run.epochs), 'epoch')} of {run.settings['epochs']} done"
        cards.append(Card("Status", status, done, "bad"))
    return [*cards, *_metric(run), *_best(run), _time(run)]


def _metric(run: RunFiles) -> list[Card]:
    split = run.shown_split
    metrics = run.record.get("metrics", {}).get(split, {})
    name = (run.record.get("best") or {}).get("metric")
    if name not in metrics:
        name = next(iter(metrics), None)
    if name is None:
        return []
    value = metrics[name]
    shown = percent if name == IN_PERCENT else score
    title = sentence(f"{split} {metric_label(name)}")
    found = baseline(run, split)
    if found is None or name not in found["metrics"]:
        return [Card(title, shown(value))]
    reached = found["metrics"][name]
    higher = name not in LOWER_IS_BETTER
    gain = value - reached if higher else reached - value
    by = f"{100 * abs(gain):.1f} points" if name == IN_PERCENT else score(abs(gain))
    note = f"{by} {'better' if gain > 0 else 'worse'} than the baseline" if gain else "the same as the baseline"
    rule = found["rule"] + (f": {found['answer']}" if found.get("answer") else "")
    return [
        Card(title, shown(value), note, "good" if gain > 0 else "bad"),
        Card(f"Baseline {metric_label(name)}", shown(reached), rule),
    ]


def baseline(run: RunFiles, split: str) -> Mapping[str, Any] | None:
    """What is reached without a model: ``rule``, ``answer`` and ``metrics``; ``None`` where that is not known."""
    found: Mapping[str, Any] | None = run.analysis.get("splits", {}).get(split, {}).get("baseline")
    if found is not None:
        return found
    counts = (run.record.get("classes") or {}).get(split)
    if counts is None or IN_PERCENT not in run.record.get("metrics", {}).get(split, {}) or not sum(counts["nodes"]):
        return None
    most = max(range(len(counts["nodes"])), key=lambda place: counts["nodes"][place])
    share = counts["nodes"][most] / sum(counts["nodes"])
    answer = run.record["classes"]["names"][most]
    return {"rule": f"most frequent class of the {split} nodes", "answer": answer, "metrics": {IN_PERCENT: share}}


def _best(run: RunFiles) -> list[Card]:
    best = run.record.get("best")
    if not best:
        return []
    early = ", stopped early" if run.record.get("early_stopped") else ""
    note = f"validation {metric_label(best['metric'])} {score(best['value'])}{early}"
    return [Card("Best epoch", f"{best['epoch']} of {len(run.epochs)}", note)]


def _time(run: RunFiles) -> Card:
    workers = count(int(run.settings.get("workers") or 1), "worker")
    each = duration(median([epoch["seconds"] for epoch in run.epochs]))
    where = f"{each} per epoch; {workers}, {str(run.record.get('device', 'cpu')).upper()}"
    return Card("Training time", duration(sum(epoch["seconds"] for epoch in run.epochs)), where)


def wall_seconds(run: RunFiles) -> float | None:
    """From the start of a run to its end, whatever lay between; ``None`` while it goes on, or where it was resumed."""
    if "ended" not in run.record or run.record.get("resumed"):
        return None
    began, ended = (datetime.fromisoformat(run.record[name]) for name in ("started", "ended"))
    return (ended - began).total_seconds()
