"""Class weights, label smoothing, target scaling, clipping, schedules: on two workers the model of one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from on_workers import train_on_workers
from safetensors.numpy import load_file

import partita
from partita.graph.store import GraphStore
from partita.testing.graphs import small_random_store

pytestmark = pytest.mark.usefixtures("libraries")

SETTINGS = {"layers": 2, "hidden": 8, "fanout": (4, 3), "batch_size": 40, "epochs": 3, "precision": "float64"}
STRATEGIES = ("gdp", "dnp", "gsplit")
TASKS = {
    "classes": {"class_weights": "balanced", "label_smoothing": 0.1, "clip_norm": 0.3, "schedule": "one-cycle"},
    "multilabel": {"class_weights": "balanced", "clip_norm": 0.3, "schedule": "step", "lr_step": 1},
    "regression": {"schedule": "plateau", "lr_patience": 0, "lr": 0.05, "clip_norm": 1.0},
}


def model_of(run: Path) -> dict[str, np.ndarray]:
    return load_file(sorted((run / "checkpoints").iterdir())[-1] / "model.safetensors")


@pytest.mark.parametrize("task", list(TASKS))
def test_two_workers_train_the_model_of_one(tmp_path, task) -> None:
    settings = {**SETTINGS, **TASKS[task]}
    small_random_store(tmp_path / "g", 300, 2500, task=task, num_classes=1 if task == "regression" else 4)
    partita.partition(GraphStore.open(tmp_path / "g"), tmp_path / "parts", parts=2, algorithm="spring")
    alone = partita.Trainer(tmp_path / "g", out=tmp_path / "alone", **settings).fit()
    plain = partita.Trainer(tmp_path / "g", out=tmp_path / "plain", **{**SETTINGS, "target_scaling": "none"}).fit()
    expected, other = model_of(tmp_path / "alone"), model_of(tmp_path / "plain")
    assert any(np.abs(other[name] - value).max() > 1e-4 for name, value in expected.items())
    runs = {tmp_path / strategy: {**settings, "strategy": strategy} for strategy in STRATEGIES}
    if task == "classes":
        joint = {"views": "all", "sync": "gradient-sum", "halo": "one-hop", "coverage": "none", "workers": 2}
        runs[tmp_path / "views"] = {**settings, **joint}
    records = train_on_workers(tmp_path / "parts", 2, runs)
    for run, record in records.items():
        assert record["status"] == "finished"
        assert record["baseline"]["prediction"] == pytest.approx(alone.record["baseline"]["prediction"])
        if run.name == "views":  # another model: gradients are summed, but edges are out of view
            continue
        found = model_of(run)
        for name, value in expected.items():
            assert np.abs(found[name] - value).max() <= 1e-9 * np.abs(value).max(), (run.name, name)
        assert record["metrics"]["test"] == pytest.approx(alone.metrics["test"])
    assert plain.status == "finished"
