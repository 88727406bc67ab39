"""Isolated training on several workers: what dense matrices compute; nothing but gradients and models travels."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from commands import run_partita
from isolated import assert_same, dense_epoch, epochs_of, filtered_epoch, model_of
from on_workers import resume_on_workers, train_on_workers
from processes import workers_of
from typed_graphs import typed_store

import partita
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.isolated.schedules import VIEW_SCHEDULES
from partita.runs.checkpoint import latest_checkpoint, read_state
from partita.testing.graphs import formula_store, small_random_store
from partita.train import phase

pytestmark = pytest.mark.usefixtures("libraries")

SETTINGS = {
    "layers": 2, "hidden": 8, "fanout": "4,3", "batch_size": 16, "epochs": 3, "seed": 5, "precision": "float64",
    "threads": 1,
}  # fmt: skip
AVERAGE = {"views": "cyclic", "sync": "model-average", "halo": "one-hop"}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    """Five parts."""
    folder = tmp_path_factory.mktemp("stores")
    whole = small_random_store(folder / "whole", 240, 1600, undirected=True, num_features=6)
    partita.partition(whole, folder / "five", parts=5, algorithm="random")
    return partita.open(folder / "five")


def sent_for_training(record: dict) -> dict[str, int]:
    return {kind: sent for kind, sent in record["traffic_bytes"].items() if kind != "evaluation"}


EPOCHS = [
    (coverage, views, workers)
    for coverage in ("none", "resampling")
    for views, workers in (("tournament", 2), ("tournament", 3), ("cyclic", 2), ("all", 3))
]


def settings_of_an_epoch(views: str, coverage: str) -> dict[str, Any]:
    return {
        **SETTINGS, "views": views, "coverage": coverage, "fanout": -1, "batch_size": 0, "epochs": 1,
        "optimizer": "sgd", "momentum": 0.0, "lr": 0.1, "norm": "none", "dropout": 0.0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def epochs_on_workers(store, tmp_path_factory) -> dict[tuple[str, str, int], tuple[Path, dict]]:
    """Run folder and record of all of them."""
    folder, found = tmp_path_factory.mktemp("epochs"), {}
    for number in (2, 3):
        runs = {case: folder / "-".join(map(str, case)) for case in EPOCHS if case[2] == number}
        given = {run: settings_of_an_epoch(views, coverage) for (coverage, views, _), run in runs.items()}
        records = train_on_workers(store.path, number, given)
        found |= {case: (run, records[run]) for case, run in runs.items()}
    return found


@pytest.mark.parametrize(("coverage", "views", "workers"), EPOCHS)
def test_an_epoch_is_that_of_dense_matrices(store, epochs_on_workers, tmp_path, coverage, views, workers) -> None:
    """With five chunks one has no partner, and a worker may have nothing at all."""
    settings = settings_of_an_epoch(views, coverage)
    start = partita.Trainer(store, out=tmp_path / "start", **settings)
    weights = {name: tensor.clone() for name, tensor in start.job.model.state_dict().items()}
    start.job.views.close()
    assignment = VIEW_SCHEDULES.find(views)(5, workers, 1).assignment(0)
    expected, factors = dense_epoch(store, weights, assignment, "none", coverage, 0.1)
    run, record = epochs_on_workers[coverage, views, workers]
    for name, value in model_of(run).items():
        wanted = expected[name].numpy()
        assert np.abs(value - wanted).max() <= 1e-12 * np.abs(wanted).max(), name
    assert epochs_of(run)[0]["coverage"] == pytest.approx(np.mean(factors))
    sent = sent_for_training(record)
    assert sent.pop("gradients") > 0
    assert sent.pop("metadata") > 0
    assert not any(sent.values())
    moved = record["traffic_bytes"]["evaluation"]
    assert not any(moved.get(kind, 0) for kind in ("ids", "features", "forward", "backward", "gradients"))


def test_a_model_that_reads_no_neighbors_is_that_of_one_process(store, tmp_path) -> None:
    """Nothing that it needs is outside a partition, so no gradient is corrected."""
    settings = {**SETTINGS, "model": "mlp", "batch_size": 0}
    partita.Trainer(store, out=tmp_path / "alone", **settings).fit()
    runs = {
        tmp_path / "views": {**settings, "views": "all"},
        tmp_path / "nfp": {**settings, "strategy": "nfp"},
    }
    records = train_on_workers(store.path, 2, runs)
    expected = model_of(tmp_path / "alone")
    for run in runs:
        assert records[run]["counts"]["sampled_edges"] == 0
        for name, value in model_of(run).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_averaged_models_do_not_depend_on_the_workers(store, tmp_path) -> None:
    ways = {"each": {}, "second": {"average_every": 2, "optimizer_state": "average"}}
    settings = {name: {**SETTINGS, **AVERAGE, **way, "schedule": "cosine"} for name, way in ways.items()}
    for name in ways:
        partita.Trainer(store, out=tmp_path / f"{name}-1", **settings[name]).fit()
    for workers in (2, 3):
        records = train_on_workers(store.path, workers, {tmp_path / f"{n}-{workers}": settings[n] for n in ways})
        for name in ways:
            out, one = tmp_path / f"{name}-{workers}", tmp_path / f"{name}-1"
            assert_same(out, one, 1e-12)
            for found, expected in zip(epochs_of(out), epochs_of(one), strict=True):
                assert found["loss"] == pytest.approx(expected["loss"], rel=1e-12)
                assert found["deficit"] == pytest.approx(expected["deficit"])
            sent = sent_for_training(records[out])
            assert sent["gradients"] > 0
            assert not any(sent.get(kind, 0) for kind in ("ids", "features", "forward", "backward"))
            assert sum(load["views"] for load in records[out]["views"]["loading"]) == 15


OTHERS = {
    "typed": ({"model": "rgcn", "fanout": "cites=3,2 *=2,2"}, {"model": "hgt", "heads": 2}),
    "edges": ({"model": "gatv2", "heads": 2}, {"model": "gcn", "edge_weights": True}),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_typed_graphs_and_layers_that_read_edges(tmp_path, name) -> None:
    """An epoch of two workers is that of the graph without the edges that leave; averages do not depend on workers."""
    if name == "typed":
        store = typed_store(tmp_path / "five", 240, parts=5)
    else:
        store = formula_store(
            tmp_path / "five", num_nodes=240, weighted=True, edge_features=3, num_parts=5, shuffle_seed=2
        )
    runs: dict[Path, dict[str, Any]] = {}
    for at, model in enumerate(OTHERS[name]):
        runs[tmp_path / f"epoch{at}"] = {**settings_of_an_epoch("tournament", "resampling"), **model, "fanout": -1}
        runs[tmp_path / f"average{at}"] = {**SETTINGS, **AVERAGE, **model}
    records = train_on_workers(store.path, 2, runs)
    for run, settings in runs.items():
        sent = sent_for_training(records[run])
        assert sent["gradients"] > 0
        assert not any(sent.get(kind, 0) for kind in ("ids", "features", "forward", "backward"))
        alone = partita.Trainer(store, out=tmp_path / f"{run.name}-1", **settings)
        if run.name.startswith("average"):
            alone.fit()
            assert_same(run, tmp_path / f"{run.name}-1", 1e-9)  # Adam, where attention has hardly any gradient
            continue
        alone.job.views.close()
        assignment = VIEW_SCHEDULES.find("tournament")(5, 2, 1).assignment(0)
        expected, factors = filtered_epoch(store, alone.job.model, alone.job.config, assignment)
        largest = max(float(each.abs().max()) for each in expected.values())
        for key, value in model_of(run).items():
            assert np.abs(value - expected[key].numpy()).max() <= 1e-12 * largest, key
        assert epochs_of(run)[0]["coverage"] == pytest.approx(np.mean(factors))
    found = partita.evaluate(tmp_path / "average0", split="test")
    assert found["loss"] == pytest.approx(records[tmp_path / "average0"]["metrics"]["test"]["loss"])
    assert len(partita.predict(tmp_path / "average0").ids) > 0


def train_and_cut(store: GraphStore, folder: Path, isolated: dict[str, Any]) -> Any:
    """A whole run, and one that was interrupted in the middle of its second epoch; the summary of the whole one."""
    settings = {**SETTINGS, **isolated, "eval_every": 0}
    whole = partita.Trainer(store, out=folder / "whole", **settings).fit()
    cut = partita.Trainer(store, out=folder / "cut", **settings)
    step = cut._step

    def stop(*arguments):
        if (cut._state.epoch, cut._state.step) == (1, 2):
            os.kill(os.getpid(), signal.SIGINT)
        return step(*arguments)

    cut._step = stop  # type: ignore[method-assign]
    assert cut.fit().status == "interrupted"
    state = read_state(latest_checkpoint(folder / "cut" / "checkpoints"))
    assert (state.epoch, state.step) == (1, 3)
    if isolated is AVERAGE:  # one view is done, another one half
        assert sorted(steps for _, steps in state.views["progress"].values()) == [1, 2]
    return whole


def test_other_workers_go_on_in_the_middle_of_an_epoch(store, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(phase, "SETTLE_STEPS", 1)
    ways = {"average": AVERAGE, "sweep": {"views": "tournament"}}
    whole = {name: train_and_cut(store, tmp_path / name, way) for name, way in ways.items()}
    seeds = len(store.split("train"))
    for workers in (1, 2, 3):
        runs = {name: tmp_path / name / f"on{workers}" for name in ways}
        for name, run in runs.items():
            shutil.copytree(tmp_path / name / "cut", run)
        if workers == 1:
            for run in runs.values():
                done = run_partita("train", "--resume", run, "--workers", 1)
                assert done.returncode == 0, done.stderr
        else:
            resume_on_workers(workers, {run: {} for run in runs.values()})
        for name, run in runs.items():
            record = json.loads((run / "run.json").read_text())
            assert record["status"] == "finished"
            # Every seed of every epoch was trained on once, by whomever.
            assert [event["epoch"] for event in epochs_of(run)] == [0, 1, 2]
            assert record["counts"]["computed_destinations"][-1] == 3 * seeds
            if name == "average":
                assert_same(run, tmp_path / name / "whole", 1e-12)
                assert record["metrics"]["test"] == pytest.approx(whole[name].metrics["test"])
            elif workers == 1:
                assert_same(run, tmp_path / name / "whole")


@pytest.mark.parametrize("isolated", [AVERAGE, {"views": "tournament"}], ids=["average", "sweep"])
def test_interrupted_on_two_workers_and_gone_on_with_on_others(store, tmp_path, isolated) -> None:
    settings = {**SETTINGS, **isolated, "epochs": 400, "eval_every": 0}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    run = tmp_path / "run"
    command = [sys.executable, "-c", "from partita.cli import main; main()", "train"]
    process = subprocess.Popen(
        [*command, str(store.path), "--out", str(run), "--workers", "2", *options],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() or '"epoch": 3' not in (run / "metrics.jsonl").read_text():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130, process.stderr.read()
    process.stderr.close()
    record = json.loads((run / "run.json").read_text())
    epochs = record["epoch"] + 3
    for workers in (1, 2, 3):
        copy = tmp_path / f"on{workers}"
        shutil.copytree(run, copy)
        done = run_partita("train", "--resume", copy, "--workers", workers, "--epochs", epochs)
        assert done.returncode == 0, done.stderr
        assert len(epochs_of(copy)) == epochs
    if isolated is AVERAGE:
        for workers in (2, 3):
            assert_same(tmp_path / f"on{workers}", tmp_path / "on1", 1e-9)
        partita.Trainer(store, out=tmp_path / "whole", **{**settings, "epochs": epochs}).fit()
        assert_same(tmp_path / "on1", tmp_path / "whole", 1e-9)


OF_KILLED = {
    name: {**SETTINGS, **isolated, "epochs": 40, "eval_every": 3, "checkpoint_minutes": 0.001}
    for name, isolated in (("average", {**AVERAGE, "views": "cyclic"}), ("sweep", {"views": "tournament"}))
}


@pytest.fixture(scope="module")
def undisturbed(store, tmp_path_factory) -> Path:
    """Whole runs on two workers, by name."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train_on_workers(store.path, 2, {folder / name: settings for name, settings in OF_KILLED.items()})
    return folder


