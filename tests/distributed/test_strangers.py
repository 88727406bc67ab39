"""Another user of the machine connects to workers before they have connected to each other.

A run ends right, or with an error that says what happened; it never computes with what a stranger sends.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
import torch
from processes import workers_of

from partita.comm.local import run_local, workers_ready
from partita.core.errors import PartitaError

# Reads lines of JSON: a port and what to do there. It holds whatever it has opened until its input ends.
STRANGER = """
import json, os, pwd, socket, struct, sys
if os.getuid() == 0:
    os.setuid(pwd.getpwnam("nobody").pw_uid)
held = []
for line in sys.stdin:
    port, how, numbers = json.loads(line)
    for number in numbers:
        one = socket.socket()
        one.settimeout(1)
        try:
            one.connect(("127.0.0.1", port))
            if how != "silent":
                one.sendall(struct.pack("<q", number))  # as gloo begins
            if how == "garbage":
                one.sendall(os.urandom(65536))
            if how == "lengths":
                one.sendall(b"\\xff" * 64 + b"\\x7f" * 64)
            if how == "zeros":
                one.sendall(bytes(65536))
            if how == "close":
                one.close()
        except OSError:
            pass
        held.append(one)
    sys.stdout.write("done\\n")
    sys.stdout.flush()
"""
HOW = ("silent", "number", "close", "garbage", "lengths", "zeros")
NUMBERS = range(6)
HEARTBEAT = 4.0
REFUSED = (
    "another process connected in its place",
    "another process may have connected in place of one",
    "does not know the secret of this run",
)


@contextmanager
def stranger() -> Iterator[subprocess.Popen[str]]:
    """A process of another user, where this one may become such."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", STRANGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Greeter(threading.Thread):
    """Sends the stranger to every port that a worker opens, and holds a worker up now and then, until it is closed."""

    def __init__(self, process: subprocess.Popen[str], how: str, draw: random.Random) -> None:
        super().__init__(daemon=True)
        self._process, self._how, self._draw = process, how, draw
        self._over = threading.Event()
        self.greeted = 0
        self.start()

    def close(self) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        seen: set[int] = set()
        late, until = self._draw.randrange(2), 0.0
        while not self._over.wait(0.005):
            workers = workers_of()
            if late in workers and not until:
                with suppress(psutil.Error):
                    time.sleep(self._draw.uniform(0, 0.3))
                    workers[late].suspend()
                until = time.monotonic() + self._draw.uniform(0.5, 1.5)
            for worker in workers.values():
                with suppress(psutil.Error):
                    for each in worker.net_connections():
                        if each.status == psutil.CONN_LISTEN and each.laddr.port not in seen:
                            seen.add(each.laddr.port)
                            self._greet(each.laddr.port)
            if until and time.monotonic() > until and late in workers:
                with suppress(psutil.Error):
                    workers[late].resume()

    def _greet(self, port: int) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([port, self._how, list(NUMBERS)]) + "\n")
        self._process.stdin.flush()
        self._process.stdout.readline()
        self.greeted += 1


def add_up(context) -> float:
    """Sums over all workers, by two groups; the result is known."""
    total = 0.0
    for step in range(10):
        for purpose in ("train", "sample"):
            value = torch.tensor([float(step + context.mesh.rank)], dtype=torch.float64)
            context.group("all", purpose).sum_([value])
            total += value.item()
    return total


RIGHT = sum(2.0 * (step + step + 1) for step in range(10))


def meet_strangers(cases: list[tuple[int, str]]) -> Counter[str]:
    """What came of runs of two workers, by outcome."""
    found: Counter[str] = Counter()
    with workers_ready():
        for seed, how in cases:
            with stranger() as process:
                greeter = Greeter(process, how, random.Random(seed))
                refused: str | None = None
                try:
                    results = run_local(add_up, 2, purposes=["train", "sample"], heartbeat=HEARTBEAT, timeout=60)
                except PartitaError as error:
                    refused = str(error)
                finally:
                    greeter.close()
                assert greeter.greeted > 0, "the workers were faster than the stranger"
                if refused is None:
                    assert results == [RIGHT, RIGHT], (seed, how)
                else:
                    assert any(text in refused for text in REFUSED), (seed, how, refused)
                found[f"{how}: {'right' if refused is None else 'refused'}"] += 1
    return found


def test_strangers_never_take_part() -> None:
    assert meet_strangers([(1, "number"), (2, "garbage")]).total() == 2


@pytest.mark.slow
def test_two_hundred_strangers_never_take_part() -> None:
    cases = [(seed, HOW[seed % len(HOW)]) for seed in range(200)]
    found = meet_strangers(cases)
    print(*sorted(found.items()), sep="\n")
    assert found.total() == len(cases)
