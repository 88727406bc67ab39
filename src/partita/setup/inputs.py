"""Opens what a run computes on: the edges and the input rows of a store, as its settings want them."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float

from partita.config import Config
from partita.core.errors import ConfigError
from partita.features.host import HostRows
from partita.features.rows import FeatureColumn, l1_scale
from partita.features.typed import TypedColumns
from partita.graph.schema import Schema
from partita.graph.store import GraphStore
from partita.sample.topology import LocalTopology, as_tensor

DTYPES = {"float32": torch.float32, "bf16": torch.float32, "float64": torch.float64}


def open_topology(store: GraphStore, config: Config) -> LocalTopology:
    """The store's topology with the sampling settings of a run."""
    return LocalTopology(store, replace=config.replace, weighted=config.weighted, types=True)


def open_features(store: GraphStore, config: Config) -> FeatureColumn:
    """The features that a store holds as the settings of a run want them; a shard has those of its own nodes.

    Raises:
        ConfigError: the store has none.
    """
    require_features(store)
    return feature_column(store.held("x")[0], config)


def require_features(store: GraphStore) -> None:
    """See that there is something to train on.

    Raises:
        ConfigError: the store has no features; node types may have none, which then have a learnt vector each.
    """
    if store.schema is None and not store.has("x"):
        raise ConfigError(
            "the store has no features to train on",
            where=str(store.path),
            fix="Ingest again with --features FILE or --nodes FILE, or with --node-features degree, made of the edges",
        )


def open_columns(store: GraphStore, schema: Schema, config: Config) -> TypedColumns:
    """The features of all node types as the settings of a run want them."""
    found = (store.x_of(name) for name in schema.node_types)
    columns = tuple(None if x is None else feature_column(x, config) for x in found)
    return TypedColumns(store.node_types, columns, DTYPES[config.precision])


def open_rows(store: GraphStore, config: Config) -> HostRows | TypedColumns:
    """The features as workers read them; with the hot rows of other hosts' nodes that a shard has.

    Raises:
        ConfigError: the store has no features.
    """
    if store.schema is not None:
        return open_columns(store, store.schema, config)
    home = open_features(store, config)
    if store.shard is None:
        return HostRows(home)
    hot = (None, None) if store.hot is None else (as_tensor(store.hot[0]), feature_column(store.hot[1], config))
    return HostRows(home, store.num_nodes, store.held("x")[1], *hot)


def feature_column(x: Float[np.ndarray, "n F"], config: Config) -> FeatureColumn:
    """Rows of features as the settings of a run want them."""
    rows = as_tensor(x)
    return FeatureColumn(
        rows,
        dtype=DTYPES[config.precision],
        scale=l1_scale(rows) if config.normalize_features else None,
        dropout=config.input_dropout,
    )
