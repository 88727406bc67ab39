"""The kinds of things that users may add to, and the table of each."""

from __future__ import annotations

from typing import Any

from partita.core.registry import Registry

KINDS: Registry[Registry[Any]] = Registry(
    "kind of thing",
    {
        "layer": "partita.nn.layers:LAYERS",
        "aggregator": "partita.nn.layers.reductions:REDUCTIONS",
        "norm": "partita.nn.stage:NORMS",
        "activation": "partita.nn.stage:ACTIVATIONS",
        "decoder": "partita.nn.decoders:DECODERS",
        "matmul": "partita.nn.matmul:BACKENDS",
        "sampler": "partita.sample.samplers:SAMPLERS",
        "feature_tier": "partita.features.tiers:CACHE_LAYOUTS",
        "cache_policy": "partita.features.policies:POLICIES",
        "placement": "partita.parallel.placements.kinds:PLACEMENTS",
        "input_placement": "partita.parallel.placements.kinds:INPUT_PLACEMENTS",
        "strategy": "partita.parallel.strategies:STRATEGIES",
        "view_schedule": "partita.isolated.schedules:VIEW_SCHEDULES",
        "sync": "partita.isolated.syncs:SYNCS",
        "coverage": "partita.isolated.coverage:COVERAGES",
        "task": "partita.tasks.task:TASKS",
        "loss": "partita.tasks.losses:LOSSES",
        "link_loss": "partita.tasks.links.losses:LINK_LOSSES",
        "negatives": "partita.tasks.links.negatives:NEGATIVES",
        "metric": "partita.tasks.metrics:METRICS",
        "partitioner": "partita.partitioning.partitioners:PARTITIONERS",
        "column": "partita.graph.column_specs:COLUMNS",
        "optimizer": "partita.setup.optim:OPTIMIZERS",
        "row_optimizer": "partita.setup.learnt:ROW_OPTIMIZERS",
        "lr_schedule": "partita.setup.optim:LR_SCHEDULES",
        "preset": "partita.config:PRESETS",
    },
    setting="kind",
)
"""By the word for one of them: its table, which is imported when it is first asked for."""


def register(kind: str, name: str, thing: Any) -> None:
    """Make a thing of one's own known by a name, wherever a name of its kind is taken, in this process.

    Workers that Partita starts are other processes: name the thing ``package.module:Name`` there, which needs no
    registering.

    Args:
        kind: one of :data:`KINDS`, for instance ``"layer"``.
        name: without ``:`` and ``,``.
        thing: what the table of its kind holds, or ``"package.module:Name"`` of such.

    Raises:
        ConfigError: there is no such kind, or another thing has the name.
    """
    KINDS.find(kind).register(name, thing)
