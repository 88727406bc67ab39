"""Sees that the names in the settings of a run stand for something."""

from __future__ import annotations

from partita.config import Config
from partita.registries import KINDS

NAMES = {
    "model": "layer",
    "aggregator": "aggregator",
    "norm": "norm",
    "activation": "activation",
    "views": "view_schedule",
    "sync": "sync",
    "coverage": "coverage",
    "optimizer": "optimizer",
    "schedule": "lr_schedule",
    "matmul": "matmul",
}
"""Settings that name a thing, and of which kind."""


def check_names(config: Config) -> None:
    """Look up every name, before anything is made or started.

    Raises:
        ConfigError: there is no thing of a name; the message says which was probably meant.
    """
    for setting, kind in NAMES.items():
        KINDS.find(kind).check(getattr(config, setting))
