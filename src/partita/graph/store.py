"""The graph store: one directory of memory-mapped columns. The format is described in ``docs/format.md``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int, Int32, Int64, Integer, Shaped, UInt, UInt32

from partita.core.errors import ConfigError, StoreError, nearest
from partita.core.html import facts_table
from partita.core.node_types import NodeTypes
from partita.graph.column_specs import HELD, hot_columns, is_features, known, levels_column, type_of_column
from partita.graph.metadata import (
    CLASSES,
    HELD_PREFIX,
    HELD_TYPE_SUFFIX,
    SPLIT_PREFIX,
    TYPE_PREFIX,
    StoreMetadata,
    how_to_mend,
)
from partita.graph.schema import Schema
from partita.graph.shard import Shard
from partita.graph.small import STORED, Levels, SmallRows
from partita.graph.soundness import first_fall, first_stray, require_sound, require_unchanged
from partita.graph.structure import open_columns

_CHEAP_NODES = 20_000_000


class GraphStore:
    """A graph on disk, opened read-only. Ids are store ids unless said otherwise.

    Opening maps the columns and reads nothing but their headers, so it takes milliseconds whatever the size. Only
    columns that were written to after the store was finished, as in a copy, are read once, to see whether they are
    still the same.
    All arrays are read-only views of the files.

    A store may hold only one host's share of a graph (:attr:`shard`). Then sizes and node columns are those of the
    whole graph, and a column that was cut is read with :meth:`held`; asking for it whole is an error.

    Attributes:
        path: of the directory.
        metadata: content of ``metadata.json``.
        shard: which share the store holds; ``None`` for a whole store.
    """

    shard: Shard | None = None

    def __init__(self, path: Path, metadata: StoreMetadata, columns: Mapping[str, Shaped[np.ndarray, "..."]]) -> None:
        """Use :meth:`open`."""
        self.path = path
        self.metadata = metadata
        self.shard = metadata.shard
        self._columns = dict(columns)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GraphStore:
        """Open a store and check everything that can be checked without reading the columns.

        Args:
            path: the store's directory.

        Raises:
            StoreError: no store there, written by a newer Partita, or damaged; the message names the column.
        """
        store = cls.open_unchecked(path)
        require_unchanged(store.path, store.metadata)
        return store

    @classmethod
    def open_unchecked(cls, path: str | os.PathLike[str]) -> GraphStore:
        """As :meth:`open`, for who looks at all columns anyway: those that were changed are not read."""
        directory = Path(path)
        metadata = StoreMetadata.read(directory)
        return cls(directory, metadata, open_columns(directory, metadata))

    def require_rows(self) -> None:
        """See that the rows of nodes, and the ranges of parts, follow each other: kernels read between them unchecked.

        Reads ``indptr`` when it is first called.

        Raises:
            StoreError: a column is damaged; names the entry.
        """
        for name, position in self._falls.items():
            raise StoreError(
                f"column '{name}' is damaged: the offsets fall at entry {position:,}",
                where=str(self.path),
                fix=how_to_mend(self.shard),
            )

    @cached_property
    def _falls(self) -> dict[str, int]:
        offsets = [name for name in ("indptr", "part_offsets") if name in self._columns]
        found = {name: first_fall(self._columns[name]) for name in offsets}
        return {name: position for name, position in found.items() if position is not None}

    def require_edges(self) -> None:
        """See that edges lead from nodes to nodes: for who reads all of them with loops that look up what they find.

        Reads ``indptr`` and ``indices`` when it is first called.

        Raises:
            StoreError: a column is damaged; names the entry.
        """
        self.require_rows()
        if self._stray is not None:
            raise self._no_node(self._stray[1], f"entry {self._stray[0]:,}")

    def require_nodes(self, sources: Int[np.ndarray, "n"]) -> None:
        """See that some values of ``indices`` are nodes.

        Raises:
            StoreError: one is none, so the column is damaged.
        """
        if (stray := first_stray(sources, self.num_nodes)) is not None:
            raise self._no_node(stray[1], "a value")

    def _nodes_of(self, name: str) -> Int64[np.ndarray, "n ..."]:
        """A column that lists nodes; read once to see that it does."""
        column = self._columns[name]
        if (stray := first_stray(column.reshape(-1), self.num_nodes)) is not None:
            raise self._no_node(stray[1], f"entry {stray[0]:,}", name)
        return column

    def _no_node(self, value: int, place: str, column: str = "indices") -> StoreError:
        return StoreError(
            f"column '{column}' is damaged: {place} is {value}, not one of {self.num_nodes:,} nodes",
            where=str(self.path),
            fix=how_to_mend(self.shard),
        )

    @cached_property
    def _stray(self) -> tuple[int, int] | None:
        return first_stray(self._columns["indices"], self.num_nodes)

    def require_sound(self) -> None:
        """See that all columns are what was written, and that edges lead from nodes to nodes; reads all columns.

        For who copies them: damage stays where it is, and does not become valid.

        Raises:
            StoreError: some are not; names all of them.
        """
        require_sound(self.path, self.metadata, self.metadata.columns)
        self.require_edges()

    def with_(self, columns: Mapping[str, Shaped[np.ndarray, "..."]], **changes: Any) -> GraphStore:
        """The same store, with other arrays for some columns and changed metadata, in memory only.

        Args:
            columns: by name.
            changes: of fields of the metadata, for instance ``class_names``; the columns' records stay, and with them
                the fingerprint.
        """
        return GraphStore(self.path, replace(self.metadata, **changes), {**self._columns, **columns})

    def __repr__(self) -> str:
        facts = [f"{self.num_nodes:,} nodes", f"{self.num_edges:,} edges"]
        if self.schema is not None:
            facts.append(f"{len(self.schema.node_types)} node types, {len(self.schema.relations)} relations")
        if self.num_features:
            facts.append(f"{self.num_features:,} features")
        if self.task is not None:
            facts.append(f"{self.num_classes:,} {self.task}" if self.num_classes > 1 else self.task)
        sizes = [f"{name} {len(ids):,}" for name, ids in self.splits.items()]
        facts += [" / ".join(sizes)] if sizes else []
        if self.num_parts > 1:
            facts.append(f"{self.num_parts} parts")
        if self.shard is not None:
            facts.append(str(self.shard))
        return f"GraphStore({str(self.path)!r}: {', '.join(facts)})"

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        facts: dict[str, object] = {"nodes": self.num_nodes, "edges": self.num_edges, "features": self.num_features}
        if self.task is not None:
            facts["task"] = f"{self.task} ({self.num_classes:,})" if self.num_classes > 1 else self.task
        facts |= {f"{name} nodes": len(ids) for name, ids in self.splits.items()}
        if self.schema is not None:
            del facts["features"]
            facts["node types"] = ", ".join(self.schema.node_types)
            facts["relations"] = ", ".join(map(str, self.schema.relations))
        if self.class_names is not None:
            shown = ", ".join(self.class_names[:12])
            facts["class names"] = shown + (", ..." if len(self.class_names) > 12 else "")
        if self.num_parts > 1:
            facts["partitions"] = self.num_parts
        return facts_table(f"Graph store {self.path}", facts)

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

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return tuple(self._columns)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that hold features: ``x``, or in a typed graph one for each type that has some."""
        return tuple(name for name in self._columns if is_features(name))

    def has(self, name: str) -> bool:
        """Whether the store has a column of this name."""
        return name in self._columns

    def column(self, name: str) -> Shaped[np.ndarray, "..."]:
        """A whole column by its name.

        Raises:
            StoreError: there is no such column, or the store is a shard that holds only some of its rows; or it lists
                what are no nodes.
        """
        self._require(name)
        spec = known(self._columns).get(name)
        lists_nodes = spec is not None and spec.of in ("list", "held") and spec.reorder == "map"
        return self._nodes_of(name) if lists_nodes else self._whole(name)

    def held(self, name: str) -> tuple[Shaped[np.ndarray, "..."], int]:
        """The rows of a column that are there: all of them, or those of a shard; whatever they hold.

        Returns:
            The rows, and the number of the first of them in the whole column: a node for ``x``, an edge for
            ``indices``, a row among those of the type for ``x_0``. 0 where the column is whole.

        Raises:
            StoreError: there is no such column.
        """
        if self.shard is None or name not in self.shard.cut:
            self._require(name)
            return self._whole(name), 0
        shard, column = self.shard, self._columns[name]
        if shard.cut[name] == "type":
            return column, self.node_types.rows_within(type_of_column(name) or 0, *shard.ends).start
        return column, shard.first_node if shard.cut[name] == "nodes" else int(self.indptr[shard.first_node])

    @property
    def hot(self) -> tuple[Int64[np.ndarray, "M"], Shaped[np.ndarray, "M F"]] | None:
        """Feature rows of other hosts' nodes that a shard holds besides its own; see :meth:`hot_of`."""
        return self.hot_of("x")

    def hot_of(self, features: str) -> tuple[Int64[np.ndarray, "M"], Shaped[np.ndarray, "M F"]] | None:
        """Rows of other hosts' nodes that a shard holds besides its own: ascending store ids, and their rows.

        Args:
            features: the column that the rows are of: ``"x"``, or that of a type, such as ``"x_0"``.

        Returns:
            ``None`` where there are none.

        Raises:
            StoreError: an id is no node of the type, so the column is damaged.
        """
        name, rows = hot_columns(features)
        if self.shard is None or name not in self._columns:
            return None
        ids, kind = self._nodes_of(name), type_of_column(features) or 0
        if (strange := self.types(ids) != kind).any():
            raise StoreError(
                f"column '{name}' is damaged: node {ids[int(np.argmax(strange))]:,} is of another type",
                where=str(self.path),
                fix=how_to_mend(self.shard),
            )
        return ids, self._columns[rows]

    @property
    def edges_are_cut(self) -> bool:
        """Whether this is a shard that has the edges into its host's own nodes only."""
        return self.shard is not None and self.shard.topology == "partitioned"

    @property
    def nodes_with_edges(self) -> range:
        """The nodes whose in-edges are here: all, or those of the host where the edges are cut."""
        return self.shard.nodes if self.shard is not None and self.edges_are_cut else range(self.num_nodes)

    def require_whole(self, purpose: str) -> None:
        """Refuse a shard where the whole graph is needed.

        Args:
            purpose: what needs it, as the subject of a sentence: ``"predict"``.

        Raises:
            StoreError: this is a shard; the message says what to run.
        """
        if self.shard is not None:
            raise self._refusal(self.shard, f"{purpose} needs the whole graph")

    def require_untyped(self, purpose: str) -> None:
        """Refuse a typed graph where that is not supported.

        Args:
            purpose: what does not take it, as the subject of a sentence: ``"training"``.

        Raises:
            StoreError: the graph has types; the message names some.
        """
        if self.schema is not None:
            types = ", ".join(f"'{name}'" for name in self.schema.node_types[:3])
            raise StoreError(
                f"{purpose} does not support typed graphs yet; the nodes of this one have the types {types}"
                + (", ..." if len(self.schema.node_types) > 3 else ""),
                where=str(self.path),
                fix="Ingest the nodes and edges of one type as a graph of their own",
            )

    def require_host(self, host: int, hosts: int) -> None:
        """Refuse a shard that is not the one of a host, or belongs to another number of hosts.

        Args:
            host: which of the hosts asks, from 0.
            hosts: number of hosts.

        Raises:
            StoreError: this is another shard; the message says what to run.
        """
        if self.shard is not None and (self.shard.host, self.shard.hosts) != (host, hosts):
            raise self._refusal(self.shard, f"it was opened by host {host} of {hosts}")

    def _refusal(self, shard: Shard, reason: str) -> StoreError:
        nodes = f"the rows of the nodes {shard.first_node:,}:{shard.last_node:,} of {self.num_nodes:,}"
        return StoreError(
            f"this store is {shard}, with {nodes} only, but {reason}",
            where=str(self.path),
            fix=(
                f"Use the whole store that it was cut from; or train on {shard.hosts} hosts, each with its own shard "
                f"(partita shard STORE SHARD --host HOST --hosts {shard.hosts}), by running on each of them: "
                f"torchrun --nnodes {shard.hosts} ... --no-python partita train SHARD --out RUN"
            ),
        )

    def _require(self, name: str) -> None:
        if name not in self._columns:
            raise StoreError(
                f"the store has no column '{name}'", where=str(self.path), fix=nearest(name, self._columns)
            )

    def _whole(self, name: str) -> Shaped[np.ndarray, "..."]:
        if self.shard is not None and name in self.shard.cut:
            raise self._refusal(self.shard, f"column '{name}' is needed whole")
        return self._columns[name]

    def _whole_or_none(self, name: str) -> Shaped[np.ndarray, "..."] | None:
        return self._whole(name) if name in self._columns else None

    @property
    def indptr(self) -> Int64[np.ndarray, "N_1"]:
        """int64 (N+1): the in-edges of node v are ``indptr[v]:indptr[v+1]``."""
        return self._columns["indptr"]

    @property
    def indices(self) -> Int[np.ndarray, "E"]:
        """int32 or int64 (E): the source of every edge, grouped by destination, in input order within a row."""
        return self._whole("indices")

    @property
    def edge_weight(self) -> Float32[np.ndarray, "E"] | None:
        """float32 (E), finite and >= 0, or ``None``."""
        return self._whole_or_none("edge_weight")

    @property
    def edge_attr(self) -> Float[np.ndarray, "E A"] | None:
        """(E, A) float32 or float16, features of every edge, in the order of ``indices``; ``None`` without them."""
        return self._whole_or_none("edge_attr")

    @property
    def num_edge_features(self) -> int:
        """A, columns of the edges' features; 0 without them."""
        return self.metadata.columns["edge_attr"].shape[1] if self.has("edge_attr") else 0

    @property
    def edge_time(self) -> Int64[np.ndarray, "E"] | None:
        """int64 (E): from when on an edge is there, ascending in the edges of a row that are of one relation; the
        smallest number is always. ``None``: edges have no times."""
        return self._whole_or_none("edge_time")

    @property
    def node_time(self) -> Int64[np.ndarray, "N"] | None:
        """int64 (N): from when on a node is there; the smallest number is always. ``None``: nodes were always there."""
        return self._whole_or_none("node_time")

    @property
    def seed_time(self) -> Int64[np.ndarray, "N"] | None:
        """int64 (N): when a node is asked about as a seed; ``None``: at no time in particular."""
        return self._whole_or_none("seed_time" if self.has("seed_time") else "node_time")

    @property
    def edge_weight_quantised(self) -> UInt32[np.ndarray, "E"] | None:
        """uint32 (E): weights scaled so that the largest of a row is 2^32-1, or ``None``."""
        return self._whole_or_none("edge_weight_quantised")

    @property
    def self_loops(self) -> Int32[np.ndarray, "N"] | None:
        """int32 (N): number of self loops of every node; ``None`` where the graph has none at all."""
        return self._columns.get("self_loops")

    @property
    def x(self) -> Float[np.ndarray, "N F"] | SmallRows | None:
        """float32 or float16 (N, F) features, or ``None``.

        Small integers are read as the float32 numbers that they stand for, see :class:`~partita.graph.small.SmallRows`;
        ``column("x")`` has them as they are stored.
        """
        return self._features("x")

    def levels_of(self, features: str) -> Levels | None:
        """What the small integers of a column of features stand for, in a shard those of its rows.

        Args:
            features: the column: ``"x"``, or that of a type, such as ``"x_0"``.

        Returns:
            ``None``: the column holds floating-point numbers.
        """
        levels, rows = self._columns.get(levels_column(features)), self._columns.get(features)
        if levels is None or rows is None or rows.dtype.str not in STORED:
            return None
        return Levels(STORED[rows.dtype.str], levels[0], levels[1])

    def _features(self, name: str) -> Float[np.ndarray, "M F"] | SmallRows | None:
        """A column of features as numbers."""
        rows, levels = self._whole_or_none(name), self.levels_of(name)
        return rows if rows is None or levels is None else SmallRows(rows, levels)

    @property
    def y(self) -> Shaped[np.ndarray, "N ..."] | None:
        """Labels: int64 (N), -1 = no label | uint8 (N, C) multi-label | float32 (N), NaN = no label; or ``None``.

        Raises:
            StoreError: one is no class, so the column is damaged. All are read once to see that.
        """
        if self._no_class is not None:
            raise StoreError(
                f"column 'y' is damaged: row {self._no_class[0]} is class {self._no_class[1]}, of {self.num_classes} "
                "classes",
                where=str(self.path),
                fix=how_to_mend(self.shard),
            )
        return self._columns.get("y")

    @cached_property
    def _no_class(self) -> tuple[int, int] | None:
        return first_stray(self._columns["y"], self.num_classes, -1) if self.task == CLASSES else None

    @property
    def part_offsets(self) -> Int64[np.ndarray, "P_1"]:
        """int64 (P+1): part p owns the ids ``part_offsets[p]:part_offsets[p+1]``."""
        return self._columns["part_offsets"]

    # Types

    @property
    def schema(self) -> Schema | None:
        """Types of nodes and relations; ``None`` for an untyped graph."""
        return self.metadata.schema

    @property
    def type_offsets(self) -> Int64[np.ndarray, "T_1"]:
        """int64 (P T + 1): where the nodes of each type begin in each part; of an untyped graph, the parts."""
        return self._columns["part_offsets"] if self.schema is None else self._columns["type_offsets"]

    @property
    def edge_type(self) -> UInt[np.ndarray, "E"] | None:
        """uint8 or uint16 (E): number of the relation of every edge, ascending within a row; ``None``: untyped."""
        return self._whole_or_none("edge_type")

    def x_of(self, node_type: str) -> Float[np.ndarray, "M F"] | SmallRows | None:
        """float32 or float16 (M, F) features of the nodes of a type, in order of their ids; or ``None``. As :attr:`x`.

        Raises:
            ConfigError: there is no such type, or there are none at all.
        """
        return self._features(f"{TYPE_PREFIX}{self._types.type_number(node_type)}")

    @property
    def type_widths(self) -> tuple[int, ...]:
        """Feature columns of each node type, 0 of types without features; of an untyped graph none."""
        if self.schema is None:
            return ()
        names = [f"{TYPE_PREFIX}{number}" for number in range(len(self.schema.node_types))]
        rows = [self._columns.get(levels_column(name), self._columns.get(name)) for name in names]
        return tuple(0 if each is None else each.shape[1] for each in rows)

    def _dtype_of(self, features: str) -> str:
        """Name of the dtype of a column of features."""
        levels = self.levels_of(features)
        return self._columns[features].dtype.name if levels is None else levels.dtype

    @cached_property
    def node_types(self) -> NodeTypes:
        """Which type every node has; in an untyped graph all have type 0."""
        return NodeTypes(self.type_offsets, 1 if self.schema is None else len(self.schema.node_types))

    def types(self, ids: Integer[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Number of the type of each of the given nodes; 0 in an untyped graph."""
        return self.node_types.of(ids)

    def type_rows(self, ids: Integer[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Where each of the given nodes is among those of its type, in order of ids: its row in :meth:`x_of`."""
        return self.node_types.rows(ids)

    def nodes_of(self, node_type: str) -> Int64[np.ndarray, "M"]:
        """Store ids of all nodes of a type, ascending.

        Raises:
            ConfigError: there is no such type, or there are none at all.
        """
        return self.node_types.all_ids(self._types.type_number(node_type))

    @property
    def _types(self) -> Schema:
        if self.schema is None:
            raise ConfigError("the graph has no types", where=str(self.path))
        return self.schema

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
        return self._whole_or_none("presample_edge")

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
        """All splits by name (``"train"``, ``"val"``, ``"test"``): store ids in ascending original index.

        Raises:
            StoreError: an id is no node, so a column is damaged.
        """
        names = [name for name in known(self._columns) if name.startswith(SPLIT_PREFIX)]
        return {name.removeprefix(SPLIT_PREFIX): self._nodes_of(name) for name in names}

    def split(self, name: str) -> Int64[np.ndarray, "S"]:
        """One split: int64 store ids in ascending original index.

        Raises:
            StoreError: the store has no such split; the message names those it has.
        """
        if name not in self.splits:
            others = ", ".join(f"'{other}'" for other in self.splits) or "none"
            raise StoreError(
                f"the store has no split '{name}' (it has: {others})",
                where=str(self.path),
                fix="Choose one of these, or ingest again with a split",
            )
        return self.splits[name]

    # Held-out edges

    @property
    def held_out(self) -> dict[str, int]:
        """How many edges are held out, by split (``"val"``, ``"test"``); a split without any is not named."""
        return {name: len(self._columns[HELD_PREFIX + name]) for name in HELD if HELD_PREFIX + name in self._columns}

    def held_out_edges(self, split: str) -> tuple[Int64[np.ndarray, "2 n"], UInt[np.ndarray, "n"] | None]:
        """The edges of a split that are held out: no edges of the graph, so no messages go along them.

        Args:
            split: ``"val"`` or ``"test"``.

        Returns:
            int64 (2, n) store ids, sources and destinations, in the order of the source; and uint8 or uint16 (n),
            numbers of their relations in :attr:`schema`, ``None`` in an untyped graph. In a shard they are those of
            the whole graph.

        Raises:
            StoreError: the store has no such edges; the message names the splits it has. Or an id is no node, so the
                column is damaged.
        """
        if split not in self.held_out:
            others = ", ".join(f"'{other}'" for other in self.held_out) or "none"
            raise StoreError(
                f"the store has no held-out edges of the split '{split}' (it has: {others})",
                where=str(self.path),
                fix="Choose one of these; hold some out with partita split STORE OUT, or ingest again with "
                "files of them (--val-edges, --test-edges)",
            )
        name = HELD_PREFIX + split
        return self._nodes_of(name).T, self._columns.get(name + HELD_TYPE_SUFFIX)

    def _held_out_relations(self, schema: Schema) -> dict[str, dict[str, int]]:
        """How many edges of each relation are held out, by split."""
        found = dict[str, dict[str, int]]()
        for split in self.held_out:
            kinds = self._columns[HELD_PREFIX + split + HELD_TYPE_SUFFIX]
            for number, count in zip(*np.unique(kinds, return_counts=True)):
                if number < len(schema.relations):  # verify finds those that are none
                    found.setdefault(str(schema.relations[number]), {})[split] = int(count)
        return found

    # Nodes

    def in_degree(self, ids: Integer[np.ndarray, "n"] | None = None) -> Int64[np.ndarray, "n"]:
        """Number of in-edges of the given nodes (all nodes when ``None``), int64."""
        if ids is None:
            return np.diff(self.indptr)
        return self.indptr[ids + 1] - self.indptr[ids]

    def neighbors(self, node: int | np.integer) -> Int[np.ndarray, "d"]:
        """Sources of the edges into one node, in input order.

        Raises:
            IndexError: the edges of the node are not in this shard.
        """
        indices, first = self.held("indices")
        begin, end = int(self.indptr[node]) - first, int(self.indptr[node + 1]) - first
        if begin < 0 or end > len(indices):
            raise IndexError(f"the edges of node {node} are not in {self.shard}")
        return indices[begin:end]

    def to_original(self, ids: Integer[np.ndarray, "n ..."]) -> Integer[np.ndarray, "n ..."]:
        """Original indices of the given store ids."""
        return ids if self.original_index is None else self.original_index[ids]

    def ingest_order(self) -> Int64[np.ndarray, "N"] | None:
        """Store ids of all nodes in the order in which they were ingested; ``None`` where that is 0, 1, 2, ..."""
        if self.original_index is None:
            return None
        order = np.empty(self.num_nodes, np.int64)
        order[self.original_index] = np.arange(self.num_nodes)
        return order

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

    @property
    def has_names(self) -> bool:
        """Whether nodes have ids of the user's that are not simply their numbers."""
        return "name" in self._columns or "name_offsets" in self._columns

    # Identity

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that are equal only for equal data; tells whether a run belongs to a store."""
        return self.metadata.fingerprint

    def summary(self) -> dict[str, Any]:
        """What the store holds, as plain values that JSON can hold.

        Reads at most ``indptr`` and the relations of held-out edges.
        """
        metadata = self.metadata
        summary: dict[str, Any] = {
            "path": str(self.path),
            "nodes": self.num_nodes,
            "edges": self.num_edges,
            "features": self.num_features,
            "feature_dtype": self._dtype_of("x") if self.has("x") else None,
            "task": self.task,
            "classes": self.num_classes,
            "splits": {name: len(ids) for name, ids in self.splits.items()},
            "parts": self.num_parts,
            "weighted": self.has("edge_weight"),
            "edge_features": self.num_edge_features,
            "times": self.has("edge_time"),
            "self_loops": self.self_loops is not None,
            "source": metadata.source,
            "split_rule": metadata.split_rule,
            "fingerprint": self.fingerprint,
            "bytes": {name: record.bytes for name, record in metadata.columns.items()},
        }
        if self.schema is not None:
            summary["node_types"] = dict(zip(self.schema.node_types, self.schema.num_nodes))
            summary["relations"] = dict(zip(map(str, self.schema.relations), self.schema.num_edges))
            features = zip(self.schema.node_types, self.type_widths)
            summary["type_features"] = {name: width for name, width in features if width}
            columns = {name: f"{TYPE_PREFIX}{self.schema.type_number(name)}" for name in summary["type_features"]}
            summary["type_feature_dtypes"] = {name: self._dtype_of(column) for name, column in columns.items()}
        if self.held_out:
            summary["held_out"] = self.held_out
            if self.schema is not None:
                summary["held_out_relations"] = self._held_out_relations(self.schema)
        if self.shard is not None:
            hot = [hot_columns(name)[0] for name in self.features]
            summary["shard"] = {
                "host": self.shard.host,
                "hosts": self.shard.hosts,
                "topology": self.shard.topology,
                "nodes": len(self.shard.nodes),
                "edges": len(self._columns["indices"]),
                "hot": sum(len(self._columns[name]) for name in hot if self.has(name)),
            }
        if self.num_nodes <= _CHEAP_NODES:
            summary["isolated"] = int(np.count_nonzero(self.in_degree() == 0))
        return summary
