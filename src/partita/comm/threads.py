"""Workers as threads of one process: the fastest way to try what several workers do.

Everything but the transport is that of real workers: byte counts, exchanges in forward and backward, collectives.
Models and batches must not be shared between the threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from jaxtyping import Shaped
from torch import Tensor

from partita.comm.group import Group
from partita.comm.meter import Meter
from partita.core.mesh import Mesh

Result = TypeVar("Result")

TIMEOUT = 60.0
"""Seconds after which a worker that waits for the others gives up."""


class _Room:
    """Where the threads of a group leave things for one another."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=TIMEOUT)
        self.places: list[Any] = [None] * size

    def swap(self, rank: int, thing: Any) -> list[Any]:
        """Leave a thing; returns those of all, in group order."""
        self.places[rank] = thing
        self.barrier.wait()
        things = list(self.places)
        self.barrier.wait()  # nobody overwrites what another has not yet taken
        return things


class ThreadGroup(Group):
    """A group whose workers are threads."""

    def __init__(self, mesh: Mesh, axis: str, meter: Meter, room: _Room) -> None:
        super().__init__(mesh, axis, meter)
        self._room = room

    def _swap(
        self, rows: Shaped[Tensor, "n ..."], send: Sequence[int], receive: Sequence[int]
    ) -> Shaped[Tensor, "m ..."]:
        parts = rows.detach().split(list(send))
        taken = [theirs[self.rank] for theirs in self._room.swap(self.rank, parts)]
        if [part.shape[0] for part in taken] != list(receive) or any(
            part.shape[1:] != rows.shape[1:] or part.dtype != rows.dtype for part in taken
        ):
            found = [(tuple(part.shape), part.dtype) for part in taken]
            raise RuntimeError(f"worker {self.rank} expected {list(receive)} of {tuple(rows.shape[1:])}, got {found}")
        return torch.cat(taken)

    def _all_reduce(self, flat: Tensor) -> None:
        """Summed in group order."""
        flat.copy_(torch.stack(self._room.swap(self.rank, flat.clone())).sum(0))


@dataclass
class ThreadContext:
    """What a worker knows, as :class:`partita.comm.context.Context` has it.

    Attributes:
        mesh: who this worker is.
        meter: bytes that this worker has sent.
    """

    mesh: Mesh
    groups: ThreadGroups
    meter: Meter = field(default_factory=Meter)

    def group(self, axis: str = "all", purpose: str = "train") -> Group:
        """The group of this worker along an axis, for one purpose."""
        room = self.groups._room(self.mesh.own_members(axis), axis, purpose)
        return ThreadGroup(self.mesh, axis, self.meter, room)


class ThreadGroups:
    """Workers as threads.

    Args:
        size: number of workers.
        hosts: as how many hosts they count; divides ``size``.
    """

    def __init__(self, size: int, hosts: int = 1) -> None:
        self.size = size
        self.contexts = [ThreadContext(Mesh.of(rank, size, size // hosts), self) for rank in range(size)]
        self._rooms: dict[tuple[Any, ...], _Room] = {}
        self._lock = threading.Lock()
        self._failed = False

    def run(self, work: Callable[[ThreadContext], Result]) -> list[Result]:
        """Do the same on every worker at once. After an error the groups cannot be used again.

        Returns:
            The workers' results.

        Raises:
            Exception: the error of the first worker that failed by itself.
        """

        def guarded(context: ThreadContext) -> Result:
            try:
                return work(context)
            except BaseException:
                with self._lock:
                    self._failed = True
                    for room in self._rooms.values():
                        room.barrier.abort()
                raise

        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(guarded, context) for context in self.contexts]
        errors = [error for future in futures if (error := future.exception())]
        if errors:
            raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
        return [future.result() for future in futures]

    def _room(self, workers: tuple[int, ...], axis: str, purpose: str) -> _Room:
        with self._lock:
            room = self._rooms.setdefault((workers, axis, purpose), _Room(len(workers)))
            if self._failed:
                room.barrier.abort()
            return room
