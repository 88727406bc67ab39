"""The sampler that the settings of a run name."""

from __future__ import annotations

from collections.abc import Sequence

from partita.comm.group import Group
from partita.config import Config, default_fanout
from partita.core.errors import ConfigError
from partita.core.protocols import Sampler
from partita.graph.schema import Schema
from partita.nn.modules import find_model
from partita.sample.base import BaseSampler, EvaluationSampler, SamplerSettings
from partita.sample.samplers import SAMPLERS

WHOLE = "whole"
"""The setting ``views`` of a run whose workers share the whole graph."""


def sampler_type(config: Config) -> type[BaseSampler]:
    """What makes the sampler.

    Raises:
        ConfigError: there is no such sampler.
    """
    return SAMPLERS.find(config.sampler)


def sampler_settings(config: Config, schema: Schema | None = None) -> SamplerSettings:
    """What the sampler is told: no neighbors, where the model reads none and the sampler can do without.

    Args:
        config: the settings.
        schema: of the graph; without it, numbers by relation are for no graph, and good for checks only.
    """
    kind = sampler_type(config)
    alone = kind.may_draw_nothing and not reads_neighbors(config)
    metapath = _metapath(config, schema)
    counted = schema if kind.numbers_by_relation else None
    return SamplerSettings(
        fanouts=(0,) * config.layers if alone else _by_layer(config.fanout, counted, "fanout"),
        budgets=_by_layer(config.layer_budget, counted, "layer_budget"),
        walks=config.walks,
        walk_length=config.walk_length,
        walk_restart=config.walk_restart,
        metapath=metapath,
        metapath_ends_elsewhere=schema is not None and _ends_elsewhere(schema, metapath),
        batch_dependency=config.batch_dependency,
        layer_dependency=config.layer_dependency,
        replace=config.replace,
        weighted=config.weighted,
        seed=config.seed,
        options=config.options,
    )


def _by_layer(
    given: tuple[int, ...] | dict[str, tuple[int, ...]], schema: Schema | None, where: str
) -> tuple[int | tuple[int, ...], ...]:
    """Of each layer, layer 1 first, a number, or those of all relations."""
    if not isinstance(given, dict):
        return given[::-1] if schema is None else tuple((number,) * len(schema.relations) for number in given[::-1])
    if schema is None:
        return tuple(zip(*given.values()))[::-1]
    return schema.by_relation(given, where)[::-1]


def _metapath(config: Config, schema: Schema | None) -> tuple[int, ...]:
    """Of a graph with one relation that is it, unless another is given."""
    if schema is None or "metapath" not in sampler_type(config).settings:
        return ()
    names = config.metapath.split()
    if names:
        return schema.metapath(names, "metapath")
    if len(schema.relations) != 1:
        raise ConfigError(
            f"walks in a typed graph go along a metapath, and the graph has {len(schema.relations)} relations",
            where="metapath",
            fix="Give relations that lead from the nodes to their neighbors and, if walks go on, back to their type: "
            "for instance 'writes rev_writes'",
        )
    return (0,)


def _ends_elsewhere(schema: Schema, metapath: tuple[int, ...]) -> bool:
    """Whether it ends at another type than it begins at."""
    return bool(metapath) and schema.relations[metapath[-1]].source != schema.relations[metapath[0]].target


def reads_neighbors(config: Config) -> bool:
    """Whether the model that the settings name looks at any neighbor."""
    layer = find_model(config.model)
    return not isinstance(layer, type) or layer.reads_neighbors


def make_sampler(config: Config, group: Group, schema: Schema | None = None) -> Sampler:
    """The sampler of a run.

    Args:
        config: the settings.
        group: all workers, for what is sent while sampling.
        schema: of the graph; ``None`` for an untyped one.

    Raises:
        ConfigError: there is no such sampler, or its settings cannot be used.
    """
    check_sampler(config)
    for where, what, given in (("fanout", "fanouts", config.fanout), ("layer_budget", "budgets", config.layer_budget)):
        if schema is None and isinstance(given, dict):
            raise ConfigError(
                f"{what} are given for relations, and the graph has none",
                where=where,
                fix="Give a number for each layer, for instance 15,10",
            )
    if schema is None and config.metapath:
        raise ConfigError(
            "a metapath is of relations, and the graph has none", where="metapath", fix="Leave metapath out"
        )
    return sampler_type(config).of(sampler_settings(config, schema), group)


def lone_sampler(config: Config, schema: Schema | None = None) -> BaseSampler:
    """The sampler as a single worker has it, for what is to be known of it before anything is drawn.

    Args:
        config: the settings, which were checked.
        schema: of the graph; ``None`` for an untyped one.
    """
    return sampler_type(config).of(sampler_settings(config, schema), Group.alone())


def evaluation_sampler(config: Config, schema: Schema | None = None) -> EvaluationSampler | None:
    """What a model of these settings is evaluated with; ``None``: all neighbors.

    Args:
        config: the settings.
        schema: of the graph; ``None`` for an untyped one, or where it is only asked whether there is one.

    Raises:
        ConfigError: the graph has not the relations that the settings name.
    """
    return sampler_type(config).for_evaluation(sampler_settings(config, schema))


def check_sampler(config: Config) -> None:
    """See that settings which are only for some samplers are for this one, and fit it.

    Raises:
        ConfigError: there is no such sampler, or a setting is not for it.
    """
    kind, users = sampler_type(config), dict[str, list[str]]()
    for name in SAMPLERS:
        for setting in SAMPLERS.find(name).settings:
            users.setdefault(setting, []).append(name)
    for setting in sorted(users.keys() - set(kind.settings)):
        untouched = default_fanout(config.layers) if setting == "fanout" else ()
        if getattr(config, setting) not in (type(config).model_fields[setting].default, untouched):
            raise ConfigError(
                f"{setting} is for the sampler {_either(users[setting])}, not for '{config.sampler}'",
                where=setting,
                fix=f"Leave {setting} out",
            )
    if config.edge_weights and config.weighted:
        raise ConfigError(
            "weighted sampling draws edges in proportion to their weights already, and edge_weights multiplies by them",
            where="edge_weights",
            fix="Choose one of weighted and edge_weights",
        )
    if config.views != WHOLE and not kind.counts_neighbors:
        able = [name for name in SAMPLERS if SAMPLERS.find(name).counts_neighbors]
        raise ConfigError(
            f"views '{config.views}' correct for neighbors outside the partition by the number of in-edges sampled for "
            f"each node, and the sampler '{config.sampler}' does not sample a given number for each node",
            where="sampler",
            fix=f"Use sampler {' or '.join(able)}, or views {WHOLE}",
        )
    kind.check(sampler_settings(config))


def _either(names: Sequence[str]) -> str:
    """``node, labor or walk``."""
    return " or ".join([", ".join(names[:-1])] * (len(names) > 1) + [names[-1]])
