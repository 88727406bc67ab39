"""One order of exchanges for all workers, where several threads of each exchange at once.

Threads of a worker (sampler, loader, trainer) have process groups of their own, so that with sockets their exchanges
cannot mix. On NCCL that is not enough: an exchange occupies its device until all workers have come to it, so two
workers that start two exchanges in different order wait for each other for ever. DSP (Cai et al., PPoPP 2023, section
5) lets a leader fix the order; this is that. The first worker takes exchanges as they come and tells the others, who
start theirs in the same order, each when its thread has come to it.

It cannot deadlock as long as all workers do the same in each thread: what the thread of a follower does before its
next exchange waits for nothing but exchanges that the leader has started before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist

from partita.comm.errors import PeerLost, peer_errors

END = -1
"""The code after which no further ones come."""

CLOSE_SECONDS = 5.0
"""How long a follower waits for the leader's last word. Where it does not come, a worker has failed."""

_ON_THE_WAY = 64


class MessageChannel:
    """How the leader's codes get to the followers: as messages between the processes of a group.

    Args:
        process_group: of all workers, for nothing else; its time-out must be longer than any pause between exchanges.
        rank: of this worker; rank 0 leads.
        size: number of workers.
    """

    def __init__(self, process_group: dist.ProcessGroup, rank: int, size: int) -> None:
        self._process_group, self._followers = process_group, [] if rank else list(range(1, size))
        self._pending: deque[tuple[torch.Tensor, list[Any]]] = deque()

    def send(self, code: int) -> None:
        """Tell all followers; on the leader only, from one thread at a time."""
        message = torch.tensor([code])
        with peer_errors():
            works = [dist.isend(message, dst=rank, group=self._process_group) for rank in self._followers]
            self._pending.append((message, works))
            while len(self._pending) > (0 if code == END else _ON_THE_WAY):
                for work in self._pending.popleft()[1]:
                    work.wait()

    def receive(self) -> int:
        """The next code; on a follower only, from one thread."""
        message = torch.empty(1, dtype=torch.int64)
        with peer_errors():
            dist.recv(message, src=0, group=self._process_group)
        return int(message)


class CollectiveOrder:
    """The order of a run's exchanges, as one worker sees it.

    Args:
        leads: whether this worker sets the order.
        channel: between the leader and the others.
        names: what exchanges are for; the same on all workers.
    """

    def __init__(self, leads: bool, channel: MessageChannel, names: tuple[str, ...]) -> None:
        self._leads, self._channel, self._names = leads, channel, names
        self._starting = threading.Lock()
        self._changed = threading.Condition()
        self._order: deque[str] = deque()
        self._failure: BaseException | None = None
        self._closed = False
        self._listener: threading.Thread | None = None
        if not leads:
            self._listener = threading.Thread(target=self._listen, name="partita-collective-order", daemon=True)
            self._listener.start()

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Start an exchange in this block, when it is its turn.

        Args:
            name: what it is for. Exchanges for one purpose are started by one thread at a time.

        Raises:
            BaseException: what :meth:`abort` was given, or what ended the leader's channel.
        """
        if self._leads:
            with self._starting:
                self._check()
                self._channel.send(self._names.index(name))
                yield
            return
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or (self._order and self._order[0] == name))
            self._check()
        yield
        with self._changed:
            self._order.popleft()
            self._changed.notify_all()

    def abort(self, failure: BaseException) -> None:
        """Let nobody wait for a turn any longer: a thread of this worker has failed, and the order is lost."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def close(self) -> None:
        """No exchange follows. Every worker calls this after its last one."""
        if self._closed:
            return
        self._closed = True
        if self._listener is not None:
            self._listener.join(CLOSE_SECONDS)
        elif self._failure is None:
            with suppress(PeerLost):
                self._channel.send(END)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _listen(self) -> None:
        try:
            while (code := self._channel.receive()) != END:
                with self._changed:
                    self._order.append(self._names[code])
                    self._changed.notify_all()
        except BaseException as error:
            self.abort(error)
