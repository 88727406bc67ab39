"""Several hosts on one machine: network namespaces with addresses of their own, joined by links of a known rate.

Every emulated host is a Linux network namespace with one interface, ``eth0``, and its own loopback interface. A cable
(a pair of veth interfaces) joins it to a switch (a bridge in a further namespace). Nothing is made or changed in the
network that the machine itself uses. The hosts share processors, memory, files and the host name.

The rate of a cable is kept by a token bucket filter at either end, so it holds for each direction by itself, and for
what several hosts send to one. The kernel hands several packets of 1500 bytes across at once where one socket sends
them, which saves most of the work; the rate and the counted bytes are those of the single packets with their headers.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from partita.core.errors import ConfigError, ResourceError

MAX_HOSTS = 250
END_SECONDS = 10.0
"""How long to wait for killed processes."""
_PREFIX = "partita-hosts"
_SWITCH = "switch"
_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_PACKET_BYTES = 1514  # of Ethernet, with its header
_MAX_PACKETS = 43  # that the kernel hands across at once: 64 KiB
_AT_ONCE_SECONDS = 0.5e-3  # what is handed across at once is sent at once; so that a link is not too bursty
_MIN_BURST = 16 * 2**10
_QUEUE_BYTES = 4 * 2**20  # of a link: so much that nothing is dropped, which would be sent, and counted, again
_numbers = itertools.count()


@functools.cache
def available() -> str | None:
    """Why hosts cannot be emulated here; ``None`` where they can.

    It needs Linux, root (or the right to make network namespaces) and the commands ``ip`` and ``tc`` of iproute2.
    """
    if not sys.platform.startswith("linux"):
        return f"network namespaces exist on Linux only, not on {sys.platform}"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    for name in ("ip", "tc"):
        if shutil.which(name) is None:
            return f"there is no command '{name}': install iproute2"
    try:
        with EmulatedHosts(1, rate="1gbit"):
            return None
    except ResourceError as error:
        return str(error)


def parse_rate(rate: str) -> int:
    """Bits per second of a rate such as ``"100mbit"`` or ``"2.5gbit"``.

    Raises:
        ConfigError: it is not a rate.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(bit|kbit|mbit|gbit)", rate)
    if match is None or float(match.group(1)) == 0:
        raise ConfigError(f"'{rate}' is not a rate", where="rate", fix="Write for instance 100mbit or 1gbit")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


