"""Workers of a round find each other in a store that earlier rounds have written to."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from partita.comm.errors import PeerLost
from partita.comm.rounds import own_round

SOON = timedelta(seconds=60)


def meet(store: dist.Store, size: int, late: int = 0) -> list[dist.Store]:
    """All workers of a round, each in a thread; ``late`` comes when the others are waiting."""
    others_wait = threading.Event()

    def come(rank: int) -> dist.Store:
        if rank == late:
            assert others_wait.wait(60)
        return own_round(store, rank, size, SOON)

    with ThreadPoolExecutor(size) as workers:
        found = [workers.submit(come, rank) for rank in range(size)]
        threading.Event().wait(0.1)
        others_wait.set()
        return [each.result(60) for each in found]


def test_every_round_has_keys_of_its_own() -> None:
    shared = dist.HashStore()
    for number, (size, late) in enumerate([(3, 0), (3, 2), (2, 1), (3, 1), (1, 0)]):
        stores = meet(shared, size, late)
        assert not stores[-1].check(["address"])
        stores[0].set("address", str(number))
        assert [store.get("address") for store in stores] == [str(number).encode()] * size


def test_a_worker_that_was_there_before_does_not_count() -> None:
    shared = dist.HashStore()
    meet(shared, 2)
    with pytest.raises(PeerLost, match="not all workers came"):
        own_round(shared, 0, 2, timedelta(seconds=0.2))
    with pytest.raises(PeerLost, match="not all workers came"):
        own_round(shared, 1, 2, timedelta(seconds=0.2))
