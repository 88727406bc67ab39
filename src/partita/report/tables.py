"""The tables of a report: a head, rows of text, and how to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from partita.core.options import format_bytes
from partita.core.plan import STAGES
from partita.core.relation_names import separated
from partita.report.cards import wall_seconds
from partita.report.labels import metric_label, stage_label, task_label
from partita.report.records import RunFiles
from partita.report.terminal import format_count
from partita.report.text import byte_count, count, duration, score


@dataclass(frozen=True)
class Table:
    """Rows of text.

    Attributes:
        title: what it shows.
        head: of every column.
        rows: of cells; the first one of each names the row.
        note: how to read it.
        long: it may be shown a part at a time.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    long: bool = False


def summary(runs: Sequence[RunFiles]) -> Table:
    """The main facts of every run, one column a run; of several, with what the headline says."""
    compared: dict[str, Callable[[RunFiles], str]] = {
        "best epoch": _best,
        **{
            f"{split} {metric_label(name)}": lambda run, split=split, name=name: score(  # type: ignore[misc]
                run.record.get("metrics", {}).get(split, {}).get(name)
            )
            for split, name in dict.fromkeys(
                (split, name) for run in runs for split, of in run.record.get("metrics", {}).items() for name in of
            )
        },
        "time per epoch": lambda run: duration(median([epoch["seconds"] for epoch in run.epochs])),
    }
    facts: dict[str, Callable[[RunFiles], str]] = {
        "status": lambda run: run.record["status"] + (" (stopped early)" if run.record.get("early_stopped") else ""),
        **(compared if len(runs) > 1 else {}),
        "task": lambda run: task_label(run.task),
        "graph": _graph,
        "store": lambda run: str(run.record["store"]["path"]),
        "model": lambda run: run.settings["model"] if not run.record["model"]["custom"] else "custom model",
        "layer widths": _layers,
        "epochs": lambda run: f"{len(run.epochs)} of {run.settings['epochs']}",
        "seeds per second": lambda run: format_count(median([epoch["seeds_per_second"] for epoch in run.epochs])),
        "peak memory": lambda run: byte_count(run.record.get("peak_memory_bytes")),
        "device": lambda run: str(run.record.get("device", "cpu")),
        "workers": lambda run: str(run.settings["workers"]) if any(other.workers > 1 for other in runs) else "-",
        "strategy": lambda run: _strategy(run) if any(other.workers > 1 for other in runs) else "-",
        "started": lambda run: _time(run.record["started"]),
        "ended": lambda run: _time(run.record.get("ended", "-")),
        "total time": lambda run: duration(wall_seconds(run)),
    }
    rows = [[name, *(fact(run) for run in runs)] for name, fact in facts.items()]
    title = "Run" if len(runs) == 1 else "Runs compared"
    return Table(title, ["", *(run.name for run in runs)], [row for row in rows if set(row[1:]) != {"-"}])


