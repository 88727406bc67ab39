"""The graph store: one directory of memory-mapped columns. The format is described in ``docs/format.md``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int, Int32, Int64, Integer, Shaped, UInt32

from partita.core.errors import StoreError, nearest
from partita.graph.metadata import DERIVED_COLUMNS, TASKS, ColumnRecord, StoreMetadata, index_dtype

SPLIT_PREFIX = "split_"
_REQUIRED = ("indptr", "indices", "part_offsets")
_RESTORE = "Restore the directory from a copy, or make it anew with: partita ingest SOURCE STORE"
_CHEAP_NODES = 20_000_000


class GraphStore:
    """A graph on disk, opened read-only. Ids are store ids unless said otherwise.

    Opening maps the columns and reads nothing but their headers, so it takes milliseconds whatever the size.
    All arrays are read-only views of the files.
    """

    def __init__(self, path: Path, metadata: StoreMetadata, columns: Mapping[str, Shaped[np.ndarray, "..."]]) -> None:
        """Use :meth:`open`."""
        self.path = path
        self.metadata = metadata
        self._columns = dict(columns)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GraphStore:
        """Open a store and check everything that can be checked without reading the columns.

        Args:
            path: the store's directory.

        Raises:
            StoreError: no store there, written by a newer Partita, or damaged; the message names the column.
        """
        directory = Path(path)
        metadata = StoreMetadata.read(directory)
        columns = {name: _map_column(directory, name, record) for name, record in metadata.columns.items()}
        store = cls(directory, metadata, columns)
        store._check()
        return store

    def __repr__(self) -> str:
        return f"GraphStore({str(self.path)!r}: {self.num_nodes:,} nodes, {self.num_edges:,} edges)"

    # Sizes

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.metadata.num_nodes

    @property
    def num_edges(self) -> int:
        """E, directed edges as stored."""
        return self.metadata.num_edges

    @property
    def num_features(self) -> int:
        """F, 0 without features."""
        return self.metadata.num_features

    @property
    def num_parts(self) -> int:
        """P, 1 for a store that is not partitioned."""
        return len(self.part_offsets) - 1

    # Columns

    def has(self, name: str) -> bool:
        """Whether the store has a column of this name."""
        return name in self._columns

    def column(self, name: str) -> Shaped[np.ndarray, "..."]:
        """A column by its name.

        Raises:
            StoreError: there is no such column.
        """
        if name not in self._columns:
            raise StoreError(
                f"the store has no column '{name}'", where=str(self.path), fix=nearest(name, self._columns)
            )
        return self._columns[name]

    @property
    def indptr(self) -> Int64[np.ndarray, "N_1"]:
        """int64 (N+1): the in-edges of node v are ``indptr[v]:indptr[v+1]``."""
        return self._columns["indptr"]

    @property
    def indices(self) -> Int[np.ndarray, "E"]:
        """int32 or int64 (E): the source of every edge, grouped by destination, in input order within a row."""
        return self._columns["indices"]

    @property
    def edge_weight(self) -> Float32[np.ndarray, "E"] | None:
        """float32 (E), finite and >= 0, or ``None``."""
        return self._columns.get("edge_weight")

    @property
    def edge_weight_quantised(self) -> UInt32[np.ndarray, "E"] | None:
        """uint32 (E): weights scaled so that the largest of a row is 2^32-1, or ``None``."""
        return self._columns.get("edge_weight_quantised")

    @property
    def self_loops(self) -> Int32[np.ndarray, "N"] | None:
        """int32 (N): number of self loops of every node; ``None`` where the graph has none at all."""
        return self._columns.get("self_loops")

    @property
    def x(self) -> Float[np.ndarray, "N F"] | None:
        """float32 or float16 (N, F) features, or ``None``."""
        return self._columns.get("x")

    @property
    def y(self) -> Shaped[np.ndarray, "N ..."] | None:
        """Labels: int64 (N), -1 = no label | uint8 (N, C) multi-label | float32 (N), NaN = no label; or ``None``."""
        return self._columns.get("y")

    @property
    def part_offsets(self) -> Int64[np.ndarray, "P_1"]:
        """int64 (P+1): part p owns the ids ``part_offsets[p]:part_offsets[p+1]``."""
        return self._columns["part_offsets"]

    @property
    def original_index(self) -> Int64[np.ndarray, "N"] | None:
        """int64 (N): every node's position at ingest; ``None`` where it equals the store id."""
        return self._columns.get("original_index")

    @property
    def presample_node(self) -> Int64[np.ndarray, "N"] | None:
        """int64 (N): one more than how often a node was a destination while presampling; ``None``: not presampled."""
        return self._columns.get("presample_node")

    @property
    def presample_edge(self) -> UInt32[np.ndarray, "E"] | None:
        """uint32 (E): how often every edge was drawn while presampling; ``None``: not presampled."""
        return self._columns.get("presample_edge")

    # Labels and splits

    @property
    def task(self) -> str | None:
        """``"classes"``, ``"multilabel"``, ``"regression"`` or ``None``."""
        return self.metadata.task

    @property
    def num_classes(self) -> int:
        """Classes, or columns of a multi-label task, or 1 for a regression; 0 without labels."""
        return self.metadata.num_classes

    @property
    def class_names(self) -> list[str] | None:
        """The user's names of the classes in order of their numbers, or ``None``."""
        return None if self.metadata.class_names is None else list(self.metadata.class_names)

    @cached_property
    def splits(self) -> dict[str, Int64[np.ndarray, "_"]]:
        """All splits by name (``"train"``, ``"val"``, ``"test"``): store ids in ascending original index."""
        known = [name for name in ("train", "val", "test") if SPLIT_PREFIX + name in self._columns]
        other = sorted(
            name.removeprefix(SPLIT_PREFIX)
            for name in self._columns
            if name.startswith(SPLIT_PREFIX) and name.removeprefix(SPLIT_PREFIX) not in known
        )
        return {name: self._columns[SPLIT_PREFIX + name] for name in known + other}

    def split(self, name: str) -> Int64[np.ndarray, "S"]:
        """One split: int64 store ids in ascending original index.

        Raises:
            StoreError: the store has no such split; the message names those it has.
        """
        if name not in self.splits:
            known = ", ".join(f"'{known}'" for known in self.splits) or "none"
            raise StoreError(
                f"the store has no split '{name}' (it has: {known})",
                where=str(self.path),
                fix="Choose one of these, or ingest again with a split",
            )
        return self.splits[name]

    # Nodes

    def in_degree(self, ids: Integer[np.ndarray, "n"] | None = None) -> Int64[np.ndarray, "n"]:
        """Number of in-edges of the given nodes (all nodes when ``None``), int64."""
        if ids is None:
            return np.diff(self.indptr)
        return self.indptr[ids + 1] - self.indptr[ids]

    def neighbours(self, node: int | np.integer) -> Int[np.ndarray, "d"]:
        """Sources of the edges into one node, in input order."""
        return self.indices[self.indptr[node] : self.indptr[node + 1]]

    def to_original(self, ids: Integer[np.ndarray, "n"]) -> Integer[np.ndarray, "n"]:
        """Original indices of the given store ids."""
        return ids if self.original_index is None else self.original_index[ids]

    def names(self, ids: Integer[np.ndarray, "n"] | None = None) -> Shaped[np.ndarray, "n"]:
        """The user's ids of the given nodes (all nodes when ``None``).

        Returns:
            int64, or an object array of ``str``. Where the user gave no ids, the original index is the name.
        """
        ids = np.arange(self.num_nodes) if ids is None else np.asarray(ids)
        if "name" in self._columns:
            return self._columns["name"][ids]
        if "name_offsets" not in self._columns:
            return np.asarray(self.to_original(ids), dtype=np.int64)
        offsets, text = self._columns["name_offsets"], self._columns["name_bytes"]
        found = np.empty(len(ids), dtype=object)
        for position, (start, stop) in enumerate(zip(offsets[ids].tolist(), offsets[ids + 1].tolist())):
            found[position] = text[start:stop].tobytes().decode("utf-8")
        return found

    # Identity

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that are equal only for equal data; tells whether a run belongs to a store."""
        return self.metadata.fingerprint

    def summary(self) -> dict[str, Any]:
        """What the store holds, as plain values that JSON can hold. Reads at most ``indptr``."""
        x, metadata = self.x, self.metadata
        summary: dict[str, Any] = {
            "path": str(self.path),
            "nodes": self.num_nodes,
            "edges": self.num_edges,
            "features": self.num_features,
            "feature_dtype": None if x is None else x.dtype.name,
            "task": self.task,
            "classes": self.num_classes,
            "splits": {name: len(ids) for name, ids in self.splits.items()},
            "parts": self.num_parts,
            "weighted": self.edge_weight is not None,
            "self_loops": self.self_loops is not None,
            "source": metadata.source,
            "split_rule": metadata.split_rule,
            "fingerprint": self.fingerprint,
            "bytes": {name: record.bytes for name, record in metadata.columns.items()},
        }
        if self.num_nodes <= _CHEAP_NODES:
            summary["isolated"] = int(np.count_nonzero(self.in_degree() == 0))
        return summary

    # Checks on opening

    def _check(self) -> None:
        """Structure that can be checked in constant time."""
        n, e = self.num_nodes, self.num_edges
        for name in _REQUIRED:
            if name not in self._columns:
                raise self._damage(name, "the column is missing")
        expected: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
            "indptr": (("<i8",), (n + 1,)),
            "indices": ((index_dtype(n).str,), (e,)),
            "edge_weight": (("<f4",), (e,)),
            "edge_weight_quantised": (("<u4",), (e,)),
            "self_loops": (("<i4",), (n,)),
            "x": (("<f4", "<f2"), (n, self.num_features)),
            "original_index": (("<i8",), (n,)),
            "name": (("<i8",), (n,)),
            "name_offsets": (("<i8",), (n + 1,)),
            "y": {
                "classes": (("<i8",), (n,)),
                "multilabel": (("|u1",), (n, self.num_classes)),
                "regression": (("<f4",), (n,)),
            }.get(self.task or "", ((), ())),
            **{
                name: ((dtype,), (getattr(self.metadata, length),)) for name, (dtype, length) in DERIVED_COLUMNS.items()
            },
        }
        for name, (dtypes, shape) in expected.items():
            column = self._columns.get(name)
            if column is None:
                continue
            if column.dtype.str not in dtypes or column.shape != shape:
                raise self._damage(
                    name, f"{column.dtype.name} {column.shape} does not fit {n:,} nodes, {e:,} edges, task {self.task}"
                )
        if self.task not in (None, *TASKS):
            raise self._damage("y", f"unknown task '{self.task}'")
        if (self.task is None) != (self.y is None):
            raise self._damage("y", f"task is {self.task} but labels are {'missing' if self.y is None else 'there'}")
        if ("name_offsets" in self._columns) != ("name_bytes" in self._columns):
            raise self._damage("name_bytes", "name_offsets and name_bytes must come together")
        self._check_ends("indptr", e)
        self._check_ends("part_offsets", n)
        if "name_offsets" in self._columns:
            self._check_ends("name_offsets", len(self._columns["name_bytes"]))
        for name, ids in self._columns.items():
            if name.startswith(SPLIT_PREFIX) and (ids.dtype.str != "<i8" or ids.ndim != 1 or len(ids) > n):
                raise self._damage(name, f"{ids.dtype.name} {ids.shape} is no list of node ids")

    def _check_ends(self, name: str, last: int) -> None:
        offsets = self._columns[name]
        if (
            offsets.dtype.str != "<i8"
            or offsets.ndim != 1
            or len(offsets) < 1
            or offsets[0] != 0
            or offsets[-1] != last
        ):
            raise self._damage(name, f"the offsets must be int64, begin with 0 and end with {last:,}")

    def _damage(self, column: str, what: str) -> StoreError:
        return StoreError(f"column '{column}' is damaged: {what}", where=str(self.path), fix=_RESTORE)


def _map_column(directory: Path, name: str, record: ColumnRecord) -> Shaped[np.ndarray, "..."]:
    path = directory / f"{name}.npy"
    where = str(directory)
    try:
        size = path.stat().st_size
    except OSError as error:
        what = f"column '{name}' cannot be read: {path.name}: {error.strerror}"
        raise StoreError(what, where=where, fix=_RESTORE) from error
    if size != record.bytes:
        what = f"column '{name}' is damaged: {path.name} has {size:,} bytes instead of {record.bytes:,}"
        raise StoreError(what, where=where, fix=_RESTORE)
    try:
        column = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        what = f"column '{name}' is damaged: {path.name} cannot be mapped ({error})"
        raise StoreError(what, where=where, fix=_RESTORE) from error
    if column.dtype.str != record.dtype or column.shape != record.shape:
        what = (
            f"column '{name}' is damaged: {path.name} holds {column.dtype.str} {column.shape}, "
            f"the metadata promises {record.dtype} {record.shape}"
        )
        raise StoreError(what, where=where, fix=_RESTORE)
    return column.view(np.ndarray)  # np.memmap makes every slice slow; the plain view keeps the map alive
