"""All workers of a run at once, as bits: what one process must know to estimate what each of them will do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int64, UInt64
from torch import Tensor

from partita.core.mesh import AXES, Mesh


@dataclass(frozen=True)
class RankMasks:
    """The workers of a run in groups, each of which shares the work of a layer among its own workers.

    In a mask, bit r stands for the worker of rank r.

    Attributes:
        groups: ranks of the workers of each group, in group order.
        hosts: ranks of the workers of each host.
    """

    groups: tuple[tuple[int, ...], ...]
    hosts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, mesh: Mesh, workers: Sequence[int]) -> RankMasks:
        """All groups along the axis of which one group has these workers.

        Raises:
            ValueError: there is no such axis.
        """
        for axis in AXES:
            if tuple(workers) in (groups := mesh.members(axis)):
                return cls(tuple(groups), tuple(mesh.members("workers")))
        raise ValueError(f"the workers {tuple(workers)} are no group of an axis of {mesh}")

    @cached_property
    def masks(self) -> UInt64[np.ndarray, "G"]:
        """The workers of each group."""
        return _masks(self.groups)

    @cached_property
    def near(self) -> UInt64[np.ndarray, "P"]:
        """The workers of each group who are on one host."""
        parts = (tuple(rank for rank in group if rank in host) for group in self.groups for host in self.hosts)
        return _masks([part for part in parts if part])

    def at_position(self, position: Int64[Tensor, "n"]) -> UInt64[np.ndarray, "n"]:
        """For each place the workers who stand at a position of their groups: one of each group."""
        at = [sum(1 << rank for rank in standing) for standing in zip(*self.groups, strict=True)]
        return np.array(at, np.uint64)[position.numpy()]

    def whole_groups(self, masks: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
        """All workers of the groups of which anybody is in a mask."""
        return _wholly(self.masks, masks)

    def whole_hosts(self, masks: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
        """All workers of the hosts of which anybody is in a mask."""
        return _wholly(_masks(self.hosts), masks)


def _masks(groups: Sequence[Sequence[int]]) -> UInt64[np.ndarray, "G"]:
    return np.array([sum(1 << rank for rank in group) for group in groups], np.uint64)


def _wholly(groups: UInt64[np.ndarray, "G"], masks: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
    found = np.zeros_like(masks)
    for group in groups:
        found |= np.where(masks & group, group, np.uint64(0))
    return found
