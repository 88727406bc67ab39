"""A worker that is stopped or hangs is named, and the run ends; also where the user wants it to end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from processes import SECONDS_TO_END, workers_of

from partita.comm.errors import WorkerLost
from partita.comm.local import run_local
from partita.testing.graphs import small_random_store

HEARTBEAT = 1.5


def steps(context, how: str) -> None:
    """Steps with an exchange each; in step 3 the last worker does what it is told."""
    group = context.group("all", "train")
    with context.pulse.stepping():
        for step in range(1000):
            if step == 3 and context.mesh.rank == context.mesh.size - 1:
                hang(how)
            group.sum_([torch.ones(1)])
            context.pulse.step()


def hang(how: str) -> None:
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "loop":
        while True:
            pass
    elif how == "lock":
        threading.Lock().acquire()
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


@pytest.mark.parametrize(
    ("how", "said"), [("stopped", "has been stopped"), ("loop", "has made no step"), ("lock", "has made no step")]
)
def test_a_worker_that_holds_the_others_up_is_named(how: str, said: str) -> None:
    begun = time.monotonic()
    with pytest.raises(WorkerLost, match=rf"^worker 2 {said} for \d+ s") as caught:
        run_local(steps, 3, [how], heartbeat=HEARTBEAT)
    assert time.monotonic() - begun < 30 + SECONDS_TO_END  # imports included
    notes = "\n".join(getattr(caught.value, "__notes__", []))
    assert ("in hang" in notes) == (how != "stopped"), notes
    assert not workers_of()


def cross(context) -> None:
    """Every worker waits in another group."""
    context.group("all", "ab"[context.mesh.rank]).gather(None)


def test_workers_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(WorkerLost, match=r"^workers 0 and 1 have waited for each other for \d+ s"):
        run_local(cross, 2, purposes=["a", "b"], heartbeat=HEARTBEAT)


@pytest.mark.parametrize(("rank", "number"), [(0, signal.SIGINT), (1, signal.SIGTERM)])
def test_a_run_with_a_stopped_worker_can_be_stopped(tmp_path: Path, number: signal.Signals, rank: int) -> None:
    store, run = small_random_store(tmp_path / "g", 200, 1000), tmp_path / "run"
    command = [sys.executable, "-m", "partita", "train", store.path, "--out", run, "--workers", "2", "--epochs", "9999"]
    process = subprocess.Popen([*map(str, command), "--layers", "1"], stderr=subprocess.PIPE, text=True)
    try:
        metrics = run / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and '"epoch": 2' in metrics.read_text())
        workers = workers_of(process.pid)
        workers[rank].suspend()
        process.send_signal(number)
        begun = time.monotonic()
        _, said = process.communicate(timeout=60)
        assert time.monotonic() - begun < SECONDS_TO_END
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "the same signal again ends all at once" in said
    assert f"worker {rank} has been stopped" in said
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers.values())


LAUNCHED = """
import sys, time
from partita.comm.context import Context
from test_silent_workers import steps
with Context.from_environment(heartbeat=2.0) as context:
    if sys.argv[1] == "apart":
        time.sleep(3.0 if context.mesh.rank == 0 else 0.0)  # one closes before the other
    else:
        steps(context, sys.argv[1])
print("done")
"""


def started_by_a_launcher(how: str, *given: dict[str, str]) -> list[tuple[int, str, str]]:
    """Exit code and output of two workers, each with variables of its own."""
    given, size = given or ({}, {}), 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", LAUNCHED, how]
    workers = [
        subprocess.Popen(
            command,
            env={**common, **given[rank], "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        workers[0].wait(60)
        if how != "apart":  # a launcher ends the others
            with suppress(subprocess.TimeoutExpired):
                workers[1].wait(0 if how == "stopped" else 5)
            workers[1].kill()
        ended = [worker.communicate(timeout=60) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return [(worker.returncode, *output) for worker, output in zip(workers, ended, strict=True)]


def test_workers_of_a_launcher_see_that_one_is_stopped() -> None:
    (first, _, said), (second, _, nothing) = started_by_a_launcher("stopped")
    assert (first, second) == (2, -signal.SIGKILL)
    assert re.search(r"partita: error: worker 1 has given no sign of life for \d+ s\. Worker 0 ends", said), said
    assert "Traceback" not in said
    assert not nothing


def test_a_worker_of_a_launcher_that_hangs_says_where() -> None:
    (first, _, said), (second, _, stacks) = started_by_a_launcher("loop")
    assert first == 2
    assert second in (2, -signal.SIGKILL)
    assert "worker 1 has made no step for" in said + stacks
    assert "in hang" in stacks


def test_workers_of_a_launcher_need_not_end_together() -> None:
    assert started_by_a_launcher("apart") == [(0, "done\n", "")] * 2


def test_workers_of_a_launcher_with_different_secrets_refuse_each_other() -> None:
    found = started_by_a_launcher("apart", {"PARTITA_SECRET": "a"}, {"PARTITA_SECRET": "b"})
    for rank, (code, _, said) in enumerate(found):
        assert code == 1  # of the script, which does not catch it
        assert f"Uninvited: who connected as worker {1 - rank} does not know the secret of this run" in said
    same = {"PARTITA_SECRET": "a"}
    assert [code for code, *_ in started_by_a_launcher("apart", same, same)] == [0, 0]


def wait_for(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
