"""What a run learns: the labels of a store, the nodes to learn from, and the model that the settings name."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int, Num
from torch import Tensor

from partita.config import Config
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.nn.model import Model, build_model
from partita.sample.topology import as_tensor


def has_label(task: str, y: Num[Tensor, "R ..."]) -> Bool[Tensor, "R"]:
    """Which rows have a label: a class >= 0, a number that is not NaN; multi-label rows always have one."""
    if task == "multilabel":
        return torch.ones(y.shape[0], dtype=torch.bool)
    return y >= 0 if task == "classes" else ~y.isnan()


def training_labels(store: GraphStore) -> tuple[str, Num[Tensor, "N ..."]]:
    """The task and the labels of all nodes.

    Raises:
        ConfigError: the store has none.
    """
    if store.task is None or store.y is None:
        raise ConfigError("the store has no labels", where=str(store.path), fix="Ingest again with --labels FILE")
    return store.task, as_tensor(store.y)


def training_seeds(store: GraphStore, task: str, y: Num[Tensor, "N ..."]) -> Int[Tensor, "S"]:
    """Store ids of the training nodes, in ascending original index.

    Raises:
        ConfigError: there is none, or one without a label.
    """
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


def named_model(config: Config, store: GraphStore) -> Model:
    """The model that the settings name, as it is before training."""
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
        options=config.options,
    )
