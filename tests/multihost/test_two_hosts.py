"""Runs over two emulated hosts with two workers each, started with torchrun: what they learn, send, and end with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from processes import SECONDS_TO_END
from safetensors.numpy import load_file

import partita
from partita.testing.graphs import small_random_store
from partita.testing.hosts import EmulatedHosts, available

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

STRATEGIES = ("gdp", "gsplit", "data@hosts+gsplit@workers", "snp")
SETTINGS: dict[str, Any] = {
    "layers": 2,
    "hidden": 64,
    "fanout": "8,8",
    "batch_size": 400,
    "precision": "float64",
    "eval_every": 0,
    "threads": 1,
}
EPOCHS = 2
STEPS = 3  # in an epoch
WORKERS = 4
PORT = 29500
# What the wire carries beyond the payload that is counted: headers of Ethernet, IP and TCP (66 of every 1514 bytes, so
# 4.6% of the payload) and acknowledgements (0.2% to 2%); and whatever the payload, four packets of about 100 bytes that
# gloo and TCP send from each worker to each one of another host in an exchange. In a step of four workers these are
# 18 KiB (gdp) to 33 KiB (gsplit).
PROPORTION = 1.1
STEP_BYTES = 48 * 2**10
START_BYTES = 2 * 2**20  # torchrun, the rendezvous, connections between all workers for every group


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in four parts, another one of the same shape, and a run of one worker."""
    folder = tmp_path_factory.mktemp("graph")
    small_random_store(folder / "other", 100, 1000, 1, num_features=32)
    store = small_random_store(folder / "store", 2000, 20_000, undirected=True, num_features=32)
    partita.partition(store, folder / "store4", parts=WORKERS, algorithm="spring")
    partita.Trainer(folder / "store", out=folder / "alone", epochs=EPOCHS, **SETTINGS).fit()
    return folder


@pytest.fixture(scope="module")
def hosts() -> Iterator[EmulatedHosts]:
    with EmulatedHosts(2, rate="1gbit") as made:
        yield made


