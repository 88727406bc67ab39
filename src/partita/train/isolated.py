"""Isolated training: every worker trains on views of its own, and only models or gradients travel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partita.comm.context import Context
from partita.comm.group import Group
from partita.comm.tensors import gather_tensors
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.keys import StepKey
from partita.core.memory import available_bytes
from partita.core.options import format_bytes
from partita.graph.store import GraphStore
from partita.isolated.controller import Controller
from partita.isolated.coverage import Covered, deficit
from partita.isolated.neighborhoods import Neighborhoods
from partita.isolated.phases import EpochPlan, Phase, progress_from_json, view_name
from partita.isolated.prefetcher import Parts, ViewPrefetcher, fit_views
from partita.isolated.replicas import Layout, ViewReplicas
from partita.isolated.schedules import VIEW_SCHEDULES, Schedule
from partita.isolated.syncs import SYNCS, Sync, SyncSettings
from partita.isolated.views import WEIGHTS, PartView
from partita.nn.model import Model
from partita.parallel.block_worker import BlockWork
from partita.parallel.engine import Engine, MiniBatch
from partita.parallel.strategies import Strategy, build_engine, check_model
from partita.runs.checkpoint import TrainState
from partita.sample.seeds import SeedOrder
from partita.sample.topology import EDGE_ROWS
from partita.setup.inputs import DTYPES
from partita.setup.sampler import make_sampler, sampler_settings
from partita.tasks.task import Task, weights_of
from partita.train.phase import EpochEnd, TrainPhase, Views
from partita.train.team import Team

_READING_BYTES = 24
"""Of a node, while a view is read."""


class PartViews(Views):
    """Parts of the graph, a schedule, and a sync of any kind.

    Args:
        config, team, task, model, optimizer: as of the :class:`~partita.train.job.Job`.
        store: partitioned; the whole one, or a shard with the parts of this host.
        strategy: must compute every layer where it is needed.

    Raises:
        ConfigError: the settings, the parts and the workers do not fit each other.
        ResourceError: a view is too large.
    """

    def __init__(
        self,
        config: Config,
        store: GraphStore,
        team: Team,
        strategy: Strategy,
        task: Task,
        model: Model,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        check_views(config, store, team.size, strategy, task)
        self.config, self.store, self.team, self.strategy = config, store, team, strategy
        self._task, self._model, self._context = task, model, Context.alone()
        self._group = team.group
        self._rank = self._group.rank
        # A model that reads no neighbors lacks none.
        coverage = config.coverage if model.whole or any(layer.reads_neighbors for layer in model.layers) else "none"
        settings = SyncSettings(coverage, config.average_every, config.optimizer_state)
        self.sync: Sync = SYNCS.find(config.sync)(settings)
        if self.sync.every_step:
            check_model(model, team.size)
        self._replicas = None if self.sync.every_step else ViewReplicas(model, optimizer, self.sync, self._group)
        self._weighs = weights_of(task, task.targets(task.seeds("train")[:0])) is not None
        self._seeds_of_part = _count_seeds(store)
        read = {name for layer in model.layers for name in layer.edge_columns}
        unread = [name for name in EDGE_ROWS if name not in read]
        self._left_out = (*unread, *([] if config.weighted else [WEIGHTS]))  # columns that views need not hold
        self._fanouts = _fanouts_of_seeds(config, store)
        self._planned_epochs = config.epochs
        self._set_schedule()
        self._ahead = self._fit()
        self.memory_bytes = min(self._room, (1 + self._ahead) * self._most_bytes) + _READING_BYTES * store.num_nodes
        self._prefetcher = ViewPrefetcher(
            lambda parts: PartView.load(store, parts, config.halo, without=self._left_out), ahead=self._ahead
        )
        self._built: tuple[Parts, PartView, Engine, SeedOrder] | None = None
        self._plan: tuple[int, EpochPlan] | None = None
        self._left_off: dict[str, Any] | None = None  # by a checkpoint, in the middle of an epoch
        self._covered = Covered()
        self._entered: Phase | None = None

    def _weight(self, targets: Tensor | None, joint: bool) -> float:
        """The sum of the weights of this worker's targets, or of those of all workers, which then all call this."""
        weights = None if targets is None else weights_of(self._task, targets)
        total = torch.zeros(1, dtype=torch.float64) if weights is None else weights.sum()[None]
        if joint:
            self._group.sum_([total], kind="metadata")
        return float(total)

    def _set_schedule(self) -> None:
        config = self.config
        make = VIEW_SCHEDULES.find(config.views)
        self.schedule: Schedule = make(self.store.num_parts, self.team.size, self._planned_epochs)
        self.controller: Controller | None = None
        if config.switch_deficit:
            if not self.schedule.num_rounds:
                raise ConfigError(
                    f"views '{config.views}' have no rounds to end early",
                    where="switch_deficit",
                    fix="Use views that have rounds, such as 'tournament', or leave switch_deficit out",
                )
            self.controller = Controller(self.schedule, config.switch_deficit, config.switch_window)

    def _fit(self) -> bool:
        """See that views fit; whether two do at a time."""
        config, mesh = self.config, self.team.context.mesh
        memory = config.memory_per_worker or available_bytes(mesh.workers)
        self._room = min(self._group.gather(int(memory * (1 - config.compute_share))))
        views: set[Parts] = set()
        for epoch in range(config.epochs):
            views |= {parts for phase in self.schedule.assignment(epoch) for parts in phase if parts}
        self._most_bytes = max(
            (PartView.bound(self.store, parts, config.halo, without=self._left_out).bytes for parts in views), default=0
        )
        return fit_views(self.store, views, config.halo, self._room, self._group, without=self._left_out)

    def start(self) -> list[str]:
        """Say what will happen, and what is odd about it."""
        store, config = self.store, self.config
        notes = [
            f"{store.num_parts} parts over {self.team.size} worker{'' if self.team.size == 1 else 's'} "
            f"({config.views}, halo {config.halo}, {config.sync}); {format_bytes(self._room)} for partitions, "
            + ("the next one is read while one is in use" if self._ahead else "one at a time")
        ]
        empty = np.flatnonzero(self._seeds_of_part == 0)
        if len(empty):
            named = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
            notes.append(f"part{'' if len(empty) == 1 else 's'} {named}: no training node, so weight 0")
        return notes

    def _plan_of(self, state: TrainState) -> EpochPlan:
        """The phases of the epoch that a run is in."""
        if self._plan is None or self._plan[0] != state.epoch:
            base, first = None, 0
            if self._left_off is not None:
                base, first = progress_from_json(self._left_off["base"]), self._left_off["first"]
            self._plan = state.epoch, self._lay_out(state.epoch, base, first)
            self._left_off = None
        return self._plan[1]

    def _lay_out(self, epoch: int, base: Any = None, first: int = 0) -> EpochPlan:
        def seeds_of(parts: Parts) -> int:
            return int(self._seeds_of_part[list(parts)].sum())

        switches = self.controller.switches if self.controller else ()
        assignment = self.schedule.assignment(epoch, switches)
        batch_size = self.config.batch_size or int(self._seeds_of_part.sum())
        return EpochPlan.make(assignment, seeds_of, batch_size, self.sync.every_step, base, first)

    def steps(self, state: TrainState) -> int:
        """Steps of all phases of the epoch."""
        return self._plan_of(state).steps

    def phases(self, state: TrainState) -> Iterable[Phase]:
        """Those that are not over."""
        plan = self._plan_of(state)
        if self._replicas is not None:
            self._replicas.begin(self._layout(plan))
        return plan.from_step(state.step)

    def _layout(self, plan: EpochPlan) -> Layout:
        views: list[list[tuple[str, int]]] = [[] for _ in range(self.team.size)]
        for phase in plan.phases:
            for worker, share in enumerate(phase.shares):
                if share.parts:
                    views[worker].append((view_name(share.parts), share.seeds))
        return tuple(map(tuple, views))

    def enter(self, phase: Phase, state: TrainState) -> TrainPhase:
        """Load the view of a phase if it is not in memory, and begin to load the next one."""
        epoch, plan, config = state.epoch, self._plan_of(state), self.config
        share = phase.shares[self._rank]
        view, engine, order = self._build(share.parts)
        self._prefetcher.prefetch(self._after(phase, plan, epoch))
        self._entered = phase
        if self._replicas is not None and share.parts:
            self._replicas.enter(view_name(share.parts))
        done, whole = phase.first, plan.steps
        if not phase.joint:
            done, whole = share.done.steps, -(-share.seeds // phase.batch_size)
        return TrainPhase(
            engine=engine,
            first=phase.first,
            steps=phase.steps,
            own_steps=phase.steps_of(self._rank),
            joint=phase.joint,
            size=phase.size,
            task=self._task,
            seeds=lambda step: order.between(epoch, phase.before(self._rank, step), phase.before(self._rank, step + 1)),
            key=lambda step: StepKey(config.seed, epoch, share.done.steps + step),
            progress=lambda step: (epoch * whole + done + step, config.epochs * whole),
            divisor=(lambda _, targets: self._weight(targets, phase.joint)) if self._weighs else None,
            reductions=state.lr_reductions,
            store_ids=view.store_ids,
            covered=lambda batch: self._cover(view, batch),
        )

    def _build(self, parts: Parts) -> tuple[PartView, Engine, SeedOrder]:
        if self._built is None or self._built[0] != parts:
            self._built = None  # it holds the view before
            view, config = self._prefetcher.get(parts), self.config
            dtype = DTYPES[config.precision]
            engine = build_engine(
                self.strategy,
                self._model,
                view.topology(replace=config.replace, weighted=config.weighted),
                view.inputs(dtype, normalize=config.normalize_features, dropout=config.input_dropout),
                make_sampler(config, Group.alone(), self.store.schema),
                dtype,
                self._context,
                torch.tensor([0, view.num_nodes]),
            )
            self._built = parts, view, engine, SeedOrder(view.seeds, config.seed, 1)
        return self._built[1:]

    def _after(self, phase: Phase, plan: EpochPlan, epoch: int) -> Parts:
        """The view that will be wanted after a phase, as far as is known now."""
        following = plan.from_step(phase.first + phase.steps)
        if not following and epoch + 1 < self.config.epochs:
            following = self._lay_out(epoch + 1).from_step(0)
        return following[0].shares[self._rank].parts if following else phase.shares[self._rank].parts

    def _cover(self, view: PartView, batch: MiniBatch) -> Covered:
        work = batch.works[-1]
        assert isinstance(work, BlockWork)
        found, size = Neighborhoods.of(view, work.block, self._fanouts), len(batch.seeds)
        factor = self.sync.factor(*found)
        return Covered(1.0, factor, float(factor == 0), size, size * deficit(found.d_local, found.d_global))

    def leave(self) -> None:
        """Keep the model of the view, where it is its own."""
        if self._replicas is not None:
            self._replicas.leave()
        self._entered = None

    def observe(self, epoch: int, covered: Covered) -> dict[str, Any] | None:
        """Feed the controller."""
        self._covered = self._covered.plus(covered)
        if self.controller is not None:
            self.controller.record(epoch, covered.deficit)
        if covered.blind:
            return {"event": "no_neighbors", "batches": int(covered.blind), "deficit": covered.deficit}
        return None

    def end_epoch(self, epoch: int, *, model_wanted: bool) -> EpochEnd:
        """Join models if it is time to, and see which views come next."""
        events: list[dict[str, Any]] = []
        now = self.schedule.round_at(epoch, self.controller.switches if self.controller else ())
        if now is not None:
            early = self.controller.decide(epoch) if self.controller else None
            if early is not None:
                events = [{"event": "switch", "reason": "deficit", "round": now.number, "deficit": early.deficit}]
            elif now.stop == epoch + 1:
                events = [{"event": "switch", "reason": "planned", "round": now.number}]
        due = False
        if self._replicas is not None:
            due = self.sync.due(epoch, self.config.epochs)
            if due or model_wanted:
                self._replicas.join(for_good=due)
        fields = {"coverage": self._covered.factor, "deficit": self._covered.deficit}
        self._covered = Covered()
        return EpochEnd(fields, events, model_wanted or self._replicas is None)

    @contextmanager
    def saving(self, state: TrainState) -> Iterator[tuple[dict[str, Any], dict[str, Tensor]]]:
        """Progress of all views; where they have models of their own, these, and their mean as the model."""
        plan, entered = self._plan_of(state), self._entered
        values: dict[str, Any] = {
            "workers": self.team.size,
            "epochs": self._planned_epochs,
            "step": state.step,
            **plan.to_json(),
            "progress": {name: list(done) for name, done in plan.progress(state.step).items()},
            "covered": list(self._covered),
            "controller": self.controller.to_json() if self.controller else None,
        }
        if self._replicas is None:
            yield values, {}
            return
        if not self._replicas.is_mean:
            self._replicas.leave()
            self._replicas.join(for_good=False)
        yield values, gather_tensors(self._group, self._replicas.tensors())
        if entered is not None and (parts := entered.shares[self._rank].parts):
            self._replicas.enter(view_name(parts))

    def restore(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`saving` gave, with any number of workers.

        With another number, views that the workers of before had begun in this epoch are gone on with where they
        occur again, and begun anew where they do not.
        """
        self._planned_epochs = values["epochs"]
        self._set_schedule()
        if self.controller is not None and values["controller"] is not None:
            self.controller.restore(values["controller"])
        self._covered = Covered(*values["covered"])
        same = values["workers"] == self.team.size
        base, first = ("base", "first") if same else ("progress", "step")
        self._left_off = {"base": values[base], "first": values[first]}
        if self._replicas is not None:
            self._replicas.restore(tensors)

    def record(self) -> dict[str, Any]:
        """Schedule, what was loaded by each worker, and which rounds ended early."""
        times = self._group.gather(asdict(self._prefetcher.times))
        return {
            "views": {
                "schedule": self.config.views,
                "halo": self.config.halo,
                "parts": self.store.num_parts,
                "sync": self.config.sync,
                "room_bytes": self._room,
                "ahead": self._ahead,
                "loading": times,
                "early_switches": [asdict(switch) for switch in self.controller.decisions] if self.controller else [],
            }
        }

    def close(self) -> None:
        """Drop all views, and end the thread that reads them."""
        self._built = None
        self._prefetcher.close()


def check_views(config: Config, store: GraphStore, workers: int, strategy: Strategy, task: Task) -> None:
    """Refuse settings that make no sense where nothing is shared.

    Raises:
        ConfigError: a setting is for workers that share a graph, or the store has too few parts.
    """
    where = f"views '{config.views}'"
    if strategy.is_collective:
        raise ConfigError(
            f"strategy '{config.strategy}' has workers compute for each other, which views of their own rule out",
            where=where,
            fix="Use strategy gdp, or views 'whole'",
        )
    if config.topology != "replicated" or config.cache:
        name = "cache" if config.cache else "topology 'partitioned'"
        raise ConfigError(
            f"{name} is for workers that share a graph; views hold all edges and rows that they use",
            where=where,
            fix=f"Leave {name.split()[0]} out, or use views 'whole'",
        )
    if task.seeds("train").ndim > 1:
        what = "views are trained on single nodes, not on rows of nodes as the task is"
        raise ConfigError(what, where=where, fix="Use views 'whole'")
    if store.num_parts < workers:
        parts = store.num_parts
        raise ConfigError(
            f"the store has {parts} part{'' if parts == 1 else 's'}, fewer than the {workers} workers",
            where=str(store.path),
            fix=f"Run partita partition STORE OUT --parts {max(2, workers)}, then train OUT",
        )


def _fanouts_of_seeds(config: Config, store: GraphStore) -> tuple[int, ...] | None:
    """Fanouts of the last layer where they are of relations."""
    fanouts = sampler_settings(config, store.schema).fanouts
    last = fanouts[-1] if fanouts else None
    return last if isinstance(last, tuple) else None


def _count_seeds(store: GraphStore) -> np.ndarray:
    """int64 (P): training nodes of every part."""
    train, bounds = store.split("train"), store.part_offsets[1:]
    counts = np.zeros(store.num_parts, dtype=np.int64)
    for low in range(0, len(train), 1 << 20):
        parts = np.searchsorted(bounds, train[low : low + (1 << 20)], side="right")
        counts += np.bincount(parts, minlength=store.num_parts)
    return counts
