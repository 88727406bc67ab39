"""A model on the nodes that random walks visit: trained on two workers, evaluated, used for prediction."""

from __future__ import annotations

from pathlib import Path

import pyarrow.csv
import pytest
from commands import as_json, partita

from partita.graph.generate import generate_sbm

pytestmark = pytest.mark.usefixtures("libraries")

OPTIONS = ["--sampler", "walk", "--fanout", "8,4", "--walks", "12", "--layers", "2", "--hidden", "16"]
OPTIONS += ["--batch-size", "200", "--epochs", "2", "--lr", "0.02", "--precision", "float64"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("walks") / "graph"
    generate_sbm(path, num_nodes=1500, num_classes=4, average_degree=10, num_features=16, seed=1)
    return path


def test_two_workers_train_and_evaluate_what_one_does(graph, tmp_path) -> None:
    partita("partition", graph, tmp_path / "parts", "--parts", "2")
    runs = {
        "alone": as_json("train", graph, "--out", tmp_path / "alone", *OPTIONS),
        "both": as_json(
            "train", tmp_path / "parts", "--out", tmp_path / "both", *OPTIONS, "--workers", "2", "--topology",
            "partitioned", "--strategy", "gsplit",
        ),
    }  # fmt: skip
    assert runs["both"]["metrics"]["test"] == pytest.approx(runs["alone"]["metrics"]["test"])
    assert runs["alone"]["metrics"]["test"]["accuracy"] > 0.5
    assert "sampler: walk" in (tmp_path / "both" / "config.yaml").read_text()
    predicted = {}
    for name, workers in (("alone", 2), ("both", 1)):
        found = as_json("evaluate", tmp_path / name, "--workers", workers)
        assert found["accuracy"] == pytest.approx(runs[name]["metrics"]["test"]["accuracy"])
        assert found["loss"] == pytest.approx(runs[name]["metrics"]["test"]["loss"])
        out = tmp_path / f"{name}.csv"
        as_json("predict", tmp_path / name, "--out", out, "--workers", workers)
        table = pyarrow.csv.read_csv(out).sort_by("node")
        predicted[name] = table["prediction"].to_pylist(), table["probability"].to_pylist()
    assert predicted["alone"][0] == predicted["both"][0]
    assert predicted["alone"][1] == pytest.approx(predicted["both"][1])


def test_what_cannot_be_trained_on_walks_is_said_before_anything_is_written(graph, tmp_path) -> None:
    for options, words in (
        (["--model", "gcn"], "sage, gin or gat"),
        (["--fanout", "-1"], "say how many"),
        (["--replace"], "replace is not for the sampler 'walk'"),
    ):
        done = partita("train", graph, "--out", tmp_path / "run", "--sampler", "walk", *options, code=2)
        assert words in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "run").exists()
