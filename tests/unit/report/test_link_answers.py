"""What a report shows of a run on links."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import plotly.graph_objects as go
import pytest
from typed_graphs import typed_store

import partita
from partita.graph.split_links import split_links
from partita.graph.store import GraphStore
from partita.report import link_answers, tables
from partita.report.cards import headline
from partita.report.page import write_report
from partita.report.records import read_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("links")
    typed_store(folder / "store")
    split_links(GraphStore.open(folder / "store.whole"), folder / "split", val=0.1, test=0.3)
    settings = {"task": "links", "model": "none", "hidden": 4, "negatives": 4, "epochs": 2, "threads": 1}
    partita.Trainer(folder / "split", out=folder / "run", **settings).fit(progress=False)
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_the_page(run, tmp_path) -> None:
    html = write_report([run], tmp_path / "report.html").read_text()
    titles = re.findall("<figcaption>(.*?)</figcaption>", html)
    assert {
        "Loss", "Validation MRR", "Metrics", "Ranks", "Scores", "Ranks by relation", "Worst ranked edges",
        "Best ranked edges",
    } <= set(titles)  # fmt: skip
    assert "Predictions on test edges" in html
    assert "nodes of their type" in html
    assert not {"Confusion matrix", "Class balance by split", "Calibration"} & set(titles)
    text = re.search(r'<script type="application/json" id="figures">(.*?)</script>', html, re.S).group(1)
    for plot in json.loads(text):
        go.Figure(**plot)


def test_what_it_says(run) -> None:
    files = read_run(run)
    found = files.answers
    ranks = link_answers.ranks(files)
    for trace, side in zip(ranks.data, ("tails", "heads"), strict=True):
        assert trace["customdata"] == found["ranks"][side]
        assert sum(trace["y"]) == pytest.approx(1)
    assert ranks.data[0]["x"][:6] == ["1", "2", "3", "4-5", "6-10", "11-20"]
    for trace in link_answers.scores(files).data:
        assert sum(trace["y"]) == pytest.approx(1)
    of_relations = link_answers.relations(files)
    assert of_relations.rows[0][:2] == [found["relations"][0]["name"], f"{found['relations'][0]['edges']:,}"]
    worst, best = link_answers.examples(files)
    assert (worst.title, best.title) == ("Worst ranked edges", "Best ranked edges")
    assert worst.head == ["source", "relation", "target", "target rank", "source rank"]
    assert worst.rows[0][0] == found["worst"][0]["source"]
    metrics = link_answers.metrics(files)
    assert [row[0] for row in metrics.rows] == ["val", "test"]
    assert metrics.head[1:] == ["MRR", "Hits@1", "Hits@3", "Hits@10", "AUC", "AP"]
    assert headline(files)[0].label == "Test MRR"
    assert tables.node_types(files).head[-1] == "learnt row"


def test_an_untyped_graph(run) -> None:
    """Has no relations, and may have no pairs that are no edges."""
    path = run / "analysis.json"
    analysis = json.loads(path.read_text())
    of = analysis["splits"]["test"]
    examples = [{**each, "relation": None} for each in of["worst"]]
    analysis["splits"]["test"] = {**of, "relations": [], "scores": {}, "worst": examples, "best": []}
    path.write_text(json.dumps(analysis))
    files = read_run(run)
    assert link_answers.relations(files) is None
    assert link_answers.scores(files) is None
    (worst,) = link_answers.examples(files)
    assert worst.head == ["source", "target", "target rank", "source rank"]
    assert all(len(row) == 4 for row in worst.rows)


def test_what_is_not_known_is_not_shown(run) -> None:
    (run / "analysis.json").unlink()
    files = read_run(run)
    shown = (link_answers.metrics, link_answers.ranks, link_answers.scores, link_answers.relations)
    assert [show(files) for show in shown] == [None] * 4
    assert link_answers.examples(files) == []
