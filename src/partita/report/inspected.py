"""``inspect`` on a terminal: what a store or a run is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.core.options import format_bytes
from partita.report.cards import headline, wall_seconds
from partita.report.labels import metric_label, task_label
from partita.report.records import RunFiles
from partita.report.terminal import format_count
from partita.report.text import OUTPUT_NOUNS, count, duration, percent, score

MOST_CLASSES = 12


def store_rows(summary: Mapping[str, Any], found: Mapping[str, Any] | None) -> dict[str, str]:
    """What a store holds, by name.

    Args:
        summary: of :meth:`partita.GraphStore.summary`.
        found: of :func:`partita.graph.profile.inspect`; ``None``: it was not looked into.
    """
    rows = {"nodes": f"{summary['nodes']:,}", "edges": f"{summary['edges']:,}"}
    if found:
        rows |= _structure(summary, found)
    elif "isolated" in summary:
        rows["nodes without in-edges"] = f"{summary['isolated']:,}"
    dtype = f", {summary['feature_dtype']}" if summary["feature_dtype"] else ""
    if "node_types" not in summary:
        rows["features"] = f"{summary['features']:,}{dtype}" + (
            _features(found["features"]) if found and "features" in found else ""
        )
    task = summary["task"]
    rows["task"] = "-" if task is None else task_label(task)
    if summary["classes"] > 1:
        rows["task"] += f", {summary['classes']:,} {OUTPUT_NOUNS.get(task, 'classes')}"
    rows["splits"] = "  ".join(f"{name} {size:,}" for name, size in summary["splits"].items()) or "-"
    if "held_out" in summary:
        rows["held-out edges"] = "  ".join(f"{name} {size:,}" for name, size in summary["held_out"].items())
    if summary["split_rule"]:
        rows["split rule"] = summary["split_rule"]
    if found and "labels" in found:
        rows |= _labels(found["labels"])
    if "shard" in summary:
        rows["shard"] = "  ".join(f"{name} {value}" for name, value in summary["shard"].items())
    rows["partitions"] = f"{summary['parts']:,}"
    rows["source"] = summary["source"] or "-"
    rows["fingerprint"] = summary["fingerprint"]
    sizes = summary["bytes"]
    largest = sorted(sizes, key=lambda name: -sizes[name])[:6]
    rows["size"] = f"{format_bytes(sum(sizes.values()))}: " + ", ".join(
        f"{name} {format_bytes(sizes[name])}" for name in largest
    )
    return rows


def _structure(summary: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, str]:
    structure, components = found["structure"], found["components"]
    weighted = ", weighted" if summary["weighted"] else ""
    if width := summary["edge_features"]:
        weighted += f", {count(width, 'feature')} each"
    if summary["times"]:
        weighted += ", with times"
    rows = {
        "direction": ("every edge has its reverse" if structure["symmetric"] else "directed") + weighted,
        "self loops": f"{structure['self_loops']:,}",
        "repeated edges": f"{structure['repeated_edges']:,}",
    }
    for way, of in found["degrees"].items():
        if of and not (way == "out" and structure["symmetric"]):
            label = "degree" if structure["symmetric"] else f"{way}-degree"
            mean = f"{of['mean']:,.1f}"
            rows[label] = f"mean {mean}  median {of['median']:,.0f}  99 % {of['p99']:,.0f}  max {of['max']:,.0f}"
    rows["components"] = f"{components['number']:,}, the largest with {count(components['largest'], 'node')}"
    rows["isolated nodes"] = f"{structure['isolated_nodes']:,}"
    if "homophily" in found:
        of = found["homophily"]
        rows["homophily"] = (
            f"{percent(of['edges'])} of edges join nodes of one class (at random: {percent(of['expected_at_random'])})"
        )
    return rows


def _features(found: Mapping[str, Any]) -> str:
    facts = [
        f"{percent(found['nonzero_share'])} nonzero",
        f"{found['nan']:,} NaN" if found["nan"] else "",
        f"{found['infinite']:,} infinite" if found["infinite"] else "",
        count(found["constant_columns"]["number"], "constant column") if found["constant_columns"]["number"] else "",
    ]
    return ", " + ", ".join(fact for fact in facts if fact)


def _labels(labels: Mapping[str, Any]) -> dict[str, str]:
    rows = {}
    if labels["unlabeled"]["all"]:
        rows["unlabeled nodes"] = f"{labels['unlabeled']['all']:,}"
    for name, of in labels.get("values", {}).items():
        facts = "  ".join(f"{key} {value:.4g}" for key, value in of.items())
        rows["target" if name == "all" else f"target, {name}"] = facts
    for name, counts in labels.get("counts", {}).items():
        total = max(1, sum(counts))
        order = sorted(range(len(counts)), key=lambda place: -counts[place])
        shown = [f"{labels['classes'][place]} {percent(counts[place] / total)}" for place in order[:MOST_CLASSES]]
        more = [f"{len(order) - MOST_CLASSES:,} more"] if len(order) > MOST_CLASSES else []
        rows["classes" if name == "all" else f"classes, {name}"] = ", ".join([*shown, *more])
    return rows


def run_summary(run: RunFiles) -> dict[str, Any]:
    """What a run is, as JSON values: what it trains, how far it has come, its metrics, and how to go on."""
    record, settings = run.record, run.settings
    return {
        "run": str(run.path),
        "status": record["status"],
        "stopped": _stopped(run),
        "task": run.task,
        "store": record["store"]["path"],
        "model": "custom" if record["model"]["custom"] else settings["model"],
        "layers": settings["layers"],
        "workers": settings["workers"],
        "strategy": record["placements"],
        "epochs": {"done": len(run.epochs), "wanted": settings["epochs"]},
        "best": record.get("best"),
        "metrics": record.get("metrics", {}),
        "baseline": {
            split: of["baseline"] for split, of in run.analysis.get("splits", {}).items() if of.get("baseline")
        },
        "training_seconds": sum(epoch["seconds"] for epoch in run.epochs),
        "wall_seconds": wall_seconds(run),
        "started": record["started"],
        "next": _next(run),
    }


def run_rows(run: RunFiles) -> dict[str, str]:
    """The same for people."""
    found = run_summary(run)
    best = found["best"]
    rows = {
        "status": found["stopped"],
        **{card.label.lower(): card.value + (f" ({card.note})" if card.note else "") for card in headline(run)
           if card.label not in ("Status", "Best epoch", "Training time")},
        "best epoch": f"{best['epoch']} by {metric_label(best['metric'])} {score(best['value'])}" if best else "-",
        **{split: "  ".join(f"{metric_label(name)} {score(value)}" for name, value in of.items())
           for split, of in found["metrics"].items()},
        "task": task_label(run.task),
        "store": found["store"],
        "model": f"{found['model']}, {count(found['layers'], 'layer')}",
        "workers": f"{found['workers']} ({found['strategy']})" if found["workers"] > 1 else "1",
        "training time": duration(found["training_seconds"]),
        "seeds per second": format_count(max(epoch["seeds_per_second"] for epoch in run.epochs)),
        "started": found["started"].replace("T", " ").replace("+00:00", " UTC"),
    }  # fmt: skip
    return {**rows, "next": found["next"]}


def _stopped(run: RunFiles) -> str:
    """Where a run has stopped, in words."""
    record, done, wanted = run.record, len(run.epochs), run.settings["epochs"]
    if record.get("early_stopped"):
        return f"stopped early after epoch {done} of {wanted} (--patience {run.settings['patience']})"
    if record["status"] == "finished":
        return f"finished, {count(done, 'epoch')}"
    step = record.get("step")
    where = f" and {count(step, 'step')}" if step else ""
    return f"{record['status']} after {count(done, 'epoch')}{where} of {wanted} epochs"


def _next(run: RunFiles) -> str:
    """The command that goes on from here."""
    if run.record["status"] == "finished":
        return f"partita report {run.path} --out report.html"
    return f"partita train --resume {run.path}"
