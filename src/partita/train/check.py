"""Sees that a run can be made, before its workers are started: what is wrong is said at once, by one process."""

from __future__ import annotations

import os
from typing import Any

from partita.comm.context import Context
from partita.comm.fake import FakeContext
from partita.config import Config
from partita.core.mesh import Mesh
from partita.graph.store import GraphStore
from partita.infer.neighbors import check_walkable
from partita.isolated.schedules import VIEW_SCHEDULES
from partita.nn import matmul
from partita.parallel.graph_placement import place_topology
from partita.parallel.seed_split import seed_split_of, share_of
from partita.parallel.strategies import AUTO, PLAIN, build_engine, parse_strategy
from partita.runs.folder import RunFolder
from partita.sample.topology import as_tensor
from partita.setup.check import check_names
from partita.setup.inputs import DTYPES, open_rows, require_features
from partita.setup.learnt import check_learnt, check_look_ahead_of_learnt
from partita.setup.model import named_model
from partita.setup.sampler import WHOLE, evaluation_sampler, make_sampler
from partita.setup.temporal import with_times
from partita.setup.tiers import cache_settings, check_look_ahead
from partita.setup.topology import check_topology_memory, mapped_topology
from partita.tasks.metrics import selection_metric
from partita.tasks.task import make_task, task_name, training_seeds
from partita.train.isolated import check_views
from partita.train.job import check_computed, check_times
from partita.train.links import with_held_out
from partita.train.parts import with_dealt_parts


def check_on_worker(context: Context, *, store: str, out: str, config: dict[str, Any], overwrite: bool) -> None:
    """Do what :func:`check_run` does, in a process that the command starts, which itself does not import torch."""
    check_run(store, out, Config.make(config), overwrite=overwrite)


def check_run(
    store: str | os.PathLike[str], out: str | os.PathLike[str], config: Config, *, overwrite: bool = False
) -> None:
    """Refuse what the workers of a new run would refuse, as far as one process can tell.

    Args:
        store: path of the store.
        out: the run folder to make.
        config: all settings; ``workers`` are started on this machine.
        overwrite: a run that is there already may be deleted.

    Raises:
        StoreError, ConfigError, RunError: the store, a setting or the run folder cannot be used.
    """
    check_names(config)
    mesh = Mesh.of(0, config.workers, config.workers)
    opened = with_dealt_parts(with_held_out(GraphStore.open(store), config), config, mesh)
    RunFolder(out).require_free(overwrite=overwrite)
    if opened.shard is not None:  # the workers find out, who know how many hosts there are
        return
    if config.matmul != "auto":
        matmul.require(config.matmul)
    task = make_task(config, opened)
    selection_metric(task, config.metric, of=task_name(config, opened))
    training_seeds(task)
    require_features(opened, config)
    check_walkable(opened, evaluation_sampler(config, opened.schema))
    model = named_model(config, opened, task.width)
    check_computed(model, config, opened)
    check_times(config, opened, config.device, model, task)
    check_learnt(config, model)
    check_look_ahead(config, opened, config.device, hosts=1)
    check_topology_memory(config, opened, config.device)
    check_look_ahead_of_learnt(config, opened, model, config.workers)
    strategy = parse_strategy(PLAIN if config.strategy == AUTO else config.strategy, config.layers)
    part_offsets = as_tensor(opened.part_offsets)
    if config.views != WHOLE:
        check_views(config, opened, config.workers, strategy, task)
        VIEW_SCHEDULES.find(config.views)(opened.num_parts, config.workers, config.epochs)
        return
    context = FakeContext(mesh)
    build_engine(
        strategy, model,
        place_topology(with_times(mapped_topology(opened, config), config, opened), config.topology, opened, context),
        open_rows(opened, config), make_sampler(config, context.group("all", "sample"), opened.schema),
        DTYPES[config.precision], context, part_offsets,
        cache_settings(config),
    )  # fmt: skip
    split = seed_split_of(config.seed_split, strategy, opened.num_parts, mesh)
    share_of(task.seeds("train")[:0], mesh, split, part_offsets)
