"""Opens the tiers that workers read feature rows through, as the settings of a run want them."""

from __future__ import annotations

import torch

from partita.config import Config
from partita.core.errors import ConfigError
from partita.features.tiers import CacheSettings
from partita.graph.store import GraphStore
from partita.setup.batch_sizes import batch_sizes, blocks_bytes
from partita.setup.inputs import DTYPES
from partita.setup.sampler import WHOLE

_SHARE = 8
"""Batches that wait take one part of so many of the memory for feature rows, where nothing else is asked for."""
_BATCHES = 8
"""So many times what the memory holds is looked ahead at most: hardly any row that is used later is worth keeping."""
_LEAST_AHEAD, _MOST_AHEAD = 4, 1000
_OUTLINE_BYTES = 24
"""Of a row that a batch reads, while the batch waits: its id, and its next use."""


def cache_settings(
    config: Config, store: GraphStore, workers: int, device: torch.device | str = "cpu"
) -> CacheSettings:
    """What a worker keeps in memory of feature rows."""
    window = max(1, look_ahead(config, store, workers))
    return CacheSettings(config.cache, config.cache_policy, config.cache_layout, device, config.feature_memory, window)


def check_feature_memory(config: Config, device: torch.device | str) -> None:
    """Refuse to read rows from files where nobody does so yet.

    Raises:
        ConfigError: on a GPU, or in isolated training.
    """
    if config.feature_memory is None:
        return
    for where, wrong in (
        (f"device {device}", str(device).startswith("cuda")),
        (f"views {config.views}", config.views != WHOLE),
    ):
        if wrong:
            raise ConfigError(
                "feature_memory is for the CPU and for training on the whole graph, so far",
                where=where,
                fix="Leave feature_memory out: rows are mapped into memory",
            )


def look_ahead(config: Config, store: GraphStore, workers: int) -> int:
    """How many batches are sampled ahead of the one whose rows are read; 0 where rows are mapped into memory."""
    if config.feature_memory is None:
        return 0
    if config.look_ahead:
        return config.look_ahead
    waiting, rows = waiting_bytes(config, store, workers)
    room = config.feature_memory // _SHARE // max(1, waiting)
    useful = _BATCHES * config.feature_memory // max(1, rows)
    return max(_LEAST_AHEAD, min(room, useful, _MOST_AHEAD))


def waiting_bytes(config: Config, store: GraphStore, workers: int) -> tuple[int, int]:
    """Bytes of memory that a batch takes, at most, as long as it waits for its rows; and those of its rows."""
    batch = min(config.batch_size or store.num_nodes, store.num_nodes)
    sizes = batch_sizes(config, store, -(-batch // workers), workers)
    widths = store.type_widths if store.schema is not None else (store.num_features,)
    rows = sizes[0].sources * max(widths, default=0) * DTYPES[config.precision].itemsize
    outline = _OUTLINE_BYTES * sizes[0].sources
    return (outline if workers == 1 else outline + blocks_bytes(sizes)), rows
