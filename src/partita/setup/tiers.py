"""Opens the tiers that workers read feature rows through, as the settings of a run want them."""

from __future__ import annotations

import torch

from partita.config import Config
from partita.core.errors import ConfigError
from partita.features.tiers import CacheSettings
from partita.graph.store import GraphStore
from partita.setup.batch_sizes import batch_sizes, blocks_bytes
from partita.setup.sampler import WHOLE

_SHARE = 8
"""Batches that wait take one part of so many of the memory for feature rows, where nothing else is asked for."""
_MOST_AHEAD = 1000


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
    batch = min(config.batch_size or store.num_nodes, store.num_nodes)
    waiting = blocks_bytes(batch_sizes(config, store, -(-batch // workers), workers))
    return min(_MOST_AHEAD, max(1, config.feature_memory // _SHARE // max(1, waiting)))
