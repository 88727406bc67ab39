"""Workers multiply by the backend that the first one has found to be fastest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import partita
from partita.comm.context import Context
from partita.nn import matmul
from partita.testing.graphs import small_random_store
from partita.testing.workers import run_workers
from partita.train import matmul_backend as choice
from partita.train.team import PURPOSES

pytestmark = pytest.mark.usefixtures("libraries")

SETTINGS = {"layers": 2, "hidden": 32, "fanout": (4, 3), "batch_size": 600, "epochs": 1, "eval_every": 0, "workers": 2}
SECONDS = [{"torch": 3.0, "onednn": 1.0, "onednn-all": 2.0}, {"torch": 1.0, "onednn": 9.0, "onednn-all": 9.0}]


def _train(context: Context, store: str, folder: str) -> dict[str, Any]:
    """Two runs: all workers have oneDNN, and one has not."""
    rank, measured, called, original = context.mesh.rank, [], [0], matmul._onednn

    def measure(shapes: Any) -> dict[str, float]:
        measured.append(len(shapes))
        return SECONDS[rank]

    def count(*given: Any) -> Any:
        called[0] += 1
        return original(*given)

    choice.WORTH_FLOP, choice.seconds_of, matmul._onednn = 0.0, measure, count
    both = partita.Trainer(store, out=Path(folder, "both"), context=context, **SETTINGS).fit().record["matmul"]
    calls = called[0]
    choice.onednn_works = lambda: rank == 0
    one = partita.Trainer(store, out=Path(folder, "one"), context=context, **SETTINGS).fit().record["matmul"]
    return {"both": both, "one": one, "measured": len(measured), "calls": calls, "later": called[0] - calls}


@pytest.mark.skipif(not matmul.onednn_works(), reason="this PyTorch has no oneDNN")
def test_the_first_worker_measures_and_all_follow(tmp_path) -> None:
    small_random_store(tmp_path / "g", 1400, 9000, num_features=24)
    found = run_workers(_train, 2, str(tmp_path / "g"), str(tmp_path), purposes=PURPOSES, threads=1, timeout=120)
    assert [result["both"] for result in found] == ["onednn"] * 2
    assert [result["one"] for result in found] == ["torch"] * 2
    assert [result["measured"] for result in found] == [1, 0]
    assert all(result["calls"] > 0 for result in found)
    assert [result["later"] for result in found] == [0, 0]
