"""Plans with the workers that are there: measures with them, and lets them try strategies out."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from partita.comm.context import Context
from partita.config import PRESETS, Config
from partita.core import progress
from partita.core.errors import ConfigError, ResourceError
from partita.core.memory import available_bytes, keeping_freed
from partita.core.mesh import Mesh
from partita.core.plan import Candidate, Plan, Seconds
from partita.graph.store import GraphStore
from partita.nn.model import Model
from partita.parallel.strategies import PLAIN, parse_strategy
from partita.plan.candidates import candidates
from partita.plan.dryrun import DryRun
from partita.plan.estimates import Estimates, make_estimates
from partita.plan.kept import keep_plan, kept_plan, links_here, same_plan
from partita.plan.links import Links, links_hold
from partita.plan.measure_rates import measure_rates
from partita.plan.trials import Trial, TrialRun
from partita.setup.tiers import keeps_rows_of_hosts

SHORT_SECONDS = 60.0
"""A run that takes no longer is not planned: a plan takes 5 to 13 seconds, which it does not save in a minute."""
DRY_RUN_SECONDS, DRY_RUN_SHARE, AHEAD_SHARE = 30.0, 0.01, 0.02
TRIALS_SECONDS, LEAST_TRIALS_SHARE = 30.0, 0.03
"""What sampling and trying out may take: so many seconds, and for sampling no more than this part of the run's time
(the second one where it shows which rows are kept); for trying out this part in any case."""
PLANNING_SHARE = 0.08
"""No other trial begins when planning has taken this part of the run's time."""
LOOK_SECONDS, TRIAL_SECONDS, TRIAL_SHARE = 0.4, 1.0, 0.01
"""What a single trial may take, to see whether the run is short, and to know what a strategy takes; the latter no more
than this part of the run's time."""

PLAN_HOLDS_TIMES = 3.0
"""A plan that was kept is not followed where links have become this many times as slow or as fast."""

BRIEF_STEPS = 2000
"""Before a run of fewer steps layers are measured briefly: that takes as long as some ten of its steps."""

_MADE_FOR = (
    "model", "layers", "hidden", "heads", "sampler", "fanout", "layer_budget", "batch_dependency", "layer_dependency",
    "batch_size", "precision", "seed_split", "topology", "cache", "cache_policy", "cache_layout", "feature_memory",
    "topology_memory", "look_ahead", "allow", "temporal_strategy", "time_window", "time_cutoff", "time_encoding",
    "embed", "embed_optimizer", "embed_memory", "task", "target_relations", "negatives", "negative_sampler", "corrupt",
    "exclude_targets", "message_share",
)  # fmt: skip


def choose(
    context: Context,
    store: GraphStore,
    config: Config,
    trial_run: TrialRun,
    *,
    model: Model | None = None,
    thorough: bool = False,
    held: int = 0,
) -> Plan:
    """Measure with the workers of a run, before it begins; the first of them plans. All workers call this.

    Args:
        context: of this worker.
        store: a whole graph store, or the shard of this host.
        config: the settings of the run.
        trial_run: tries a strategy out.
        model: a user's own; ``None``: the one that the settings name.
        thorough: plan however short the run is.
        held: bytes that this worker already holds of what a run needs.

    Raises:
        ConfigError: on all workers: the run cannot be planned.
        ResourceError: likewise: no strategy fits into the memory.
    """
    mesh = context.mesh
    begun = time.monotonic()
    same = same_plan(made_for(store, config, mesh), config, store) if model is None else None
    kept = None if thorough or same is None else _kept(context, config, same, held)
    if kept is not None:
        return kept
    planner = _Planner(store, config, context, model, hot_rows_of_hosts(context, store))
    context.agree(planner.check)
    if mesh.size == 1:
        return _short(trial_run({"strategy": PLAIN}, TRIAL_SECONDS), made_for(store, config, mesh))
    now = time.monotonic()
    look = trial_run({"strategy": PLAIN}, LOOK_SECONDS)
    planner.trial_seconds = time.monotonic() - now
    if not thorough and config.epochs * look.epoch < SHORT_SECONDS:
        return _short(look, made_for(store, config, mesh))
    with keeping_freed():
        brief = not thorough and config.epochs * look.epoch_steps < BRIEF_STEPS
        rates = measure_rates(context, store, config, model, brief=brief)
    links = links_here(context)
    limit = float("inf") if thorough else config.epochs * look.epoch

    def analyze() -> float:
        seconds = min(DRY_RUN_SECONDS, (AHEAD_SHARE if planner.dry_run.looks_ahead else DRY_RUN_SHARE) * limit)
        memory = config.memory_per_worker or available_bytes(mesh.workers) + held
        planner.estimates = make_estimates(
            planner.dry_run, mesh, rates, links, seconds=seconds, memory=memory, precise=not thorough
        )
        if planner.plain in planner.estimates.found:
            planner.estimates.add(planner.plain, look)
        planner.estimates.epochs()  # raises where nothing fits
        return planner.estimates.took(planner.plain, look)

    limit *= context.agree(analyze) / look.epoch
    now = time.monotonic()
    until = min(now + TRIALS_SECONDS, max(now + LEAST_TRIALS_SHARE * limit, begun + PLANNING_SHARE * limit))
    seconds = min(TRIAL_SECONDS, TRIAL_SHARE * limit)
    with progress.task("try out", total=None, unit="strategies") as task:
        epochs = math.inf if thorough else config.epochs
        while (name := context.agree(lambda: planner.next_to_try(until, epochs))) is not None:
            now = time.monotonic()
            planner.add(name, trial_run({"strategy": name}, seconds))
            planner.trial_seconds = time.monotonic() - now
            task.advance()
    allowed = config.allow == "approximate"
    isolated = (allowed or thorough) and store.shard is None  # views may need rows that a shard does not have
    approximate, refused = _isolated(context, trial_run) if isolated else ([], {})

    def conclude() -> dict[str, Any]:
        found = planner.estimates.plan(made_for(store, config, mesh), approximate, allowed=allowed)
        found = replace(found, refused={**found.refused, **refused})
        if same is not None:
            keep_plan(found, same)
        return found.to_json()

    return Plan.from_json(context.agree(conclude))


