"""What the settings of a run mean for stores whose edges have times."""

from __future__ import annotations

from dataclasses import replace

import torch

from partita.config import Config
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.graph.times import ALWAYS, LATEST
from partita.nn.model import Model
from partita.sample.samplers import SAMPLERS
from partita.sample.temporal import EDGE_TIME, SeedTimes, TemporalTopology, draws_by_time, slots_for
from partita.sample.topology import ArrayTopology, as_tensor
from partita.setup.check import LINKS
from partita.setup.sampler import WHOLE, sampler_type
from partita.setup.windows import WINDOW, windows_of

_LAST = "last"
_IGNORE = "set temporal_strategy to none, so that edges of the future carry messages, too"


def is_temporal(config: Config, store: GraphStore) -> bool:
    """Whether neighbors are sampled not later than the times of seeds: where the edges have times, unless refused.

    Raises:
        ConfigError: they should be, and edges or nodes that are seeds have no times; or they are not, and there is a
            window, or one time for a batch.
    """
    if not draws_by_time(config.temporal_strategy, store):
        for where, given, what in (
            (WINDOW, config.time_window is not None, "no edge is too old"),
            ("time_cutoff", config.time_cutoff != "seed", "there is no time up to which edges count"),
        ):
            if given:
                raise ConfigError(
                    f"neighbors are not sampled by time, so that {what}",
                    where=where,
                    fix=f"Leave {where} out, or use a store with edge_time without the temporal_strategy none",
                )
        return False
    if store.seed_time is None and config.task != LINKS:
        raise ConfigError(
            "the edges have times, and the nodes have none, so it is not known when seeds are asked about",
            where=str(store.path),
            fix=f"Ingest the graph again with seed_time or node_time, or {_IGNORE}",
        )
    return True


def check_temporal(config: Config, store: GraphStore, device: str, model: Model) -> None:
    """Refuse what is not sampled by time, so far.

    Args:
        config, store: of the run.
        device: that is computed on.
        model: of the run.

    Raises:
        ConfigError: a setting does not go with it.
        StoreError: the store is the shard of a host.
    """
    if not is_temporal(config, store):
        return
    store.require_whole("sampling by time")
    times = store.seed_time
    for split, ids in {} if config.task == LINKS else store.splits.items():
        if times is not None and (missing := int((times[ids] == ALWAYS).sum())):
            raise ConfigError(
                f"{missing:,} of the {len(ids):,} nodes of the split '{split}' have no time at which to ask about them",
                where=str(store.path),
                fix=f"Give them times, or {_IGNORE}",
            )
    able = [name for name in SAMPLERS if SAMPLERS.find(name).draws_by_time]
    for wrong, what, where, fix in (
        (
            not sampler_type(config).draws_by_time,
            f"the sampler '{config.sampler}' does not draw by time", "sampler", f"Use {' or '.join(able)}",
        ),
        (config.views != WHOLE, f"views '{config.views}' do not know times", "views", "Leave views out"),
        (str(device).startswith("cuda"), "neighbors are sampled by time on the CPU only", "device", "Use device cpu"),
        (
            config.topology_memory is not None,
            "edges that are read from files are not sampled by time", "topology_memory", "Leave topology_memory out",
        ),
        (
            config.temporal_strategy == _LAST and (config.weighted or config.replace),
            "the last edges are taken, and none is drawn", "temporal_strategy",
            "Leave out weighted and replace, or set temporal_strategy to uniform",
        ),
    ):  # fmt: skip
        if wrong:
            raise ConfigError(what, where=where, fix=fix)
    if model.whole and model.type_widths is not None:
        raise ConfigError(
            "a model that is computed as a whole takes the rows of all node types, which do not depend on time",
            where="model",
            fix=f"Make the model of layers: partita.Model.from_layers; or {_IGNORE}",
        )
    for number, layer in enumerate(model.layers, start=1):
        if layer.coefficients is not None:
            raise ConfigError(
                f"layer {number} ({layer.name}) weighs edges by the degrees of their ends, and those at a time are not "
                "known everywhere",
                where="model",
                fix=f"Use sage, gin, gat, rgcn or hgt; or {_IGNORE}",
            )


def require_no_times(config: Config, store: GraphStore) -> None:
    """Refuse a task whose seeds are neither nodes nor say when they are asked about, unless times are ignored.

    Raises:
        ConfigError: they are not.
    """
    if is_temporal(config, store):
        raise ConfigError(
            "only nodes, and seeds that say when, are asked about at times; other rows of nodes are not",
            where="task",
            fix="Give the task the methods of partita.tasks.times.TimedTask, or set temporal_strategy to none, so that "
            "edges of the future carry messages, too",
        )


def seed_times(config: Config, store: GraphStore) -> SeedTimes | None:
    """When nodes are asked about as seeds; ``None``: at no time in particular."""
    if not is_temporal(config, store):
        return None
    known = store.seed_time
    if config.task == LINKS and not store.has("seed_time"):
        known = None  # what may come next is asked once all is known, not when a node has come to be
    if known is None:
        times = torch.full((store.num_nodes,), LATEST)
    else:
        given = as_tensor(known)
        # Nodes without a time, which are in no split, are asked about once all is known.
        times = given.masked_fill(given == ALWAYS, LATEST).clamp(max=LATEST)
    return SeedTimes(times, _slots(config, store))


def training_times(config: Config, store: GraphStore) -> SeedTimes | None:
    """The same while training, where all seeds of a step may be asked about at once."""
    times = seed_times(config, store)
    return times if times is None or config.time_cutoff == "seed" else replace(times, at_once=True)


def _slots(config: Config, store: GraphStore) -> int:
    """Of batches; where all seeds are one, these are edges where links are predicted, and may be in a user's task."""
    of_nodes = config.task != LINKS and ":" not in config.task
    return slots_for(config.batch_size or (store.num_nodes if of_nodes else max(store.num_nodes, store.num_edges)))


def with_times(local: ArrayTopology, config: Config, store: GraphStore) -> ArrayTopology:
    """The edges of a store, drawn not later than the times of seeds where that is asked for."""
    if not is_temporal(config, store):
        return local
    edge_time = as_tensor(store.held(EDGE_TIME)[0])
    return TemporalTopology(
        local, edge_time, _slots(config, store), last=config.temporal_strategy == _LAST,
        windows=windows_of(config, store),
    )  # fmt: skip