class EmulatedHosts:
    """Some emulated hosts, numbered from 0; a context manager.

    Leaving the block, also by an error or Ctrl-C, kills every process on the hosts and removes the hosts. What a
    process that was itself killed has left behind is removed when hosts are next made.

        with EmulatedHosts(2, rate="100mbit") as hosts:
            server = hosts.run(0, ["python", "server.py", hosts.addresses[0]])

    Args:
        number: of hosts, at most :data:`MAX_HOSTS`.
        rate: of each cable in either direction, for instance ``"100mbit"`` (bits per second, as ``tc`` writes it;
            10^8 here); ``None``: as fast as the machine is.

    Attributes:
        addresses: IPv4 address of every host.
        namespaces: name of every host's network namespace.

    Raises:
        ConfigError: no such number or rate.
        ResourceError: (when entered) hosts cannot be made here; :func:`available` says so beforehand.
    """

    def __init__(self, number: int, *, rate: str | None = None) -> None:
        if not 1 <= number <= MAX_HOSTS:
            raise ConfigError(f"{number} hosts", fix=f"Emulate between 1 and {MAX_HOSTS}")
        self.rate = rate
        self._bits = None if rate is None else parse_rate(rate)
        stem = f"{_PREFIX}-{os.getpid()}-{next(_numbers)}"
        self.addresses = [f"10.77.0.{host + 1}" for host in range(number)]
        self.namespaces = [f"{stem}-{host}" for host in range(number)]
        self._switch = f"{stem}-{_SWITCH}"
        self._processes: list[subprocess.Popen[Any]] = []

    def __len__(self) -> int:
        return len(self.namespaces)

    def __enter__(self) -> Self:
        _remove_leftovers()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, host: int, argv: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a process on a host. It leads a session of its own, so Ctrl-C on the terminal does not reach it.

        Args:
            host: its number.
            argv: program and arguments.
            env: its whole environment; ``None``: that of this process.
            options: more of :class:`subprocess.Popen`, for instance ``stdout=subprocess.PIPE``.
        """
        options.setdefault("start_new_session", True)
        command = ["ip", "netns", "exec", self.namespaces[host], *(os.fspath(word) for word in argv)]
        # ip becomes the program (exec), so this is the program's process.
        process = subprocess.Popen(command, env=None if env is None else dict(env), **options)
        self._processes.append(process)
        return process

    def sent_bytes(self, host: int) -> int:
        """Bytes that have left the interface of a host, headers of Ethernet, IP and TCP included.

        Read from its queue, which counts every packet; the interface counts those that it is handed at once as one.
        """
        queues = json.loads(_call("tc", "-n", self.namespaces[host], "-s", "-j", "qdisc", "show", "dev", "eth0"))
        return sum(int(queue["bytes"]) for queue in queues if queue.get("root"))

    def processes(self, host: int) -> list[int]:
        """Ids of all processes that run on a host."""
        return _processes(self.namespaces[host])

    def close(self) -> None:
        """Kill every process on the hosts, and remove the hosts; may be called again."""
        _remove([*self.namespaces, self._switch], self._processes)
        for process in self._processes:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with suppress(OSError):  # what was to be written finds no reader any more
                        stream.close()
        self._processes.clear()

    def _make(self) -> None:
        for name in (self._switch, *self.namespaces):
            _call("ip", "netns", "add", name)
        _call("ip", "-n", self._switch, "link", "add", "name", "switch", "type", "bridge", "mcast_snooping", "0")
        _call("ip", "-n", self._switch, "link", "set", "dev", "switch", "addrgenmode", "none", "up")
        for host, (name, address) in enumerate(zip(self.namespaces, self.addresses, strict=True)):
            port = f"port{host}"
            cable = ["link", "add", "name", "eth0", "type", "veth", "peer", "name", port, "netns", self._switch]
            _call("ip", "-n", name, *cable)
            for namespace, interface in ((self._switch, port), (name, "eth0")):
                self._set_up(namespace, interface)
            _call("ip", "-n", self._switch, "link", "set", "dev", port, "master", "switch")
            _call("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _call("ip", "-n", name, "link", "set", "dev", "lo", "up")

    def _set_up(self, namespace: str, interface: str) -> None:
        """Bring an end of a cable up, with its rate."""
        packets = _MAX_PACKETS
        queue = ["pfifo"]  # only counts
        if self._bits is not None:
            packets = int(self._bits / 8 * _AT_ONCE_SECONDS / _PACKET_BYTES)
            packets = min(max(1, packets), _MAX_PACKETS)
            burst = max(_MIN_BURST, 2 * packets * _PACKET_BYTES)
            queue = ["tbf", "rate", f"{self._bits}bit", "burst", f"{burst}b", "limit", f"{_QUEUE_BYTES}b"]
        # Without an automatic IPv6 address, which would send packets of its own.
        link = ["link", "set", "dev", interface, "addrgenmode", "none", "gso_max_segs", str(packets), "up"]
        _call("ip", "-n", namespace, *link)
        _call("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", *queue)


def _call(*command: str) -> str:
    """Run a command; returns what it printed.

    Raises:
        ResourceError: it failed.
    """
    try:
        # A session of its own: Ctrl-C must not break off what is being removed.
        return subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True).stdout
    except OSError as error:
        raise ResourceError(f"'{command[0]}' cannot be started: {error}", fix="Install iproute2") from error
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.split()) or f"exit code {error.returncode}"
        raise ResourceError(
            f"hosts cannot be emulated here: '{' '.join(command)}' said: {said}",
            fix="Run as root, on a kernel with network namespaces, veth, bridge and tbf",
        ) from error


def _processes(namespace: str) -> list[int]:
    return [int(pid) for pid in _call("ip", "netns", "pids", namespace).split()]


def _existing() -> set[str]:
    """Names of all network namespaces that have one."""
    return {path.name for path in Path("/run/netns").glob("*")}


def _remove(namespaces: Sequence[str], children: Sequence[subprocess.Popen[Any]] = ()) -> None:
    """Kill what runs in namespaces, and remove them."""
    left = [name for name in namespaces if name in _existing()]
    deadline = time.monotonic() + END_SECONDS
    # A process can start another one while it is being killed.
    while (running := [pid for name in left for pid in _processes(name)]) and time.monotonic() < deadline:
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for child in children:
            child.poll()
        time.sleep(0.02)
    for child in children:
        child.wait()
    for name in left:
        _call("ip", "netns", "delete", name)


def _remove_leftovers() -> None:
    """Remove the hosts of processes that have ended without removing them."""
    for name in _existing():
        match = re.fullmatch(rf"{_PREFIX}-(\d+)-\d+-\w+", name)
        if match is not None and not Path("/proc", match.group(1)).exists():
            with suppress(ResourceError):  # another process may be doing the same
                _remove([name])
