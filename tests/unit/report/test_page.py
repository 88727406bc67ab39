"""The page: all in itself, nothing that is not there, and nothing a name could break."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import plotly.graph_objects as go
import pytest

import partita
from partita.core.errors import ConfigError
from partita.core.plan import STAGES
from partita.report import answers, figures, page, tables
from partita.report.cards import baseline, headline
from partita.report.page import write_report
from partita.report.records import read_run, read_runs

PLAN = {
    "strategy": "dnp",
    "estimated_epoch_seconds": {**dict.fromkeys(STAGES, 0.5), "total": 2.5},
    "measured_epoch_seconds": {**dict.fromkeys(STAGES, 0.4), "total": 2.0},
    "candidates": [
        {"name": name, "epoch": {**dict.fromkeys(STAGES, spent), "total": 5 * spent}, "sent_bytes": 2048,
         "memory_bytes": 1 << 20, "tried_steps": 4}
        for name, spent in (("dnp", 0.5), ("gdp", 0.75))
    ],
}  # fmt: skip
WORKERS = [
    {
        "counts": {
            "sampled_edges": 10, "computed_destinations": [70 + rank, 30], "input_rows_read": 90, "row_reads": 95,
            "rows_from": {"cache": 40, "host": 50, "peers": 0, "hosts": 0},
        },
        "traffic_bytes": {"training": {"ids": {"same_host": 2**20, "other_host": 2**21}}},
    }
    for rank in range(2)
]  # fmt: skip
QUALITY = {
    "num_nodes": 10, "num_edges": 30, "num_parts": 2, "empty_parts": 0, "cut_edges": 6, "edge_cut": 0.2,
    "replication_factor": 1.5, "nodes": {"counts": [4, 6], "total": 10, "balance": 1.2},
    "edges_between": [[10, 2], [4, 14]],
}  # fmt: skip


def embedded(html: str, name: str) -> str:
    return re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', html, re.S).group(1)


def contents(html: str) -> list[dict]:
    return json.loads(embedded(html, "figures"))


@pytest.fixture
def full(run, change):
    change(run, plan=PLAN, workers=WORKERS, peak_memory_bytes=3 << 20)
    return run


def test_a_report_of_everything(full, tmp_path) -> None:
    other = shutil.copytree(full, tmp_path / "other")
    (other / "config.yaml").write_text((full / "config.yaml").read_text().replace("hidden: 8", "hidden: 9"))
    out = write_report([full, other], tmp_path / "report.html", partitions={"graph": QUALITY})
    html = out.read_text()
    titles = re.findall("<figcaption>(.*?)</figcaption>", html)
    assert {
        "Loss", "Validation accuracy", "Validation accuracy over time", "Classes: val nodes", "Classes: test nodes",
        "Time per stage", "Thread timeline: run", "Plan: estimated vs. measured: run",
        "Strategies considered: other", "Placement of computation: run", "Rows computed: other",
        "Feature rows read: run", "Communication between workers", "Peak memory", "Settings that differ",
        "Machine and versions", "Settings: run", "Partition: graph", "Balance of graph", "Edges between parts of graph",
        "Runs compared", "Metrics: run", "Confusion matrix: other", "Most confused classes: run",
        "Accuracy by in-degree: run", "Accuracy by homophily: run", "Calibration: run", "Confidence: run",
        "Embeddings (PCA): run", "Class balance by split: run",
    } <= set(titles)  # fmt: skip
    assert len(titles) == len(set(titles))
    plots = contents(html)
    assert len(plots) == html.count('class="plot"')
    for plot in plots:
        go.Figure(**plot)  # refuses what plotly does not know
        assert any(len(trace.get("y", trace.get("z", []))) for trace in plot["data"])


def test_nothing_is_loaded_from_anywhere(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(page, "_plotly", lambda: "PLOTLY")
    html = write_report([run], tmp_path / "report.html").read_text()
    assert "PLOTLY" in html
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", html)
    assert "@import" not in html
    assert "url(" not in html


def test_names_are_shown_as_they_are(run, tmp_path, change) -> None:
    """Whatever a class is called, it does not become part of the page."""
    name = "</script><b>@@STYLE@@ & co"
    record = read_run(run).record
    change(run, classes={**record["classes"], "names": [name, *record["classes"]["names"][1:]]})
    moved = shutil.move(run, tmp_path / "<i>run")
    html = write_report([moved], tmp_path / "report.html").read_text()
    assert "&lt;/script&gt;&lt;b&gt;@@STYLE@@ &amp; co" in html
    assert "<b>" not in html.split("<main>")[1].split("</main>")[0]
    assert "<i>" not in html.split("<main>")[0]
    assert contents(html)[1]["data"][0]["name"] == "&lt;i>run"  # Plotly reads some HTML
    assert json.loads(embedded(html, "numbers"))["runs"][0]["name"] == "<i>run"


def test_a_path_does_not_end_the_script(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(page, "_plotly", lambda: "")
    runs = [shutil.copytree(run, tmp_path / name / "script>run") for name in ("a<", "b<")]
    html = write_report(runs, tmp_path / "report.html").read_text()
    assert contents(html)[0]["data"][0]["name"] == "a&lt;/script>run, training"


def test_what_is_not_known_is_not_shown(run, tmp_path, change) -> None:
    change(run, workers=None, pipeline={}, classes=None)
    (run / "trace.json").unlink()
    (run / "analysis.json").unlink()
    html = write_report([run], tmp_path / "report.html").read_text()
    assert not re.findall(r"""<(?:section|div class="(?:blocks|cards|scroll))[^>]*></""", html)
    absent = [
        "Confusion", "Embeddings", "Calibration", "Class balance", "Rows computed", "Plan", "timeline", "Communication",
        "Classes", "Partition", "worker 0:", "Strategy", "Workers",
    ]  # fmt: skip
    for title in absent:
        assert title not in html.split("<main>")[1].split("</main>")[0]


