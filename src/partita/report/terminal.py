"""Progress bars and tables on a terminal; plain lines where the output is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Task as RichTask
from rich.table import Column, Table
from rich.text import Text

from partita.core import progress
from partita.core.options import format_bytes
from partita.core.plan import STAGES, Candidate, Plan
from partita.core.relation_names import separated
from partita.report.console import SafeConsole
from partita.report.labels import metric_label, stage_label

_PLAIN_SECONDS = 30.0
"""From one line about a piece of work to the next, where the output is not a terminal."""


def format_count(count: float) -> str:
    """``1234567`` -> ``1.23 M``."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(count) >= size:
            return f"{count / (1e3 if unit == ' k' else size):.3g}{unit}"
    return f"{count:,.0f}"


def format_seconds(seconds: float) -> str:
    """``75`` -> ``1.2 min``."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _format_amount(count: float, unit: str) -> str:
    return format_bytes(count) if unit == "bytes" else f"{format_count(count)} {unit}"


class _RateColumn(ProgressColumn):
    def render(self, task: RichTask) -> Text:
        unit = task.fields["amount_unit"]
        done = _format_amount(task.completed, unit)
        if task.total is not None:
            total = format_bytes(task.total) if unit == "bytes" else format_count(task.total)
            done = f"{done.removesuffix(' ' + unit)} of {total}{'' if unit == 'bytes' else ' ' + unit}"
        rate = f", {_format_amount(task.speed, unit)}/s" if task.speed else ""
        return Text(done + rate, style="dim")


class _BarTask:
    def __init__(self, bars: Progress, number: TaskID) -> None:
        self.bars, self.number = bars, number

    def advance(self, amount: float = 1) -> None:
        self.bars.advance(self.number, amount)


class BarDisplay:
    """Progress bars with rate and time remaining; implements :class:`partita.core.progress.Display`."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars

    def start(self, description: str, total: float | None, unit: str) -> _BarTask:
        """Show a new bar."""
        return _BarTask(self._bars, self._bars.add_task(description, total=total, amount_unit=unit))

    def stop(self, task: Any) -> None:
        """Take a bar away."""
        self._bars.remove_task(task.number)

    def say(self, text: str) -> None:
        """Show a line above the bars."""
        self._bars.console.print(text, highlight=False, markup=False)


class _LineTask:
    def __init__(self, console: Console, description: str, total: float | None, unit: str) -> None:
        self.console, self.description, self.total, self.unit = console, description, total, unit
        self.done = 0.0
        self.started = self.said = time.monotonic()

    def advance(self, amount: float = 1) -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.said < _PLAIN_SECONDS:
            return
        rate = self.done / (now - self.started)
        if self.total and (self.total - self.done) < _PLAIN_SECONDS * rate:
            return  # over before there is anything else to say
        self.said = now
        line = f"{self.description}: {_format_amount(self.done, self.unit)}, {_format_amount(rate, self.unit)}/s"
        if self.total and rate > 0:
            line += f", {(self.total - self.done) / rate:,.0f} s left"
        self.console.print(line, highlight=False, markup=False)


class LineDisplay:
    """A line every half minute, for logs; implements :class:`partita.core.progress.Display`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self, description: str, total: float | None, unit: str) -> _LineTask:
        """Begin to count."""
        return _LineTask(self._console, description, total, unit)

    def stop(self, task: Any) -> None:
        """Nothing is left to do."""

    def say(self, text: str) -> None:
        """Show a line."""
        self._console.print(text, highlight=False, markup=False)


@contextmanager
def display(console: Console) -> Iterator[BarDisplay | LineDisplay]:
    """Bars on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield LineDisplay(console)
        return
    said, bar = TextColumn("{task.description}", markup=False), BarColumn(bar_width=24)
    columns = SpinnerColumn(), said, bar, _RateColumn(), TimeRemainingColumn(compact=True)
    with Progress(*columns, console=console, transient=True) as bars:
        yield BarDisplay(bars)