@pytest.mark.parametrize(("name", "rank"), [("average", 1), ("sweep", 0)])
def test_killed_and_gone_on_with_gives_the_same_bytes(store, undisturbed, tmp_path, name, rank) -> None:
    """kill -9 of a worker: all end within seconds, the cause is named, nothing is lost."""
    settings = OF_KILLED[name]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    command = [sys.executable, "-c", "from partita.cli import main; main()", "train"]
    run = tmp_path / "run"
    process = subprocess.Popen(
        [*command, str(store.path), "--out", str(run), "--workers", "2", *options],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() or '"epoch": 4' not in (run / "metrics.jsonl").read_text():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = workers_of(process.pid)
    workers[rank].kill()
    _, errors = process.communicate(timeout=10)
    assert process.returncode != 0
    assert f"worker {rank}" in errors
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in workers.values())
    done = run_partita("train", "--resume", run)
    assert done.returncode == 0, done.stderr
    assert_same(run, undisturbed / name)
    assert epochs_of(run) == epochs_of(undisturbed / name)


def test_too_many_workers_are_refused(store, tmp_path) -> None:
    with pytest.raises(
        ConfigError, match=r"5 partitions give only 3 pairs per round; 4 workers need at least 8 partitions.*--parts 8"
    ):
        partita.Trainer.launch(store.path, out=tmp_path / "run", workers=4, **SETTINGS, views="tournament")
    with pytest.raises(ConfigError, match=r"the store has 5 parts, fewer than the 6 workers.*--parts 6"):
        partita.Trainer.launch(store.path, out=tmp_path / "run", workers=6, **SETTINGS, views="cyclic")
    with pytest.raises(ConfigError, match="batch normalization"):
        partita.Trainer.launch(
            store.path, out=tmp_path / "run", workers=2, **SETTINGS, views="tournament", norm="batch"
        )
    assert not (tmp_path / "run").exists()


def test_presets_train_and_predict(store, tmp_path) -> None:
    presets = ("grappa", "sdt-gnn")
    train_on_workers(
        store.path, 2, {tmp_path / p: {"preset": p, "layers": 2, "hidden": 8, "epochs": 2} for p in presets}
    )
    for preset in presets:
        partita.predict(tmp_path / preset, out=tmp_path / f"{preset}.parquet")
        assert (tmp_path / f"{preset}.parquet").exists()
