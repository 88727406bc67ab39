"""What is checked when a store is opened: all that can be told without reading the columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from partita.core.errors import StoreError
from partita.core.files import map_array
from partita.core.node_types import NodeTypes
from partita.graph.column_specs import (
    COLUMNS,
    features_of_hot,
    hot_columns,
    is_features,
    known,
    levels_column,
    type_of_column,
)
from partita.graph.metadata import (
    HELD_TYPE_SUFFIX,
    LEVELS_PREFIX,
    TASKS,
    ColumnRecord,
    StoreMetadata,
    how_to_mend,
)

_Columns = Mapping[str, Shaped[np.ndarray, "..."]]


def open_columns(directory: Path, metadata: StoreMetadata) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Map all columns read-only, and check in constant time that they fit the metadata and each other.

    Raises:
        StoreError: names the column that is damaged.
    """
    try:
        columns = {name: _mapped(directory / f"{name}.npy", record) for name, record in metadata.columns.items()}
        _check(metadata, columns)
    except _DamageError as damage:
        what = f"column '{damage.column}' {damage.state}: {damage.what}"
        raise StoreError(what, where=str(directory), fix=how_to_mend(metadata.shard)) from damage.__cause__
    return columns


class _DamageError(Exception):
    def __init__(self, column: str, what: str, state: str = "is damaged") -> None:
        super().__init__(column, what)
        self.column, self.what, self.state = column, what, state


def _mapped(path: Path, record: ColumnRecord) -> Shaped[np.ndarray, "..."]:
    name = path.stem
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _DamageError(name, f"{path.name}: {error.strerror}", "cannot be read") from error
    if size != record.bytes:
        raise _DamageError(name, f"{path.name} has {size:,} bytes instead of {record.bytes:,}")
    try:
        column = map_array(path)
    except (OSError, ValueError) as error:
        raise _DamageError(name, f"{path.name} cannot be mapped ({error})") from error
    if column.dtype.str != record.dtype or column.shape != record.shape:
        found, recorded = f"{column.dtype.str} {column.shape}", f"{record.dtype} {record.shape}"
        raise _DamageError(name, f"{path.name} holds {found}, the metadata says {recorded}")
    return column.view(np.ndarray)  # np.memmap makes every slice slow; the plain view keeps the map alive


def _check(metadata: StoreMetadata, columns: _Columns) -> None:
    n, e, task = metadata.num_nodes, metadata.num_edges, metadata.task
    for name in COLUMNS:
        if COLUMNS.find(name).required and name not in columns:
            raise _DamageError(name, "the column is missing")
    _check_ends(columns, "indptr", n + 1, e)
    _check_ends(columns, "part_offsets", None, n)
    _check_types(metadata, columns)
    cut = _rows_of_cut_columns(metadata, columns)
    for name, spec in known(columns).items():
        column, form = columns[name], spec.expected(metadata, name)
        if form is not None and (
            column.dtype.str not in form[0] or column.shape != (cut.get(name, form[1][0]), *form[1][1:])
        ):
            raise _DamageError(
                name, f"{column.dtype.name} {column.shape} does not fit {n:,} nodes, {e:,} edges, task {task}"
            )
    if task not in (None, *TASKS):
        raise _DamageError("y", f"unknown task '{task}'")
    if (task is None) != ("y" not in columns):
        raise _DamageError("y", f"task is {task} but labels are {'there' if 'y' in columns else 'missing'}")
    if ("name_offsets" in columns) != ("name_bytes" in columns):
        raise _DamageError("name_bytes", "name_offsets and name_bytes must come together")
    if "name_offsets" in columns:
        _check_ends(columns, "name_offsets", n + 1, len(columns["name_bytes"]))
    for name, spec in known(columns).items():
        ids = columns[name]
        if spec.of == "list" and (ids.dtype.str != "<i8" or ids.ndim != 1 or len(ids) > n):
            raise _DamageError(name, f"{ids.dtype.name} {ids.shape} is not a list of node ids")
    _check_held(metadata, columns)
    _check_levels(metadata, columns)


def _check_levels(metadata: StoreMetadata, columns: _Columns) -> None:
    """Small integers have two numbers of each column that say what they stand for, and nothing else has."""
    for name in [name for name in columns if name.startswith(LEVELS_PREFIX)]:
        levels, features = columns[name], columns.get(name.removeprefix(LEVELS_PREFIX))
        if features is None or not is_features(name.removeprefix(LEVELS_PREFIX)):
            raise _DamageError(name, "it belongs to no column of features")
        if levels.dtype.str != "<f4" or levels.ndim != 2 or len(levels) != 2 or not levels.shape[1]:
            raise _DamageError(name, f"{levels.dtype.name} {levels.shape} are not a scale and an offset of each column")
    width = columns[levels_column("x")].shape[1] if levels_column("x") in columns else None
    if width not in (None, metadata.num_features):
        raise _DamageError(levels_column("x"), f"it is of {width} features, not {metadata.num_features}")


