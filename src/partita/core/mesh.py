"""Where a worker stands: hosts x workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

AXES = ("all", "workers", "hosts")
"""Over all workers; over those of one host; over those at one position of every host."""


def running(size: int) -> str:
    """How many processes there are, in words."""
    return "only one process is running" if size == 1 else f"{size} processes are running"


@dataclass(frozen=True, slots=True)
class Mesh:
    """Hosts x workers, host-major: ``rank = host * workers + worker``.

    Attributes:
        rank: own position among all workers.
        size: number of workers in all.
        host: own host, 0 to ``hosts`` - 1.
        hosts: number of hosts.
        workers: workers per host.
        worker: own position on the host, 0 to ``workers`` - 1.
    """

    rank: int
    size: int
    host: int
    hosts: int
    workers: int
    worker: int

    @classmethod
    def of(cls, rank: int, size: int, workers: int) -> Mesh:
        """The mesh of ``size`` workers, ``workers`` of them on each host, as the worker ``rank`` sees it."""
        if not (0 <= rank < size and workers >= 1 and size % workers == 0):
            raise ValueError(f"rank {rank} of {size} workers, {workers} on each host")
        return cls(rank, size, rank // workers, size // workers, workers, rank % workers)

    def members(self, axis: str) -> list[tuple[int, ...]]:
        """All groups along an axis, each by its ranks; a worker is in exactly one of them."""
        if axis == "all":
            return [tuple(range(self.size))]
        if axis == "workers":
            return [tuple(range(host * self.workers, (host + 1) * self.workers)) for host in range(self.hosts)]
        if axis == "hosts":
            return [tuple(range(worker, self.size, self.workers)) for worker in range(self.workers)]
        raise ValueError(f"axis '{axis}': one of {', '.join(AXES)}")

    def own_members(self, axis: str) -> tuple[int, ...]:
        """The group along an axis that this worker is in."""
        return next(members for members in self.members(axis) if self.rank in members)

    def links(self, members: Sequence[int]) -> list[str]:
        """Over which link (:data:`partita.comm.meter.LINKS`) each of some workers is reached from here."""
        return ["same_host" if rank // self.workers == self.host else "other_host" for rank in members]
