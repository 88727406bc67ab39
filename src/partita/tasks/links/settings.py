"""Settings of links that have no use beside others."""

from __future__ import annotations

from partita.config import NO_LAYERS, Config
from partita.core.errors import ConfigError
from partita.tasks.links.losses import LOSS_SETTINGS
from partita.tasks.links.negatives import NEGATIVES
from partita.tasks.task import refuse_setting


def check_link_settings(config: Config) -> None:
    """See that no setting was changed that the others leave without a use.

    Every decoder has a penalty, so that is none of them.

    Args:
        config: with names in place of "auto".

    Raises:
        ConfigError: one was.
    """
    if config.loss in LOSS_SETTINGS:
        for setting in ("margin", "temperature"):
            if setting != LOSS_SETTINGS[config.loss]:
                refuse_setting(config, setting, f"the loss is '{config.loss}'")
    if config.negatives and not NEGATIVES.find(config.negative_sampler).counted:
        raise ConfigError(
            f"negative_sampler '{config.negative_sampler}' says itself how many negatives an edge has",
            where="negatives",
            fix="Leave negatives out, or use another negative_sampler",
        )
    if config.reciprocal and config.corrupt != "both":
        raise ConfigError(
            f"reciprocal relations are trained with negatives of both ends, and corrupt is '{config.corrupt}'",
            where="reciprocal",
            fix="Set corrupt to both, or leave reciprocal out",
        )
    if config.message_share is None:
        return
    if config.model == NO_LAYERS:
        raise ConfigError(
            f"no edge carries messages with model {NO_LAYERS}", where="message_share", fix="Leave message_share out"
        )
    if not config.exclude_targets:
        raise ConfigError(
            "with message_share the edges that are predicted never carry messages, and exclude_targets false says that "
            "they do",
            where="exclude_targets",
            fix="Leave out one of both",
        )