def test_nothing_to_report(tmp_path) -> None:
    with pytest.raises(ConfigError, match="neither a run nor a store"):
        write_report([], tmp_path / "report.html")


def test_a_directory_that_is_not_there(run, tmp_path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        write_report([run], tmp_path / "no" / "report.html")


def test_without_plotly(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ConfigError, match=r"pip install 'partita\[report\]'"):
        write_report([run], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_report_needs_no_torch() -> None:
    code = "import sys, partita.report.page; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_classes_by_hand() -> None:
    counts = {"nodes": [4, 2, 0], "predicted": [3, 3, 0], "correct": [2, 1, 0]}
    scores = tables._scores(["a", "b", "none"], counts)
    assert scores["a"] == {"nodes": 4, "precision": 2 / 3, "recall": 0.5, "f1": pytest.approx(2 * (1 / 3) / (7 / 6))}
    assert scores["none"] == {"nodes": 0, "precision": None, "recall": None, "f1": None}


def test_classes_agree_with_the_metrics(run) -> None:
    found = read_run(run).record
    for split, metrics in found["metrics"].items():
        scores = tables._scores(found["classes"]["names"], found["classes"][split]).values()
        assert sum(each["f1"] for each in scores) / 3 == pytest.approx(metrics["macro_f1"], abs=1e-6)
        right = sum(found["classes"][split]["correct"]) / sum(found["classes"][split]["nodes"])
        assert right == pytest.approx(metrics["accuracy"])


def test_many_classes_show_the_worst(run, change) -> None:
    many = 60
    counts = {"nodes": [10] * many, "predicted": [10] * many, "correct": [number % 10 for number in range(many)]}
    change(run, classes={"names": [f"c{number}" for number in range(many)], "test": counts})
    (table,) = tables.classes(read_runs([run]))
    assert len(table.rows) == tables.MOST_CLASSES
    assert [row[0] for row in table.rows[:6]] == ["c0", "c10", "c20", "c30", "c40", "c50"]
    assert "of 60 classes" in table.note


def test_widths_of_layers(run) -> None:
    assert ["layer widths", "8 → 8 → 3"] in tables.summary(read_runs([run])).rows


def test_bytes_are_those_of_the_record(full) -> None:
    figure = figures.traffic(read_runs([full]))
    assert {(y, x) for trace in figure.data for y, x in zip(trace["y"], trace["x"])} == {
        ("run, same host", 2.0),
        ("run, other host", 4.0),
    }


def test_rows_are_those_of_the_record(full) -> None:
    computed, read = figures.work(read_run(full))
    assert {trace["name"]: trace["x"] for trace in computed.data} == {"layer 1": [70, 71], "layer 2": [30, 30]}
    assert {trace["name"]: trace["x"] for trace in read.data} == {"cache": [40, 40], "host": [50, 50]}


def test_a_budget_is_marked(full) -> None:
    text = (full / "config.yaml").read_text()
    (full / "config.yaml").write_text(text.replace("memory_per_worker: null", "memory_per_worker: 2097152"))
    used, allowed = figures.memory(read_runs([full])).data
    assert (used["x"], allowed["x"]) == ([3.0], [2.0])


def test_equal_runs_do_not_hide_each_other(run, tmp_path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    figure = next(each for each in figures.curves(read_runs([run, other])) if each.title == "Loss")
    first, second = (trace for trace in figure.data if trace["name"].endswith("training"))
    assert first["line"]["width"] > second["line"]["width"]
    assert "Identical curves: run, training = other, training; run, validation = other, validation." in figure.note
    assert "Identical" not in figures.curves(read_runs([run]))[0].note


def test_headlines(run, change) -> None:
    found = read_run(run)
    cards = {card.label: card for card in headline(found)}
    assert list(cards) == ["Test accuracy", "Baseline accuracy", "Best epoch", "Training time"]
    accuracy = found.record["metrics"]["test"]["accuracy"]
    assert cards["Test accuracy"].value == f"{100 * accuracy:.1f}%"
    base = baseline(found, "test")["metrics"]["accuracy"]
    assert cards["Test accuracy"].mood == ("good" if accuracy > base else "bad")
    train = found.analysis["labels"]["splits"]["train"]
    nodes = found.record["classes"]["test"]["nodes"]
    assert base == pytest.approx(nodes[train.index(max(train))] / sum(nodes))
    (run / "analysis.json").unlink()  # of before
    assert baseline(read_run(run), "test")["metrics"]["accuracy"] == max(nodes) / sum(nodes)
    change(run, status="interrupted")
    assert headline(read_run(run))[0].value == "interrupted"


def test_an_analysis_of_another_checkpoint_is_not_shown(run, change) -> None:
    assert read_run(run).answers
    record = read_run(run).record
    change(run, best={**record["best"], "checkpoint": "epoch-00009-step-000000"})
    assert read_run(run).analysis == {}


def test_numbers_can_be_downloaded(run, tmp_path) -> None:
    html = write_report([run], tmp_path / "report.html", partitions={"graph": QUALITY}).read_text()
    numbers = json.loads(embedded(html, "numbers"))
    assert numbers["runs"][0]["run"]["metrics"] == read_run(run).record["metrics"]
    assert len(numbers["runs"][0]["epochs"]) == 3
    assert numbers["partitions"]["graph"]["edges_between"] == [[10, 2], [4, 14]]
    assert len(html.encode()) < 5.3e6


def test_colors_of_many_classes(run) -> None:
    found = read_run(run)
    points = found.answers["map"]
    points["labels"] = [f"c{place % 40}" for place in range(len(points["labels"]))]
    data = answers._points(points, points["components"])
    assert len(data) == answers.MOST_COLORS + 1
    assert sum(len(trace["x"]) for trace in data) == len(points["labels"])


def test_a_timeline_shows_what_was_traced(run) -> None:
    found = read_run(run)
    figure = figures.timeline(found)
    lanes = {y for trace in figure.data for y in trace["y"]}
    assert {"0: trainer", "0: sample"} <= lanes
    longest = max(base + x for trace in figure.data for base, x in zip(trace["base"], trace["x"]))
    assert 0 < longest < 1000 * sum(epoch["seconds"] for epoch in found.epochs)


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_other_tasks(tmp_path, monkeypatch, task) -> None:
    monkeypatch.setattr(page, "_plotly", lambda: "")
    random = np.random.default_rng(0)
    y = random.random(90).astype(np.float32) if task == "regression" else random.integers(0, 2, (90, 3))
    graph = {"edge_index": random.integers(0, 90, (2, 400)), "x": random.random((90, 4)), "y": y}
    partita.ingest(graph, tmp_path / "graph")
    partita.Trainer(tmp_path / "graph", out=tmp_path / "run", layers=1, fanout=(3,), epochs=2, threads=1).fit()
    html = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert ("Classes: test nodes" in html) == (task == "multilabel")
    assert ("Validation micro-F1" if task == "multilabel" else "Validation MAE") in html
    assert ("Micro-F1 by in-degree" if task == "multilabel" else "Predicted and true values") in html
    assert ("Residuals" in html) == ("Target values by split" in html) == (task == "regression")
    assert "Baseline" in html


def test_types_and_relations_of_the_graph_are_shown(tmp_path):
    partita.generate_typed(tmp_path / "graph", scale=0.001, num_features=8, num_classes=2)
    settings = {"model": "rgcn", "layers": 1, "fanout": (3,), "epochs": 1, "threads": 1}
    partita.Trainer(tmp_path / "graph", out=tmp_path / "run", **settings).fit()
    html = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    for shown in ("Node types", "Relations", "rev_affiliated_to", "4 node types, 8 relations"):
        assert shown in html
    assert "0 features" not in html
