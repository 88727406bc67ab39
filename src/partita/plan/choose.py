"""The strategy of a run that leaves the choice to the planner."""

from __future__ import annotations

from typing import Any

from partita.comm.context import Context
from partita.config import Config
from partita.core.memory import keeping_freed
from partita.graph.store import GraphStore
from partita.plan.candidates import candidates
from partita.plan.dryrun import DryRun
from partita.plan.links import Links, measure_links
from partita.plan.rates import measure_rates
from partita.plan.search import kept_links, make_estimates
from partita.runs.computing import threads

MOST_SECONDS = 30.0
"""Of a dry run."""
WORTH = 0.02
"""Part of a run's estimated time that its dry run may take."""


def choose(context: Context, store: str, config: Config) -> dict[str, Any]:
    """Measure with the workers of a run, before it begins, and let the first one plan. All workers call this.

    Args:
        context: of this worker.
        store: path of the graph store.
        config: the settings of the run; ``workers`` are all there are.

    Returns:
        :meth:`partita.plan.search.Plan.to_json`.

    Raises:
        ConfigError: on all workers: the run cannot be planned.
    """
    with threads(config.threads), keeping_freed():
        rates = measure_rates(context, store, config)
        kept = context.agree(lambda: None if (found := kept_links(context.mesh)) is None else found.to_json())
        links = measure_links(context, quick=True) if kept is None else Links.from_json(kept)

    def plan() -> dict[str, Any]:
        mesh = context.mesh
        dry_run = DryRun(GraphStore.open(store), config, mesh, candidates(config.layers, mesh))
        found = make_estimates(dry_run, mesh, rates, links, seconds=0.0)
        run_seconds = config.epochs * found.epoch(found.best)["total"]
        seconds = min(MOST_SECONDS, WORTH * run_seconds)
        return make_estimates(dry_run, mesh, rates, links, seconds=seconds).to_json()

    return context.agree(plan)
