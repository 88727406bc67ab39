"""Opens the tiers that workers read feature rows through, as the settings of a run want them."""

from __future__ import annotations

import torch

from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.memory import bytes_for_files
from partita.core.options import format_bytes
from partita.features.policies import LOOK_AHEAD
from partita.features.tiers import CacheSettings
from partita.graph.store import GraphStore
from partita.setup.batch_sizes import batch_sizes, blocks_bytes
from partita.setup.inputs import DTYPES
from partita.setup.sampler import WHOLE

_SHARE = 4
"""Batches that wait take one part of so many of the memory for feature rows, where nothing else is asked for."""
_BATCHES = 16
"""So many times what the memory holds is looked ahead at most: hardly any row that is used later is worth keeping."""
_LEAST_AHEAD, _MOST_AHEAD = 4, 1000
_OUTLINE_BYTES = 24
"""Of a row that a batch reads, while the batch waits: its id, its next use, and where it will be."""


def cache_settings(config: Config, device: torch.device | str = "cpu") -> CacheSettings:
    """What a worker keeps in memory of feature rows."""
    window = max(1, look_ahead(config))
    return CacheSettings(config.cache, config.cache_policy, config.cache_layout, device, config.feature_memory, window)


def looks_ahead(config: Config) -> bool:
    """Whether batches are sampled ahead to know which rows they will read."""
    return config.feature_memory is not None or keeps_rows_of_hosts(config)


def check_look_ahead(
    config: Config, store: GraphStore, device: torch.device | str, hosts: int, *, deals: bool = False
) -> None:
    """Refuse to look ahead where nobody does so yet, or it is for nothing.

    Args:
        config, store: of the run.
        device: of this worker.
        hosts: of the run.
        deals: a plan is made with the whole store, whose rows will be dealt out to the hosts.

    Raises:
        ConfigError: on a GPU, or in isolated training; or there is nothing to look ahead for.
    """
    if config.cache_policy == LOOK_AHEAD and not config.cache:
        raise ConfigError(
            f"cache_policy {LOOK_AHEAD} has no cache to keep rows in",
            where="cache_policy",
            fix="Give a cache, for instance --cache 512MiB",
        )
    if not looks_ahead(config):
        if config.look_ahead and config.embed_memory is None:
            raise ConfigError(
                "feature rows are mapped into memory, so nothing is looked ahead for",
                where="look_ahead",
                fix=f"Give feature_memory, embed_memory, or a cache and cache_policy {LOOK_AHEAD}, or leave it out",
            )
        return
    name = f"cache_policy {LOOK_AHEAD}" if config.feature_memory is None else "feature_memory"
    for where, wrong in (
        (f"device {device}", str(device).startswith("cuda")),
        (f"views {config.views}", config.views != WHOLE),
    ):
        if wrong:
            raise ConfigError(
                f"{name} is for the CPU and for training on the whole graph, so far",
                where=where,
                fix=f"Leave {name} out",
            )
    if config.feature_memory is not None and not row_bytes(config, store):
        raise ConfigError(
            "the graph has no feature rows that could be read from files",
            where="feature_memory",
            fix="Leave it out; --embed-memory says how much memory learnt rows take",
        )
    if keeps_rows_of_hosts(config):
        _check_cache(config, dealt=hosts > 1 and (deals or store.shard is not None))


def _check_cache(config: Config, *, dealt: bool) -> None:
    if config.feature_memory is not None:
        raise ConfigError(
            "which rows others will ask of this worker is not known ahead, so rows that are read from files cannot be "
            f"kept for them beside a cache with cache_policy {LOOK_AHEAD}",
            where="feature_memory",
            fix="Leave one of both out",
        )
    if config.cache_layout != CacheSettings.layout:
        raise ConfigError(
            f"with cache_policy {LOOK_AHEAD} every worker keeps rows of its own batches",
            where="cache_layout",
            fix=f"Set cache_layout {CacheSettings.layout}",
        )
    if not dealt:
        raise ConfigError(
            f"cache_policy {LOOK_AHEAD} keeps rows of other hosts, and this host has the rows of all nodes",
            where="cache_policy",
            fix="Leave the cache out: rows in memory are read where they are. On several hosts, deal the nodes out: "
            "partita shard",
        )


def look_ahead(config: Config) -> int:
    """How many batches are sampled ahead of the one whose rows are read, at least; 0 where nothing looks ahead."""
    if not looks_ahead(config):
        return 0
    return config.look_ahead or _LEAST_AHEAD


def keeps_rows_of_hosts(config: Config) -> bool:
    """Whether rows of other hosts come and go, so that each host must have a share of the rows."""
    return config.cache > 0 and config.cache_policy == LOOK_AHEAD


def measured_look_ahead(config: Config, store: GraphStore, workers: int, rows: int, row_bytes: int) -> int:
    """How many they are where the settings leave it open.

    Args:
        config, store, workers: of the run.
        rows: that a worker reads for a batch.
        row_bytes: of a row in memory, at most.
    """
    memory = _memory(config)
    room = memory // _SHARE // max(1, rows * _OUTLINE_BYTES + _blocks_bytes(config, store, workers))
    useful = _BATCHES * memory // max(1, rows * row_bytes)
    return max(_LEAST_AHEAD, min(room, useful, _MOST_AHEAD))


def waiting_bytes(config: Config, store: GraphStore, workers: int) -> int:
    """Bytes of memory that batches take, at most, as long as they wait for rows that are known ahead."""
    batch = min(config.batch_size or store.num_nodes, store.num_nodes)
    sources = batch_sizes(config, store, -(-batch // workers), workers)[0].sources
    of_batch = _OUTLINE_BYTES * sources + _blocks_bytes(config, store, workers)
    asked = (config.look_ahead or _LEAST_AHEAD) * of_batch
    return asked if config.look_ahead else max(asked, _memory(config) // _SHARE)


def _memory(config: Config) -> int:
    """Bytes for rows that are kept because of what is known ahead."""
    features = 0
    if looks_ahead(config):
        features = config.cache if config.feature_memory is None else config.feature_memory
    return features + (config.embed_memory or 0)


def memory_note(config: Config, rows: int, workers: int) -> str | None:
    """What to tell of feature rows that are mapped and do not fit into memory.

    Args:
        config: of the run.
        rows: their bytes.
        workers: of this host, who share its memory.
    """
    available = bytes_for_files()
    if config.feature_memory is not None or rows <= available:
        return None
    wanted = max(1, available // 2 // workers >> 20)
    return (
        f"feature rows take {format_bytes(rows)}, and {format_bytes(available)} of memory are available: pages that do "
        f"not fit are read anew for every row, which can be slow; --feature-memory {wanted}MiB reads rows ahead, and "
        "keeps those that are used again first"
    )


def _blocks_bytes(config: Config, store: GraphStore, workers: int) -> int:
    """Of a batch whose blocks wait with it: several workers exchange while they draw, and do so once."""
    if workers == 1:
        return 0
    batch = min(config.batch_size or store.num_nodes, store.num_nodes)
    return blocks_bytes(batch_sizes(config, store, -(-batch // workers), workers))


def row_bytes(config: Config, store: GraphStore) -> int:
    """Of a feature row in memory, of the node type with the longest."""
    widths = store.type_widths if store.schema is not None else (store.num_features,)
    return max(widths, default=0) * DTYPES[config.precision].itemsize
