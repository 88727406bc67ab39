"""Plans for workers that are not here: layers are timed on this machine, links were measured on those."""

from __future__ import annotations

import os
from typing import Any

from partita.comm.context import Context
from partita.comm.launch import launch
from partita.config import Config
from partita.core.machine import cores
from partita.core.mesh import Mesh
from partita.core.plan import Plan
from partita.graph.store import GraphStore
from partita.plan.candidates import candidates
from partita.plan.choose import DRY_RUN_SECONDS, made_for
from partita.plan.dryrun import DryRun
from partita.plan.estimates import make_estimates
from partita.plan.links import Links
from partita.plan.rates import Rates, measure_rates


def plan_elsewhere(
    store: str | os.PathLike[str],
    config: Config,
    *,
    hosts: int,
    links: Links,
    shards: bool = False,
) -> Plan:
    """Plan for ``hosts`` x ``config.workers`` workers, without trying anything out.

    Args:
        store: path of a whole graph store.
        config: the settings of a run; ``workers`` says how many each host has, ``strategy`` is not looked at.
        hosts: how many there are.
        links: between the workers.
        shards: hosts hold shards of the store, see :class:`~partita.plan.dryrun.DryRun`.

    Raises:
        ConfigError: no strategy can be used, it is a run that cannot be planned, or a link is not known.
        PartitaError: what a worker raised while it measured.
    """
    opened, mesh = GraphStore.open(store), Mesh.of(0, hosts * config.workers, config.workers)
    dry_run = DryRun(opened, config, mesh, candidates(config.layers, mesh), shards=shards)
    # More workers than this machine has cores are those of another one.
    workers = min(config.workers, max(cores(), 2))
    arguments = {"store": os.fspath(store), "config": config.model_dump(mode="json")}
    measured = launch(f"{__name__}:rates_on_worker", workers, arguments=arguments, threads=config.threads)
    memory = config.memory_per_worker  # what those machines have is not known
    rates = Rates.from_json(measured)
    found = make_estimates(dry_run, mesh, rates, links, seconds=DRY_RUN_SECONDS, memory=memory)
    return found.plan(made_for(opened, config, mesh, shards=shards))


def rates_on_worker(context: Context, *, store: str, config: dict[str, Any]) -> dict[str, Any]:
    """What each worker does that is started to measure; returns :meth:`partita.plan.rates.Rates.to_json`."""
    return measure_rates(context, GraphStore.open(store), Config.make(config)).to_json()
