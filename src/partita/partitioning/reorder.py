"""Writes a graph store in partition order: every part owns one range of ids. Streaming, and resumable.

A new id is the position of a node when all are sorted by (part, old id). The old store is read front to back.

What becomes of each column is said by :mod:`partita.graph.column_specs`. A column that nothing is known about is one of
edges if it is one-dimensional of length E, or one of nodes if its length is N; its values are moved as they are. Where
both or neither is true, the store is refused.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Int32, Integer, Shaped

from partita.core import progress
from partita.core.errors import ConfigError, InputError, StoreError
from partita.core.partitioning import checked_parts
from partita.graph.column_specs import ROWS_BY, ColumnSpec, spec_of
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
    out: str | os.PathLike[str],
    *,
    num_parts: int,
    levels: tuple[int, ...] = (),
    feature_dtype: str | None = None,
    overwrite: bool = False,
    memory_limit: int = 1 << 30,
    notes: Mapping[str, Any] | None = None,
    writer: StoreWriter | None = None,
) -> GraphStore:
    """Write a store whose nodes are ordered by part.

    Rows keep the order of their neighbors, and nodes keep their original index, labels, splits and names; so the
    new store is the same graph. Killed or interrupted, the same call continues with the column it was at.

    Private memory besides ``parts``: 4 bytes a node (8 from 2^31 nodes on), and buffers of at most 64 MiB.

    Args:
        store: the graph, with any number of parts.
        parts: (N) integers in [0, P), by store id.
        out: path of the new store. It may be that of ``store`` if ``overwrite`` is set: the old files go only when
            the new ones are complete, and remain readable through ``store`` after that.
        num_parts: P; parts may be empty.
        levels: sizes of levels whose product is P, outermost first, for instance (hosts, workers); kept in the
            metadata's notes. The parts of a host are P / hosts consecutive ones.
        feature_dtype: ``"float16"`` or ``"float32"``; ``None`` keeps the dtype of ``x``.
        overwrite: replace a store at ``out``.
        memory_limit: private bytes for buffers; more than 64 MiB are never used.
        notes: for the metadata, JSON values by name; they go before those of ``store``.
        writer: an open writer of ``out``, which is finished here; its resume key, if any, must stand for the store,
            the parts and the dtype. ``None``: one is opened, with such a key.

    Returns:
        The new store.

    Raises:
        InputError: the parts do not fit the store, or a feature does not fit ``feature_dtype``.
        ConfigError: levels or dtype are impossible.
        StoreError: ``out`` may not be replaced, or the store is damaged or has a column nothing is known about.
        ResourceError: the disk has no room for the new store.
    """
    if num_parts < 1:
        raise ConfigError(f"{num_parts} parts are none", where="num_parts", fix="Give a number of at least 1")
    if levels and (min(levels) < 1 or math.prod(levels) != num_parts):
        product = " x ".join(str(level) for level in levels)
        raise ConfigError(f"{product} are not {num_parts} parts", where="levels", fix="Give levels whose product fits")
    if feature_dtype not in (None, *_FEATURE_DTYPES):
        raise ConfigError(f"'{feature_dtype}' is no dtype of features", where="feature_dtype", fix="float16 or float32")
    if feature_dtype is not None and store.x is None:
        raise ConfigError("the store has no features to convert", where="feature_dtype", fix="Leave it out")
    parts = checked_parts(parts, store.num_nodes, num_parts, "parts")
    job = _Job(store, parts, num_parts, tuple(levels), feature_dtype, memory_limit, dict(notes or {}))
    if writer is None:
        with StoreWriter(out, overwrite=overwrite, resume_key=job.key()) as own:
            return job.run(own)
    if Path(os.path.abspath(out)) != writer.path:
        raise ValueError(f"the writer makes {writer.path}, not {out}")
    return job.run(writer)


@dataclass(frozen=True, slots=True)
class _Job:
    store: GraphStore
    parts: Int32[np.ndarray, "N"]
    num_parts: int
    levels: tuple[int, ...]
    feature_dtype: str | None
    memory_limit: int
    notes: dict[str, Any]

    def key(self) -> str:
        """Of everything that decides what the columns hold."""
        of_parts = xxhash.xxh3_64_hexdigest(np.ascontiguousarray(self.parts).data)
        text = json.dumps([self.store.metadata.to_json(), of_parts, self.num_parts, self.feature_dtype])
        return xxhash.xxh3_64_hexdigest(text.encode())

    def run(self, writer: StoreWriter) -> GraphStore:
        if writer.continued:
            _log.info("continuing what was begun at %s", writer.path)
        with progress.task("rank nodes"):
            scatter = Scatter(self.parts, self.num_parts, min(self.memory_limit, _MOST_BUFFER_BYTES) // 2)
            columns = self._columns(scatter)
        writer.fill(columns)
        notes = {key: value for key, value in self.store.metadata.notes.items() if key != "levels"}
        levels = {"levels": list(self.levels)} if self.levels else {}
        writer.finish_like(self.store.metadata, {**notes, **self.notes, **levels})
        return GraphStore.open(writer.path)

    def _columns(self, scatter: Scatter) -> dict[str, NewColumn]:
        """All columns of the new store. Features come first: they may turn out not to fit their new dtype."""
        specs = {name: self._spec(name) for name in sorted(self.store.columns, key=lambda name: (name != "x", name))}
        columns = {name: self._column(name, spec, scatter) for name, spec in specs.items() if spec.reorder != "make"}
        if not scatter.is_identity(self._original):
            columns["original_index"] = NewColumn(
                (self.store.num_nodes,), np.dtype(np.int64), "nodes",
                lambda column, task: scatter.rows(column, self._original, task),
            )  # fmt: skip
        offsets = scatter.part_offsets
        columns["part_offsets"] = NewColumn(
            offsets.shape, offsets.dtype, "parts", lambda column, _: column.put(0, offsets)
        )
        return columns

    def _column(self, name: str, spec: ColumnSpec, scatter: Scatter) -> NewColumn:
        data = self.store.column(name)
        dtype, take = data.dtype, _rows_of(data)
        if name == "x" and self.feature_dtype is not None and dtype != self.feature_dtype:
            dtype = np.dtype(self.feature_dtype)
            take = self._converted(dtype)

        def fill(column: PlacedColumn, task: progress.Bar) -> None:
            if spec.reorder == "offsets":
                scatter.offsets(column, data, task)
            elif spec.of == "list":
                scatter.ids(column, data, task)
            elif spec.of in ROWS_BY:
                scatter.items(column, data, self.store.column(ROWS_BY[spec.of]), task, are_nodes=spec.reorder == "map")
            else:
                scatter.rows(column, take, task)

        return NewColumn(data.shape, dtype, spec.of if spec.of in ROWS_BY else "nodes", fill)

    def _spec(self, name: str) -> ColumnSpec:
        """What a column is, where need be by its length."""
        spec, shape = spec_of(name), self.store.metadata.columns[name].shape
        of_edges, of_nodes = shape == (self.store.num_edges,), shape[:1] == (self.store.num_nodes,)
        if spec is not None and {"edges": of_edges, "nodes": of_nodes}.get(f"{spec.of}", True):
            return spec
        if of_edges != of_nodes:
            return ColumnSpec("edges" if of_edges else "nodes")
        raise StoreError(
            f"it cannot be told whether column '{name}' {shape} belongs to nodes or to edges",
            where=str(self.store.path),
            fix="Leave the column out of the store, or upgrade Partita if a newer one made it",
        )

    def _original(self, first: int, stop: int) -> Integer[np.ndarray, "n"]:
        original = self.store.original_index
        return np.arange(first, stop, dtype=np.int64) if original is None else original[first:stop]

    def _converted(self, dtype: np.dtype[Any]) -> Callable[[int, int], Shaped[np.ndarray, "n F"]]:
        x = self.store.column("x")

        def take(first: int, stop: int) -> Shaped[np.ndarray, "n F"]:
            rows = x[first:stop]
            with np.errstate(over="ignore"):
                new = rows.astype(dtype)
            if dtype.itemsize < x.dtype.itemsize and not np.isfinite(new).all():
                self._check_range(rows, new, first)
            return new

        return take

    def _check_range(self, rows: Shaped[np.ndarray, "n F"], new: Shaped[np.ndarray, "n F"], first: int) -> None:
        """Values may only be infinite or NaN where they were before (a store may allow that)."""
        wrong = np.isfinite(rows) & ~np.isfinite(new)
        if not wrong.any():
            return
        row, column = (int(place) for place in np.argwhere(wrong)[0])
        name = self.store.names(np.array([first + row]))[0]
        raise InputError(
            f"feature {column} of node {name} is {rows[row, column]}, which does not fit {new.dtype.name}",
            where=f"{self.store.path}, column 'x'",
            fix="Use feature_dtype=float32, or scale the features",
        )


def _rows_of(data: Shaped[np.ndarray, "N ..."]) -> Callable[[int, int], Shaped[np.ndarray, "n ..."]]:
    return lambda first, stop: data[first:stop]
