"""The strategy of a run that leaves it open: planned with its workers, which try strategies out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from partita.comm.context import Context
from partita.comm.launch import launch
from partita.config import NO_LAYERS, PRESETS, Config
from partita.core import progress
from partita.core.errors import ConfigError
from partita.core.plan import Plan
from partita.graph.store import GraphStore
from partita.kernels.rank_masks import MOST_WORKERS
from partita.nn import matmul
from partita.nn.model import Model
from partita.parallel.strategies import AUTO, PLAIN
from partita.plan.choose import choose, made_for
from partita.plan.links import Links
from partita.plan.machine import Machine
from partita.plan.remote import plan_described, plan_elsewhere
from partita.plan.trials import Trial
from partita.setup.check import check_names
from partita.setup.learnt import table_bytes
from partita.setup.model import is_whole
from partita.setup.runtime import threads
from partita.setup.sampler import WHOLE, sampler_type
from partita.train.job import Job
from partita.train.links import with_held_out
from partita.train.matmul_backend import Choice, choose_products
from partita.train.parts import with_dealt_parts
from partita.train.purposes import PURPOSES
from partita.train.team import join_team
from partita.train.trial_run import trial_run


def make_plan(
    store: str | os.PathLike[str],
    config: Config,
    *,
    hosts: int = 1,
    links: Links | None = None,
    shards: bool = False,
    machine: Machine | str | os.PathLike[str] | None = None,
) -> Plan:
    """Measure the machine with all workers busy, sample some steps, price every strategy, and try the best ones out.

    Args:
        store: path of a whole graph store. Where links are predicted and it has none held out, some are, as in a run.
        config: the settings of a run; ``workers`` says how many each host has, ``strategy`` is not looked at.
        hosts: how many there are; for more than one, ``links`` must be given.
        links: between workers that are somewhere else; then nothing is tried out. ``None``: workers are started here.
        shards: every host has the feature rows of its own parts only, as ``partita shard`` deals them out.
        machine: to plan for, described by its values or in a file; then nothing is measured or tried out, and
            ``links`` must not be given. ``None``: what is measured here.

    Raises:
        ConfigError: no strategy can be used, it is a run that cannot be planned, a link is not known, or the machine
            is not described well.
        ResourceError: no strategy fits into the memory.
        PartitaError: what a worker raised while it measured.
    """
    check_names(config)
    check_choice(config)
    if shards and hosts == 1:
        raise ConfigError(
            "a single host has the feature rows of all nodes",
            where="shards",
            fix="Say how many hosts there are with --hosts, or leave shards out",
        )
    if machine is not None or links is not None:
        store = with_held_out(GraphStore.open(store), config).path
    if machine is not None:
        if links is not None:
            raise ConfigError("a machine and links are both given", where="links", fix="Leave one of them out")
        described = machine if isinstance(machine, Machine) else Machine.load(machine)
        where = "machine" if isinstance(machine, Machine) else os.fspath(machine)
        return plan_described(store, config, hosts=hosts, machine=described, shards=shards, where=where)
    if links is not None:
        return plan_elsewhere(store, config, hosts=hosts, links=links, shards=shards)
    if hosts > 1:
        raise ConfigError(
            f"there are no measurements of the links between {hosts} hosts",
            where="hosts",
            fix="Run partita measure --out FILE on all of them with torchrun, and give its file with --links",
        )
    arguments = {"store": os.fspath(store), "config": config.model_dump(mode="json")}
    found = launch(
        f"{__name__}:plan_on_worker", config.workers, arguments=arguments, threads=config.threads,
        device=config.device, purposes=PURPOSES, heartbeat=config.heartbeat,
    )  # fmt: skip
    return Plan.from_json(found)


def plan_on_worker(context: Context | None, *, store: str, config: dict[str, Any]) -> dict[str, Any]:
    """What every worker does that is started to plan; returns :meth:`partita.core.plan.Plan.to_json`."""
    context, parsed = join_team(context, Config.make(config))
    check_choice(parsed)
    opened = with_held_out(GraphStore.open(store), parsed, context)  # what a run trains on
    opened = with_dealt_parts(opened, parsed, context.mesh)
    return plan_run(context, opened, parsed, thorough=True)[0].to_json()


def check_choice(config: Config) -> None:
    """Refuse to plan where there is nothing to choose.

    Raises:
        ConfigError: so it is.
    """
    if is_whole(config):
        raise ConfigError(
            f"the model '{config.model}' is computed as a whole, by every worker for its own seeds, so there is no "
            "strategy to choose",
            where="model",
            fix="Train it without a plan",
        )
    if config.model == NO_LAYERS:
        raise ConfigError(
            f"model {NO_LAYERS} computes nothing of neighbors, so there is no strategy to choose",
            where="model",
            fix="Train it without a plan",
        )


def plan_run(
    context: Context, store: GraphStore, config: Config, *, model: Model | None = None, thorough: bool = False
) -> tuple[Plan, Choice]:
    """Plan a run with its own workers, before it begins. All of them call this.

    Args:
        context, store, config, model: see :func:`resolve_strategy`.
        thorough: plan however short the run is.

    Returns:
        The plan, and who multiplies rows by weights in the run.

    Raises:
        ConfigError: on all workers: the run cannot be planned.
    """

    learnt, held = None, 0

    def job_of(settings: Mapping[str, Any]) -> Job:
        own = None if model is None else deepcopy(model)
        return Job.prepare(config.model_copy(update=dict(settings)), store, context, own, learnt)

    def of(settings: Mapping[str, Any], seconds: float) -> Trial:
        return trial_run(lambda: job_of(settings), seconds, held)

    with threads(config.threads):
        first = job_of({"strategy": PLAIN})
        learnt = first.learnt  # all strategies are tried out on the same tables
        held = 0 if learnt is None else learnt.num_bytes
        backend = choose_products(first, None)
        del first
        with matmul.use(backend.name):
            return choose(context, store, config, of, model=model, thorough=thorough, held=held), backend


class Resolved(NamedTuple):
    """What is settled before a run is made.

    Attributes:
        config: the settings, which name a strategy.
        plan: that the strategy is from, if there is one.
        matmul: who multiplies rows by weights, where that was found out for the plan.
    """

    config: Config
    plan: Plan | None = None
    matmul: Choice | None = None


def resolve_strategy(
    context: Context, store: GraphStore, config: Config, model: Model | None = None, plan: Plan | None = None
) -> Resolved:
    """Make a plan where the settings leave the strategy open. All workers call this.

    Args:
        context: of this worker.
        store: the graph store.
        config: the settings; nothing is to be done unless their strategy is ``auto``.
        model: a user's own; it stays as it is.
        plan: to follow; ``None``: the workers make one, if there is something to choose, and all that a plan needs.

    Raises:
        ConfigError: the plan is for another run, or the settings name a strategy besides.
    """
    if config.strategy != AUTO:
        if plan is not None:
            raise ConfigError(
                f"strategy {config.strategy} and a plan are both given",
                where="strategy",
                fix="Leave out one of them",
            )
        return Resolved(config)
    found = None
    in_files = table_bytes(config, store, context.mesh.size) is None
    if in_files and context.mesh.size > 1 and context.mesh.rank == 0:
        progress.say(
            f"the planner does not price learnt rows in files: the strategy is {PLAIN}; --strategy names another"
        )
    if plan is not None:
        plan.check(made_for(store, config, context.mesh))
    elif (
        context.mesh.size > 1
        and not is_whole(config, model)
        and config.model != NO_LAYERS
        and not in_files
        and _can_be_planned(context, store, config)
    ):
        plan, found = plan_run(context, store, config, model=model)
    changes = {"strategy": PLAIN} if plan is None else {"strategy": plan.best.name, **_settings_of(plan, config)}
    return Resolved(Config.make({**config.model_dump(), **changes}, where="plan"), plan, found)


def _settings_of(plan: Plan, config: Config) -> dict[str, Any]:
    """What a plan changes besides the strategy: the settings of a preset that trains another model, and no others.

    Raises:
        ConfigError: the plan holds something else, or the run has other values.
    """
    settings = dict(plan.best.settings)
    if not settings:
        return {}
    again = "Plan again with partita plan, or name the strategy with --strategy"
    if settings not in [{**PRESETS.find(name), "strategy": PLAIN} for name in PRESETS]:
        raise ConfigError("its best strategy has settings that are not those of a preset", where="plan", fix=again)
    for name in sorted(settings.keys() - {"strategy"}):
        given, default = getattr(config, name), Config.model_fields[name].default
        if given not in (default, settings[name]):
            raise ConfigError(f"the plan has {name} {settings[name]}, this run {given}", where=name, fix=again)
    return settings


def _can_be_planned(context: Context, store: GraphStore, config: Config) -> bool:
    cut = config.topology == "partitioned" and not sampler_type(config).plannable_in_parts
    here = context.device.type == "cpu" and context.mesh.size <= MOST_WORKERS
    return here and config.views == WHOLE and not cut and _shard_can_be_planned(context, store, config)


def _shard_can_be_planned(context: Context, store: GraphStore, config: Config) -> bool:
    """Whether a host knows enough of the others' rows and edges; any whole store will do."""
    hosts = context.mesh.hosts
    if store.shard is None or hosts == 1:
        return True
    why = None
    if store.edges_are_cut:
        why = "the shards of hosts have the edges of their own nodes only"
    elif store.schema is not None:
        why = "the shards are of a typed graph"
    elif config.feature_memory is not None:
        why = "with feature_memory the rows of other hosts are in files that are not here"
    elif not np.diff(store.part_offsets[:: store.num_parts // hosts]).all():
        why = "a host has no nodes"
    if why is not None and context.mesh.rank == 0:
        progress.say(
            f"{why}, so the strategy is {PLAIN}; --strategy names another"
            if config.feature_memory is not None
            else f"{why}, so the strategy is {PLAIN}; plan on the whole store with partita plan STORE --hosts {hosts} "
            "--shards --links FILE --out PLAN, and give --plan PLAN, or name a strategy with --strategy"
        )
    return why is None