def _rows_of_cut_columns(metadata: StoreMetadata, columns: _Columns) -> dict[str, int]:
    """How many rows each cut column of a shard must have."""
    shard, offsets = metadata.shard, columns["part_offsets"]
    if shard is None:
        return {}
    parts, rest = divmod(len(offsets) - 1, shard.hosts)
    if rest or (offsets[shard.host * parts], offsets[(shard.host + 1) * parts]) != (shard.first_node, shard.last_node):
        raise _DamageError("part_offsets", f"the parts are not those of {shard}")
    begin, end = (int(columns["indptr"][node]) for node in (shard.first_node, shard.last_node))
    rows = {"nodes": len(shard.nodes), "edges": end - begin}
    rows = {
        name: _rows_of_type(metadata, columns, name) if by == "type" else rows[by] for name, by in shard.cut.items()
    }
    for name, count in rows.items():
        if name not in columns:
            raise _DamageError(name, "the column is missing")
        if columns[name].shape[:1] != (count,):
            raise _DamageError(name, f"{columns[name].shape} are not the {count:,} rows of {shard}")
    _check_hot(columns)
    return rows


def _check_types(metadata: StoreMetadata, columns: _Columns) -> None:
    schema, parts = metadata.schema, columns["part_offsets"]
    if schema is None:
        if wrong := [name for name in ("type_offsets", "edge_type") if name in columns]:
            raise _DamageError(wrong[0], "the metadata have no types")
        return
    for name in ("type_offsets", "edge_type"):
        if name not in columns:
            raise _DamageError(name, "the column is missing")
    if (sum(schema.num_nodes), sum(schema.num_edges)) != (metadata.num_nodes, metadata.num_edges):
        raise _DamageError("type_offsets", "the sizes of types and relations do not add up to those of the graph")
    types = len(schema.node_types)
    _check_ends(columns, "type_offsets", types * (len(parts) - 1) + 1, metadata.num_nodes)
    sizes = np.diff(columns["type_offsets"]).reshape(-1, types)
    if (sizes < 0).any() or (columns["type_offsets"][::types] != parts).any():
        raise _DamageError("type_offsets", "the ranges of types are none within the parts")
    if tuple(sizes.sum(axis=0).tolist()) != schema.num_nodes:
        raise _DamageError("type_offsets", "the types have other sizes than the metadata say")


def _check_held(metadata: StoreMetadata, columns: _Columns) -> None:
    """Held-out edges have a relation each, in a typed graph."""
    held = [name for name, spec in known(columns).items() if spec.of == "held"]
    for pairs in {name.removesuffix(HELD_TYPE_SUFFIX): None for name in held}:
        kinds = f"{pairs}{HELD_TYPE_SUFFIX}"
        if pairs not in columns:
            raise _DamageError(pairs, f"the column is missing, but '{kinds}' is there")
        if (kinds in columns) != (metadata.schema is not None):
            raise _DamageError(kinds, "there are relations of held-out edges just where the graph has types")
        if kinds in columns and len(columns[kinds]) != len(columns[pairs]):
            raise _DamageError(kinds, f"{len(columns[kinds]):,} relations of {len(columns[pairs]):,} held-out edges")


def _rows_of_type(metadata: StoreMetadata, columns: _Columns, name: str) -> int:
    """How many nodes of a shard have the type whose features a column holds."""
    shard, schema, number = metadata.shard, metadata.schema, type_of_column(name)
    assert shard is not None
    if schema is None or number is None or number >= len(schema.node_types):
        raise _DamageError(name, "it is of a node type that there is not")
    rows = NodeTypes(columns["type_offsets"], len(schema.node_types)).rows_within(number, *shard.ends)
    return int(rows.stop - rows.start)


def _check_hot(columns: _Columns) -> None:
    for features in sorted({found for name in columns if (found := features_of_hot(name)) is not None}):
        index, name = hot_columns(features)
        if (index in columns) != (name in columns):
            raise _DamageError(name, f"{index} and {name} must come together")
        ids, rows, x = columns[index], columns[name], columns.get(features)
        if ids.dtype.str != "<i8" or ids.ndim != 1:
            raise _DamageError(index, f"{ids.dtype.name} {ids.shape} is not a list of node ids")
        if x is None or rows.dtype != x.dtype or rows.shape != (len(ids), *x.shape[1:]):
            raise _DamageError(name, f"{rows.dtype.name} {rows.shape} does not fit {len(ids):,} rows of features")


def _check_ends(columns: _Columns, name: str, length: int | None, last: int) -> None:
    offsets = columns[name]
    if (
        offsets.dtype.str != "<i8"
        or offsets.ndim != 1
        or len(offsets) < 1
        or length not in (None, len(offsets))
        or offsets[0] != 0
        or offsets[-1] != last
    ):
        raise _DamageError(name, f"the offsets must be int64, begin with 0 and end with {last:,}")
