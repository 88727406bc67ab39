"""Opens what a run computes on: the edges and the input rows of a store, as its settings want them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from partita.config import Config
from partita.core.errors import ConfigError, nearest
from partita.core.mesh import Mesh
from partita.features.host import HostRows
from partita.features.levels import Levels
from partita.features.rows import FeatureColumn, l1_scale
from partita.features.typed import TypedColumns
from partita.files.row_file import RowFile
from partita.graph.column_specs import type_of_column
from partita.graph.metadata import TYPE_PREFIX
from partita.graph.schema import Schema
from partita.graph.store import GraphStore
from partita.sample.topology import as_tensor

DTYPES = {"float32": torch.float32, "bf16": torch.float32, "float64": torch.float64}
ANY = "*"
"""In the setting ``embed``: all node types that are not named."""
NODE = "node"
"""The only node type of an untyped graph, in the setting ``embed``."""


def open_features(store: GraphStore, config: Config) -> FeatureColumn:
    """The features that a store holds as the settings of a run want them; a shard has those of its own nodes.

    Raises:
        ConfigError: the store has none.
    """
    require_features(store, config)
    return feature_column(store.held("x")[0], config, Levels.of(store.levels_of("x")))


def require_features(store: GraphStore, config: Config) -> None:
    """See that there is something to train on.

    Raises:
        ConfigError: the store has no features; node types may have none, which then have a learnt vector each. Or rows
            are to be learnt of types that there are not.
    """
    if store.schema is None and not store.has("x") and not any(learnt_widths(store, config)):
        raise ConfigError(
            "the store has no features to train on",
            where=str(store.path),
            fix="Ingest again with --features FILE or --nodes FILE, or with --node-features degree, made of the edges; "
            "or learn a row of every node: --embed 64",
        )


def learnt_widths(store: GraphStore, config: Config) -> tuple[int, ...]:
    """Columns of the learnt rows of each node type, 0 of types without; an untyped graph has one type.

    Raises:
        ConfigError: the setting names a type that there is not, or none that has no features.
    """
    names, given = node_type_names(store), config.embed
    if given is None:
        return (0,) * len(names)
    if isinstance(given, int):
        bare = [width == 0 for width in store.type_widths] if store.schema is not None else [True]
        if not any(bare):
            raise ConfigError(
                "every node type has features, so a number does not say which types rows are learnt of",
                where="embed",
                fix=f"Name node types, as '{names[0]}={given}', or '*={given}' for all",
            )
        return tuple(given * each for each in bare)
    for name in given.keys() - {*names, ANY}:
        raise ConfigError(f"there is no node type '{name}'", where="embed", fix=nearest(name, (*names, ANY)))
    return tuple(given.get(name, given.get(ANY, 0)) for name in names)


def node_type_names(store: GraphStore) -> tuple[str, ...]:
    """Names of the node types; of an untyped graph one."""
    return (NODE,) if store.schema is None else tuple(store.schema.node_types)


def open_columns(store: GraphStore, schema: Schema | None, config: Config) -> TypedColumns:
    """The features of all node types as the settings of a run want them; a shard has those of its own nodes."""
    names = ["x"] if schema is None else [f"{TYPE_PREFIX}{kind}" for kind in range(len(schema.node_types))]
    columns = tuple(_host_rows(store, name, config) if store.has(name) else None for name in names)
    learnt = learnt_widths(store, config)
    return TypedColumns(store.node_types, columns, DTYPES[config.precision], learnt if any(learnt) else ())


def is_encoded(store: GraphStore, config: Config) -> bool:
    """Whether an encoder brings input rows to one width: of typed graphs, and where rows are learnt."""
    return store.schema is not None or config.embed is not None


def open_rows(store: GraphStore, config: Config) -> HostRows | TypedColumns:
    """The features as workers read them; with the hot rows of other hosts' nodes that a shard has.

    Raises:
        ConfigError: the store has no features.
    """
    if is_encoded(store, config):
        return open_columns(store, store.schema, config)
    require_features(store, config)
    return _host_rows(store, "x", config)


def dealt_rows(
    rows: HostRows | TypedColumns, store: GraphStore, mesh: Mesh, hot_ids: Int64[Tensor, "M"] | None = None
) -> HostRows | TypedColumns:
    """The rows that a host has whose shard is as ``partita shard`` makes it.

    Args:
        rows: all rows of a whole store, or of an untyped graph those of the shard of any host.
        store: the whole store, or the shard.
        mesh: of a worker of the host.
        hot_ids: of an untyped graph, ascending store ids of its hot rows; ``None``: it has none.

    Raises:
        ConfigError: the parts cannot be dealt out evenly.
    """
    own = _nodes_of_host(store, mesh)
    if isinstance(rows, HostRows):
        return rows.of_range(own) if rows.whole and hot_ids is None else rows.of_another(own, hot_ids)
    columns = [
        None if of_type is None else of_type.of_range(rows.types.rows_within(kind, own.start, own.stop))
        for kind, of_type in enumerate(rows.columns)
    ]
    return replace(rows, columns=tuple(columns))


def _nodes_of_host(store: GraphStore, mesh: Mesh) -> slice:
    if store.num_parts % mesh.hosts:
        raise ConfigError(
            f"{store.num_parts} part{'' if store.num_parts == 1 else 's'} cannot be divided among {mesh.hosts} hosts "
            "evenly",
            where="part_offsets",
            fix=f"Run partita partition STORE OUT --parts {mesh.hosts}x{mesh.workers}, then plan with OUT",
        )
    parts = store.num_parts // mesh.hosts
    return slice(*(int(store.part_offsets[(mesh.host + more) * parts]) for more in (0, 1)))


def _host_rows(store: GraphStore, name: str, config: Config) -> HostRows:
    """A column of features, with the hot rows of other hosts' nodes that a shard has."""
    rows, first = store.held(name)
    levels = Levels.of(store.levels_of(name))
    home, kind = feature_column(rows, config, levels), type_of_column(name) or 0
    files = [RowFile.of(rows)]
    if store.shard is None or store.shard.hosts == 1:
        return HostRows(home, files=_all_of(files))
    ids, hot = None, None
    if (found := store.hot_of(name)) is not None:
        ids, hot = as_tensor(store.type_rows(found[0])), feature_column(found[1], config, levels)
        files.append(RowFile.of(found[1]))
    return HostRows(home, store.node_types.size(kind), first, ids, hot, files=_all_of(files))


def _all_of(files: list[RowFile | None]) -> list[RowFile]:
    """The files, if there are all."""
    found = [file for file in files if file is not None]
    return found if len(found) == len(files) else []


def feature_column(x: Shaped[np.ndarray, "n B"], config: Config, levels: Levels | None = None) -> FeatureColumn:
    """Rows of features, and what they stand for if they are small integers, as the settings of a run want them."""
    rows = as_tensor(x)
    return FeatureColumn(
        rows,
        dtype=DTYPES[config.precision],
        scale=l1_scale(rows, levels) if config.normalize_features else None,
        dropout=config.input_dropout,
        levels=levels,
    )
