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
from partita.graph.column_specs import type_of_column
from partita.graph.metadata import TYPE_PREFIX
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
    """The features of all node types as the settings of a run want them; a shard has those of its own nodes."""
    names = [f"{TYPE_PREFIX}{kind}" for kind in range(len(schema.node_types))]
    columns = tuple(_host_rows(store, name, config) if store.has(name) else None for name in names)
    return TypedColumns(store.node_types, columns, DTYPES[config.precision])


def open_rows(store: GraphStore, config: Config) -> HostRows | TypedColumns:
    """The features as workers read them; with the hot rows of other hosts' nodes that a shard has.

    Raises:
        ConfigError: the store has no features.
    """
    if store.schema is not None:
        return open_columns(store, store.schema, config)
    require_features(store)
    return _host_rows(store, "x", config)


def _host_rows(store: GraphStore, name: str, config: Config) -> HostRows:
    """A column of features, with the hot rows of other hosts' nodes that a shard has."""
    rows, first = store.held(name)
    home, kind = feature_column(rows, config), type_of_column(name) or 0
    if store.shard is None or store.shard.hosts == 1:
        return HostRows(home)
    ids, hot = None, None
    if (found := store.hot_of(name)) is not None:
        ids, hot = as_tensor(store.type_rows(found[0])), feature_column(found[1], config)
    return HostRows(home, store.node_types.size(kind), first, ids, hot)


def feature_column(x: Float[np.ndarray, "n F"], config: Config) -> FeatureColumn:
    """Rows of features as the settings of a run want them."""
    rows = as_tensor(x)
    return FeatureColumn(
        rows,
        dtype=DTYPES[config.precision],
        scale=l1_scale(rows) if config.normalize_features else None,
        dropout=config.input_dropout,
    )
