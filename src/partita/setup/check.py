"""Sees that the names in the settings of a run stand for something."""

from __future__ import annotations

from partita.config import Config
from partita.core.errors import ConfigError, nearest
from partita.nn.layers import LAYERS
from partita.registries import KINDS
from partita.setup.sampler import check_sampler, sampler_type

NAMES = {
    "model": "layer",
    "aggregator": "aggregator",
    "norm": "norm",
    "activation": "activation",
    "sampler": "sampler",
    "cache_policy": "cache_policy",
    "cache_layout": "feature_tier",
    "views": "view_schedule",
    "sync": "sync",
    "coverage": "coverage",
    "optimizer": "optimizer",
    "schedule": "lr_schedule",
    "matmul": "matmul",
}
"""Settings that name a thing, and of which kind."""


def check_names(config: Config) -> None:
    """Look up every name, before anything is made or started, and see that what has a name takes what it is told.

    Raises:
        ConfigError: there is no thing of a name (the message says which was probably meant), or a setting or option is
            not for it.
    """
    for setting, kind in NAMES.items():
        KINDS.find(kind).check(getattr(config, setting))
    check_sampler(config)
    taken = {*LAYERS.find(config.model).options, *sampler_type(config).options}
    for option in sorted(config.options.keys() - taken):
        raise ConfigError(
            f"neither the layer '{config.model}' nor the sampler '{config.sampler}' has an option '{option}'",
            where="options",
            fix=nearest(option, taken) if taken else "Leave it out",
        )
    if config.task != "auto":
        KINDS.find("task").check(config.task)
