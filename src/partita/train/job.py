"""What a run works with: everything opened, made and checked before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from partita import kernels
from partita.comm.context import Context
from partita.config import Config
from partita.core.errors import ConfigError
from partita.features.learnt import LearntRows
from partita.graph.store import GraphStore
from partita.infer.neighbors import check_walkable
from partita.nn import matmul
from partita.nn.model import Model
from partita.parallel.seed_split import seed_split_of
from partita.parallel.strategies import Strategy, check_encoder, parse_strategy
from partita.setup.ages import check_ages
from partita.setup.check import check_names
from partita.setup.inputs import DTYPES, is_encoded, open_columns, require_features
from partita.setup.learnt import check_learnt, check_look_ahead_of_learnt, make_learnt
from partita.setup.model import check_edge_columns, named_model, require_room
from partita.setup.optim import make_optimizer, needs_evaluations
from partita.setup.sampler import WHOLE, evaluation_sampler
from partita.setup.temporal import check_temporal, require_no_times
from partita.setup.tiers import check_look_ahead
from partita.setup.topology import check_topology_memory
from partita.tasks.metrics import selection_metric
from partita.tasks.task import AdjustableTask, EdgeTask, SampledTask, Task, adjusted_task, task_name, training_seeds
from partita.tasks.times import TimedTask
from partita.train.isolated import PartViews
from partita.train.phase import Views
from partita.train.team import Team
from partita.train.whole import WholeGraph


@dataclass(frozen=True)
class Job:
    """A configuration and a store, turned into the objects that train.

    Attributes:
        config: the settings, with numbers in place of what follows from the training nodes.
        store: the graph store.
        task: what is learned.
        metric: picks the best model.
        num_seeds: seeds of an epoch.
        model: in the dtype of the run.
        optimizer: over the model's parameters.
        team: the workers.
        strategy: who computes what.
        views: what the workers train on.
        learnt: rows that are learnt; ``None`` without any.
    """

    config: Config
    store: GraphStore
    task: Task
    metric: str
    num_seeds: int
    model: Model
    optimizer: torch.optim.Optimizer
    team: Team
    strategy: Strategy
    views: Views
    learnt: LearntRows | None = None

    @classmethod
    def prepare(
        cls, config: Config, store: GraphStore, context: Context, model: Model | None = None,
        learnt: LearntRows | None = None,
    ) -> Job:  # fmt: skip
        """Open and make everything. All workers of a run do.

        Args:
            config, store: as of the result.
            context: of this worker.
            model: a user's own; ``None`` makes the one that the settings name.
            learnt: tables of learnt rows that there are already; ``None`` makes them, where the settings want any.

        Raises:
            ConfigError: a setting, the model and the store do not fit each other, or not those of other workers.
        """
        check_names(config)
        _check_device(config, store, context)
        if config.matmul != "auto":
            matmul.require(config.matmul)
        task, config = adjusted_task(config, store)
        metric = selection_metric(task, config.metric, of=task_name(config, store))
        num_seeds = len(training_seeds(task))
        _check_schedule(config, task)
        store.require_host(context.mesh.host, context.mesh.hosts)
        require_features(store, config)
        check_walkable(store, evaluation_sampler(config, store.schema))
        kernels.load()  # what the compiler takes is held then; without room for it, its libraries hang
        if model is None:
            require_room(config, store, task.width)
            model = named_model(config, store, task.width)
        _check_model(model, config, task)
        check_computed(model, config, store)
        check_times(config, store, context.device.type, model, task)
        if isinstance(task, AdjustableTask) and task.target_scale is not None:
            model.scale_output(*task.target_scale)
        if isinstance(task, EdgeTask):
            task.attach(model)
        model.to(device=context.device, dtype=DTYPES[config.precision])
        check_learnt(config, model)
        check_look_ahead_of_learnt(config, store, model, context.mesh.size)
        learnt = make_learnt(config, store, model, context, context.device, learnt)
        optimizer = make_optimizer(list(model.parameters()), config)
        strategy = parse_strategy(config.strategy, config.layers)
        team = Team(context, seed_split_of(config.seed_split, strategy, store.num_parts, context.mesh), store)
        if team.size > 1:
            context.check_same("run", {"store fingerprint": store.fingerprint, **config.model_dump(mode="json")})
        views: Views
        if config.views == WHOLE:
            views = WholeGraph(config, store, team, strategy, task, model, learnt)
        else:
            views = PartViews(config, store, team, strategy, task, model, optimizer)
        return cls(config, store, task, metric, num_seeds, model, optimizer, team, strategy, views, learnt)

    def with_strategy(self, name: str) -> Job:
        """The same model and optimizer with another strategy on the whole graph. All workers call this.

        Raises:
            ConfigError: the strategy, the model, the store and the workers do not fit each other.
        """
        config, store, team = self.config.model_copy(update={"strategy": name}), self.store, self.team
        strategy = parse_strategy(name, config.layers)
        team.seed_split = seed_split_of(config.seed_split, strategy, store.num_parts, team.context.mesh)
        views = WholeGraph(config, store, team, strategy, self.task, self.model, self.learnt)
        return replace(self, config=config, strategy=strategy, views=views)


def check_computed(model: Model, config: Config, store: GraphStore) -> None:
    """Refuse a model that is computed as a whole where it cannot be.

    Raises:
        ConfigError: with views of isolated training.
        StoreError: on the shard of a host.
    """
    if not model.whole:
        return
    store.require_whole("a model that is computed as a whole")
    if config.views != WHOLE:
        raise ConfigError(
            "a model that is computed as a whole trains on the whole graph only",
            where=f"views {config.views}",
            fix="Leave views out, or make the model of layers: partita.Model.from_layers",
        )


def check_times(config: Config, store: GraphStore, device: str, model: Model, task: Task) -> None:
    """Refuse what is not asked about at times; see :mod:`partita.setup.temporal` and :mod:`partita.setup.ages`.

    Raises:
        ConfigError: a setting, or the task, does not go with it.
        StoreError: the store is the shard of a host.
    """
    check_temporal(config, store, device, model)
    check_ages(config, store, model)
    if not isinstance(task, TimedTask) and (isinstance(task, SampledTask) or task.seeds("train").ndim > 1):
        require_no_times(config, store)


def _check_device(config: Config, store: GraphStore, context: Context) -> None:
    """Refuse what does not compute on a device yet."""
    check_look_ahead(config, store, context.device, context.mesh.hosts)
    check_topology_memory(config, store, context.device)
    if context.device.type != "cpu" and config.views != WHOLE:
        raise ConfigError(
            f"views '{config.views}' train on the CPU only, so far",
            where=f"device {context.device.type}",
            fix="Use device cpu, or views whole",
        )


def _check_schedule(config: Config, task: Task) -> None:
    """A schedule may need evaluations, which there must be then."""
    if needs_evaluations(config) and not (config.eval_every and "val" in task.splits):
        raise ConfigError(
            f"the schedule '{config.schedule}' follows evaluations, and there are none",
            where="schedule",
            fix="Use a store with a validation split and eval_every above 0, or another schedule",
        )


def _check_model(model: Model, config: Config, task: Task) -> None:
    """A user's own model may not fit the settings or the store."""
    layers, store = len(model.stages), task.store
    if layers != config.layers:
        raise ConfigError(f"the model has {layers} layers but layers is {config.layers}", fix=f"Set layers={layers}")
    if is_encoded(store, config):  # what it takes is the encoder's affair
        check_encoder(model, open_columns(store, store.schema, config))
    check_edge_columns(model, store)
    expected = store.num_features if not is_encoded(store, config) else model.widths[0]
    if (model.widths[0], model.widths[-1]) != (expected, task.width):
        raise ConfigError(
            f"the model maps {model.widths[0]} columns to {model.widths[-1]}, the store has "
            f"{store.num_features} feature columns and {task.width} classes",
            where=str(store.path),
            fix="Make the model's widths those of the store",
        )