def differences(runs: Sequence[RunFiles]) -> Table | None:
    """The settings in which runs differ."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    rows = [[name, *(_setting(run.settings.get(name)) for run in runs)] for name in names]
    different = [row for row in rows if len(set(row[1:])) > 1]
    if not different:
        return None
    return Table("Settings that differ", ["setting", *(run.name for run in runs)], different)


def settings(run: RunFiles) -> Table:
    """All settings of a run."""
    rows = [[name, _setting(value)] for name, value in run.settings.items()]
    return Table("Settings", ["setting", "value"], rows, long=True)


def machine(runs: Sequence[RunFiles]) -> Table:
    """Where runs were made, and with what."""
    of = {run.name: run.record["machine"] for run in runs}
    packages = dict.fromkeys(name for each in of.values() for name in each["versions"])
    rows = [
        ["system", *(str(each["system"]) for each in of.values())],
        ["cores", *(str(each["cores"]) for each in of.values())],
        ["memory", *(format_bytes(each["memory_bytes"]) for each in of.values())],
        *([name, *(each["versions"].get(name, "-") for each in of.values())] for name in packages),
        ["command", *(" ".join(map(str, each.get("command", []))) for each in of.values())],
    ]
    return Table("Machine and versions", ["", *of], rows)


MOST_CLASSES = 50


def classes(runs: Sequence[RunFiles]) -> list[Table]:
    """Precision, recall and F1 of every class on a split, of one run; F1 of every run, of several."""
    known = {run.name: run.record["classes"] for run in runs if run.record.get("classes")}
    splits = dict.fromkeys(split for each in known.values() for split in each if split != "names")
    return [_classes(split, {name: of for name, of in known.items() if split in of}) for split in splits]


def _classes(split: str, known: Mapping[str, Mapping[str, Any]]) -> Table:
    scores = {run: _scores(of["names"], of[split]) for run, of in known.items()}
    first = next(iter(scores.values()))
    worst = sorted(first, key=lambda name: (first[name]["f1"] is None, first[name]["f1"] or 0.0))
    shown = worst[:MOST_CLASSES]
    note = "Sorted by F1, lowest first."
    if len(known) == 1:
        note += " Precision: share of predictions of this class that are correct."
        note += " Recall: share of its nodes that were found."
    if len(worst) > len(shown):
        note += f" The lowest {len(shown)} of {len(worst):,} classes."
    title, head = f"Classes: {split} nodes", ["class", "nodes"]
    if len(scores) == 1:
        head += ["precision", "recall", "F1"]
        cells = {name: [score(first[name][key]) for key in ("precision", "recall", "f1")] for name in shown}
    else:
        head += [f"F1: {run}" for run in scores]
        cells = {name: [score(of[name]["f1"]) if name in of else "-" for of in scores.values()] for name in shown}
    rows = [[name, f"{first[name]['nodes']:,.0f}", *cells[name]] for name in shown]
    return Table(title, head, rows, note, long=True)


def _scores(names: Sequence[str], counts: Mapping[str, Sequence[int]]) -> dict[str, dict[str, Any]]:
    """What counts come to; ``None`` where there is nothing to count."""
    found = {}
    for name, nodes, predicted, correct in zip(
        names, counts["nodes"], counts["predicted"], counts["correct"], strict=True
    ):
        found[name] = {
            "nodes": nodes,
            "precision": correct / predicted if predicted else None,
            "recall": correct / nodes if nodes else None,
            "f1": 2 * correct / (nodes + predicted) if nodes + predicted else None,
        }
    return found


def placements(run: RunFiles) -> Table | None:
    """Which worker computes which rows."""
    if run.workers < 2:
        return None
    placed, _, axis = str(run.record["placements"]).partition("@")
    levels = placed.split(",")
    names = ["input features", *(f"layer {number}" for number in range(1, len(levels)))]
    sentences = run.record.get("placement_sentences") or [""] * len(levels)  # runs of before do not say
    rows = [list(row) for row in zip(names, levels, sentences, strict=True)]
    note = f"Among the workers of each {axis.rstrip('s')} axis." if axis and axis != "all" else ""
    return Table("Placement of computation", ["", "placement", ""], rows, note)


def ahead(runs: Sequence[RunFiles]) -> Table | None:
    """Sampling and loading beside training."""
    rows = [
        [run.name, stage_label(name), f"{stage['seconds']:.2f}", f"{stage['items']:,}", f"{stage['waiting']:.2f}"]
        for run in runs
        for name, stage in (run.record.get("pipeline") or {}).items()
    ]
    if not rows:
        return None
    note = "On worker 0. Queued: batches that were ready, on average, when training asked for one."
    return Table("Prefetching", ["run", "stage", "time (s)", "batches", "queued"], rows, note)


def known_ahead(run: RunFiles) -> Table | None:
    """What every worker has read of feature rows in files or of other hosts, and kept by what it knew ahead."""
    reads = run.record.get("feature_reads")
    if not reads:
        return None
    of = "Feature rows of other hosts" if reads[0].get("source") == "hosts" else "Feature rows from disk"
    return _kept_ahead(of, reads)


def edges_read(run: RunFiles) -> Table | None:
    """What every worker has read of edges in files."""
    reads = run.record.get("edge_reads")
    if not reads:
        return None
    rows = [
        [
            str(number),
            f"{each['asked']:,}",
            f"{each['kept'] / max(1, each['asked']):.1%}",
            *_file_reads(each)[:3],
        ]
        for number, each in enumerate(reads)
    ]
    note = "Edges stay in memory that batches draw most often. Reading is part of sampling, on all of its threads."
    head = ["worker", "edges looked at", "in memory", "reads", "read", "reading (s)"]
    return Table("Edges from disk", head, rows, note)


def learnt_ahead(run: RunFiles) -> Table | None:
    """The same of learnt rows."""
    reads = run.record.get("learnt_reads")
    return _kept_ahead("Learnt rows from disk", reads) if reads else None


def _kept_ahead(title: str, reads: list[dict[str, Any]]) -> Table:
    files = reads[0].get("source") != "hosts"
    rows = [
        [
            str(number),
            f"{each['asked']:,}",
            f"{each['kept'] / max(1, each['asked']):.1%}",
            f"{each.get('lru_kept', 0) / max(1, each['asked']):.1%}",
            *(_file_reads(each) if files else ()),
        ]
        for number, each in enumerate(reads)
    ]
    head = ["worker", "rows asked for", "in memory", "if least recently used were dropped"]
    note = f"Rows stay in memory that are used again first, by a look ahead of {reads[0]['look_ahead']:,} batches."
    if files:
        head += ["reads", "read", "reading (s)", "passes for many batches (s)"]
        note += " Reading and passes go on while the model is trained."
    return Table(title, head, rows, note)


def _file_reads(reads: dict[str, Any]) -> list[str]:
    return [
        f"{reads['reads']:,}",
        byte_count(reads["bytes"]),
        f"{reads['milliseconds'] / 1e3:.1f}",
        f"{reads['packing_milliseconds'] / 1e3:.1f}",
    ]


def candidates(run: RunFiles) -> Table | None:
    """The plan's estimate of every strategy."""
    plan = run.record.get("plan") or {}
    found = plan.get("candidates")
    if not found:
        return None
    rows = [
        [
            each["name"],
            _number(each["epoch"]["total"]),
            *(_number(each["epoch"][name]) if each["epoch"][name] else "-" for name in STAGES),
            byte_count(each["sent_bytes"]),
            byte_count(each["memory_bytes"]),
            str(each["tried_steps"] or "-"),
        ]
        for each in found
    ]
    head = ["strategy", "epoch (s)", *STAGES.values(), "sent", "memory", "trial steps"]
    return Table("Strategies considered", head, rows, "Estimated time per epoch in seconds, fastest first.", long=True)


