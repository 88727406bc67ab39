"""How workers that a launcher has started find each other; with ``context.py`` the only reader of its variables."""

from __future__ import annotations

import ipaddress
import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from partita.comm.errors import peer_errors
from partita.comm.group import CPU, Communicator, Group
from partita.comm.meter import Meter
from partita.comm.proof import arrive, connecting, prove
from partita.comm.pulse import Pulse
from partita.comm.rounds import own_round
from partita.core.errors import ConfigError
from partita.core.machine import interface_of
from partita.core.mesh import Mesh


def meet(rank: int, size: int, timeout: timedelta) -> dist.Store:
    """Find all other workers at ``MASTER_ADDR`` and ``MASTER_PORT``, and the interface that leads there.

    Args:
        rank: of this process.
        size: number of processes.
        timeout: how long to wait for the others.

    Returns:
        The store through which they find each other.

    Raises:
        ConfigError: a variable is missing or no number.
        PeerLost: the others did not come.
    """
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise ConfigError(
                f"{name} is not set, but RANK and WORLD_SIZE are",
                where="environment",
                fix="Start the workers with torchrun, or unset RANK and WORLD_SIZE",
            )
    number_of("MASTER_PORT")
    with peer_errors():
        store, rank, size = next(rendezvous("env://", rank, size, timeout=timeout))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store = own_round(store, rank, size, timeout)
    arrive(store, rank, size, timeout)
    with peer_errors():
        _choose_interface(store, rank, size)
    return store


def another(store: dist.Store, name: str) -> dist.Store:
    """A connection of one's own to a store, for names that begin with ``name``."""
    # Older versions of torch cannot make one: what waits for the store then makes others wait.
    return dist.PrefixStore(name, store.clone() if hasattr(store, "clone") else store)


def join(store: dist.Store, rank: int, size: int, timeout: timedelta, secret: bytes, pulse: Pulse) -> None:
    """Make the default process group of workers that find each other through a store, once all of them have come.

    Args:
        store: where they are.
        rank: of this process.
        size: number of processes.
        timeout: how long an exchange may wait for another worker.
        secret: of the run.
        pulse: of this worker.

    Raises:
        PeerUnproven, Uninvited: see :func:`partita.comm.proof.prove`.
    """
    with connecting(pulse):
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
        prove(None, range(size), rank, secret)


def _choose_interface(store: dist.Store, rank: int, size: int) -> None:
    """Let gloo use the interface that leads to the other hosts, unless ``GLOO_SOCKET_IFNAME`` says which.

    Left alone, gloo takes the address that the host's own name stands for. Plain Debian and Ubuntu map it to
    127.0.1.1, and the workers of other hosts then wait for a minute and fail. The first host itself may reach
    ``MASTER_ADDR`` through its loopback interface, so the first and the last worker say what they found: ranks are
    host-major, so of several hosts one of the two is on another one.
    """
    name = "GLOO_SOCKET_IFNAME"
    found = "" if os.environ.get(name) else _address_towards(os.environ["MASTER_ADDR"], number_of("MASTER_PORT"))
    ends = (0, size - 1)
    if rank in ends:
        store.set(f"partita/address/{rank}", found)
    if not found:
        return
    if ipaddress.ip_address(found).is_loopback:
        others = [_checked(store.get(f"partita/address/{end}").decode()) for end in ends]
        away = next((other for other in others if other and not ipaddress.ip_address(other).is_loopback), None)
        found = _address_towards(away, number_of("MASTER_PORT")) if away else found
    interface = interface_of(found)
    if interface is not None:
        os.environ[name] = interface  # also for groups that are made later


def _checked(address: str) -> str:
    """An address that another worker has written, or so it seems."""
    try:
        return address and str(ipaddress.ip_address(address))
    except ValueError:
        raise ConfigError(
            f"what a worker gave as its address is none: {address[:40]!r}",
            where=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
            fix="Somebody else may write to this port: use another one, or a network of your own",
        ) from None


def _address_towards(host: str, port: int) -> str:
    """Our own address on the way to a host; empty where there is none. Nothing is sent."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return probe.getsockname()[0].partition("%")[0]
    except OSError:
        return ""


def workers_per_host(rank: int, size: int) -> int:
    """How many workers each host has. All workers call this.

    Args:
        rank: of this process in the default process group.
        size: number of processes.

    Raises:
        ConfigError: hosts have different numbers of workers, or ranks are not host-major.
    """
    wire = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else CPU
    group = Group(Mesh.of(rank, size, size), "all", Meter(), [Communicator(dist.group.WORLD)], wire=wire)
    known = "LOCAL_RANK" in os.environ and "LOCAL_WORLD_SIZE" in os.environ
    local = (number_of("LOCAL_RANK"), number_of("LOCAL_WORLD_SIZE")) if known else None
    answers = group.gather({"local": local, "host": socket.gethostname()})
    places = [answer["local"] for answer in answers]
    if all(places):
        workers = places[0][1]
        right = workers >= 1 and size % workers == 0
        right = right and all(place == [at % workers, workers] for at, place in enumerate(places))
        held = f"LOCAL_RANK/LOCAL_WORLD_SIZE by rank: {', '.join(f'{place[0]}/{place[1]}' for place in places)}"
    else:
        names = [answer["host"] for answer in answers]
        workers = names.count(names[0])
        right = size % workers == 0 and all(
            len(set(names[at : at + workers])) == 1 and names.count(names[at]) == workers
            for at in range(0, size, workers)
        )
        held = f"host names by rank: {', '.join(names)}"
    if not right:
        raise ConfigError(
            f"every host needs the same number of workers, with consecutive ranks; {held}",
            where="environment",
            fix="Start the same number of workers on every host, for instance with torchrun --nproc-per-node",
        )
    return workers


def number_of(name: str) -> int:
    """The value of a variable of the environment.

    Raises:
        ConfigError: it is no whole number.
    """
    try:
        return int(os.environ[name])
    except ValueError:
        raise ConfigError(f"{name}={os.environ[name]} is not a whole number", where="environment") from None
