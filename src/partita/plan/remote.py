"""Plans for workers that are not here.

Either layers are timed on this machine and links were measured on those, or a file describes the machine.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from partita.comm.context import Context
from partita.comm.launch import launch
from partita.config import Config
from partita.core.errors import ConfigError, ResourceError
from partita.core.machine import cores
from partita.core.mesh import Mesh
from partita.core.plan import Plan
from partita.graph.store import GraphStore
from partita.plan.candidates import candidates
from partita.plan.choose import DRY_RUN_SECONDS, made_for
from partita.plan.described import described_links, described_rates
from partita.plan.dryrun import DryRun
from partita.plan.estimates import make_estimates
from partita.plan.links import Links
from partita.plan.machine import Machine
from partita.plan.measure_rates import measure_rates
from partita.plan.rates import Rates
from partita.setup.temporal import is_temporal
from partita.setup.tiers import keeps_rows_of_hosts


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


def plan_described(
    store: str | os.PathLike[str],
    config: Config,
    *,
    hosts: int,
    machine: Machine,
    shards: bool = False,
    where: str = "machine",
    seconds: float = DRY_RUN_SECONDS,
) -> Plan:
    """Plan for a machine that a file describes. Steps are sampled here, and nothing is measured or tried out.

    Args:
        store: path of a whole graph store. The plan is for this graph, and for no larger one.
        config: the settings of a run; ``workers`` says how many each host has; neither ``strategy`` nor ``device`` is
            looked at.
        hosts: how many there are.
        machine: each of the hosts.
        shards: hosts hold shards of the store, see :class:`~partita.plan.dryrun.DryRun`.
        where: the machine is from.
        seconds: how long to sample, at most; one step in any case.

    Raises:
        ConfigError: the machine has too few processors or no network; nobody knows what a layer computes; no strategy
            can be used; or it is a run that cannot be planned.
        ResourceError: a host has too little memory for the store, or processors for every strategy.
    """
    opened, mesh = GraphStore.open(store), Mesh.of(0, hosts * config.workers, config.workers)
    _check_described(opened, config, mesh, machine, shards, where)
    links = described_links(machine, mesh, where)
    here = config.model_copy(update={"device": "cpu"})  # where steps are sampled, for workers on any device
    dry_run = DryRun(opened, here, mesh, candidates(config.layers, mesh), shards=shards, cache_device="meta")
    by_time = is_temporal(here, opened)
    rates = described_rates(machine, config, dry_run.model, mesh, by_time=by_time)
    memory = config.memory_per_worker or int(machine.processor.memory.value)
    found = make_estimates(dry_run, mesh, rates, links, seconds=seconds, memory=memory)
    plan = found.plan(made_for(opened, config, mesh, shards=shards))
    notes = [
        f"nothing was measured: rates follow from what {where} says of {machine.name}, for the graph that was given"
    ]
    if by_time:
        notes.append("neighbors are sampled by time on CPUs only, so far")
    return replace(plan, machine=machine.to_json(), notes=(*notes, *plan.notes))


def _check_described(store: GraphStore, config: Config, mesh: Mesh, machine: Machine, shards: bool, where: str) -> None:
    """Refuse what a description says nothing about, and what does not fit into it."""
    if mesh.workers > machine.processors:
        raise ConfigError(
            f"{mesh.workers} workers on a host, and it has {machine.processors}",
            where=f"{where}, processors",
            fix=f"Plan for --workers {machine.processors} on each of more --hosts",
        )
    if config.feature_memory is not None or config.topology_memory is not None:
        raise ConfigError(
            "descriptions of machines have no disk, so rows and edges in files have no price",
            where="feature_memory, topology_memory",
            fix="Leave them out, or measure on the machine itself",
        )
    if config.embed is not None:
        raise ConfigError(
            "descriptions of machines say nothing of learnt rows, so these have no price",
            where="embed",
            fix="Leave it out, or measure on the machine itself",
        )
    store.require_untyped("a plan for a machine that is described")
    dealt = mesh.hosts > 1 and (shards or keeps_rows_of_hosts(config))
    rows = sum((store.path / f"{name}.npy").stat().st_size for name in store.features)
    need = rows // (mesh.hosts if dealt else 1) + store.indptr.nbytes + store.indices.nbytes
    have = machine.host_memory.value
    if need > have:
        raise ResourceError(
            f"edges and feature rows take {need / 2**20:,.0f} MiB on every host, which has {have / 2**20:,.0f} MiB",
            where=f"{where}, host_memory",
            fix="Plan for shards on more hosts (--shards), or for hosts with more memory",
        )


def rates_on_worker(context: Context, *, store: str, config: dict[str, Any]) -> dict[str, Any]:
    """What each worker does that is started to measure; returns :meth:`partita.plan.rates.Rates.to_json`."""
    return measure_rates(context, GraphStore.open(store), Config.make(config)).to_json()
