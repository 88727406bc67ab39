"""The chain of tiers that a worker reads input rows through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from partita.comm.axis import Axis
from partita.core.errors import ConfigError
from partita.core.protocols import CacheTier, FeatureTier
from partita.core.registry import Registry
from partita.features.cache import Cached, PartitionedCache
from partita.features.host import HostRows
from partita.features.peers import ByOwnerUnlessHeld, Peers
from partita.features.policies import LOOK_AHEAD


@dataclass(frozen=True)
class CacheLayout:
    """A tier that keeps copies of rows.

    Attributes:
        make: from the tier below, N, the bytes of each worker, and the workers that may serve each other (``None``:
            each is on its own); by keyword ``device``, where the copies are kept, and ``besides``, the rows that need
            no copy.
        shared: the workers of a host keep different rows, each those of nodes that it owns, and serve each other.
    """

    make: Callable[..., CacheTier]
    shared: bool = False


def _partitioned(
    below: FeatureTier, num_nodes: int, budget: int, workers: Axis | None, **how: Any
) -> Cached | PartitionedCache:
    if workers is None or workers.size == 1:
        return Cached(below, num_nodes, budget, **how)
    return PartitionedCache(below, num_nodes, budget, workers, **how)


CACHE_LAYOUTS: Registry[CacheLayout] = Registry(
    "feature tier",
    {
        "own": CacheLayout(lambda below, num_nodes, budget, workers, **how: Cached(below, num_nodes, budget, **how)),
        "partitioned": CacheLayout(_partitioned, shared=True),
    },
    setting="cache_layout",
)
"""By name; see ``docs/features.md``."""


@dataclass(frozen=True)
class CacheSettings:
    """What a worker keeps copies of.

    Attributes:
        bytes: private memory of each worker for rows and positions; 0 for no cache.
        policy: a name from :data:`partita.features.policies.POLICIES`.
        layout: a name from :data:`CACHE_LAYOUTS`.
        device: where the rows are kept.
        memory: bytes of each worker for rows that are read from files, see :class:`~partita.features.disk.DiskRows`;
            ``None``: they are mapped into memory.
        window: batches that are announced ahead where rows are read from files, or the policy wants to know them.
    """

    bytes: int = 0
    policy: str = "in-degree"
    layout: str = "own"
    device: torch.device | str = "cpu"
    memory: int | None = None
    window: int = 1

    def share(self, rows: HostRows, among: Sequence[HostRows]) -> CacheSettings:
        """Those for one of several node types; caches that are filled share a budget otherwise.

        Args:
            rows: of the type.
            among: those of all types.
        """
        found, of_all = self, sum(each.num_bytes for each in among)
        if self.memory is not None and of_all:  # by what the host has
            found = replace(found, memory=self.memory * rows.num_bytes // of_all)
        if self.looks_ahead:  # by what all hosts have: each must come to the same tiers
            part, whole = rows.bytes_of_all, sum(each.bytes_of_all for each in among)
            found = replace(found, bytes=max(1, self.bytes * part // max(1, whole)))
        return found

    @property
    def looks_ahead(self) -> bool:
        """Whether rows in the cache come and go."""
        return self.bytes > 0 and self.policy == LOOK_AHEAD


NO_CACHE = CacheSettings()


def make_tiers(
    host: HostRows,
    settings: CacheSettings,
    *,
    hosts: Axis | None = None,
    workers: Axis | None = None,
    per_host: int | None = None,
) -> tuple[FeatureTier, CacheTier | None]:
    """The tiers from a worker's cache down to the memory of its host, and of other hosts.

    Where the host lacks rows, a cache in the same memory holds rows of other hosts only: a copy of a row that the
    host has would save nothing. A cache whose rows come and go holds no others anywhere.

    Args:
        host: the bottom.
        settings: of the cache.
        hosts: the workers at the same position of every host, and which host owns a node; needed where the host does
            not hold all rows.
        workers: the workers of this host, and who of them owns a node; ``None`` where they cannot serve each other,
            so that each has a cache of its own.
        per_host: number of workers of a host; ``None``: there is one host.

    Returns:
        The chain, and the cache in it, which is still to be filled; ``None`` where there is none, or its rows come
        and go.

    Raises:
        ConfigError: the cache has no room for a single row.
    """
    tier, cache = stack_tiers(host, settings, hosts=hosts, workers=workers, per_host=per_host)
    require_room(settings.bytes, [tier if settings.looks_ahead else cache])
    return tier, cache


def stack_tiers(
    host: HostRows,
    settings: CacheSettings,
    *,
    hosts: Axis | None = None,
    workers: Axis | None = None,
    per_host: int | None = None,
) -> tuple[FeatureTier, CacheTier | None]:
    """As :func:`make_tiers`, for rows of one of several node types, whose caches share a budget: none may have room."""
    below: FeatureTier = host
    if settings.memory is not None:
        from partita.features.disk import DiskRows  # imports numba, which runs without files have no need of

        below = DiskRows(host, settings.memory, settings.window)
    besides = None
    if hosts is not None and hosts.size > 1 and not host.whole:
        place, late = ByOwnerUnlessHeld(hosts, host), settings.looks_ahead
        below = peers = Peers(hosts, below, place, per_host, late=late)
        if late:
            from partita.features.look_ahead_cache import LookAheadCache  # imports numba, as above

            return LookAheadCache(peers, host, settings.bytes, settings.window), None
        besides = host if torch.device(settings.device).type == "cpu" else None
    if settings.bytes == 0 or settings.looks_ahead:
        return below, None
    make = CACHE_LAYOUTS.find(settings.layout).make
    cache = make(below, host.num_nodes, settings.bytes, workers, device=settings.device, besides=besides)
    return cache, cache


def require_room(budget: int, tiers: Sequence[FeatureTier | None]) -> None:
    """See that caches that share a budget hold something.

    Args:
        budget: their bytes.
        tiers: caches, and others.

    Raises:
        ConfigError: there is no room for a single row.
    """
    made = [cast(CacheTier, tier) for tier in tiers if hasattr(tier, "list_bytes")]
    sizes = [cache.row_bytes for cache in made if cache.row_bytes > 0 and cache.list_bytes > 0]
    lists = sum(cache.list_bytes for cache in made)
    if sizes and budget - lists < min(sizes):
        raise ConfigError(
            f"a cache of {budget:,} bytes has no room for a row: to know where rows are takes {lists:,}, and a row "
            f"{min(sizes):,}",
            where="cache",
            fix="Set cache to more, or to 0 for none",
        )
