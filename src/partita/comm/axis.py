"""The workers among whom a layer is placed, and which of them owns a node: a range partition book (DGL, GraphLearn)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from partita.comm.group import Group
from partita.core.errors import ConfigError, nearest
from partita.core.mesh import AXES, Mesh


@runtime_checkable
class Workers(Protocol):
    """What is needed of a :class:`partita.comm.context.Context`."""

    mesh: Mesh

    def group(self, axis: str = "all", purpose: str = "train") -> Group:
        """The group of this worker along an axis, for one purpose."""
        ...


@dataclass(frozen=True)
class Axis:
    """Some workers who share the work of a layer.

    Attributes:
        sampling: for what is sent while sampling.
        computing: the same workers, for what is sent while computing. A group of its own, because sampling runs
            ahead in another thread.
        loading: likewise, for feature rows: they are read ahead in a third thread.
        part_offsets: int64 (P+1): part p has the store ids ``part_offsets[p]:part_offsets[p+1]``; parts may be empty.
        owner_of_part: int64 (P), position in the groups of the worker that owns each part.
    """

    sampling: Group
    computing: Group
    loading: Group
    part_offsets: Int64[Tensor, "P_1"]
    owner_of_part: Int64[Tensor, "P"]
    _copies: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def size(self) -> int:
        """Number of workers."""
        return self.sampling.size

    @property
    def rank(self) -> int:
        """Own position."""
        return self.sampling.rank

    def owner(self, ids: Int[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Position of the worker that owns each store id: a range check, then a look-up by part."""
        if self.size == 1:
            return torch.zeros(ids.shape[0], dtype=torch.int64, device=ids.device)
        ends, owner_of_part = self._on(ids.device)
        return owner_of_part[torch.searchsorted(ends, ids.long(), right=True)]

    def _on(self, device: torch.device) -> tuple[Int64[Tensor, "P"], Int64[Tensor, "P"]]:
        """Where parts end, and their owners; copied to a device once."""
        if device not in self._copies:
            # Where threads come at once the first copy stays: another may still read it, on a stream of its own.
            self._copies.setdefault(device, (self.part_offsets[1:].to(device), self.owner_of_part.to(device)))
        return self._copies[device]


def owners_of_parts(num_parts: int, axis: str, hosts: int, workers: int) -> Int64[Tensor, "P"]:
    """Which position of an axis owns each part of a store.

    Parts are host-major: over all workers, part p belongs to worker p. Inside a host, part p belongs to worker
    ``p mod workers``, so a store may have a part for every worker of a host or for every worker there is; likewise
    over hosts. A single worker owns everything.

    Args:
        num_parts: P.
        axis: one of :data:`partita.core.mesh.AXES`.
        hosts: number of hosts.
        workers: workers of each host.

    Raises:
        ConfigError: the store has another number of parts than there are workers.
    """
    parts = torch.arange(num_parts)
    everyone = hosts * workers
    size = {"all": everyone, "hosts": hosts, "workers": workers}[axis]
    if size == 1:
        return torch.zeros_like(parts)
    if num_parts == size:
        return parts
    if num_parts == everyone:
        return parts % workers if axis == "workers" else parts // workers
    among = "" if axis == "all" else f" of the axis '{axis}'"
    wanted = f"{hosts}x{workers}" if hosts > 1 else str(workers)
    raise ConfigError(
        f"nodes are placed by owner among {size} workers{among}, but the store has "
        f"{num_parts} part{'' if num_parts == 1 else 's'}",
        where="part_offsets",
        fix=f"Run partita partition STORE OUT --parts {wanted}, then train OUT; or use the strategy 'gdp'",
    )


def make_axis(context: Workers, axis: str, part_offsets: Int64[Tensor, "P_1"], *, owners: bool = True) -> Axis:
    """The workers of an axis of the mesh, with a group for sampling, one for computing and one for loading.

    Args:
        context: of this process.
        axis: one of :data:`~partita.core.mesh.AXES`.
        part_offsets: of the store.
        owners: whether it matters who owns a node; otherwise the store's parts may be of any number.

    Raises:
        ConfigError: the store has another number of parts than the axis has workers.
    """
    if axis not in AXES:
        raise ConfigError(f"unknown axis '{axis}'", where="axis", fix=nearest(axis, AXES))
    mesh, num_parts = context.mesh, part_offsets.shape[0] - 1
    owner_of_part = torch.zeros(num_parts, dtype=torch.int64)
    if owners:
        owner_of_part = owners_of_parts(num_parts, axis, mesh.hosts, mesh.workers)
    sampling, computing, loading = (context.group(axis, purpose) for purpose in ("sample", "train", "load"))
    return Axis(sampling, computing, loading, part_offsets, owner_of_part)
