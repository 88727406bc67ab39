"""A run to report on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import partita


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A run of one worker, traced."""
    folder = tmp_path_factory.mktemp("reported")
    partita.generate_sbm(folder / "graph", num_nodes=300, num_classes=3, num_features=8)
    settings = {"layers": 2, "hidden": 8, "fanout": "4,4", "batch_size": 32, "epochs": 3, "trace": True, "threads": 1}
    partita.Trainer(folder / "graph", out=folder / "run", **settings).fit()
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """The same, for a test to change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def change(run: Path, **facts) -> None:
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, **facts}))


@pytest.fixture(name="change")
def _change():
    """Changes what a run's record says."""
    return change
