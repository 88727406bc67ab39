"""The pipeline over real workers: the same model with and without, in one order or not; a stage that fails ends all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import partita
from partita.comm.context import Context
from partita.comm.group import communicator
from partita.core.errors import StoreError
from partita.testing.graphs import small_random_store
from partita.testing.workers import run_workers
from partita.train.team import PURPOSES

SETTINGS: dict[str, Any] = {
    "layers": 2, "hidden": 16, "fanout": (4, 3), "batch_size": 20, "epochs": 2, "seed": 3, "topology": "partitioned",
    "strategy": "by-owner,data,data", "eval_every": 0, "dropout": 0.3, "input_dropout": 0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    """A store in 2 parts."""
    folder = tmp_path_factory.mktemp("graph")
    store = small_random_store(folder / "store", 300, 2500, undirected=True, num_features=7)
    return partita.partition(store, folder / "parts2", parts=2, algorithm="random").path


def model_bytes(run: Path) -> bytes:
    latest = sorted(path for path in (run / "checkpoints").iterdir() if not path.name.startswith("."))[-1]
    return (latest / "model.safetensors").read_bytes()


def train(context: Context, store: str, out: str, settings: dict[str, Any]) -> str:
    return partita.Trainer(store, out=out, context=context, **settings).fit().status


def run(graph: Path, out: Path, workers: int = 2, *, ordered: bool = True, **settings: Any) -> Path:
    merged = {**SETTINGS, "workers": workers, **settings}
    ended = run_workers(train, workers, str(graph), str(out), merged, purposes=PURPOSES, ordered=ordered, timeout=120)
    assert ended == ["finished"] * workers
    return out


def exchange_by_lanes(context: Context) -> list[list[float]]:
    """Two threads each do exchanges of different sizes, in an order of time that differs between the workers."""
    group, found = context.group("all", "sample"), [list[float](), list[float]()]

    def work(number: int) -> None:
        with communicator(number):
            for turn in range(20):
                time.sleep(0.002 * ((number + context.mesh.rank + turn) % 3))
                rows = torch.full((2, 3 + number), float(10 * number + context.mesh.rank))
                got = group.exchange(rows, [1, 1], [1, 1], "ids")
                total = torch.full((5 - number,), float(number))
                group.sum_([total], kind="metadata")
                found[number] += [*got[:, 0].tolist(), float(total[0])]

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert context.communicators("sample") == 2
    return found


@pytest.mark.parametrize("ordered", [False, True])
def test_threads_exchange_by_lanes_of_one_group(ordered) -> None:
    ways = ("train", "sample", "sample")
    found = run_workers(exchange_by_lanes, 2, purposes=ways, ordered=ordered, timeout=60)
    assert found == [[[0.0, 1.0, 0.0] * 20, [10.0, 11.0, 2.0] * 20]] * 2


def test_same_bytes_with_and_without_in_one_order_or_in_any(graph, tmp_path) -> None:
    expected = model_bytes(run(graph, tmp_path / "sequential", prefetch=0))
    for prefetch, ordered in [(1, True), (3, True), (2, False)]:
        folder = run(graph, tmp_path / f"{prefetch}-{ordered}", prefetch=prefetch, ordered=ordered, trace=True)
        assert model_bytes(folder) == expected
    record = json.loads((folder / "run.json").read_text())
    sequential = json.loads((tmp_path / "sequential" / "run.json").read_text())
    assert record["traffic_bytes"] == sequential["traffic_bytes"]
    assert record["traffic_bytes"]["features"] > 0
    steps = record["pipeline"]["sample"]["items"]
    assert record["pipeline"].keys() == {"sample", "load"}
    assert record["pipeline"]["load"]["items"] == steps == sequential["pipeline"]["load"]["items"] > 10
    trace = json.loads((folder / "trace.json").read_text())["traceEvents"]
    done = [(event["pid"], event["name"]) for event in trace if event["ph"] == "X"]
    for worker in (0, 1):
        for name in ("sample", "load", "forward", "backward", "sum_gradients"):
            assert done.count((worker, name)) == steps, name
    assert not (tmp_path / "sequential" / "trace.json").exists()


def fail(context: Context, store: str, out: str, settings: dict[str, Any], rank: int, stage: str) -> str:
    trainer = partita.Trainer(store, out=out, context=context, **settings)
    engine = trainer.job.views.engine
    work, calls = getattr(engine, stage), []

    def failing(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 7 and context.mesh.rank == rank:
            raise StoreError(f"the disk of worker {rank} is gone", where=stage)
        return work(*arguments, **named)

    setattr(engine, stage, failing)
    return trainer.fit().status


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("rank", "stage"), [(0, "sample"), (1, "sample"), (0, "load"), (1, "load"), (1, "forward")])
def test_a_stage_that_fails_ends_the_run_with_its_error(graph, tmp_path, rank, stage, ordered) -> None:
    settings = {**SETTINGS, "workers": 2, "prefetch": 2, "epochs": 50}
    started = time.monotonic()
    with pytest.raises(StoreError, match=f"the disk of worker {rank} is gone"):
        run_workers(
            fail, 2, str(graph), str(tmp_path / "run"), settings, rank, stage, purposes=PURPOSES, ordered=ordered,
            timeout=120,
        )  # fmt: skip
    assert time.monotonic() - started < 60
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"].startswith(("failed", "running"))


def stop(context: Context, store: str, out: str, settings: dict[str, Any]) -> list[Any]:
    """Worker 1 is asked to stop while the loader of worker 0 is behind."""
    trainer = partita.Trainer(store, out=out, context=context, **settings)
    engine = trainer.job.views.engine
    load, forward, calls, loaded = engine.load, engine.forward, [], []

    def slow(batch: Any) -> Any:
        found = load(batch)
        if batch.rows is None:
            loaded.append(batch.key.step)
            if context.mesh.rank == 0:
                time.sleep(0.2)  # meanwhile worker 1 begins the next one
        return found

    def asked(batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 5 and context.mesh.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return forward(batch)

    engine.load, engine.forward = slow, asked
    return [trainer.fit().status, loaded]


def test_workers_that_stop_finish_the_same_batches(graph, tmp_path) -> None:
    settings = {**SETTINGS, "workers": 2, "prefetch": 3, "batch_size": 10}
    ended = run_workers(stop, 2, str(graph), str(tmp_path / "run"), settings, purposes=PURPOSES, timeout=60)
    assert [status for status, _ in ended] == ["interrupted"] * 2
    assert ended[0][1] == ended[1][1]
    assert len(ended[0][1]) >= 5 + 3  # what was ahead was loaded, on both


TORCHRUN = """
import sys
sys.path.insert(0, sys.argv[1])
import test_pipeline as tests
from partita.comm.context import Context

context = Context.from_environment(purposes=tests.PURPOSES, ordered=sys.argv[4] == "True")
tests.fail(context, sys.argv[2], sys.argv[3], {**tests.SETTINGS, "workers": 2, "epochs": 50}, 1, "sample")
"""


@pytest.mark.parametrize("ordered", [False, True])
def test_a_stage_that_fails_ends_a_run_of_torchrun(graph, tmp_path, ordered) -> None:
    script = tmp_path / "script.py"
    script.write_text(TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    command += [str(Path(__file__).parent), str(graph), str(tmp_path / "run"), str(ordered)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode != 0
    assert "the disk of worker 1 is gone" in ended.stderr