@contextmanager
def training_shown(
    epochs: int, metric: str, *, console: Console | None = None
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show what happens inside the block, and yield what shows the events of a run.

    Args:
        epochs: of the run.
        metric: that picks the best model.
        console: where; ``None``: standard error, in a notebook the output of the cell.
    """
    if console is None:
        console = SafeConsole(stderr=True)
        if console.is_jupyter:  # lines of text there, as every print is an output of its own
            console = SafeConsole(file=sys.stdout, force_jupyter=False, force_terminal=False)
    with display(console) as bars, progress.shown_by(bars):
        yield RunDisplay(console, epochs, metric).show


def type_tables(summary: Mapping[str, Any], found: Mapping[str, Any] | None) -> Iterator[Table]:
    """Node types and relations of a typed graph; nothing for another one.

    Args:
        summary: of :meth:`partita.GraphStore.summary`.
        found: of :func:`partita.graph.profile.inspect`; ``None``: it was not looked into.
    """
    if "node_types" not in summary:
        return
    sizes, labeled = summary["node_types"], None if found is None else found["types"]["labeled"]
    numbers = ["nodes", "features", *(["labeled"] if labeled else [])]
    table = _plain_table("node type", *(Column(name, justify="right") for name in numbers))
    for name, size in sizes.items():
        counts = [size, summary["type_features"].get(name, 0), *([labeled[name]] if labeled else [])]
        shown = [f"{count:,}" if count else "-" for count in counts]
        if counts[1] and (dtype := summary.get("type_feature_dtypes", {}).get(name)) is not None:
            shown[1] += f", {dtype}"
        table.add_row(name, *shown)
    yield table
    held, splits = summary.get("held_out_relations", {}), tuple(summary.get("held_out", ()))
    numbers = ["edges", "mean in-degree", *(f"held out, {split}" for split in splits)]
    ends = ("source type", "relation", "target type")
    table = _plain_table(*ends, *(Column(name, justify="right") for name in numbers))
    for name, count in summary["relations"].items():
        source, relation, target = separated(name)
        of_splits = (held.get(name, {}).get(split, 0) for split in splits)
        others = (f"{each:,}" if each else "-" for each in of_splits)
        table.add_row(source, relation, target, f"{count:,}", f"{count / max(1, sizes[target]):,.1f}", *others)
    yield table


_MOST_RELATIONS_SHOWN = 20


def relations_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Metrics of relations, those with most edges.

    Args:
        found: edges and metrics by relation, most edges first.
    """
    names = [name for name in next(iter(found.values())) if name != "edges"]
    table = _plain_table("relation", *(Column(name, justify="right") for name in ("edges", *map(metric_label, names))))
    for relation, of in list(found.items())[:_MOST_RELATIONS_SHOWN]:
        table.add_row(Text(relation), f"{of['edges']:,}", *(f"{of[name]:.4f}" for name in names))
    if (left := len(found) - _MOST_RELATIONS_SHOWN) > 0:
        table.caption, table.caption_justify = f"{left:,} more with fewer edges: --json has them", "left"
    return table


def times_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Metrics by the time at which nodes are asked about.

    Args:
        found: by period, in order; not all have all metrics.
    """
    names = list(dict.fromkeys(name for each in found for name in each if name not in ("time", "nodes")))
    table = _plain_table("asked at", *(Column(name, justify="right") for name in ("nodes", *map(metric_label, names))))
    for each in found:
        values = ["-" if each.get(name) is None else f"{each[name]:.4f}" for name in names]
        table.add_row(Text(each["time"]), f"{each['nodes']:,}", *values)
    return table


def _plain_table(*columns: Column | str) -> Table:
    return Table(*columns, box=None, padding=(0, 2), header_style="dim")


def pairs_table(title: str, pairs: Mapping[str, object]) -> Table:
    """A table of names and values."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for name, value in pairs.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
    return table


_APPROXIMATE = "*: approximate training (results differ from single-process training), with --allow approximate"
_MOST_PARTS_SHOWN = 32


def parts_table(columns: Mapping[str, Sequence[int]]) -> Table:
    """Counts of every part, one row a part; of many parts the first ones."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("part", justify="right")
    for name in columns:
        table.add_column(name, justify="right")
    rows = list(zip(*columns.values(), strict=True))
    for part, counts in enumerate(rows[:_MOST_PARTS_SHOWN]):
        table.add_row(str(part), *(f"{count:,}" for count in counts))
    if len(rows) > _MOST_PARTS_SHOWN:
        table.caption = f"and {len(rows) - _MOST_PARTS_SHOWN:,} more parts"
    return table


def links_table(links: Mapping[str, Any]) -> Table:
    """Latency and throughput between workers."""
    title = f"{links['hosts']} host{'s' * (links['hosts'] > 1)} with {links['workers']} workers each"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2), header_style="dim")
    table.add_column("", no_wrap=True)
    for name in ("link", "latency", "bandwidth"):
        table.add_column(name, justify="right", no_wrap=True)
    for what, kind in (("send rows", "send"), ("sum tensors", "sum")):
        for link, curve in links[kind].items():
            sizes, seconds = curve["num_bytes"], curve["seconds"]
            best = max(size / spent for size, spent in zip(sizes, seconds, strict=True))
            smallest = f"{1000 * seconds[0]:.2f} ms for {format_bytes(sizes[0])}"
            table.add_row(what, link.replace("_", " "), smallest, f"{format_bytes(best)}/s per worker")
    return table


def plan_tables(plan: Plan, most: int) -> list[Table]:
    """What each strategy would take, of many the fastest and those with a name; and which cannot be used."""
    shown = [one for rank, one in enumerate(plan.candidates) if rank < most or one.is_named]
    tables = [_estimates(plan, shown)]
    if plan.refused:
        tables.append(_refusals(plan))
    if plan.machine is not None:
        tables.append(_machine(plan.machine))
    return tables


def _machine(machine: Mapping[str, Any]) -> Table:
    """A machine that is not here, with where its values are from."""
    title = f"{machine['name']}: {machine['processors']} processors on each host"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2), header_style="dim")
    table.add_column("")
    table.add_column("value", no_wrap=True)
    table.add_column("source", overflow="fold")
    for key, value in machine["values"].items():
        table.add_row(key, value["given"], value["source"] or "not stated")
    return table


def _estimates(plan: Plan, shown: Sequence[Candidate]) -> Table:
    title = f"{_steps(plan.steps)} per epoch"
    title += f"; estimated from {_steps(plan.sampled_steps, 'sampled ')}" if plan.sampled_steps else ""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0))
    table.header_style = "dim"
    unit, scale, digits = ("seconds", 1.0, 2) if plan.best.epoch.total >= 1 else ("ms", 1000.0, 1)

    def show(seconds: float) -> str:
        return f"{scale * seconds:,.{digits}f}"

    columns: dict[str, Callable[[Candidate], str | Text]] = {unit: lambda one: show(one.epoch.total)}
    for stage in STAGES:
        columns["grads" if stage == "gradients" else stage] = partial(_stage, plan, stage, show)
    columns["sent"] = lambda one: format_bytes(sum(one.epoch_bytes.values())) if one.exact else "-"
    if far := any(one.epoch_links.get("other_host") for one in shown):
        columns["to hosts"] = lambda one: format_bytes(one.epoch_links.get("other_host", 0)) if one.exact else "-"
    if elsewhere := any(one.epoch_rows.get(where) for one in shown for where in ("files", "hosts")):
        for where in ("memory", "files", "hosts"):
            columns[f"from {where}"] = partial(_rows_from, where)
    columns["memory"] = lambda one: format_bytes(one.memory_bytes)
    if tried := any(one.tried_steps for one in shown):
        columns["trial steps"] = lambda one: str(one.tried_steps or "-")
    table.add_column("strategy", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for one in (*shown, *plan.approximate):
        name = one.name if one.exact else f"{one.name} *"
        table.add_row(name, *(of(one) for of in columns.values()), style=None if one.exact else "dim")
    left = len(plan.candidates) - len(shown)
    notes = {
        "bold: the main reason it is slower than the best": len(shown) > 1,
        "to hosts: approximate share that is sent to other hosts": far,
        "from memory, files, hosts: input rows by where workers get them": elsewhere,
        f"trial steps: steps actually run; the estimates of others are off by some {plan.error or 0:.0%}": tried,
        _APPROXIMATE: plan.approximate,
        f"{left:,} slower strategies not shown; --all shows them": left,
    }
    said = [note for note, needed in notes.items() if needed]
    table.caption, table.caption_justify = "\n".join([*said, *plan.notes]), "left"
    return table


def _rows_from(where: str, one: Candidate) -> str:
    """Bytes of input rows that workers get from somewhere in an epoch."""
    return format_bytes(found) if (found := one.epoch_rows.get(where)) and one.exact else "-"


def _steps(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}step{'' if count == 1 else 's'}"


def _stage(plan: Plan, stage: str, show: Callable[[float], str], one: Candidate) -> Text:
    """Seconds of a stage; bold where it is the main reason that a strategy is slower than the best."""
    spent, of_best = one.epoch.to_json(), plan.best.epoch.to_json()
    worst = max(STAGES, key=lambda name: spent[name] - of_best[name])
    bold = one.exact and one is not plan.best and stage == worst
    return Text(show(spent[stage]) if spent[stage] and one.exact else "-", style="bold yellow" if bold else "")


def _refusals(plan: Plan) -> Table:
    reasons: dict[str, list[str]] = {}
    for strategy, reason in plan.refused.items():
        reasons.setdefault(reason, []).append(strategy)
    table = Table(title="Not applicable", title_justify="left", title_style="bold", box=None, padding=(0, 2))
    table.show_header = False
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for reason, strategies in reasons.items():
        table.add_row(strategies[0] if len(strategies) == 1 else f"{len(strategies)} strategies", reason)
    return table


def _epoch_cells(event: Mapping[str, Any], epochs: int, metric: str) -> dict[str, str]:
    """Of a finished epoch: loss, validation loss, the metric that picks the best model, the rate, and about how long
    the other epochs will take, without what comes between them."""
    names = ["loss", *dict.fromkeys(name for name in ("val_loss", f"val_{metric}") if name in event)]
    left = (epochs - event["epoch"] - 1) * event.get("seconds", 0.0)
    return {
        "epoch": f"{event['epoch'] + 1:>{len(str(epochs))}}/{epochs}",
        **{metric_label(name): f"{event[name]:.4f}" for name in names},
        "seeds/s": format_count(event["seeds_per_second"]),
        "left": format_seconds(left) if left >= 1 else "",
    }


def epoch_line(event: Mapping[str, Any], epochs: int, metric: str) -> str:
    """One line about a finished epoch, for a log."""
    cells = _epoch_cells(event, epochs, metric)
    rate, left = cells.pop("seeds/s"), cells.pop("left")
    shown = [f"{name} {cell}" for name, cell in cells.items()]
    return "  ".join([*shown, f"{rate} seeds/s", *([f"{left} left"] if left else [])])


class RunDisplay:
    """What a run says while it trains: on a terminal a table that grows by a row an epoch, elsewhere lines.

    Args:
        console: where.
        epochs: of the run.
        metric: that picks the best model.
    """

    def __init__(self, console: Console, epochs: int, metric: str) -> None:
        self._console, self._epochs, self._metric = console, epochs, metric
        self._columns: dict[str, int] = {}

    def show(self, event: Mapping[str, Any]) -> None:
        """Show an event, if it is one for people."""
        kind = event["event"]
        if kind == "epoch" and self._console.is_terminal:
            self._row(_epoch_cells(event, self._epochs, self._metric))
        elif kind == "epoch":
            self._say(epoch_line(event, self._epochs, self._metric))
        elif kind in ("note", "plan", "strategy"):
            self._say(str(event["text"]))
        elif kind == "warning":
            self._say(f"warning: {event['text']}")
        elif kind == "switch" and event["reason"] == "deficit":
            lost = f"{event['deficit']:.0%} of in-neighbors are outside the partition"
            self._say(f"round {event['round'] + 1} ends early: {lost}")

    def _row(self, cells: Mapping[str, str]) -> None:
        if not cells.keys() <= self._columns.keys():  # the first row, or the first one with validation
            self._columns = {name: max(len(name), len(cell), 8) + 2 for name, cell in cells.items()}
            head = "".join(f"{name:>{width}}" for name, width in self._columns.items())
            self._console.print(Text(head, style="dim"))
        row = "".join(f"{cells.get(name, '-'):>{width}}" for name, width in self._columns.items())
        self._say(row)

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False)


_MOST_CLASSES_SHOWN = 8


def _balance(train: Mapping[str, Any]) -> str:
    """Training nodes of each class, the largest ones first."""
    order = sorted(zip(train["nodes"], train["classes"], strict=True), key=lambda one: -one[0])
    shown = [f"{name} {nodes:,}" for nodes, name in order[:_MOST_CLASSES_SHOWN]]
    left = len(order) - len(shown)
    return "  ".join([*shown, *([f"and {left} more"] if left else [])]) + " (training nodes)"


def run_table(record: Mapping[str, Any]) -> Table:
    """The summary at the end of a run, from ``run.json``."""
    pairs = {"status": record["status"] + (" (stopped early)" if record["early_stopped"] else "")}
    best = record["best"]
    if best:
        pairs["best epoch"] = f"{best['epoch']} (validation {metric_label(best['metric'])} {best['value']:.4f})"
    for split, metrics in record["metrics"].items():
        pairs[split] = "  ".join(f"{metric_label(name)} {value:.4f}" for name, value in metrics.items())
    baseline = record.get("baseline")
    if baseline:
        prediction, metrics = baseline["prediction"], baseline["metrics"]
        always = f"{prediction:.6g}" if isinstance(prediction, float) else repr(str(prediction))
        for split in list(metrics)[-1:]:
            shown = (f"{metric_label(name)} {value:.4f}" for name, value in metrics[split].items())
            pairs["baseline"] = f"always {always} on {split}: {'  '.join(shown)}"
        if "train" in baseline:
            pairs["class balance"] = _balance(baseline["train"])
    if record.get("learning_rate") is not None:
        pairs["learning rate"] = f"{record['learning_rate']:.3g} at the end"
    plan = record.get("plan")
    if plan:
        estimated, measured = plan["estimated_epoch_seconds"], plan.get("measured_epoch_seconds", {})
        for name, label in {"total": f"epoch ({plan['strategy']})", **STAGES}.items():
            if measured.get(name) or estimated.get(name):
                expected = f", estimated {1000 * estimated[name]:,.1f}" if name in estimated else ""
                pairs[label] = f"{1000 * measured.get(name, 0.0):,.1f} ms{expected}"
    if wall := _wall_seconds(record):
        pairs["wall time"] = format_seconds(wall)
    spent = {name: f"{value:.1f}" for name, value in record["stage_seconds"].items()}
    pairs["seconds"] = "  ".join(f"{stage_label(name)} {value}" for name, value in spent.items() if value != "0.0")
    ahead = [
        f"{stage_label(name)} {stage['seconds']:.1f} s ({stage['items']:,} batches, "
        f"{stage['waiting']:.1f} queued on average)"
        for name, stage in (record.get("pipeline") or {}).items()
    ]
    if ahead:
        pairs["prefetch"] = "  ".join(ahead)
    counts = record["counts"]
    if counts:
        pairs["sampled edges"] = f"{counts['sampled_edges']:,}"
        pairs["feature rows read"] = f"{counts['input_rows_read']:,} distinct, {counts['row_reads']:,} in total"
    if reads := record.get("feature_reads"):
        pairs["of other hosts" if reads[0].get("source") == "hosts" else "from disk"] = _known_ahead("feature", reads)
    if reads := record.get("edge_reads"):
        pairs["edges"] = _edges_read(reads)
    if reads := record.get("learnt_reads"):
        pairs["learnt rows"] = _known_ahead("learnt", reads)
    views = record.get("views")
    if views:
        waited = sum(times["waited"] for times in views["loading"])
        loaded = sum(times["views"] for times in views["loading"])
        pairs["partitions"] = (
            f"{loaded:,} loaded (schedule {views['schedule']}, {views['parts']} in all), waited {waited:.1f} s"
        )
    traffic = record.get("traffic_bytes")
    if traffic:
        parts = [f"{kind} {format_bytes(sent)}" for kind, sent in traffic.items() if kind != "evaluation" and sent]
        moved = sum(traffic["evaluation"].values())
        pairs["between workers"] = "  ".join([*parts, *([f"evaluation {format_bytes(moved)}"] if moved else [])])
    pairs["peak memory"] = format_bytes(record["peak_memory_bytes"])
    return pairs_table("Run", {name: value for name, value in pairs.items() if value})


def seeds_table(summary: Mapping[str, Any]) -> Table:
    """Metrics of several runs, from ``summary.json``: a line per run, then mean and standard deviation."""
    columns = [(split, name) for split, metrics in summary["metrics"].items() for name in metrics]
    table = Table(title="Runs", title_justify="left", title_style="bold", box=None, padding=(0, 1))
    for header in ("run", "best epoch", *(f"{split} {metric_label(name)}" for split, name in columns)):
        table.add_column(header, justify="left" if header == "run" else "right", header_style="dim")
    for run in summary["runs"]:
        values = [run["metrics"].get(split, {}).get(name) for split, name in columns]
        cells = ["-" if value is None else f"{value:.4f}" for value in values]
        table.add_row(run["run"], "-" if run["best_epoch"] is None else str(run["best_epoch"]), *cells)
    for row, key in (("mean", "mean"), ("deviation", "deviation")):
        values = [summary["metrics"][split][name][key] for split, name in columns]
        table.add_row(row, "", *("-" if value is None else f"{value:.4f}" for value in values), style="bold")
    return table


def _wall_seconds(record: Mapping[str, Any]) -> float:
    """From the start of a run to its end; 0 where that is not known, or where it was interrupted in between."""
    if record.get("resumed") or not (record.get("started") and record.get("ended")):
        return 0.0
    return (datetime.fromisoformat(record["ended"]) - datetime.fromisoformat(record["started"])).total_seconds()


def _edges_read(reads: list[dict[str, Any]]) -> str:
    """What all workers have read of edges in files."""
    asked, kept, count, size = (sum(each[name] for each in reads) for name in ("asked", "kept", "reads", "bytes"))
    return f"{kept / max(1, asked):.0%} of those looked at were in memory; {format_bytes(size)} in {count:,} reads"


def _known_ahead(rows: str, reads: list[dict[str, Any]]) -> str:
    """What all workers have kept of rows that come and go, by what they knew ahead, and read of files."""
    names = ("asked", "kept", "lru_kept", "reads", "bytes")
    asked, kept, lru, count, size = (sum(each.get(name, 0) for each in reads) for name in names)
    known = f"{kept / max(1, asked):.0%} of {rows} rows were in memory (least recently used: {lru / max(1, asked):.0%})"
    window = f"look ahead {reads[0]['look_ahead']:,} batches"
    if reads[0].get("source") == "hosts":
        return f"{known}; {window}"
    return f"{known}; {format_bytes(size)} in {count:,} reads ({window})"
