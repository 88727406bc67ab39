"""Emulated hosts: they reach each other at the rate asked for, count what they send, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from partita.core.errors import ConfigError, ResourceError
from partita.testing import hosts as module
from partita.testing.hosts import EmulatedHosts, available, parse_rate

needs_hosts = pytest.mark.skipif(available() is not None, reason=str(available()))

RECEIVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
connection, _ = server.accept()
started, received = time.perf_counter(), 0
while piece := connection.recv(1 << 20):
    received += len(piece)
print(received, time.perf_counter() - started)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""


def namespaces() -> set[str]:
    return {path.name for path in Path("/run/netns").glob("partita-hosts-*")}


def transfer(hosts: EmulatedHosts, num_bytes: int) -> float:
    """Send bytes from host 0 to host 1; returns bits per second of payload."""
    receiver = hosts.run(1, [sys.executable, "-c", RECEIVE, hosts.addresses[1]], stdout=subprocess.PIPE, text=True)
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "ready\n"
    sender = hosts.run(0, [sys.executable, "-c", SEND, hosts.addresses[1], str(num_bytes)])
    received, seconds = receiver.communicate(timeout=60)[0].split()
    assert sender.wait(10) == 0
    assert int(received) == num_bytes
    return 8 * num_bytes / float(seconds)


@needs_hosts
@pytest.mark.parametrize(("rate", "num_bytes"), [("50mbit", 4_000_000), ("400mbit", 20_000_000), (None, 1_000_000)])
def test_a_transfer_takes_as_long_as_the_rate_says(rate: str | None, num_bytes: int) -> None:
    with EmulatedHosts(2, rate=rate) as hosts:
        before = [hosts.sent_bytes(host) for host in range(2)]
        found = transfer(hosts, num_bytes)
        sent = [hosts.sent_bytes(host) - before[host] for host in range(2)]
    # 66 bytes of headers (Ethernet, IP, TCP with time stamps) to every 1448 of payload.
    assert sent[0] == pytest.approx(num_bytes * 1514 / 1448, rel=0.005)
    assert sent[1] < 0.05 * num_bytes  # acknowledgements
    if rate is not None:
        # Never faster, but for the bucket that is full at first; slower where the processors are busy.
        assert 0.5 * parse_rate(rate) < found < parse_rate(rate)


@needs_hosts
def test_the_network_of_the_machine_is_neither_changed_nor_reachable() -> None:
    def state() -> list[str]:
        commands = (["ip", "-o", "link"], ["ip", "-o", "addr"], ["tc", "qdisc"])
        return [subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in commands]

    before = state()
    with EmulatedHosts(3, rate="1gbit") as hosts:
        assert state() == before
        assert len(hosts) == 3
        listing = hosts.run(2, ["ip", "-o", "-4", "addr"], stdout=subprocess.PIPE, text=True).communicate()[0]
        assert [line.split()[1:4:2] for line in listing.splitlines()] == [
            ["lo", "127.0.0.1/8"],
            ["eth0", "10.77.0.3/24"],
        ]
        routes = hosts.run(2, ["ip", "route"], stdout=subprocess.PIPE, text=True).communicate()[0]
        assert "default" not in routes
    assert state() == before


@needs_hosts
def test_processes_end_with_their_hosts_also_when_the_block_fails() -> None:
    def fail() -> list[psutil.Process]:
        with EmulatedHosts(2) as hosts:
            assert namespaces() >= set(hosts.namespaces)
            # A process, and one that it has started in a session of its own.
            hosts.run(0, ["setsid", "--fork", "sleep", "600"])
            hosts.run(1, ["sleep", "600"])
            while not (hosts.processes(0) and hosts.processes(1)):
                time.sleep(0.02)
            running.extend(psutil.Process(pid) for host in range(2) for pid in hosts.processes(host))
            names.extend(hosts.namespaces)
            raise KeyError("fanout")

    running: list[psutil.Process] = []
    names: list[str] = []
    with pytest.raises(KeyError):
        fail()
    assert len(running) >= 2
    assert not psutil.wait_procs(running, timeout=5)[1]
    assert not namespaces() & set(names)


SCRIPT = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts in the background ignore it
from partita.testing.hosts import EmulatedHosts
with EmulatedHosts(2) as hosts:
    hosts.run(0, ["sleep", "600"])
    print(*hosts.namespaces, flush=True)
    time.sleep(600)
"""


@needs_hosts
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_script_that_is_stopped_leaves_nothing(number: signal.Signals) -> None:
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with script:
        assert script.stdout is not None
        made = set(script.stdout.readline().split())
        assert made <= namespaces()
        script.send_signal(number)
        script.wait(30)
    if number == signal.SIGKILL:  # it had no chance; whoever is next clears up
        assert made <= namespaces()
        with EmulatedHosts(1):
            pass
    assert not made & namespaces()


@needs_hosts
def test_what_fails_while_hosts_are_made_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = namespaces()
    call = module._call

    def break_off(*command: str) -> str:
        if "tbf" in command:
            raise KeyboardInterrupt
        return call(*command)

    monkeypatch.setattr(module, "_call", break_off)
    with pytest.raises(KeyboardInterrupt), EmulatedHosts(2, rate="1gbit"):
        pass
    assert namespaces() == before


def test_why_hosts_cannot_be_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert available.__wrapped__() == "network namespaces exist on Linux only, not on darwin"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert available.__wrapped__() == "making network namespaces needs root"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert available.__wrapped__() == "there is no command 'ip': install iproute2"
    with pytest.raises(ResourceError, match="'ip' cannot be started"):
        module._call("ip", "link")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EmulatedHosts(0), "0 hosts"),
        (lambda: EmulatedHosts(251), "between 1 and 250"),
        (lambda: EmulatedHosts(2, rate="100"), "'100' is not a rate"),
        (lambda: EmulatedHosts(2, rate="0gbit"), "'0gbit' is not a rate"),
    ],
)
def test_what_is_asked_for_must_make_sense(make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_rates() -> None:
    assert [parse_rate(rate) for rate in ("64kbit", "100mbit", "2.5gbit")] == [64_000, 10**8, 2_500_000_000]