def notes(run: RunFiles) -> Table | None:
    """Notes of a run while it trained."""
    rows = [[str(event["epoch"] + 1), str(event["text"])] for event in run.events if "text" in event]
    return Table("Messages", ["epoch", "note"], rows, long=True) if rows else None


def part_spreads(measured: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What :meth:`partita.partitioning.quality.Quality.to_json` says of every part, by what is counted."""
    of_types = {f"{key} nodes": value for key, value in measured.get("types", {}).items()}
    rest = {key.replace("_", " "): value for key, value in measured.items() if key != "types"}
    return {key: value for key, value in {**rest, **of_types}.items() if isinstance(value, Mapping)}


def quality(name: str, measured: Mapping[str, Any]) -> Table:
    """How good the parts of a store are."""
    rows = [
        ["parts", f"{measured['num_parts']:,}" + (f", {empty:,} empty" if (empty := measured["empty_parts"]) else "")],
        ["nodes, edges", f"{measured['num_nodes']:,}, {measured['num_edges']:,}"],
        ["edge cut", f"{measured['edge_cut']:.2%} ({measured['cut_edges']:,} edges)"],
        ["replication factor", f"{measured['replication_factor']:.3f}"],
        *([f"balance of {key}", f"{value['balance']:.3f}"] for key, value in part_spreads(measured).items()),
    ]
    return Table(f"Partition: {name}", ["", ""], rows, "Balance: largest part relative to the mean.")


def node_types(run: RunFiles) -> Table | None:
    """What types the nodes of a typed graph have."""
    store = run.record["store"]
    if "node_types" not in store:
        return None
    features, learnt = store["type_features"], (run.record.get("learnt") or {}).get("types", {})
    rows = [
        [
            name,
            f"{size:,}",
            f"{features[name]:,}" if name in features else "-",
            *([f"{learnt[name]['columns']:,}" if name in learnt else "-"] if learnt else []),
        ]
        for name, size in store["node_types"].items()
    ]
    head = ["node type", "nodes", "features", *(["learnt row"] if learnt else [])]
    return Table("Node types", head, rows, f"Types without {'either' if learnt else 'features'} have a learned vector.")


def relations(run: RunFiles) -> Table | None:
    """Which types the relations of a typed graph lead from and to."""
    store = run.record["store"]
    if "relations" not in store:
        return None
    rows = []
    for name, edges in store["relations"].items():
        source, relation, target = separated(name)
        mean = edges / max(1, store["node_types"][target])
        rows.append([relation, source, target, f"{edges:,}", f"{mean:,.1f}"])
    return Table("Relations", ["relation", "source type", "target type", "edges", "mean in-degree"], rows)


def _graph(run: RunFiles) -> str:
    store = run.record["store"]
    facts = [count(store[name], name.removesuffix("s")) for name in ("nodes", "edges")]
    if "node_types" in store:
        facts += [count(len(store["node_types"]), "node type"), count(len(store["relations"]), "relation")]
    else:
        facts.append(count(store["features"], "feature"))
    return ", ".join(facts if store.get("parts", 1) < 2 else [*facts, count(store["parts"], "part")])


def _layers(run: RunFiles) -> str:
    """The widths between layers: the rows that each takes in, and the classes or values that the last gives out."""
    stages = run.record["model"].get("stages") or []
    widths = [stage["layer"].get("in_width", "?") for stage in stages]
    return " → ".join(map(str, [*widths, run.record.get("outputs", run.record["store"]["classes"])]))


def _strategy(run: RunFiles) -> str:
    plan = run.record.get("plan") or {}
    named = plan.get("strategy") or run.settings.get("preset") or run.settings.get("strategy")
    return f"{named}: {run.record['placements']}"


def _best(run: RunFiles) -> str:
    best = run.record.get("best")
    return f"{best['epoch']} (val {metric_label(best['metric'])} {score(best['value'])})" if best else "-"


def _time(text: str) -> str:
    return text.replace("T", " ").replace("+00:00", " UTC")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _setting(value: object) -> str:
    if value is None or value in ("", [], {}):
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
