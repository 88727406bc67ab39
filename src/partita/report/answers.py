"""What a model answers: plots and tables of ``analysis.json``, of one run on one split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import cycle, pairwise
from typing import Any

from partita.report.figures import COLORS, Data, Figure
from partita.report.labels import metric_label
from partita.report.records import RunFiles
from partita.report.tables import Table
from partita.report.text import count, percent, score, short_name

BLUES = [[0.0, "rgba(59,130,196,0)"], [1.0, "rgba(59,130,196,0.9)"]]
"""From nothing to blue, on any ground."""
SPLITS, ALL = ("train", "val", "test"), "all"
"""The split of all nodes that have a label."""
MOST_COLORS = 12
"""Classes that have a color of their own in the map of embeddings."""
MOST_NUMBERED = 12
"""Classes of a confusion matrix whose cells bear numbers."""


def confusion(run: RunFiles) -> Figure | None:
    """Nodes by true and by predicted class."""
    found = run.answers.get("confusion")
    if not found:
        return None
    counts, names = found["counts"], list(found["classes"])
    if found["others"]:
        names.append(f"{found['others']:,} others")
    number = len(names)
    ticks = {"tickmode": "array", "tickvals": list(range(number)), "ticktext": [short_name(name) for name in names]}
    data: Data = {
        "type": "heatmap",
        "z": [[each / max(1, sum(row)) for each in row] for row in counts],
        "zmin": 0,
        "zmax": 1,
        "colorscale": BLUES,
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "customdata": [
            [[names[true], names[said], each] for said, each in enumerate(row)] for true, row in enumerate(counts)
        ],
        "hovertemplate": "true %{customdata[0]}<br>predicted %{customdata[1]}<br>%{customdata[2]:,} nodes, %{z:.1%} of "
        "the true class<extra></extra>",
    }
    if number <= MOST_NUMBERED:
        data |= {"text": [[f"{each:,}" if each else "" for each in row] for row in counts], "texttemplate": "%{text}"}
    note = "Rows: true class; columns: predicted class. Color: share of the true class."
    if found["others"]:
        note += f" The {number - 1} most frequent classes; all others are one row and one column."
    layout = {
        "xaxis": {"title": {"text": "predicted"}, "side": "bottom", "showgrid": False, "zeroline": False, **ticks},
        "yaxis": {"title": {"text": "true"}, "autorange": "reversed", "showgrid": False, "zeroline": False, **ticks},
    }
    return Figure("Confusion matrix", note, [data], layout, 170 + max(20, 34 - number // 2) * max(number, 3))


def confused(run: RunFiles) -> Table | None:
    """The pairs of classes that are taken for one another most often."""
    pairs = run.answers.get("confused")
    if not pairs:
        return None
    rows = [
        [pair["true"], pair["predicted"], f"{pair['nodes']:,}", percent(pair["nodes"] / max(1, pair["of"])),
         ", ".join(f"{name} ({sure:.2f})" for name, sure in zip(pair["examples"], pair["confidence"]))]
        for pair in pairs
    ]  # fmt: skip
    note = "Examples: ids of the nodes that the model got wrong with the highest probability (in brackets)."
    head = ["true class", "predicted class", "nodes", "of the true class", "examples"]
    return Table("Most confused classes", head, rows, note, long=True)


def by_degree(run: RunFiles) -> Figure | None:
    """How good answers are by in-degree."""
    found = run.answers.get("by_degree")
    if not found or len(found["nodes"]) < 2:
        return None
    names = [
        f"{first:,}" if first == last else f"{first:,}-{last:,}" for first, last in zip(found["from"], found["to"])
    ]
    title, value, values = "accuracy", "Accuracy", [s / n for s, n in zip(found["sum"], found["nodes"])]
    if run.answers["kind"] == "values":
        title, value = "mean absolute error", "Error"
    elif "wrong" in found:
        title, value = "micro-F1", "Micro-F1"
        values = [2 * hits / max(1.0, 2 * hits + wrong) for hits, wrong in zip(found["sum"], found["wrong"])]
    return _bars(f"{value} by in-degree", title, "in-degree", names, values, found["nodes"])


def by_time(run: RunFiles) -> list[Figure]:
    """How good answers are by the time of the question, and what was expected beside what came; of all splits."""
    splits = {name: of["by_time"] for name, of in run.analysis.get("splits", {}).items() if of.get("by_time")}
    splits = {name: splits[name] for name in sorted(splits, key=lambda name: (*SPLITS, name).index(name))}
    if ALL in splits:  # whose nodes are those of the others
        splits = {ALL: splits[ALL]}
    every = [each for found in splits.values() for each in found]
    names = sorted({each["time"] for each in every}, key=_as_number)
    if len(names) < 2:
        return []
    metric = next(name for name in (*run.metrics, "loss") if any(each.get(name) is not None for each in every))
    label, axis = metric_label(metric), {"title": {"text": "asked at"}, "type": "category", "categoryarray": names}
    bars: list[Data] = [
        {
            "type": "bar", "name": split, "x": [each["time"] for each in found],
            "y": [each.get(metric) for each in found], "marker": {"color": color},
            "text": [_thousands(each["nodes"]) for each in found], "textposition": "outside", "cliponaxis": False,
            "customdata": [each["nodes"] for each in found],
            "hovertemplate": "%{x}: %{y:.4f} of %{customdata:,} nodes<extra>%{fullData.name}</extra>",
        }
        for (split, found), color in zip(splits.items(), cycle(COLORS))
    ]  # fmt: skip
    layout = {"showlegend": len(splits) > 1, "yaxis": {"title": {"text": label}, "rangemode": "tozero"}, "xaxis": axis}
    figures = [Figure(f"{label} by time", "Above the bars: number of nodes.", bars, layout)]
    if all("share" in each for each in every):
        of_values = run.answers.get("kind") == "values"
        what = "mean value" if of_values else f"share of '{run.answers['confusion']['classes'][1]}'"
        in_order = sorted(every, key=lambda each: _as_number(each["time"]))
        lines: list[Data] = [
            {
                "type": "scatter", "mode": "lines+markers", "name": name, "line": {"color": color, "width": 2},
                "x": [each["time"] for each in in_order], "y": [each[key] for each in in_order],
                "hovertemplate": "%{x}: %{y:.4f}<extra>%{fullData.name}</extra>",
            }
            for name, key, color in (("known", "share", COLORS[1]), ("predicted", "expected", COLORS[0]))
        ]  # fmt: skip
        layout = {"showlegend": True, "yaxis": {"title": {"text": what}, "rangemode": "tozero"}, "xaxis": axis}
        note = "Where the lines part, what the model learned no longer holds."
        figures.append(Figure(f"Known and predicted {what} by time", note, lines, layout))
    return figures


def _as_number(name: str) -> tuple[float, str]:
    """Numbers in their order; dates as text is."""
    try:
        return float(name), name
    except ValueError:
        return 0.0, name


def by_homophily(run: RunFiles) -> Figure | None:
    """How good answers are by the share of neighbors of the same class."""
    found = run.answers.get("by_homophily")
    if not found or not sum(found["nodes"]):
        return None
    number = found["bins"]
    names = [f"{place / number:.0%}-{(place + 1) / number:.0%}" for place in range(number)]
    nodes, correct = list(found["nodes"]), list(found["correct"])
    if found["unknown"]["nodes"]:
        names.append("no labels")
        nodes.append(found["unknown"]["nodes"])
        correct.append(found["unknown"]["correct"])
    kept = [place for place, each in enumerate(nodes) if each]
    figure = _bars(
        "Accuracy by homophily", "accuracy", "in-neighbors of the node's class", [names[place] for place in kept],
        [correct[place] / nodes[place] for place in kept], [nodes[place] for place in kept],
    )  # fmt: skip
    note = f"Share of labeled in-neighbors that have the class of the node itself. {figure.note}"
    return Figure(figure.title, note, figure.data, figure.layout)


def _bars(
    title: str, of: str, over: str, names: Sequence[str], values: Sequence[float], nodes: Sequence[int]
) -> Figure:
    data: Data = {
        "type": "bar", "x": list(names), "y": list(values), "marker": {"color": COLORS[0]},
        "text": [_thousands(each) for each in nodes], "textposition": "outside", "cliponaxis": False,
        "customdata": list(nodes), "hovertemplate": "%{x}: %{y:.4f} of %{customdata:,} nodes<extra></extra>",
    }  # fmt: skip
    layout = {
        "showlegend": False, "yaxis": {"title": {"text": of}, "rangemode": "tozero"},
        "xaxis": {"title": {"text": over}, "type": "category"}, "margin": {"t": 25},
    }  # fmt: skip
    return Figure(title, "Above the bars: number of nodes.", [data], layout)


def _thousands(number: int) -> str:
    return f"{number:,}" if number < 10_000 else f"{number / 1000:,.0f}k"


def calibration(run: RunFiles) -> list[Figure]:
    """Whether probabilities hold, and how they are spread."""
    found = run.answers.get("calibration")
    if not found:
        return []
    of_labels = run.answers["kind"] == "labels"
    bins, counts, correct = found["bins"], found["counts"], found["correct"]
    kept = [place for place, each in enumerate(counts) if each]
    reliability: Data = {
        "type": "scatter", "mode": "lines+markers", "name": "model", "line": {"color": COLORS[0], "width": 2},
        "x": [found["confidence"][place] / counts[place] for place in kept],
        "y": [correct[place] / counts[place] for place in kept],
        "customdata": [counts[place] for place in kept],
        "hovertemplate": "probability %{x:.3f}, share %{y:.3f}, %{customdata:,} predictions<extra></extra>",
    }  # fmt: skip
    diagonal = _diagonal(0.0, 1.0, "perfectly calibrated")
    what = "labels that hold" if of_labels else "correct predictions"
    note = f"On the diagonal, probabilities are right. Expected calibration error: {found['expected_error']:.4f}."
    axes = {
        "xaxis": {"title": {"text": "predicted probability"}, "range": [0, 1.02]},
        "yaxis": {"title": {"text": f"share of {what}"}, "range": [0, 1.04]},
    }
    middle = [(place + 0.5) / bins for place in range(bins)]
    pieces = (
        (("the label holds", correct, COLORS[0]), ("it does not", None, COLORS[9]))
        if of_labels
        else (("correct", correct, COLORS[0]), ("wrong", None, COLORS[1]))
    )
    bars = [
        {
            "type": "bar", "name": name, "x": middle, "marker": {"color": color}, "width": 0.94 / bins,
            "y": given or [each - right for each, right in zip(counts, correct)],
            "hovertemplate": "%{x:.3f}: %{y:,}<extra>%{fullData.name}</extra>",
        }
        for name, given, color in pieces
    ]  # fmt: skip
    layout = {
        "barmode": "stack", "showlegend": True, "yaxis": {"title": {"text": "labels" if of_labels else "nodes"}},
        "xaxis": {"title": {"text": "predicted probability"}, "range": [0, 1]},
    }  # fmt: skip
    says = "Probabilities of all labels of all nodes." if of_labels else "Probability of the predicted class."
    return [
        Figure("Calibration", note, [diagonal, reliability], axes),
        Figure("Confidence", says, bars, layout),
    ]


def curves_of_two(run: RunFiles) -> list[Figure]:
    """ROC and precision-recall, of two classes."""
    found = run.answers.get("curve")
    if not found:
        return []
    positive = run.answers["confusion"]["classes"][1]
    hover = "threshold %{customdata:.4f}: %{x:.3f}, %{y:.3f}<extra></extra>"

    def line(x: list[float], y: list[float], threshold: list[float]) -> Data:
        shown = {"color": COLORS[0], "width": 2}
        return {
            "type": "scatter", "mode": "lines", "name": "model", "x": x, "y": y, "line": shown,
            "customdata": threshold, "hovertemplate": hover,
        }  # fmt: skip

    true, false, threshold = found["true_positive_rate"], found["false_positive_rate"], found["threshold"]
    roc = line([0.0, *false], [0.0, *true], [1.0, *threshold])
    sides = {"range": [0, 1.02]}
    return [
        Figure(
            "ROC curve", f"Positive: class {positive}.", [_diagonal(0.0, 1.0, "chance"), roc],
            {"xaxis": {"title": {"text": "false positive rate"}, **sides},
             "yaxis": {"title": {"text": "true positive rate"}, **sides}},
        ),
        Figure(
            "Precision and recall", f"Positive: class {positive}.", [line(true, found["precision"], threshold)],
            {"xaxis": {"title": {"text": "recall"}, **sides}, "yaxis": {"title": {"text": "precision"}, **sides},
             "showlegend": False},
        ),
    ]  # fmt: skip


def values(run: RunFiles) -> list[Figure | Table]:
    """Of a regression: predicted against true values, residuals, and the nodes that are farthest off."""
    if run.answers.get("kind") != "values":
        return []
    points, histogram = run.answers["points"], run.answers["residuals"]
    low, high = min(*points["true"], *points["predicted"]), max(*points["true"], *points["predicted"])
    scatter: Data = {
        "type": "scatter", "mode": "markers", "name": "nodes", "x": points["true"], "y": points["predicted"],
        "marker": {"color": COLORS[0], "size": 5, "opacity": 0.55},
        "customdata": points["nodes"] or list(range(len(points["true"]))),
        "hovertemplate": "node %{customdata}: true %{x:.5~g}, predicted %{y:.5~g}<extra></extra>",
    }  # fmt: skip
    number = run.answers["nodes"]
    shown = len(points["true"])
    note = "All nodes." if shown == number else f"A sample of {shown:,} of {number:,} nodes."
    if run.answers.get("r2") is not None:
        note += f" R² of all: {run.answers['r2']:.4f}."
    edges = histogram["edges"]
    outside = histogram["below"] + histogram["above"]
    bars: Data = {
        "type": "bar", "marker": {"color": COLORS[0]}, "y": histogram["counts"],
        "x": [(first + last) / 2 for first, last in pairwise(edges)],
        "width": [0.95 * (last - first) for first, last in pairwise(edges)],
        "hovertemplate": "%{x:.4~g}: %{y:,} nodes<extra></extra>",
    }  # fmt: skip
    said = f"Predicted minus true. Mean: {run.answers['bias']:.4g}."
    if outside:
        said += f" {count(outside, 'node')} farther out not shown."
    titled = {"xaxis": {"title": {"text": "residual"}}, "yaxis": {"title": {"text": "nodes"}}, "showlegend": False}
    found: list[Figure | Table] = [
        Figure(
            "Predicted and true values", note, [_diagonal(low, high, "equal"), scatter],
            {"xaxis": {"title": {"text": "true"}}, "yaxis": {"title": {"text": "predicted"}}}, 420,
        ),
        Figure("Residuals", said, [bars], titled),
    ]  # fmt: skip
    worst = run.answers.get("worst")
    if worst:
        rows = [
            [name, f"{true:.6g}", f"{predicted:.6g}", f"{predicted - true:+.4g}"]
            for name, true, predicted in zip(worst["nodes"], worst["true"], worst["predicted"])
        ]
        found.append(Table("Largest errors", ["node", "true", "predicted", "residual"], rows, long=True))
    return found


def embeddings(run: RunFiles) -> list[Figure]:
    """The sample's embeddings in the plane of their first two principal components, and as UMAP lays them out."""
    found = run.answers.get("map")
    if not found or len(found["variance"]) < 2:
        return []
    of = "outputs of the model" if found["of"] == "outputs" else "inputs of the last layer"
    number = count(len(found["nodes"]), f"{run.shown_split} node")
    first, second = (percent(share) for share in found["variance"][:2])
    note = f"{number}: principal components of the {found['width']:,} {of}"
    marked = " Crosses: wrong predictions." if "correct" in found and not all(found["correct"]) else ""
    axes = {
        "xaxis": {"title": {"text": f"component 1 ({first} of variance)"}},
        "yaxis": {"title": {"text": f"component 2 ({second})"}},
    }
    plane = [row[:2] for row in found["components"]]
    figures = [Figure("Embeddings (PCA)", f"{note}.{marked}", _points(found, plane), axes, 460)]
    laid = _umap(found["components"])
    if laid is not None:
        said = f"{number}, laid out by UMAP from {len(found['variance'])} principal components.{marked}"
        axes = {"xaxis": {"title": {"text": "UMAP 1"}}, "yaxis": {"title": {"text": "UMAP 2"}}}
        figures.append(Figure("Embeddings (UMAP)", said, _points(found, laid), axes, 460))
    return figures


