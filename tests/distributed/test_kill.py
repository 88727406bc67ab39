"""``kill -9`` of any worker at any moment: all end, the cause is named, and the run goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from commands import run_partita
from processes import SECONDS_TO_END, workers_of
from safetensors.numpy import load_file

import partita
from partita.nn.model import Model
from partita.runs.checkpoint import latest_checkpoint, load_model, load_optimizer, read_state
from partita.runs.folder import RunFolder
from partita.testing.graphs import small_random_store

pytestmark = pytest.mark.usefixtures("libraries")

EPOCHS = 4
STEPS = 60  # of an epoch: more than lie between two step events
SETTINGS: dict[str, Any] = {
    "layers": 3, "hidden": 16, "fanout": "4,3,2", "batch_size": 3, "epochs": EPOCHS, "precision": "float64",
    "checkpoint_minutes": 0.001,
}  # fmt: skip
MIXED = "source,destination,data"


@dataclass(frozen=True)
class Kill:
    """Which worker is killed when.

    Attributes:
        workers: how many there are.
        strategy: of the run.
        rank: of the victim.
        moment: ``start``: up to four seconds after the command was started; ``step``: up to half a second after the
            step event of an epoch. Both are drawn from the seed.
        seed: draws epoch and delay.
        timed: neighbors are sampled not later than the times of seeds.
    """

    workers: int
    strategy: str
    rank: int
    moment: str
    seed: int
    timed: bool = False

    def __str__(self) -> str:
        return f"{self.strategy}-{self.workers}-worker{self.rank}-{self.moment}{self.seed}" + "-timed" * self.timed


QUICK = [  # the first two share an undisturbed run
    Kill(3, "gsplit", 0, "step", 1), Kill(3, "gsplit", 1, "start", 4), Kill(3, "gsplit", 1, "step", 2, timed=True)
]  # fmt: skip
ALL = [
    *(
        Kill(workers, strategy, rank, "step", seed)
        for workers in (3, 4)
        for strategy in ("gsplit", MIXED)
        for rank in range(workers)
        for seed in ((1,) if rank else (1, 2))  # worker 0 is the one that writes
    ),
    *(Kill(workers, strategy, seed % workers, "start", seed)
      for workers, strategy in ((3, MIXED), (4, "gsplit")) for seed in range(3)),
]  # fmt: skip
CASES = [
    *(pytest.param(kill, id=str(kill)) for kill in QUICK),
    *(pytest.param(kill, id=str(kill), marks=pytest.mark.slow) for kill in ALL if kill not in QUICK),
]


class Graph:
    """A graph in 3 and in 4 parts, and what undisturbed runs on it have found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        store = small_random_store(folder / "store", 300, 2500, undirected=True, num_features=7)
        for parts in (3, 4):
            partita.partition(store, folder / f"parts{parts}", parts=parts, algorithm="spring")
        partita.export(store, folder / "graph.npz")
        with np.load(folder / "graph.npz") as file:
            arrays = dict(file)
        random = np.random.default_rng(0)
        edges, nodes = arrays["edge_index"].shape[1], len(arrays["y"])
        arrays |= {"edge_time": random.integers(0, 100, edges), "seed_time": random.integers(20, 100, nodes)}
        partita.ingest(arrays, folder / "timed")
        partita.partition(folder / "timed", folder / "timed-parts3", parts=3, algorithm="spring")

    def parts(self, kill: Kill) -> Path:
        return self.folder / f"{'timed-' * kill.timed}parts{kill.workers}"

    def undisturbed(self, kill: Kill) -> Path:
        """A run of the same command that nobody disturbs; made when it is first asked for."""
        run = self.folder / f"{'timed-' * kill.timed}run-{kill.strategy}-{kill.workers}"
        if not run.exists():
            finish(*train_arguments(self, kill, run))
        return run


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Graph:
    return Graph(tmp_path_factory.mktemp("graph"))


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from partita.cli import main; main()", *map(str, arguments)]


def train_arguments(graph: Graph, kill: Kill, run: Path) -> list[object]:
    options = [part for name, value in SETTINGS.items() for part in (f"--{name.replace('_', '-')}", value)]
    placed = ["--workers", kill.workers, "--strategy", kill.strategy]
    return ["train", graph.parts(kill), "--out", run, *placed, *options]


def finish(*arguments: object) -> None:
    """Run a command to its end, which must be a good one."""
    done = run_partita(*arguments, timeout=400)
    assert done.returncode == 0, done.stderr


# The kill


