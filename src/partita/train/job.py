"""What a run works with: everything opened, made and checked before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Num
from torch import Tensor

from partita.comm.context import Context
from partita.config import Config
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.infer.metrics import selection_metric
from partita.infer.neighbors import check_walkable
from partita.nn import matmul
from partita.nn.model import Model
from partita.parallel.seed_split import seed_split_of
from partita.parallel.strategies import Strategy, parse_strategy
from partita.sample.samplers import evaluation_sampler
from partita.setup.check import check_names
from partita.setup.inputs import DTYPES, require_features
from partita.setup.optim import make_optimizer
from partita.setup.task import named_model, training_labels, training_seeds
from partita.train.isolated import PartViews
from partita.train.phase import Views
from partita.train.team import Team
from partita.train.whole import WholeGraph

WHOLE = "whole"
"""The setting ``views`` of a run whose workers share the whole graph."""


@dataclass(frozen=True)
class Job:
    """A configuration and a store, turned into the objects that train.

    Attributes:
        config: the settings.
        store: the graph store.
        task: ``classes``, ``multilabel`` or ``regression``.
        metric: picks the best model.
        y: labels of all nodes, as the store holds them.
        num_seeds: training nodes.
        model: in the dtype of the run.
        optimizer: over the model's parameters.
        team: the workers.
        strategy: who computes what.
        views: what the workers train on.
    """

    config: Config
    store: GraphStore
    task: str
    metric: str
    y: Num[Tensor, "N ..."]
    num_seeds: int
    model: Model
    optimizer: torch.optim.Optimizer
    team: Team
    strategy: Strategy
    views: Views

    @classmethod
    def prepare(cls, config: Config, store: GraphStore, context: Context, model: Model | None = None) -> Job:
        """Open and make everything. All workers of a run do.

        Args:
            config: the settings.
            store: the graph store.
            context: of this worker.
            model: a user's own; ``None`` makes the one that the settings name.

        Raises:
            ConfigError: a setting, the model and the store do not fit each other.
        """
        check_names(config)
        _check_device(config, context)
        if config.matmul != "auto":
            matmul.require(config.matmul)
        task, y = training_labels(store)
        metric = selection_metric(task, config.metric)
        seeds = training_seeds(store, task, y)
        store.require_host(context.mesh.host, context.mesh.hosts)
        require_features(store)
        check_walkable(store, evaluation_sampler(config))
        if model is None:
            model = named_model(config, store)
        _check_model(model, config, store)
        model.to(device=context.device, dtype=DTYPES[config.precision])
        optimizer = make_optimizer(list(model.parameters()), config)
        strategy = parse_strategy(config.strategy, config.layers)
        team = Team(context, seed_split_of(config, strategy, store.num_parts, context.mesh), store)
        team.check_same(config, store)
        views: Views
        if config.views == WHOLE:
            views = WholeGraph.make(config, store, team, strategy, seeds, model)
        else:
            views = PartViews(config, store, team, strategy, model, optimizer)
        return cls(config, store, task, metric, y, len(seeds), model, optimizer, team, strategy, views)

    def with_strategy(self, name: str) -> Job:
        """The same model and optimizer with another strategy on the whole graph. All workers call this.

        Raises:
            ConfigError: the strategy, the model, the store and the workers do not fit each other.
        """
        config, store, team = self.config.model_copy(update={"strategy": name}), self.store, self.team
        strategy = parse_strategy(name, config.layers)
        team.seed_split = seed_split_of(config, strategy, store.num_parts, team.context.mesh)
        seeds = training_seeds(store, self.task, self.y)
        views = WholeGraph.make(config, store, team, strategy, seeds, self.model)
        return replace(self, config=config, strategy=strategy, views=views)


def _check_device(config: Config, context: Context) -> None:
    """Refuse what does not compute on a device yet."""
    if context.device.type == "cpu":
        return
    if config.views != WHOLE:
        raise ConfigError(
            f"views '{config.views}' train on the CPU only, so far",
            where=f"device {context.device.type}",
            fix="Use device cpu, or views whole",
        )


def _check_model(model: Model, config: Config, store: GraphStore) -> None:
    """A user's own model may not fit the settings or the store."""
    layers = len(model.stages)
    if layers != config.layers:
        raise ConfigError(f"the model has {layers} layers but layers is {config.layers}", fix=f"Set layers={layers}")
    if (model.widths[0], model.widths[-1]) != (store.num_features, store.num_classes):
        raise ConfigError(
            f"the model maps {model.widths[0]} columns to {model.widths[-1]}, the store has "
            f"{store.num_features} feature columns and {store.num_classes} classes",
            where=str(store.path),
            fix="Make the model's widths those of the store",
        )