def _kept(context: Context, config: Config, same: Mapping[str, Any], held: int) -> Plan | None:
    """A plan that was made here for such a run, where its strategy still fits into the memory, and links between
    workers are still as they were."""

    def load() -> dict[str, Any] | None:
        plan = kept_plan(same)
        room = config.memory_per_worker or available_bytes(context.mesh.workers) + held
        return None if plan is None or plan.best.memory_bytes > room else plan.to_json()

    found = context.agree(load)
    if found is None:
        return None
    plan = Plan.from_json(found)
    links = Links.from_json(plan.links or {})
    if not links_hold(context, links, PLAN_HOLDS_TIMES):
        return None
    if context.mesh.rank == 0:
        progress.say(f"the strategy was planned for such a run on {links.date[:10]}; partita plan measures anew")
    return plan


def hot_rows_of_hosts(context: Context, store: GraphStore) -> list[Tensor | None]:
    """Of every host the nodes whose rows it has besides those of its own ones. All workers call this."""
    mesh = context.mesh
    if store.shard is None:
        return [None] * mesh.hosts
    found = store.hot if store.shard.hosts > 1 and mesh.worker == 0 else None
    of_workers = context.group().gather(None if found is None else found[0].tolist())
    return [None if ids is None else torch.tensor(ids) for ids in of_workers[:: mesh.workers]]


def _isolated(context: Context, trial_run: TrialRun) -> tuple[list[Candidate], dict[str, str]]:
    """Isolated training as published systems do it, tried out; and why they cannot be used. All workers call this."""
    found, refused = list[Candidate](), dict[str, str]()
    for name in PRESETS:
        settings, trial, error = {**PRESETS.find(name), "strategy": PLAIN}, None, None
        if "views" not in settings:
            continue
        try:
            trial = trial_run(settings, TRIAL_SECONDS)
        except (ConfigError, ResourceError) as raised:
            error = str(raised)
        errors = [each for each in context.group().gather(error) if each is not None]
        if trial is None or errors:
            refused[name] = errors[0]
            continue
        found.append(
            Candidate(
                name, name, Seconds(compute=trial.epoch), foreseen=trial.epoch, tried_steps=trial.steps,
                memory_bytes=trial.peak_bytes, settings=settings,
            )
        )  # fmt: skip
    return found, refused


def made_for(store: GraphStore, config: Config, mesh: Mesh, *, shards: bool = False) -> dict[str, Any]:
    """The settings that a run must share with a plan: see :attr:`partita.core.plan.Plan.made_for`.

    Args:
        store: the graph store, or the shard of a host.
        config: the settings.
        mesh: of any worker.
        shards: hosts hold shards of the whole store that is given.
    """
    settings = config.model_dump(mode="json")
    shards |= store.shard is not None or keeps_rows_of_hosts(config)
    of_all = {"store": store.fingerprint, "workers": mesh.size, "hosts": mesh.hosts}
    of_all |= {"shards": shards and mesh.hosts > 1}
    return of_all | {name: settings[name] for name in _MADE_FOR}


def _short(plain: Trial, of: dict[str, Any]) -> Plan:
    seconds = plain.epoch
    only = Candidate(
        str(parse_strategy(PLAIN, of["layers"])),
        PLAIN,
        Seconds(compute=seconds),
        foreseen=seconds,
        tried_steps=plain.steps,
        memory_bytes=plain.peak_bytes,
    )
    return Plan((only,), {}, plain.epoch_steps, 0, of)


class _Planner:
    """What only the first worker has: the dry run, and what comes of it."""

    estimates: Estimates
    dry_run: DryRun
    trial_seconds: float

    def __init__(
        self, store: GraphStore, config: Config, context: Context, model: Model | None, hot: list[Tensor | None]
    ) -> None:
        self._store, self._config, self._model, self._hot = store, config, model, hot
        self._mesh, self._leads = context.mesh, context.mesh.rank == 0
        self._strategies = {each.name: each for each in candidates(config.layers, context.mesh)}
        self.plain = self._strategies[PLAIN]

    def check(self) -> None:
        strategies = list(self._strategies.values())
        self.dry_run = DryRun(self._store, self._config, self._mesh, strategies, self._model, hot=self._hot)

    def add(self, name: str, trial: Trial) -> None:
        if self._leads:
            self.estimates.add(self._strategies[name], trial)

    def next_to_try(self, until: float, num_epochs: float) -> str | None:
        if time.monotonic() >= until:
            return None
        found = self.estimates.next_to_try(num_epochs, self.trial_seconds)
        return None if found is None else found.name
