"""Sees that the names in the settings of a run stand for something."""

from __future__ import annotations

from partita.config import Config
from partita.config_links import LinkSettings
from partita.core.errors import ConfigError, nearest
from partita.nn.modules import ModuleType, find_model
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
    "embed_optimizer": "row_optimizer",
    "loss": "loss",
    "schedule": "lr_schedule",
    "matmul": "matmul",
}
"""Settings that name a thing, and of which kind."""


LINKS = "links"
LINK_NAMES = {"decoder": "decoder", "negative_sampler": "negatives", "loss": "link_loss"}
"""Likewise, where links are predicted."""


def check_names(config: Config) -> None:
    """Look up every name, before anything is made or started, and see that what has a name takes what it is told.

    Raises:
        ConfigError: there is no thing of a name (the message says which was probably meant), or a setting or option is
            not for it.
    """
    model = find_model(config.model)
    names = NAMES | LINK_NAMES if config.task == LINKS else NAMES
    for setting, kind in names.items():
        if setting != "model":
            KINDS.find(kind).check(getattr(config, setting))
    for setting, field in LinkSettings.model_fields.items():
        if config.task != LINKS and ":" not in config.task and getattr(config, setting) != field.default:
            raise ConfigError(
                f"{setting} is for the task {LINKS}, not for '{config.task}'", where=setting, fix=f"Set task {LINKS}"
            )
    check_sampler(config)
    own = model.options
    for option in sorted(config.model_options.keys() - own if own is not None else ()):
        raise ConfigError(
            f"the model '{config.model}' takes no '{option}'",
            where="model_options",
            fix=nearest(option, own) if own else "Leave it out",
        )
    layer_options = frozenset() if isinstance(model, ModuleType) else model.options
    taken = {*layer_options, *sampler_type(config).options}
    for option in sorted(config.options.keys() - taken):
        raise ConfigError(
            f"neither the layer '{config.model}' nor the sampler '{config.sampler}' has an option '{option}'",
            where="options",
            fix=nearest(option, taken) if taken else "Leave it out",
        )
    if config.task != "auto":
        KINDS.find("task").check(config.task)
