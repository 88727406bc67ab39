"""Writes a graph store in partition order: every part owns one range of ids. Streaming, and resumable.

A new id is the position of a node when all are sorted by (part, type, old id). The old store is read front to back.

What becomes of each column is said by :mod:`partita.graph.column_specs`. A column that nothing is known about is one of
edges if it is one-dimensional of length E, or one of nodes if its length is N; its values are moved as they are. Where
both or neither is true, the store is refused.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Integer, Shaped

from partita.core import progress
from partita.core.errors import ConfigError, InputError
from partita.core.partitioning import checked_parts
from partita.graph.column_specs import ROWS_BY, ColumnSpec, is_features, spec_by_shape, type_of_column
from partita.graph.columns import PlacedColumn
from partita.graph.store import GraphStore
from partita.graph.writer import NewColumn, StoreWriter
from partita.partitioning._scatter import Scatter

_MOST_BUFFER_BYTES = 64 << 20
_FEATURE_DTYPES = ("float16", "float32")

_log = logging.getLogger(__name__)


def reorder(
    store: GraphStore,
    parts: Integer[np.ndarray, "_"],
    writer: StoreWriter,
    *,
    num_parts: int,
    levels: tuple[int, ...] = (),
    feature_dtype: str | None = None,
    memory_limit: int = 1 << 30,
    notes: Mapping[str, Any] | None = None,
) -> GraphStore:
    """Write a store whose nodes are ordered by part.

    Rows keep the order of their neighbors, and nodes keep their original index, labels, splits and names; so the
    new store is the same graph. Columns that the writer has already, from an interrupted run, are not written again.

    Private memory besides ``parts``: 4 bytes per node (8 from 2^31 nodes on), and buffers of at most 64 MiB.

    Args:
        store: the graph, with any number of parts.
        parts: (N) integers in [0, P), by store id.
        writer: of the new store, open; it is finished here. Its resume key, if any, must stand for the store, the
            parts and the dtype. Where it replaces ``store``, the old files go only when the new ones are complete, and
            remain readable through ``store`` after that.
        num_parts: P; parts may be empty.
        levels: sizes of levels whose product is P, outermost first, for instance (hosts, workers); kept in the
            metadata's notes. The parts of a host are P / hosts consecutive ones.
        feature_dtype: ``"float16"`` or ``"float32"``; ``None`` keeps the dtype of ``x``.
        memory_limit: private bytes for buffers; more than 64 MiB are never used.
        notes: for the metadata, JSON values by name; they go before those of ``store``.

    Returns:
        The new store.

    Raises:
        InputError: the parts do not fit the store, or a feature does not fit ``feature_dtype``.
        ConfigError: levels or dtype are impossible.
        StoreError: the store is damaged or has a column nothing is known about.
        ResourceError: the disk has no room for the new store.
    """
    if num_parts < 1:
        raise ConfigError(f"invalid number of parts: {num_parts}", where="num_parts", fix="Give a number of at least 1")
    if levels and (min(levels) < 1 or math.prod(levels) != num_parts):
        product = " x ".join(str(level) for level in levels)
        raise ConfigError(f"{product} are not {num_parts} parts", where="levels", fix="Give levels whose product fits")
    if feature_dtype not in (None, *_FEATURE_DTYPES):
        raise ConfigError(f"invalid feature dtype: '{feature_dtype}'", where="feature_dtype", fix="float16 or float32")
    if feature_dtype is not None and not any(map(is_features, store.columns)):
        raise ConfigError("the store has no features to convert", where="feature_dtype", fix="Leave it out")
    require_convertible(store, feature_dtype)
    parts = checked_parts(parts, store.num_nodes, num_parts, "parts")
    if writer.continued:
        _log.info("continuing what was begun at %s", writer.path)
    with progress.task("rank nodes"):
        columns = _Columns(store, parts, num_parts, min(memory_limit, _MOST_BUFFER_BYTES) // 2, feature_dtype).all()
    writer.fill(columns)
    kept = {key: value for key, value in store.metadata.notes.items() if key != "levels"}
    writer.finish_like(store.metadata, {**kept, **(notes or {}), **({"levels": list(levels)} if levels else {})})
    return GraphStore.open(writer.path)


def require_convertible(store: GraphStore, feature_dtype: str | None) -> None:
    """See that features can be given another dtype, where one is asked for.

    Raises:
        ConfigError: they are small integers, which are what they are by the values of all rows.
    """
    if feature_dtype is not None and any(store.levels_of(name) is not None for name in store.features):
        raise ConfigError(
            "the features of the store are small integers, which partitioning keeps as they are",
            where="feature_dtype",
            fix=f"Leave it out, or ingest again with --feature-dtype {feature_dtype}",
        )


@dataclass(frozen=True)
class _Columns:
    store: GraphStore
    parts: Integer[np.ndarray, "N"]
    num_parts: int
    buffer_bytes: int
    feature_dtype: str | None

    @cached_property
    def scatter(self) -> Scatter:
        """Of all nodes. A type is a finer part."""
        if self.store.schema is None:
            return Scatter(self.parts, self.num_parts, self.buffer_bytes)
        kinds = len(self.store.schema.node_types)
        ranges = self.parts.astype(np.int64) * kinds
        for at, (start, stop) in enumerate(pairwise(self.store.type_offsets.tolist())):
            ranges[start:stop] += at % kinds
        return Scatter(ranges.astype(np.int32), self.num_parts * kinds, self.buffer_bytes)

    def scatter_of_type(self, number: int) -> Scatter:
        """Of the nodes of one type: their order among themselves."""
        assert self.store.schema is not None
        mine = self.store.nodes_of(self.store.schema.node_types[number])
        return Scatter(self.parts[mine], self.num_parts, self.buffer_bytes)

    def all(self) -> dict[str, NewColumn]:
        """All columns of the new store. Features come first: they may turn out not to fit their new dtype."""
        features_first = sorted(self.store.columns, key=lambda name: (not is_features(name), name))
        specs = {name: spec_by_shape(name, self.store.metadata, str(self.store.path)) for name in features_first}
        columns = {name: self._column(name, spec) for name, spec in specs.items() if spec.reorder != "make"}
        if not self.scatter.is_identity(self._original):
            columns["original_index"] = NewColumn(
                (self.store.num_nodes,), np.dtype(np.int64), "nodes",
                lambda column, task: self.scatter.rows(column, self._original, task),
            )  # fmt: skip
        offsets = self.scatter.part_offsets
        kinds = 1 if self.store.schema is None else len(self.store.schema.node_types)
        made = {"part_offsets": np.ascontiguousarray(offsets[::kinds])}
        if self.store.schema is not None:
            made["type_offsets"] = offsets
        for name, array in made.items():
            columns[name] = NewColumn(array.shape, array.dtype, "parts", partial(_put_all, array))
        return columns

    def _column(self, name: str, spec: ColumnSpec) -> NewColumn:
        data, number = self.store.column(name), type_of_column(name) if spec.of == "type" else None
        scatter = self.scatter if number is None else self.scatter_of_type(number)
        dtype = np.dtype(self.feature_dtype or data.dtype) if is_features(name) else data.dtype

        def take(first: int, stop: int) -> Shaped[np.ndarray, "n ..."]:
            rows = data[first:stop]
            return rows if dtype == data.dtype else self._converted(rows, dtype, first, name)

        def fill(column: PlacedColumn, task: progress.Bar) -> None:
            if spec.reorder == "offsets":
                scatter.offsets(column, data, task)
            elif spec.reorder == "keep":
                _put_all(data, column, task)
            elif spec.of in ("list", "held"):
                scatter.ids(column, data, task)
            elif spec.of in ROWS_BY:
                scatter.items(column, data, self.store.column(ROWS_BY[spec.of]), task, are_nodes=spec.reorder == "map")
            else:
                scatter.rows(column, take, task)

        return NewColumn(data.shape, dtype, spec.of if spec.of in ROWS_BY else "nodes", fill)

    def _original(self, first: int, stop: int) -> Integer[np.ndarray, "n"]:
        original = self.store.original_index
        return np.arange(first, stop, dtype=np.int64) if original is None else original[first:stop]

    def _converted(
        self, rows: Shaped[np.ndarray, "n F"], dtype: np.dtype[Any], first: int, column: str
    ) -> Shaped[np.ndarray, "n F"]:
        """Features of the nodes from ``first`` on; infinite or NaN only where they were (a store may allow that)."""
        with np.errstate(over="ignore"):
            new = rows.astype(dtype)
        if dtype.itemsize < rows.dtype.itemsize and not np.isfinite(new).all():
            wrong = np.isfinite(rows) & ~np.isfinite(new)
            if wrong.any():
                row, feature = (int(place) for place in np.argwhere(wrong)[0])
                node = first + row
                if self.store.schema is not None and (number := type_of_column(column)) is not None:
                    node = int(self.store.nodes_of(self.store.schema.node_types[number])[node])
                name = self.store.names(np.array([node]))[0]
                raise InputError(
                    f"feature {feature} of node {name} is {rows[row, feature]}, which does not fit {new.dtype.name}",
                    where=f"{self.store.path}, column '{column}'",
                    fix="Use feature_dtype=float32, or scale the features",
                )
        return new


def _put_all(array: Shaped[np.ndarray, "n ..."], column: PlacedColumn, task: progress.Bar) -> None:
    column.put(0, array)
