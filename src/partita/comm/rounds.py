"""Workers of one round of an elastic launcher find each other in a store that still holds what earlier rounds wrote."""

from __future__ import annotations

import json
import secrets
import time
from datetime import timedelta

import torch.distributed as dist

from partita.comm.errors import PeerLost

_POLL_SECONDS = 0.02


def own_round(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.Store:
    """A part of a store that only the workers of this round write to. All of them call this.

    torchrun's launchers keep one store for all restarts. Nothing in the environment names the round: the count of
    restarts differs between hosts, and does not change when a host arrives. So every worker shows a number of its own,
    the first one writes down the numbers that it sees, with a name for the round, until each worker has found its own
    number there and says so under that name.

    Args:
        store: shared by all workers, and by those of earlier rounds, which have ended.
        rank, size: of this round.
        timeout: how long to wait for the others.

    Raises:
        PeerLost: not all came in time.
    """
    number, until = secrets.token_hex(8), time.monotonic() + timeout.total_seconds()
    store.set(f"partita/present/{rank}", number)
    while time.monotonic() < until:
        name = _written(store, number, size) if rank == 0 else _found(store, number, rank, size)
        if name is not None:
            return dist.PrefixStore(f"partita/round/{name}", store)
        time.sleep(_POLL_SECONDS)
    raise PeerLost("not all workers came")


def _written(store: dist.Store, name: str, size: int) -> str | None:
    """Write down who is there; the name of the round when all have seen it."""
    keys = [f"partita/present/{rank}" for rank in range(size)]
    present = [store.get(key).decode() if store.check([key]) else "" for key in keys]
    store.set("partita/round", json.dumps([name, present]))
    return name if all(store.check([f"partita/seen/{name}/{rank}"]) for rank in range(1, size)) else None


def _found(store: dist.Store, number: str, rank: int, size: int) -> str | None:
    """The name of the round in which this worker was seen, if there is one yet."""
    if not store.check(["partita/round"]):
        return None
    name, present = json.loads(store.get("partita/round"))
    if len(present) != size or present[rank] != number:
        return None
    store.set(f"partita/seen/{name}/{rank}", "")
    return name
