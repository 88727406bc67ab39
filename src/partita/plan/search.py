"""Foresees every strategy, prices it, and ranks them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partita.comm.group import sum_bytes
from partita.comm.launch import launch
from partita.config import Config
from partita.core.errors import ConfigError, PartitaError
from partita.core.machine import cores
from partita.core.mesh import Mesh
from partita.core.records import Counts, Traffic
from partita.graph.store import GraphStore
from partita.parallel.strategies import Strategy
from partita.plan.candidates import candidates, name_of
from partita.plan.cost import Cost, Estimate
from partita.plan.dryrun import DryRun
from partita.plan.links import Links, links_file
from partita.plan.rates import Rates

DRY_RUN_SECONDS = 30.0


@dataclass(frozen=True)
class Plan:
    """What every strategy would take for an epoch, the fastest first.

    Attributes:
        estimates: of an epoch, by strategy.
        refused: why others cannot be used.
        steps: of an epoch.
        sampled_steps: of the dry run.
        rates: what was measured of the model.
        links: what was measured between workers.
    """

    estimates: Mapping[Strategy, Estimate]
    refused: Mapping[Strategy, PartitaError]
    steps: int
    sampled_steps: int
    rates: Rates
    links: Links

    @property
    def best(self) -> Strategy:
        """The fastest."""
        return next(iter(self.estimates))

    def epoch(self, strategy: Strategy) -> dict[str, float]:
        """Seconds of an epoch by what they are spent on, of the slowest worker in each step; and their sum."""
        estimate = self.estimates[strategy]
        spent = estimate.seconds.scaled(self.steps / estimate.steps)
        return {**spent.to_json(), "total": spent.total}

    def to_json(self) -> dict[str, Any]:
        """As a file holds it."""
        share = self.steps / self.sampled_steps
        return {
            "strategy": name_of(self.best),
            "steps": self.steps,
            "sampled_steps": self.sampled_steps,
            "candidates": [
                {
                    "strategy": str(strategy),
                    "name": name_of(strategy),
                    "epoch_seconds": self.epoch(strategy),
                    "epoch_bytes": {
                        **{kind: round(share * sent) for kind, sent in estimate.traffic.to_json().items()},
                        "gradients": round(share * estimate.gradient_bytes),
                    },
                    "sampled_counts": estimate.counts.to_json(),
                }
                for strategy, estimate in self.estimates.items()
            ],
            "refused": [{"strategy": str(strategy), "why": str(error)} for strategy, error in self.refused.items()],
            "rates": self.rates.to_json(),
            "links": self.links.to_json(),
        }


def make_plan(
    store: str | os.PathLike[str],
    config: Config,
    *,
    hosts: int = 1,
    links: Links | None = None,
    rates: Rates | None = None,
    seconds: float = DRY_RUN_SECONDS,
) -> Plan:
    """Measure the machine with all workers busy, sample some steps, and price every strategy.

    Args:
        store: path of a whole graph store.
        config: the settings of a run; ``workers`` says how many each host has, ``strategy`` is not looked at.
        hosts: how many there are.
        links: between the workers; ``None``: what was measured here before and kept, else measured now, quickly.
        rates: of the model on this machine; ``None``: they are measured, by workers that are started for it.
        seconds: how long to sample, at most.

    Raises:
        ConfigError: no strategy can be used, it is a run that cannot be planned, or a link is not known.
        PartitaError: what a worker raised while it measured.
    """
    opened, mesh = GraphStore.open(store), Mesh.of(0, hosts * config.workers, config.workers)
    dry_run = DryRun(opened, config, mesh, candidates(config.layers, mesh))
    links = links or kept_links(mesh)
    if rates is None or links is None:
        measured_rates, measured_links = _measured(store, config, with_links=links is None)
        rates, links = rates or measured_rates, links or measured_links
    assert links is not None
    return make_estimates(dry_run, mesh, rates, links, seconds=seconds)


def make_estimates(dry_run: DryRun, mesh: Mesh, rates: Rates, links: Links, *, seconds: float) -> Plan:
    """Sample some steps and price every strategy.

    Args:
        dry_run: of the strategies that come into question.
        mesh: of any worker.
        rates: of the model on the machine.
        links: between the workers.
        seconds: how long to sample, at most; one step in any case.

    Raises:
        ConfigError: no strategy can be used, or a link is not known.
    """
    if not dry_run.engines:
        first = next(iter(dry_run.refused.values()))
        raise ConfigError(f"no strategy can be used: {first}", where="plan")
    parameter_bytes = sum(p.numel() * p.element_size() for p in dry_run.model.parameters())
    costs = {
        strategy: Cost(engine, strategy.axis, mesh, rates, links, parameter_bytes)
        for strategy, engine in dry_run.engines.items()
    }
    estimates = {strategy: Estimate(Counts.zero(len(rates.stages))) for strategy in costs}
    summed = mesh.size * sum_bytes(parameter_bytes, mesh.size) if mesh.size > 1 else 0
    sampled = 0
    for step in dry_run.steps(seconds=seconds):
        sampled += 1
        for strategy, shares in step.shares.items():
            cost = costs[strategy]
            estimates[strategy].add(
                [cost.seconds(share) for share in shares], [share.counts for share in shares],
                [cost.traffic(share) for share in shares], summed,
            )  # fmt: skip
    return Plan(_ranked(estimates), dry_run.refused, dry_run.num_steps, sampled, rates, links)


def kept_links(mesh: Mesh) -> Links | None:
    """What was measured here, with as many workers, not too long ago."""
    path = links_file(mesh.hosts, mesh.workers)
    if mesh.size == 1 or not path.exists():
        return None
    found = Links.load(path)
    return found if found.is_of_here else None


def _measured(store: str | os.PathLike[str], config: Config, *, with_links: bool) -> tuple[Rates, Links | None]:
    arguments = {"store": os.fspath(store), "config": config.model_dump(mode="json"), "links": with_links}
    # More workers than this machine has cores are those of another one.
    workers = min(config.workers, max(cores(), 2))
    found = launch("partita.plan.measure:all_on_worker", workers, arguments=arguments, threads=config.threads)
    return Rates.from_json(found["rates"]), Links.from_json(found["links"]) if with_links else None


def _ranked(estimates: Mapping[Strategy, Estimate]) -> dict[Strategy, Estimate]:
    """The fastest first. Of those that come to the very same thing, where seeds lie with their owners, one is kept:
    that with a name, or else the one that comes first in the enumeration."""
    order = list(estimates)
    by_time = sorted(order, key=lambda strategy: (estimates[strategy].seconds.total, order.index(strategy)))
    found, seen = dict[Strategy, Estimate](), set[tuple[Counts, Traffic]]()
    for strategy in sorted(by_time, key=lambda each: "," in name_of(each)):
        estimate = estimates[strategy]
        if (estimate.counts, estimate.traffic) not in seen:
            seen.add((estimate.counts, estimate.traffic))
            found[strategy] = estimate
    return {strategy: found[strategy] for strategy in by_time if strategy in found}
