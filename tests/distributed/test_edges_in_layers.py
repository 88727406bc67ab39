"""Whole runs of models that read weights and features of edges: the model of one worker, whatever the strategy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from on_workers import train_on_workers
from safetensors.numpy import load_file

import partita
from partita.config import Config
from partita.core.errors import ConfigError
from partita.plan.links import Curve, Links
from partita.testing.graphs import formula_store

pytestmark = pytest.mark.usefixtures("libraries")

SETTINGS = {"layers": 2, "hidden": 8, "fanout": (3, 2), "batch_size": 30, "epochs": 2, "precision": "float64"}
WEIGHTED, EDGES = {"edge_weights": True}, {"heads": 2}
# Softmax cancels the bias of a key: its gradient is zero but for rounding, which Adam divides by its own size.
PLAIN_STEPS = {"optimizer": "sgd", "lr": 0.1}
CASES = {
    "gcn": ("snp", WEIGHTED),
    "gatv2": ("gsplit", EDGES),
    "transformer": ("nfp", {**EDGES, **PLAIN_STEPS}),
    "gine": ("dnp", {"topology": "partitioned"}),
    "graphconv": ("snp", {**WEIGHTED, "topology": "partitioned"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edges")
    formula_store(folder / "g", num_nodes=240, num_features=6, weighted=True, edge_features=3, num_parts=2)
    formula_store(folder / "plain", num_nodes=240, num_features=6)
    return folder


def weights(run: Path) -> dict[str, np.ndarray]:
    return load_file(max((run / "checkpoints").glob("epoch-*")) / "model.safetensors")


def test_any_strategy_trains_the_model_of_one_worker(folder, tmp_path) -> None:
    runs = {
        tmp_path / model: {**SETTINGS, "model": model, "strategy": strategy, **more}
        for model, (strategy, more) in CASES.items()
    }
    train_on_workers(folder / "g", 2, runs)
    for run, (model, (_, more)) in zip(runs, CASES.items(), strict=True):
        kept = {name: value for name, value in more.items() if name != "topology"}
        partita.Trainer(folder / "g", out=tmp_path / f"{model}-1", model=model, **SETTINGS, **kept).fit()
        found, expected = weights(run), weights(tmp_path / f"{model}-1")
        largest = max(np.abs(value).max() for value in expected.values())
        for name, value in expected.items():
            assert np.abs(found[name] - value).max() <= 1e-9 * largest, (model, name)


def test_a_run_is_resumed_evaluated_and_refuses_other_edges(folder, tmp_path) -> None:
    settings = {**SETTINGS, "model": "gatv2"}
    whole = partita.Trainer(folder / "g", out=tmp_path / "whole", **settings).fit()
    partita.Trainer(folder / "g", out=tmp_path / "run", **{**settings, "epochs": 1}).fit()
    partita.Trainer.resume(tmp_path / "run", epochs=2).fit()
    assert {n: v.tolist() for n, v in weights(tmp_path / "run").items()} == {
        n: v.tolist() for n, v in weights(tmp_path / "whole").items()
    }
    found = partita.evaluate(tmp_path / "run", split="test")
    assert found["accuracy"] == pytest.approx(whole.record["metrics"]["test"]["accuracy"])
    with pytest.raises(ConfigError, match="reads 3 features of every edge, and the store has 0"):
        partita.evaluate(tmp_path / "run", store=folder / "plain", split="test")


@pytest.mark.parametrize(
    ("store", "settings", "message"),
    [
        ("plain", {"model": "gine"}, "reads the features of edges, and the store has none"),
        ("plain", {"model": "gcn", "edge_weights": True}, "multiplies by edge weights, and the store has none"),
        ("g", {"model": "gat", "edge_weights": True}, "has no option 'edge_weights'"),
        ("g", {"model": "gcn", "edge_weights": True, "weighted": True}, "Choose one of weighted and edge_weights"),
        ("plain", {"model": "gcn", "edge_weights": True, "views": "cyclic"}, "multiplies by edge weights, and the st"),
        ("g", {"model": "gatv2", "sampler": "walk", "fanout": None}, "belongs to those of the graph"),
        ("g", {"model": "sage", "aggregator": "max", "edge_weights": True}, "takes no weights"),
    ],
)
def test_what_cannot_be_done_is_said(folder, tmp_path, store, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        partita.Trainer(folder / store, out=tmp_path / "run", **{**SETTINGS, **settings}).fit()


def test_what_is_not_read_is_said(folder, tmp_path) -> None:
    partita.Trainer(folder / "g", out=tmp_path / "run", **SETTINGS, model="sage").fit()
    log = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "edge weights are not used" in log
    assert "edge features are not used: the models gatv2, gine, transformer read them" in log


@pytest.mark.parametrize("settings", [{"model": "gatv2"}, {"model": "gcn", "edge_weights": True}])
def test_it_is_planned(folder, monkeypatch, settings) -> None:
    monkeypatch.setattr("partita.plan.remote.DRY_RUN_SECONDS", 0.0)  # one step
    curves = {"same_host": Curve((1e3, 1e6), (1e-5, 1e-2))}
    links = Links(curves, curves, 1, 2, {}, "2026-01-01T00:00:00+00:00")
    config = Config.make({**SETTINGS, **settings, "batch_size": 144, "workers": 2}, where="test")
    plan = partita.make_plan(folder / "g", config, hosts=1, links=links)
    assert {"gdp", "snp", "dnp", "nfp", "gsplit"} <= {each.name for each in plan.candidates}
    snp = next(each for each in plan.candidates if each.name == "snp")
    assert snp.epoch_bytes["ids"] > 0
