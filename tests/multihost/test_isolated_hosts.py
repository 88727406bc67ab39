"""Isolated training over two emulated hosts: what leaves their interfaces is gradients and models, and nothing else.

The wire is held to what the workers counted, payload to payload: every packet of TCP has 66 bytes of headers (Ethernet,
IP, TCP with timestamps), and the queues of the interfaces count packets as well as bytes. So neither headers nor
acknowledgements, which are packets without payload, have to be guessed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from isolated import model_of

import partita
from partita.testing.graphs import small_random_store
from partita.testing.hosts import EmulatedHosts, available

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

HOSTS = 2
EPOCHS = 3
PARTS = 4
# So wide that gradients are nearly all that is sent, of a model of 2.4 MB; so many rows a step that 256 bytes for each
# of them could not be overlooked.
SETTINGS: dict[str, Any] = {
    "layers": 3, "hidden": 512, "fanout": "5,5,5", "batch_size": 128, "epochs": EPOCHS, "eval_every": 2, "threads": 1,
}  # fmt: skip
STEPS = 10  # in an epoch
ACTIVE = ("ids", "features", "forward", "backward")
"""What isolated training never sends."""
HEADER_BYTES = 66
# What a host may send beyond what its worker has counted: gloo's own words about every message, 0.05% of the payload
# where messages are of megabytes, and the start: torchrun, the rendezvous and the connections, some 10 KiB.
PROPORTION = 1.001
START_BYTES = 64 * 2**10
PORT = 29500


@dataclass(frozen=True)
class Run:
    """A run that has ended: where it is, ``run.json``, and bytes without headers that left each host meanwhile."""

    path: Path
    record: dict[str, Any]
    payload: list[int]

    def sent(self, host: int, phase: str) -> dict[str, int]:
        """Bytes by kind that the worker of a host has counted for the other host, without those that are 0."""
        kinds = self.record["workers"][host]["traffic_bytes"][phase]
        assert not any(links["same_host"] for links in kinds.values())
        return {kind: links["other_host"] for kind, links in kinds.items()}

    def counted(self, host: int, *kinds: str) -> int:
        """The same over all phases, of some kinds together."""
        phases = self.record["workers"][host]["traffic_bytes"]
        return sum(self.sent(host, phase).get(kind, 0) for phase in phases for kind in kinds)

    @property
    def model_bytes(self) -> int:
        """Size of the parameters."""
        return sum(tensor.nbytes for tensor in model_of(self.path).values())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    whole = small_random_store(folder / "whole", 2000, 20_000, undirected=True, num_features=64)
    partita.partition(whole, folder / "parts", parts=PARTS, algorithm="spring")
    assert len(whole.split("train")) <= STEPS * SETTINGS["batch_size"]
    return folder / "parts"


def payload(hosts: EmulatedHosts) -> list[int]:
    """Bytes that have left the interface of every host, without headers."""
    found = []
    for namespace in hosts.namespaces:
        command = ["tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", "eth0"]
        listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        found += [queue["bytes"] - HEADER_BYTES * queue["packets"] for queue in listed if queue.get("root")]
    return found


def train(store: Path, out: Path, **settings: object) -> Run:
    """``partita train`` under torchrun, with one worker on each of two hosts."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GLOO_")}
    environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = ["-c", "from partita.cli import main; main()", "train", store, "--out", out]
    for name, value in {**SETTINGS, **settings}.items():
        command += [f"--{name.replace('_', '-')}", value]
    with EmulatedHosts(HOSTS, rate="1gbit") as hosts:
        before = payload(hosts)
        processes = []
        for host in range(HOSTS):
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", HOSTS, "--nproc-per-node", 1]
            torchrun += ["--node-rank", host, "--master-addr", hosts.addresses[0], "--master-port", PORT]
            words = [*torchrun, "--no-python", sys.executable, *command]
            processes.append(
                hosts.run(
                    host, [*map(str, words)], env=environment,
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
            )  # fmt: skip
        said = [process.communicate(timeout=120)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * HOSTS, "\n".join(said)
        time.sleep(0.2)  # the last acknowledgements
        after = payload(hosts)
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "finished"
    return Run(out, record, [end - start for start, end in zip(before, after, strict=True)])


def assert_only_gradients_and_metadata(run: Run) -> None:
    """By the counters of every worker, and by the interface of every host."""
    for host in range(HOSTS):
        assert run.sent(host, "training").keys() <= {"gradients", "metadata"}
        # Every host sees the whole store, and the first one evaluates alone.
        assert run.sent(host, "evaluation").keys() <= {"metadata"}
        assert run.sent(host, "start").keys() <= {"metadata"}
        # What the first worker gives the others to evaluate is the model that was the best.
        assert run.counted(host, "metadata") - run.sent(host, "training")["metadata"] < run.model_bytes + 2**14
        assert run.counted(host, *ACTIVE) == 0
        counted = run.counted(host, "gradients", "metadata")
        assert counted <= run.payload[host] <= most(counted)
    traffic = run.record["traffic_bytes"]
    for totals in (traffic, traffic["evaluation"]):
        assert [totals[kind] for kind in ACTIVE] == [0] * len(ACTIVE)


def most(counted: int) -> int:
    """What a host may put on the wire, without headers, if its worker has counted so many bytes."""
    return int(PROPORTION * counted) + START_BYTES


def test_grappa_sends_gradients(store: Path, tmp_path: Path) -> None:
    run = train(store, tmp_path / "run", preset="grappa")
    assert_only_gradients_and_metadata(run)
    steps = EPOCHS * STEPS
    for host in range(HOSTS):
        sent = run.sent(host, "training")
        assert sent["gradients"] == steps * run.model_bytes > 50e6
        assert sent["metadata"] < 512 * steps  # counts of every step


def test_sdt_gnn_sends_models(store: Path, tmp_path: Path) -> None:
    run = train(store, tmp_path / "run", preset="sdt-gnn")
    assert_only_gradients_and_metadata(run)
    tensors = len(model_of(run.path))
    for host in range(HOSTS):
        sent = run.sent(host, "training")
        # Models are added up in float64, with the weight of every tensor.
        assert sent["gradients"] == EPOCHS * (2 * run.model_bytes + 8 * tensors) > 10e6
    # A checkpoint has the two moments of Adam for each of its views; they come to the first worker.
    members = EPOCHS * (1 + 2 * PARTS // HOSTS) * run.model_bytes
    assert run.sent(0, "training")["metadata"] < 2**16
    assert run.sent(1, "training")["metadata"] < members + EPOCHS * 2**14


def test_the_wire_would_tell_rows_and_activations(store: Path, tmp_path: Path) -> None:
    """The same settings with workers that do send them: each kind by itself is more than the wire leaves open."""
    partita.partition(store, tmp_path / "two", parts=HOSTS, algorithm="spring")
    run = train(tmp_path / "two", tmp_path / "run", strategy="gsplit")
    for host in range(HOSTS):
        innocent = run.counted(host, "gradients", "metadata")
        sent, slack = run.sent(host, "training"), most(innocent) - innocent
        assert sent["ids"] > 2 * slack
        assert min(sent[kind] for kind in ("features", "forward", "backward")) > 20 * slack
        assert run.payload[host] > most(innocent) + sum(sent[kind] for kind in ACTIVE) - slack
        everything = innocent + run.counted(host, *ACTIVE)
        assert everything <= run.payload[host] <= most(everything)
