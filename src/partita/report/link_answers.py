"""What a model of links answers: plots and tables of ``analysis.json``, of one run on one split."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from partita.report.figures import COLORS, Data, Figure
from partita.report.labels import metric_label
from partita.report.records import RunFiles
from partita.report.tables import Table
from partita.report.text import count, percent, score

_OF_RELATIONS = ("mrr", "hits@1", "hits@3", "hits@10")


def _found(run: RunFiles) -> dict[str, Any]:
    return run.answers if "ranks" in run.answers else {}


def metrics(run: RunFiles) -> Table | None:
    """Metrics of every split."""
    reached = run.record.get("metrics", {})
    if not _found(run) or not reached:
        return None
    names = list(dict.fromkeys(name for of in reached.values() for name in of))
    rows = [[split, *(score(of.get(name)) for name in names)] for split, of in reached.items()]
    candidates = _found(run).get("candidates", "all")
    among = "all nodes" if candidates == "all" else f"{candidates:,} sampled nodes"
    ends = "both ends" if len(_found(run)["ranks"]) > 2 else "an end"
    note = f"MRR and Hits@k: of {ends} of every edge, among {among} of their type that make no other known edge."
    if any(of.get("auc") is not None for of in reached.values()):
        note += " AUC and AP: beside as many random pairs that are no edges."
    return Table("Metrics", ["", *map(metric_label, names)], rows, note)


def ranks(run: RunFiles) -> Figure | None:
    """How many edges have which rank."""
    found = _found(run).get("ranks")
    if not found:
        return None
    number, bounds = run.answers["edges"], found["up_to"]
    firsts = [1, *(bound + 1 for bound in bounds[:-1])]
    names = [
        f"{_brief(last)}" if first == last else f"{_brief(first)}-{_brief(last)}"
        for first, last in zip(firsts, bounds, strict=True)
    ]
    data: list[Data] = [
        {
            "type": "bar", "name": f"{'target' if side == 'tails' else 'source'} rank", "x": names,
            "y": [each / number for each in found[side]], "marker": {"color": color}, "customdata": found[side],
            "hovertemplate": "rank %{x}: %{customdata:,} edges (%{y:.1%})<extra>%{fullData.name}</extra>",
        }
        for side, color in zip(("tails", "heads"), COLORS)
        if side in found
    ]  # fmt: skip
    layout = {
        "barmode": "group", "showlegend": True, "xaxis": {"title": {"text": "rank"}, "type": "category"},
        "yaxis": {"title": {"text": "share of the edges"}, "tickformat": ".0%", "rangemode": "tozero"},
    }  # fmt: skip
    note = (
        f"{count(number, 'edge')}. 1: no other node scores higher in place of the true one. Equal scores share a rank."
    )
    return Figure("Ranks", note, data, layout)


def _brief(number: int) -> str:
    """``20000`` -> ``20k``."""
    return f"{number:,}" if number < 10_000 else f"{number / 1000:,.0f}k"


def scores(run: RunFiles) -> Figure | None:
    """Scores of edges beside those of pairs that are none."""
    found = _found(run).get("scores")
    if not found or not sum(found["others"]):
        return None
    edges = found["edges"]
    data: list[Data] = []
    for key, name, color in (("links", "edges", COLORS[0]), ("others", "no edges", COLORS[1])):
        total = max(1, sum(found[key]))
        data.append(
            {
                "type": "bar", "name": name, "x": [(first + last) / 2 for first, last in pairwise(edges)],
                "width": [last - first for first, last in pairwise(edges)], "opacity": 0.6,
                "y": [each / total for each in found[key]], "marker": {"color": color, "line": {"width": 0}},
                "customdata": found[key],
                "hovertemplate": "%{x:.4~g}: %{customdata:,} (%{y:.1%})<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    auc = run.record.get("metrics", {}).get(run.shown_split, {}).get("auc")
    note = "Share of each. The outer bars also hold what lies beyond."
    if auc is not None:
        note = f"An edge scores higher than a random pair that is no edge in {percent(auc)} of cases (AUC). {note}"
    if found["not_finite"]:
        note += f" {count(found['not_finite'], 'score')} not finite."
    layout = {
        "barmode": "overlay", "showlegend": True, "xaxis": {"title": {"text": "score"}},
        "yaxis": {"title": {"text": "share"}, "tickformat": ".0%", "rangemode": "tozero"},
    }  # fmt: skip
    return Figure("Scores", note, data, layout)


def relations(run: RunFiles) -> Table | None:
    """Metrics of every relation."""
    found = _found(run).get("relations")
    if not found:
        return None
    rows = [[of["name"], f"{of['edges']:,}", *(score(of[name]) for name in _OF_RELATIONS)] for of in found]
    note = f"Of {run.shown_split} edges, most first."
    return Table("Ranks by relation", ["relation", "edges", *map(metric_label, _OF_RELATIONS)], rows, note, long=True)


def examples(run: RunFiles) -> list[Table]:
    """The edges that rank worst, and those that rank best, by the users' ids."""
    made = []
    for key, title, note in (
        ("worst", "Worst ranked edges", "Highest sum of ranks."),
        ("best", "Best ranked edges", "Lowest sum of ranks; of equal ones the first."),
    ):
        found = _found(run).get(key)
        if not found:
            continue
        typed = found[0]["relation"] is not None
        rows = [
            [
                of["source"],
                *([of["relation"]] if typed else []),
                of["target"],
                _rank(of["tail_rank"]),
                _rank(of["head_rank"]),
            ]
            for of in found
        ]
        head = ["source", *(["relation"] if typed else []), "target", "target rank", "source rank"]
        made.append(Table(title, head, rows, note, long=True))
    return made


def _rank(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
