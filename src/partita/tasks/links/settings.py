"""Settings of links that have no use beside others."""

from __future__ import annotations

from partita.config import NO_LAYERS, Config
from partita.core.errors import ConfigError


def check_link_settings(config: Config) -> None:
    """See that no setting was changed that the others leave without a use.

    Args:
        config: with names in place of "auto".

    Raises:
        ConfigError: one was.
    """
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
