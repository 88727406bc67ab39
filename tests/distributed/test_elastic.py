"""Elastic jobs: workers are lost and arrive, and the model is that of a run that nobody disturbed."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from elastic import Job
from safetensors.numpy import load_file

import partita
from partita.runs.checkpoint import latest_checkpoint
from partita.testing.graphs import small_random_store

SETTINGS = {"layers": 2, "hidden": 16, "fanout": "4,3", "batch_size": 15, "precision": "float64", "checkpoint_steps": 2}
QUICK, LONG = 4, 40
"""Epochs of a run, of 12 steps each."""


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    """A store in 2 parts, and runs of one worker on it."""
    folder = tmp_path_factory.mktemp("graph")
    store = small_random_store(folder / "store", 300, 2500, undirected=True, num_features=7)
    partita.partition(store, folder / "parts", parts=2, algorithm="spring")
    return folder


def undisturbed(graph: Path, epochs: int) -> Path:
    run = graph / f"undisturbed-{epochs}"
    if not run.exists():
        partita.Trainer(graph / "parts", out=run, epochs=epochs, threads=1, **SETTINGS).fit()
    return run


def command(graph: Path, run: Path, epochs: int, strategy: str) -> list[object]:
    options = [part for name, value in SETTINGS.items() for part in (f"--{name.replace('_', '-')}", value)]
    return [
        "train", graph / "parts", "--out", run, "--resume", "auto", "--strategy", strategy, "--epochs", epochs, *options
    ]  # fmt: skip


def assert_same(run: Path, other: Path, tolerance: float) -> float:
    """Compare models by their largest relative difference, and what was logged of epochs; gives the difference."""
    found, expected = (
        load_file(latest_checkpoint(path / "checkpoints") / "model.safetensors") for path in (run, other)
    )
    assert found.keys() == expected.keys()
    worst = max(np.abs(found[name] - value).max() / np.abs(value).max() for name, value in expected.items())
    assert worst <= tolerance
    logged, whole = (
        [event for event in map(json.loads, (path / "metrics.jsonl").read_text().splitlines()) if "val_loss" in event]
        for path in (run, other)
    )
    assert [event["epoch"] for event in logged] == [event["epoch"] for event in whole]
    np.testing.assert_allclose([event["loss"] for event in logged], [event["loss"] for event in whole], rtol=1e-9)
    return float(worst)


def test_a_worker_arrives_one_is_killed_and_a_host_is_lost(graph, tmp_path) -> None:
    run = tmp_path / "run"
    with Job(tmp_path, run, command(graph, run, QUICK, "gsplit"), hosts=2) as job:
        job.arrive()
        job.wait_for_progress()
        other = job.arrive()
        job.wait_for_progress(1)
        assert job.kill_worker(job.launchers[0])  # that of the first worker, which writes the run
        job.wait_for_progress(2)
        job.lose(other)
        job.wait_for_progress(3)
        record = job.finish()
    assert record["placements"] == "by-owner,destination,destination"
    assert len(record["resumed"]) >= 3
    said = (tmp_path / "launcher-0.txt").read_text(errors="replace")
    assert "with 2 workers, not 1" in said
    assert "with 1 worker, not 2" in said
    assert_same(run, undisturbed(graph, QUICK), 1e-12)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0])
def test_random_losses_and_arrivals(graph, tmp_path, seed) -> None:
    draw, events = random.Random(seed), Counter[str]()
    run = tmp_path / "run"
    with Job(tmp_path, run, command(graph, run, LONG, "gsplit"), hosts=3) as job:
        job.arrive()
        job.wait_for_progress()
        while events.total() < 20:
            kinds = [
                "killed worker",
                *["arrival"] * (len(job.launchers) < 3),
                *["lost host"] * (len(job.launchers) > 1),
            ]
            kind, attempts = draw.choice(kinds), job.attempts
            if kind == "arrival":
                job.arrive()
            elif kind == "lost host":
                job.lose(draw.choice(job.launchers[1:]))
            else:
                assert job.kill_worker(draw.choice(job.launchers))
            events[kind] += 1
            print(f"{kind}: {len(job.launchers)} hosts", flush=True)
            job.wait_for_progress(attempts + 1)
        record = job.finish()
    workers = Counter(
        line.rsplit("with ", 1)[1].split()[0] for log in tmp_path.glob("launcher-*.txt")
        for line in log.read_text(errors="replace").splitlines() if line.startswith("goes on after ")
    )  # fmt: skip
    difference = assert_same(run, undisturbed(graph, LONG), 1e-12)
    print(
        f"{dict(events)}; attempts that went on, by workers: {dict(workers)}; resumed {len(record['resumed'])} times; "
        f"largest relative difference {difference:.1e}"
    )
    shutil.rmtree(run)