def _umap(rows: list[list[float]]) -> list[list[float]] | None:
    """Two coordinates of every row; ``None`` where UMAP is not installed, or there are too few rows."""
    if len(rows) < 20:
        return None
    try:
        from umap import UMAP
    except ImportError:
        return None
    import numpy as np

    laid = UMAP(n_components=2, random_state=0, n_jobs=1).fit_transform(np.asarray(rows, dtype=np.float32))
    return [[float(f"{each:.5g}") for each in row] for row in laid]


def _points(found: dict[str, Any], plane: Sequence[Sequence[float]]) -> list[Data]:
    labels, nodes = found["labels"], found["nodes"]
    right = found.get("correct", [1] * len(nodes))
    if labels and not isinstance(labels[0], str):
        marker = {
            "size": 6, "opacity": 0.75, "color": labels, "colorscale": "Viridis", "showscale": True,
            "colorbar": {"thickness": 12, "title": {"text": "true"}},
        }  # fmt: skip
        return [_of_points("nodes", range(len(nodes)), plane, nodes, labels, marker)]
    often = [name for name, _ in Counter(labels).most_common(MOST_COLORS)]
    names = [*sorted(often, key=_natural), *(["other classes"] if len(set(labels)) > len(often) else [])]
    data = []
    for name, color in zip(names, (*COLORS[:9], "#4fb0e8", "#b8860b", "#9467bd", COLORS[9])):
        own = [
            place
            for place, label in enumerate(labels)
            if (label == name or (name == "other classes" and label not in often))
        ]
        own.sort(key=lambda place: -right[place])  # the legend shows the first one
        marker = {
            "size": 6, "opacity": 0.75, "color": color,
            "symbol": ["circle" if right[place] else "x-thin" for place in own],
            "line": {"width": [0 if right[place] else 1.5 for place in own], "color": color},
        }  # fmt: skip
        data.append(_of_points(short_name(name, 30), own, plane, nodes, labels, marker))
    return data


