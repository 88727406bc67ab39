"""Writes a graph store in partition order: every part owns one range of ids. Streaming, and resumable.

A new id is the position of a node when all are sorted by (part, old id). The old store is read front to back.

Which columns there are and what becomes of them (N nodes, E edges):

- ``indptr``, ``name_offsets``: offsets of rows, computed anew; ``name_bytes`` goes with its offsets.
- ``indices``: ids of nodes, mapped; one entry for every edge.
- columns of edges: ``edge_weight``, ``edge_weight_quantised``, names that begin with ``presample_edge``.
- columns of nodes: ``x``, ``y``, ``self_loops``, ``name``, names that begin with ``presample_node``.
- ``original_index``: moves with the nodes; left out where it is the identity, as everywhere.
- ``split_*``: lists of ids of nodes, mapped, in their old order (ascending original index).
- ``part_offsets``: made anew.
- any other column is one of edges if it is one-dimensional of length E, or one of nodes if its length is N; its values
  are moved as they are. Where both or neither is true, the store is refused.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Int32, Integer, Shaped

from partita.core import progress
from partita.core.errors import ConfigError, InputError, ResourceError, StoreError
from partita.core.partitioning import checked_parts
from partita.graph.columns import PlacedColumn, column_bytes
from partita.graph.store import SPLIT_PREFIX, GraphStore
from partita.graph.writer import StoreWriter
from partita.partitioning._scatter import Scatter

_MOST_BUFFER_BYTES = 64 << 20
_NODE_COLUMNS = ("x", "y", "self_loops", "name")
_EDGE_COLUMNS = ("edge_weight", "edge_weight_quantised")
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
class _Column:
    """A column to be written.

    Attributes:
        shape: of the new column.
        dtype: of the new column.
        unit: what progress counts.
        fill: writes it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    unit: str
    fill: Callable[[PlacedColumn, progress.Task], None]


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
        missing = {name: column for name, column in columns.items() if not writer.is_done(name)}
        _check_space(writer.path, missing)
        for name, column in missing.items():
            placed = writer.place(name, column.shape, column.dtype)
            with progress.task(f"write {name}", total=column.shape[0], unit=column.unit) as task:
                column.fill(placed, task)
            placed.close()
        metadata = self.store.metadata
        notes = {key: value for key, value in metadata.notes.items() if key != "levels"}
        writer.finish(
            num_nodes=metadata.num_nodes,
            num_edges=metadata.num_edges,
            task=metadata.task,
            num_classes=metadata.num_classes,
            class_names=metadata.class_names,
            source=metadata.source,
            split_rule=metadata.split_rule,
            **{**notes, **self.notes, **({"levels": list(self.levels)} if self.levels else {})},
        )
        return GraphStore.open(writer.path)

    def _columns(self, scatter: Scatter) -> dict[str, _Column]:
        """All columns of the new store. Features come first: they may turn out not to fit their new dtype."""
        store = self.store
        names = [name for name in store.metadata.columns if name not in ("original_index", "part_offsets")]
        columns = {name: self._column(name, scatter) for name in sorted(names, key=lambda name: (name != "x", name))}
        if not scatter.is_identity(self._original):
            columns["original_index"] = _Column(
                (store.num_nodes,), np.dtype(np.int64), "nodes",
                lambda column, task: scatter.rows(column, self._original, task),
            )  # fmt: skip
        offsets = scatter.part_offsets
        columns["part_offsets"] = _Column(
            offsets.shape, offsets.dtype, "parts", lambda column, _: column.put(0, offsets)
        )
        return columns

    def _column(self, name: str, scatter: Scatter) -> _Column:
        store, data = self.store, self.store.column(name)
        same = (data.shape, data.dtype)
        if name in ("indptr", "name_offsets"):
            return _Column(*same, "nodes", lambda column, task: scatter.offsets(column, data, task))
        if name == "name_bytes":
            ends = store.column("name_offsets")
            return _Column(*same, "bytes", lambda column, task: scatter.items(column, data, ends, task))
        if name == "indices":
            ends = store.indptr
            return _Column(*same, "edges", lambda column, task: scatter.items(column, data, ends, task, are_nodes=True))
        if name.startswith(SPLIT_PREFIX):
            return _Column(*same, "nodes", lambda column, task: scatter.ids(column, data, task))
        if name == "x" and self.feature_dtype is not None and data.dtype != self.feature_dtype:
            dtype = np.dtype(self.feature_dtype)
            return _Column(
                data.shape, dtype, "nodes", lambda column, task: scatter.rows(column, self._converted(dtype), task)
            )
        if self._is_of_edges(name, data):
            return _Column(*same, "edges", lambda column, task: scatter.items(column, data, store.indptr, task))
        return _Column(*same, "nodes", lambda column, task: scatter.rows(column, _rows_of(data), task))

    def _is_of_edges(self, name: str, data: Shaped[np.ndarray, "..."]) -> bool:
        """Whether a column belongs to edges; else it belongs to nodes."""
        of_edges = data.shape == (self.store.num_edges,)
        of_nodes = data.ndim > 0 and len(data) == self.store.num_nodes
        if of_edges and (name in _EDGE_COLUMNS or name.startswith("presample_edge")):
            return True
        if of_nodes and (name in _NODE_COLUMNS or name.startswith("presample_node")):
            return False
        if of_edges != of_nodes:
            return of_edges
        raise StoreError(
            f"it cannot be told whether column '{name}' {data.shape} belongs to nodes or to edges",
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


def _check_space(path: Path, columns: Mapping[str, _Column]) -> None:
    need = sum(column_bytes(column.shape, column.dtype) for column in columns.values())
    free = shutil.disk_usage(path.parent).free
    if need > free:
        raise ResourceError(
            f"the store needs {need:,} bytes, {free:,} bytes are free",
            where=str(path.parent),
            fix="Free space there, or write the store to another disk",
        )
