"""Models of users on two workers: the model of one process, or refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from on_workers import train_on_workers
from safetensors.numpy import load_file

import partita
from partita.core.errors import ConfigError
from partita.testing.graphs import small_random_store

pytest.importorskip("torch_geometric.nn")

SETTINGS: dict[str, Any] = {
    "layers": 2, "hidden": 8, "fanout": (4, 3), "batch_size": 40, "epochs": 2, "precision": "float64", "dropout": 0.0,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "convolution": {"model": "pyg:GATv2Conv", "model_options": {"heads": 2}, "dropout": 0.5},
    "blocks": {"model": "own_models:BlocksNet"},
    "edges": {"model": "own_models:ConvNet"},
    "gcn": {"model": "pyg:GCN"},
    "residual": {"model": "gcn", "residual": True},
    "loss": {"loss": "own_models:margins", "metric": "own_models:share_of_class_zero"},
}


def model_of(run: Path) -> dict[str, np.ndarray]:
    latest = sorted(path for path in (run / "checkpoints").iterdir() if not path.name.startswith("."))[-1]
    return load_file(latest / "model.safetensors")


def test_two_workers_train_the_model_of_one(tmp_path) -> None:
    store = small_random_store(tmp_path / "store", 200, 1400, undirected=True)
    alone = {name: partita.Trainer(store, out=tmp_path / name, **SETTINGS | own).fit() for name, own in MODELS.items()}
    runs = {tmp_path / f"{name}2": {**SETTINGS, **own, "strategy": "gdp"} for name, own in MODELS.items()}
    found = train_on_workers(store.path, 2, runs)
    for name, summary in alone.items():
        run = tmp_path / f"{name}2"
        expected = model_of(summary.path)
        for key, value in model_of(run).items():
            assert np.abs(value - expected[key]).max() <= 1e-9 * np.abs(expected[key]).max(), (name, key)
        metrics = found[run]["metrics"]["test"]
        assert metrics["accuracy"] == pytest.approx(summary.metrics["test"]["accuracy"])
        assert metrics["accuracy"] == pytest.approx(partita.evaluate(run, workers=1, trust="imports")["accuracy"])
    assert 0 <= alone["loss"].metrics["test"]["own_models:share_of_class_zero"] <= 1
    assert alone["loss"].record["best"]["metric"] == "own_models:share_of_class_zero"
    assert partita.evaluate(tmp_path / "edges2", workers=2, trust="imports")["accuracy"] == pytest.approx(
        alone["edges"].metrics["test"]["accuracy"]
    )


def test_a_module_that_several_workers_would_train_to_another_model_is_refused(tmp_path) -> None:
    store = small_random_store(tmp_path / "store", 60, 300)
    settings = {**SETTINGS, "model": "own_models:ConvNet", "strategy": "gdp", "dropout": 0.5}
    with pytest.raises(ConfigError, match="the module drops out"):
        train_on_workers(store.path, 2, {tmp_path / "a": settings})