def wait_for_epoch(run: Path, epoch: int, process: subprocess.Popen[bytes]) -> None:
    """Until the step event of an epoch has been written."""
    start, deadline = f'{{"event": "step", "epoch": {epoch}', time.monotonic() + 120
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or start not in metrics.read_text():
        assert process.poll() is None, "ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def started(arguments: list[object], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process, with its messages in ``errors.txt`` and temporary files in ``temporary``."""
    (folder / "temporary").mkdir(exist_ok=True)
    with (folder / "errors.txt").open("wb") as errors:
        process = subprocess.Popen(
            command(*arguments), stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
            env={**os.environ, "TMPDIR": str(folder / "temporary")},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def killed_run(graph: Graph, kill: Kill, folder: Path) -> Path:
    """Start a run and kill a worker; see that all end and the cause is named."""
    draw = random.Random(kill.seed * 1000 + kill.rank)
    # Not within the last epoch, so that there is something left to do.
    epoch, delay = draw.randrange(EPOCHS - 2), draw.uniform(0, 0.5 if kill.moment == "step" else 4)
    while True:
        run = folder / "run"
        with started(train_arguments(graph, kill, run), folder) as process:
            if kill.moment == "step":
                wait_for_epoch(run, epoch, process)
            time.sleep(delay)
            while kill.rank not in (workers := workers_of(process.pid)) and process.poll() is None:
                time.sleep(0.01)
            if process.poll() is None:
                workers[kill.rank].kill()
                killed = time.monotonic()
                code = process.wait(SECONDS_TO_END)
                _, alive = psutil.wait_procs(workers.values(), max(0, killed + SECONDS_TO_END - time.monotonic()))
                assert not alive
            else:
                code = process.returncode
        if code != 0:
            break
        shutil.rmtree(run)  # the machine was faster than the delay
        delay /= 2
    errors = (folder / "errors.txt").read_text()
    assert code == 2, errors
    assert f"partita: worker {kill.rank} was killed by signal 9 (SIGKILL)" in errors
    assert "Traceback" not in errors
    assert not list((folder / "temporary").glob("partita-*"))
    return run


# What is found afterwards


def assert_intact(run: Path) -> tuple[int, int]:
    """The latest checkpoint, if there is one, can be read in full; returns the position."""
    latest = latest_checkpoint(run / "checkpoints")
    if latest is None:
        return 0, 0
    state = read_state(latest)
    assert latest.name == state.name
    model = Model.from_description(RunFolder.open(run).read_record()["model"]).to(torch.float64)
    load_model(latest, model)
    load_optimizer(latest, model, torch.optim.Adam(model.parameters()))
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    if state.best is not None:
        load_model(run / "checkpoints" / state.best.checkpoint, model)
    return state.epoch, state.step


def last_model(run: Path) -> dict[str, np.ndarray]:
    latest = latest_checkpoint(run / "checkpoints")
    assert latest is not None
    assert (read_state(latest).epoch, read_state(latest).step) == (EPOCHS, 0)
    return load_file(latest / "model.safetensors")


def losses(run: Path) -> list[float]:
    """The loss of every epoch; every event is there once and in order."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ended = [event for event in events if event["event"] in ("baseline", "warning")]
    assert [event["event"] for event in ended].count("baseline") == 1
    places = [(event["epoch"], event["step"]) for event in events]
    steps = [(epoch, step) for epoch in range(EPOCHS) for step in (50, STEPS)]
    assert places == steps + [(EPOCHS, 0)] * len(ended)
    return [event["loss"] for event in events if event["event"] == "epoch"]


def assert_identical(run: Path, other: Path) -> None:
    """Bit for bit the same weights and losses, after the same number of edges and rows."""
    found, expected = last_model(run), last_model(other)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == np.float64
        assert found[name].tobytes() == value.tobytes(), name
    assert losses(run) == losses(other)
    records = [RunFolder.open(path).read_record() for path in (run, other)]
    assert [record["status"] for record in records] == ["finished", "finished"]
    assert records[0]["counts"] == records[1]["counts"]
    assert records[0]["metrics"] == records[1]["metrics"]


def assert_same_model(run: Path, other: Path, tolerance: float = 1e-6) -> None:
    """The same weights but for the order of sums; other batches would show in the losses at once."""
    found, expected = last_model(run), last_model(other)
    for name, value in expected.items():
        assert np.abs(found[name] - value).max() <= tolerance * np.abs(value).max(), name
    np.testing.assert_allclose(losses(run), losses(other), rtol=tolerance)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kill", CASES)
def test_killed_and_resumed(graph: Graph, tmp_path: Path, kill: Kill) -> None:
    run = killed_run(graph, kill, tmp_path)
    expected = graph.undisturbed(kill)
    if not (run / "run.json").exists():  # killed before there was a run: the same command starts it
        finish(*train_arguments(graph, kill, run))
        assert_identical(run, expected)
        return
    position = assert_intact(run)
    if kill.moment == "step":
        assert position > (0, 0)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    finish("train", "--resume", run)
    assert RunFolder.open(run).read_record()["resumed"][0] | {"at": ""} == {
        "at": "", "epoch": position[0], "step": position[1],
    }  # fmt: skip
    assert_identical(run, expected)
    if kill.moment == "step":
        fewer = {3: 2, 4: 1}[kill.workers]
        finish("train", "--resume", copy, "--workers", fewer, "--strategy", "gdp")
        assert_same_model(copy, expected)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_again_and_again(graph: Graph, tmp_path: Path) -> None:
    """Each life of a run is ended by the death of another worker, until one is left alone."""
    kill = Kill(3, MIXED, 0, "step", 5)
    run = killed_run(graph, kill, tmp_path)
    draw = random.Random(5)
    for rank in (1, 2, 0):
        before = assert_intact(run)
        with started(["train", "--resume", run], tmp_path) as process:
            while rank not in (workers := workers_of(process.pid)):
                assert process.poll() is None
                time.sleep(0.01)
            time.sleep(draw.uniform(1, 5))
            if process.poll() is not None:
                break  # done already
            workers[rank].kill()
            assert process.wait(SECONDS_TO_END) in (0, 2)
        assert assert_intact(run) >= before
    finish("train", "--resume", run)
    assert_identical(run, graph.undisturbed(kill))