def _of_points(
    name: str, own: Sequence[int], plane: Sequence[Sequence[float]], nodes: list[str], labels: list[Any], marker: Data
) -> Data:
    return {
        "type": "scatter", "mode": "markers", "name": name, "marker": marker,
        "x": [plane[place][0] for place in own], "y": [plane[place][1] for place in own],
        "customdata": [[nodes[place], labels[place]] for place in own],
        "hovertemplate": "node %{customdata[0]}: %{customdata[1]}<extra></extra>",
    }  # fmt: skip


def _natural(name: str) -> tuple[int, float, str]:
    """Numbers in order of their values, before other names."""
    return (0, float(name), "") if name.lstrip("-").isdecimal() else (1, 0.0, name)


def balance(run: RunFiles) -> Figure | None:
    """Classes, or values, of the nodes of every split."""
    found = run.analysis.get("labels")
    if not found:
        return None
    splits = {split: counts for split, counts in found["splits"].items() if sum(counts)}
    if not splits:
        return None
    of_values = found["kind"] == "values"
    names = [] if of_values else [short_name(name) for name in found["names"]]
    if not of_values and found["others"]:
        names.append(f"{found['others']:,} others")
    data = []
    for (split, counts), color in zip(splits.items(), cycle(COLORS)):
        shares = [each / sum(counts) for each in counts]
        trace: Data = {
            "name": split, "y": shares, "customdata": counts,
            "hovertemplate": "%{x}: %{customdata:,} nodes (%{y:.1%})<extra>%{fullData.name}</extra>",
        }  # fmt: skip
        if of_values:
            edges = found["edges"]
            x = [(first + last) / 2 for first, last in pairwise(edges)]
            trace |= {"type": "scatter", "mode": "lines", "x": x, "line": {"color": color, "shape": "hvh", "width": 2}}
        else:
            trace |= {"type": "bar", "x": list(range(len(names))), "marker": {"color": color}}
        data.append(trace)
    number = ", ".join(f"{split} {sum(counts):,}" for split, counts in splits.items())
    axis: Data = {"title": {"text": "value" if of_values else ""}}
    if not of_values:
        axis |= {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": names}
    layout = {
        "barmode": "group", "showlegend": True, "xaxis": axis,
        "yaxis": {"title": {"text": "share of the split"}, "tickformat": ".0%", "rangemode": "tozero"},
    }  # fmt: skip
    title = "Target values by split" if of_values else "Class balance by split"
    what = "Labels" if of_values or run.answers.get("kind") != "labels" else "Labels held"
    return Figure(title, f"{what}: {number}.", data, layout)


def _diagonal(low: float, high: float, name: str) -> Data:
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": [low, high], "y": [low, high], "hoverinfo": "skip",
        "line": {"color": COLORS[9], "dash": "dash", "width": 1.5},
    }  # fmt: skip


def metrics(run: RunFiles) -> Table | None:
    """Metrics of the splits beside those of the baseline."""
    reached = run.record.get("metrics", {})
    base = {split: of.get("baseline") for split, of in run.analysis.get("splits", {}).items()}
    if not reached or not any(base.values()):
        return None
    rows = [
        [f"{split} {metric_label(name)}", score(value), score(((base.get(split) or {}).get("metrics") or {}).get(name))]
        for split, of in reached.items()
        for name, value in of.items()
    ]
    rule = next(each["rule"] for each in base.values() if each)
    return Table("Metrics", ["", "model", "baseline"], rows, f"Baseline: {rule}.")