def start(hosts: EmulatedHosts, *commands: list[object], master: str | None = None) -> list[subprocess.Popen[str]]:
    """Start torchrun on every host, with two workers each, which run ``commands`` (one for all, or one a host)."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GLOO_")}
    environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    started = []
    for host in range(len(hosts)):
        address = master if master and host == 0 else hosts.addresses[0]
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
        command += ["--node-rank", str(host), "--master-addr", address, "--master-port", str(PORT)]
        command += ["--no-python", sys.executable, *map(str, commands[host % len(commands)])]
        started.append(
            hosts.run(
                host, command, env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
    return started


def finish(processes: list[subprocess.Popen[str]], timeout: float) -> list[str]:
    """What each has printed, once all have ended."""
    deadline = time.monotonic() + timeout
    said = []
    for process in processes:
        try:
            said.append(process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0])
        except subprocess.TimeoutExpired:
            for each in processes:
                os.killpg(each.pid, 9)
            pytest.fail("not all hosts ended; they said: " + "\n".join(each.communicate()[0] for each in processes))
    return said


def train(store: Path, out: Path, **settings: object) -> list[object]:
    """Arguments of Python for ``partita train``."""
    options = {**SETTINGS, "epochs": EPOCHS, **settings}
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    return ["-c", "from partita.cli import main; main()", "train", store, "--out", out, *words]


def assert_same_model(run: Path, other: Path) -> None:
    found, expected = (load_file(max((path / "checkpoints").iterdir()) / "model.safetensors") for path in (run, other))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.abs(found[name] - value).max() <= 1e-6 * np.abs(value).max(), name


def test_every_strategy_trains_the_model_of_one_worker_and_sends_what_it_counts(
    graph: Path, hosts: EmulatedHosts, tmp_path: Path
) -> None:
    script = Path(__file__).with_name("train_all.py")
    # On the first host its own name may stand for the loopback interface, as on plain Debian; the other one must not
    # be told to call there.
    arguments = [script, graph / "store4", tmp_path, json.dumps(SETTINGS), *STRATEGIES]
    processes = start(hosts, arguments, master="127.0.0.1")
    said = finish(processes, 120)
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    sent = json.loads((tmp_path / "sent.json").read_text())
    for strategy in STRATEGIES:
        assert_same_model(tmp_path / strategy, graph / "alone")
        short, long = sent[strategy]
        # The difference between a short and a long run is that of their steps: what comes once cancels.
        steps = (long["epochs"] - short["epochs"]) * STEPS
        counted, found = (long[name] - short[name] for name in ("meter", "interface"))
        assert counted > 0
        assert counted <= found <= PROPORTION * counted + STEP_BYTES * steps, strategy


def test_the_command_over_two_hosts(graph: Path, hosts: EmulatedHosts, tmp_path: Path) -> None:
    before = [hosts.sent_bytes(host) for host in range(2)]
    processes = start(hosts, train(graph / "store4", tmp_path / "run", strategy="gsplit"))
    said = finish(processes, 120)
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    assert_same_model(tmp_path / "run", graph / "alone")
    sent = sum(hosts.sent_bytes(host) - before[host] for host in range(2))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "finished"
    counted = other_host(record)
    assert counted <= sent <= PROPORTION * counted + STEP_BYTES * STEPS * EPOCHS + START_BYTES


def other_host(record: Any) -> int:
    """Bytes to other hosts in a record, of all workers."""
    if isinstance(record, list):
        return sum(map(other_host, record))
    if isinstance(record, dict):
        return record.get("other_host", 0) + sum(map(other_host, record.values()))
    return 0


def test_a_killed_worker_ends_all_on_both_hosts(graph: Path, hosts: EmulatedHosts, tmp_path: Path) -> None:
    run = tmp_path / "run"
    processes = start(hosts, train(graph / "store4", run, strategy="gsplit", epochs=100_000))
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists():
        assert all(process.poll() is None for process in processes), finish(processes, 10)
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = [psutil.Process(pid) for pid in hosts.processes(1) if "train" in psutil.Process(pid).cmdline()]
    victim = next(worker for worker in workers if worker.environ().get("RANK") == "3")
    killed = time.monotonic()
    victim.kill()
    said = finish(processes, 120)
    assert time.monotonic() - killed < SECONDS_TO_END
    assert [process.returncode for process in processes] == [1, 1]
    # The other host has only seen connections break, and says whose.
    broken = (
        rf"communication with another worker failed: (Connection closed by peer|Read error) \[{hosts.addresses[1]}\]"
    )
    assert re.search(broken, said[0]), said[0]
    assert "Signal 9 (SIGKILL)" in said[1]
    assert not hosts.processes(0)
    assert not hosts.processes(1)


REFUSED = """
import json, sys, partita
from partita.comm.context import Context
from partita.core.errors import ConfigError
from partita.train.team import PURPOSES
store, other, out, settings = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
with Context.from_environment(purposes=PURPOSES) as context:
    for where, changes in ((other, {}), (store, {"hidden": 32})):
        if context.mesh.host == 0:
            where, changes = store, {}
        try:
            partita.Trainer(where, out=out, context=context, **settings | changes)
        except ConfigError as error:
            print(error)
"""


def test_hosts_that_differ_are_refused(graph: Path, hosts: EmulatedHosts, tmp_path: Path) -> None:
    settings = json.dumps({**SETTINGS, "strategy": "gdp"})
    processes = start(hosts, ["-c", REFUSED, graph / "store", graph / "other", tmp_path / "run", settings])
    said = finish(processes, 120)
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    one, two = (partita.GraphStore.open(graph / name).fingerprint for name in ("store", "other"))
    for text in said:  # on every worker
        assert text.count(f"store fingerprint is '{one}' on workers 0, 1; '{two}' on workers 2, 3") == 2
        assert text.count("hidden is 64 on workers 0, 1; 32 on workers 2, 3") == 2
    assert not (tmp_path / "run").exists()
