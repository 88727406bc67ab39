"""Whole runs on several workers: the model of one worker, whatever the strategy; killed, interrupted and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from commands import run_partita
from on_workers import train_on_workers
from processes import SECONDS_TO_END, workers_of
from safetensors.numpy import load_file

import partita
from partita.core.errors import ConfigError, PartitaError
from partita.testing.graphs import small_random_store

pytestmark = pytest.mark.usefixtures("libraries")

SETTINGS = {"layers": 2, "hidden": 16, "fanout": (4, 3), "batch_size": 40, "epochs": 2, "precision": "float64"}


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    """A store, the same in 2 and in 3 parts, and a run of one worker."""
    folder = tmp_path_factory.mktemp("graph")
    store = small_random_store(folder / "store", 300, 2500, undirected=True, num_features=7)
    partita.partition(store, folder / "parts2", parts=2, algorithm="spring")
    partita.partition(store, folder / "parts3", parts=3, algorithm="hdrf")
    partita.Trainer(store, out=folder / "alone", **SETTINGS).fit()
    return folder


def model_of(run: Path) -> dict[str, np.ndarray]:
    latest = sorted(path for path in (run / "checkpoints").iterdir() if not path.name.startswith("."))[-1]
    return load_file(latest / "model.safetensors")


def assert_same_model(run: Path, other: Path, tolerance: float = 1e-9) -> None:
    found, expected = model_of(run), model_of(other)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.abs(found[name] - value).max() <= tolerance * max(np.abs(value).max(), 1e-30), name


STRATEGIES = [("gdp", 2), ("gsplit", 2), ("dnp", 3), ("snp", 3), ("source,destination", 2), ("nfp", 3)]


@pytest.fixture(scope="module")
def trained(graph) -> dict[str, tuple[Path, dict]]:
    """Run folder and record, by strategy. One is launched as a user does; the others share the workers' start."""
    found = {}
    for number in (2, 3):
        runs = {
            strategy: graph / strategy for strategy, workers in STRATEGIES if workers == number and strategy != "gsplit"
        }
        given = {run: {**SETTINGS, "strategy": strategy} for strategy, run in runs.items()}
        records = train_on_workers(graph / f"parts{number}", number, given)
        found |= {strategy: (run, records[run]) for strategy, run in runs.items()}
    run = graph / "gsplit"
    summary = partita.Trainer.launch(graph / "parts2", out=run, workers=2, strategy="gsplit", **SETTINGS)
    return {**found, "gsplit": (run, summary.record)}


@pytest.mark.parametrize(("strategy", "workers"), STRATEGIES)
def test_any_strategy_trains_the_model_of_one_worker(graph, trained, strategy, workers) -> None:
    run, record = trained[strategy]
    assert record["status"] == "finished"
    assert_same_model(run, graph / "alone")
    alone = json.loads((graph / "alone" / "run.json").read_text())
    assert record["metrics"]["test"] == pytest.approx(alone["metrics"]["test"])
    sent = record["traffic_bytes"]
    assert sent["gradients"] > 0
    assert (sent["forward"] > 0) == (strategy != "gdp")
    each, counts = record["workers"], record["counts"]
    assert len(each) == workers
    for kind in ("ids", "features", "forward", "backward", "gradients", "metadata"):
        booked = [worker["traffic_bytes"]["training"].get(kind, {}) for worker in each]
        assert sum(sum(links.values()) for links in booked) == sent[kind]
        assert sum(links.get("other_host", 0) for links in booked) == 0
    for name in ("sampled_edges", "input_rows_read", "row_reads"):
        assert sum(worker["counts"][name] for worker in each) == counts[name]
    if strategy == "gsplit":  # nothing is sampled or computed twice, whoever asks for it
        assert counts["computed_destinations"] == alone["counts"]["computed_destinations"]
        assert counts["sampled_edges"] == alone["counts"]["sampled_edges"]
        assert counts["input_rows_read"] == alone["counts"]["input_rows_read"]
        assert sent["features"] > 0


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from partita.cli import main; main()", *map(str, arguments)]


def test_interrupted_on_two_workers_resumed_on_three_and_on_one(graph, tmp_path) -> None:
    options = ["--layers", 2, "--hidden", 16, "--fanout", "4,3", "--batch-size", 40, "--precision", "float64"]
    options += ["--epochs", 60, "--eval-every", 0]
    run = tmp_path / "run"
    process = subprocess.Popen(
        command("train", graph / "parts2", "--out", run, "--workers", 2, "--strategy", "gsplit", *options),
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() or '"epoch": 2' not in (run / "metrics.jsonl").read_text():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130, process.stderr.read()
    assert "partita train --resume" in process.stderr.read()
    process.stderr.close()
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "interrupted"
    epochs = record["epoch"] + 3
    for workers in (3, 1):
        copy = tmp_path / f"on{workers}"
        subprocess.run(["cp", "-r", run, copy], check=True)
        more = ["--workers", workers, "--strategy", "gdp", "--epochs", epochs]
        done = run_partita("train", "--resume", copy, *more)
        assert done.returncode == 0, done.stderr
    partita.Trainer(graph / "parts2", out=tmp_path / "whole", **{**SETTINGS, "epochs": epochs, "eval_every": 0}).fit()
    for workers in (3, 1):
        assert_same_model(tmp_path / f"on{workers}", tmp_path / "whole", 1e-6)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_ends_the_run_within_seconds_and_is_named(graph, tmp_path, rank) -> None:
    settings = {**SETTINGS, "epochs": 100_000, "eval_every": 0}
    killed_at: list[float] = []

    def kill() -> None:
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            time.sleep(0.05)
        time.sleep(0.5)
        victim = workers_of()[rank]
        killed_at.append(time.monotonic())
        victim.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(PartitaError, match=f"worker {rank} was killed by signal 9"):
        partita.Trainer.launch(graph / "parts2", out=tmp_path / "run", workers=2, strategy="gsplit", **settings)
    assert time.monotonic() - killed_at[0] < SECONDS_TO_END
    killer.join()
    assert not workers_of()


def test_torchrun(graph, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"import sys, partita\npartita.Trainer(sys.argv[1], out=sys.argv[2], strategy='dnp', **{SETTINGS!r}).fit()\n"
    )
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
         "--master-port", "29511", script, graph / "parts2", tmp_path / "run"],
        capture_output=True, text=True, timeout=180, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert_same_model(tmp_path / "run", graph / "alone")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"


def test_what_does_not_fit_is_one_message(graph, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"store has 3 parts.*partita partition STORE OUT --parts 2"):
        partita.Trainer.launch(graph / "parts3", out=tmp_path / "a", workers=2, strategy="gsplit", **SETTINGS)
    with pytest.raises(ConfigError, match="batch normalization"):
        partita.Trainer.launch(graph / "parts2", out=tmp_path / "b", workers=2, norm="batch", **SETTINGS)
    with pytest.raises(ConfigError, match="Did you mean 'gsplit'"):
        partita.Trainer.launch(graph / "parts2", out=tmp_path / "c", workers=2, strategy="gsplti", **SETTINGS)
    with pytest.raises(ConfigError, match="workers=3, but"):
        partita.Trainer(graph / "parts2", out=tmp_path / "d", workers=3, **SETTINGS)
    assert list(tmp_path.iterdir()) == []
