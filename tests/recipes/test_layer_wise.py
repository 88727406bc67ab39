"""A model trained on layer-wise samples: on two workers the model of one, with a cache, and resumed on one."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import as_json, partita

from partita.graph.generate import generate_sbm

pytestmark = pytest.mark.usefixtures("libraries")

OPTIONS = ["--sampler", "layer", "--layer-budget", "64", "--layers", "2", "--hidden", "16", "--batch-size", "200"]
OPTIONS += ["--lr", "0.02", "--precision", "float64"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("layer-wise") / "graph"
    generate_sbm(path, num_nodes=1500, num_classes=4, average_degree=10, num_features=16, seed=1)
    return path


def test_two_workers_train_what_one_does(graph, tmp_path) -> None:
    alone = as_json("train", graph, "--out", tmp_path / "alone", "--epochs", "3", *OPTIONS)
    both = as_json("train", graph, "--out", tmp_path / "both", "--epochs", "3", "--workers", "2", *OPTIONS)
    assert both["metrics"]["test"] == pytest.approx(alone["metrics"]["test"])
    steps = 3 * 5  # 900 training nodes
    assert alone["counts"]["sampled_edges"] == pytest.approx(2 * 64 * steps, rel=0.01)
    assert both["traffic_bytes"]["ids"] == 8 * 65 * 2 * 2 * steps
    partita("partition", graph, tmp_path / "parts", "--parts", "2")
    parts = as_json(
        "train", tmp_path / "parts", "--out", tmp_path / "split", "--epochs", "2", *OPTIONS, "--workers", "2",
        "--topology", "partitioned", "--strategy", "gsplit", "--cache", "16KiB", "--cache-policy", "strategy",
    )  # fmt: skip
    assert parts["counts"]["rows_from"]["cache"] > 0
    resumed = as_json("train", "--resume", tmp_path / "split", "--epochs", "3", "--workers", "1", "--strategy", "gdp")
    assert resumed["metrics"]["test"] == pytest.approx(alone["metrics"]["test"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sampler", "layer"], "needs a layer_budget"),
        (["--sampler", "layer", "--layer-budget", "5,5"], "layer_budget has 2 entries"),
        (["--sampler", "layer", "--layer-budget", "5", "--fanout", "5"], "for the sampler node, labor or walk"),
        (["--sampler", "layer", "--layer-budget", "5", "--views", "all"], "Use sampler node"),
        (["--sampler", "layer", "--layer-budget", "9999999", "--replace"], "at most 1,048,576"),
        (["--layer-budget", "5"], "layer_budget is for the sampler layer"),
        (["--sampler", "laier"], "Did you mean 'layer'?"),
    ],
)
def test_settings_that_do_not_fit_are_one_message(graph, tmp_path, options, words) -> None:
    done = partita("train", graph, "--out", tmp_path / "run", *options, code=2)
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
