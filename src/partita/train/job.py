"""What a run works with: everything opened, made and checked before anything is written."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Num
from torch import Tensor

from partita.comm.context import Context
from partita.config import Config
from partita.core.errors import ConfigError
from partita.features.tiers import CacheSettings
from partita.graph.store import GraphStore
from partita.infer.metrics import has_label, selection_metric
from partita.nn.model import Model, build_model
from partita.parallel.caching import fill_caches
from partita.parallel.engine import Engine
from partita.parallel.stores import place_topology
from partita.parallel.strategies import Strategy, build_engine, parse_strategy
from partita.runs.load import DTYPES, open_rows, open_topology
from partita.sample.seeds import SeedOrder
from partita.sample.topology import LocalTopology, as_tensor
from partita.train.optimise import OPTIMIZERS
from partita.train.team import Team, deal_of


@dataclass(frozen=True)
class Job:
    """A configuration and a store, turned into the objects that train.

    Attributes:
        config: the settings.
        store: the graph store.
        topology: what this host has of the graph's edges.
        task: ``classes``, ``multilabel`` or ``regression``.
        metric: picks the best model.
        y: labels of all nodes, as the store holds them.
        seed_order: which seeds make up the batch of a step.
        model: in the dtype of the run.
        optimizer: over the model's parameters.
        engine: samples and computes batches.
        team: the workers.
        strategy: who computes what.
        in_order: sampling exchanges something, so all workers sample the same steps in the same order.
    """

    config: Config
    store: GraphStore
    topology: LocalTopology
    task: str
    metric: str
    y: Num[Tensor, "N ..."]
    seed_order: SeedOrder
    model: Model
    optimizer: torch.optim.Optimizer
    engine: Engine
    team: Team
    strategy: Strategy
    in_order: bool

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
        rows = open_rows(store, config)
        task, y = _labels(store)
        metric = selection_metric(task, config.metric)
        seed_order = SeedOrder(_seeds(store, task, y), config.seed, config.batch_size)
        store.require_host(context.mesh.host, context.mesh.hosts)
        local = open_topology(store, config)
        if model is None:
            model = _named_model(config, store)
        _check_model(model, config, store)
        dtype = DTYPES[config.precision]
        model.to(dtype)
        fanouts = [config.fanout_of(layer) for layer in range(1, config.layers + 1)]
        strategy = parse_strategy(config.strategy, config.layers)
        part_offsets = as_tensor(store.part_offsets)
        team = Team(context, deal_of(config, strategy, store, context), store)
        team.check_same(config, store)
        topology = place_topology(local, config.topology, store, context)
        cache = cache_settings(config, context)
        engine = build_engine(strategy, model, topology, rows, fanouts, dtype, context, part_offsets, cache)
        team.share(seed_order.seeds[:0])  # complains where seeds cannot be dealt out so
        return cls(
            config=config,
            store=store,
            topology=local,
            task=task,
            metric=metric,
            y=y,
            seed_order=seed_order,
            model=model,
            optimizer=OPTIMIZERS[config.optimizer](model.parameters(), config),
            engine=engine,
            team=team,
            strategy=strategy,
            in_order=context.mesh.size > 1 and engine.collective,
        )

    def fill_caches(self) -> None:
        """Choose the feature rows to cache, and read them. All workers call this, before the first batch."""
        fill_caches(
            self.engine,
            self.strategy,
            self.team.context,
            cache_settings(self.config, self.team.context),
            self.store,
            as_tensor(self.store.part_offsets),
            self.seed_order,
            self.team.share,
            self.config.seed,
        )


def cache_settings(config: Config, context: Context) -> CacheSettings:
    """What every worker keeps copies of."""
    return CacheSettings(config.cache, config.cache_policy, config.cache_layout, context.device)


def _labels(store: GraphStore) -> tuple[str, Tensor]:
    if store.task is None or store.y is None:
        raise ConfigError("the store has no labels", where=str(store.path), fix="Ingest again with --labels FILE")
    return store.task, as_tensor(store.y)


def _seeds(store: GraphStore, task: str, y: Tensor) -> Tensor:
    seeds = as_tensor(store.split("train"))
    if len(seeds) == 0:
        raise ConfigError("the training split is empty", where=str(store.path), fix="Ingest again with a split")
    if not bool(has_label(task, y[seeds]).all()):
        raise ConfigError(
            "the training split holds nodes without a label",
            where=str(store.path),
            fix="Take them out of the split, or give them labels, and ingest again",
        )
    return seeds


def _named_model(config: Config, store: GraphStore) -> Model:
    return build_model(
        config.model,
        in_width=store.num_features,
        hidden=config.hidden,
        out_width=store.num_classes,
        layers=config.layers,
        heads=config.heads,
        norm=config.norm,
        activation=config.activation,
        dropout=config.dropout,
        attn_dropout=config.attn_dropout,
        aggregator=config.aggregator,
        seed=config.seed,
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
