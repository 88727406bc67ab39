"""Settings of links that have no use beside others."""

from __future__ import annotations

from partita.config import NO_LAYERS, Config
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
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


def check_link_settings_in_time(config: Config, store: GraphStore) -> None:
    """See that nothing is asked for that links are not asked about with at times.

    Args:
        config: with names in place of "auto".
        store: whose edges have times.

    Raises:
        ConfigError: something is.
    """
    if store.held_out:
        raise ConfigError(
            "links are held out of the store, and where edges have times, they are split by time",
            where=str(store.path),
            fix="Use the store that has all edges; or set temporal_strategy to none",
        )
    held_out = Config.model_fields["held_out"].default
    for where, wrong, what in (
        ("message_share", config.message_share is not None, "an edge carries messages from its time on"),
        ("exclude_targets", not config.exclude_targets, "an edge carries no messages before its time"),
        ("known_negatives", not config.known_negatives, "which links come later is not known when negatives are drawn"),
        ("loop_negatives", bool(config.loop_negatives), "negatives are drawn from the nodes that are there at a time"),
        ("held_out", config.held_out != held_out, "links are split by time"),
    ):
        if wrong:
            raise ConfigError(what, where=where, fix=f"Leave {where} out, or set temporal_strategy to none")
