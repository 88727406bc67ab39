"""The columns of a graph store, as data: what each holds, and what becomes of it wherever stores are handled.

A column of one row for each node or edge is one entry here: opening and verifying a store, re-ordering it, cutting it
into shards, taking parts of it into memory, sampling and exporting read this table. What a column means is described
in ``docs/format.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from partita.core.errors import StoreError
from partita.core.registry import Registry
from partita.graph.metadata import (
    DERIVED_PREFIX,
    HELD_PREFIX,
    HELD_TYPE_SUFFIX,
    LEVELS_PREFIX,
    SPLIT_PREFIX,
    TYPE_PREFIX,
    StoreMetadata,
    index_dtype,
)
from partita.graph.small import STORED

Form = tuple[tuple[str, ...], tuple[int, ...]]
"""Dtypes that a column may have, in numpy's little-endian spelling, and a shape."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """What a column holds, and what becomes of it.

    Attributes:
        of: it has one row for each of the ``"nodes"``, the nodes of one ``"type"``, the ``"edges"``, the ``"held"`` out
            edges of a split or the ``"bytes"`` of all names, or is a ``"list"`` of store ids, int64; ``None``:
            something else.
        form: dtype of a one-dimensional column; or from the metadata of a store the dtypes that a column may have, none
            where it may not be there, and the shape of one row. ``None``: not checked.
        required: every store has it.
        finite: of floating-point rows: neither infinite nor NaN, unless the store allows that (``allow_nan``).
        reorder: when nodes are re-ordered, its rows ``"move"`` with what they belong to; its values are store ids and
            are mapped to the new ones (``"map"``; those of a list, or of held-out edges, stay in place); its values are
            ``"offsets"`` of the rows of nodes, computed anew; it is the same in any order (``"keep"``); or whoever
            re-orders makes or drops it (``"make"``).
        shard: a shard has the ``"whole"`` column, or only the rows of its host's ``"own"`` nodes, also where these are
            of one type, or of the edges into them where edges are cut. ``None``: own edges, and anything else whole.
        view: a part in memory takes the rows of its nodes (``"all"``), of those that it owns only (``"owned"``), or of
            its edges (``"all"``); those of a type are rows of nodes. ``None``: it does not take the column.
        export: name of the array in an exported file; ``None``: it is not exported.
        drawn: its rows come along with the edges that are drawn, where a layer reads them.
        sampler: name of the argument that samplers take it as, see :class:`~partita.sample.topology.ArrayTopology`.
    """

    of: Literal["nodes", "type", "edges", "held", "bytes", "list"] | None
    form: str | Callable[[StoreMetadata], Form] | None = None
    required: bool = False
    finite: bool = False
    reorder: Literal["move", "map", "offsets", "keep", "make"] = "move"
    shard: Literal["whole", "own"] | None = None
    view: Literal["all", "owned"] | None = None
    export: str | None = None
    drawn: bool = False
    sampler: str | None = None

    def __post_init__(self) -> None:
        if self.of == "edges" and self.view and (self.view, self.shard) != ("all", None):
            raise ValueError("a view takes a column of edges as it takes the edges: all of its own")
        if self.of == "type" and self.view == "owned":
            raise ValueError("a view takes the features of a type of all of its nodes, or none")

    def expected(self, metadata: StoreMetadata, name: str) -> Form | None:
        """Dtypes and shape of the whole column of a name; ``None`` where they are not known beforehand."""
        rows = {"nodes": metadata.num_nodes, "edges": metadata.num_edges}.get(self.of or "")
        if self.of == "type" and (number := type_of_column(name)) is not None:
            sizes = () if metadata.schema is None else metadata.schema.num_nodes
            width = metadata.columns[name].shape[1:] if name in metadata.columns else ()
            known_type = number < len(sizes) and len(width) == 1 and width[0] > 0
            dtypes, row = _rows_of_features(metadata, name, width)
            return (dtypes, (sizes[number], *row)) if known_type else ((), ())
        if self.of == "held" and name in metadata.columns:
            rows = next(iter(metadata.columns[name].shape), 0)
        if rows is None or self.form is None:
            return None
        dtypes, row = ((self.form,), ()) if isinstance(self.form, str) else self.form(metadata)
        return dtypes, (rows, *row)

    def is_cut(self, edges: bool) -> bool:
        """Whether a shard has only some of the rows; ``edges``: it is one whose edges are cut."""
        return edges and self.shard != "whole" if self.of == "edges" else self.shard == "own"


def _sources(metadata: StoreMetadata) -> Form:
    return (index_dtype(metadata.num_nodes).str,), ()


def _features(metadata: StoreMetadata) -> Form:
    return _rows_of_features(metadata, "x", (metadata.num_features,))


def _rows_of_features(metadata: StoreMetadata, name: str, width: tuple[int, ...]) -> Form:
    """Dtypes of a column of features, and the shape of a row: numbers, or small integers where these have levels."""
    levels = metadata.columns.get(levels_column(name))
    if levels is None:
        return ("<f4", "<f2"), width
    dtype = metadata.columns[name].dtype if name in metadata.columns else ""
    columns = levels.shape[-1] if len(levels.shape) == 2 else 0
    halves = STORED.get(dtype) == "int4"
    return ((dtype,) if dtype in STORED else ()), (-(-columns // 2) if halves else columns,)


def levels_column(features: str) -> str:
    """Name of the column that says what the small integers of a column of features stand for."""
    return LEVELS_PREFIX + features


def _edge_types(metadata: StoreMetadata) -> Form:
    return (() if metadata.schema is None else (metadata.schema.edge_dtype.str,)), ()


def _ends(metadata: StoreMetadata) -> Form:
    return ("<i8",), (2,)


def _edge_features(metadata: StoreMetadata) -> Form:
    shape = metadata.columns["edge_attr"].shape if "edge_attr" in metadata.columns else ()
    return (("<f4", "<f2"), shape[1:]) if len(shape) == 2 and shape[1] > 0 else ((), ())


def type_of_column(name: str) -> int | None:
    """Number of the node type whose features a column of this name holds; ``None`` for another name."""
    number = name.removeprefix(TYPE_PREFIX)
    return int(number) if name.startswith(TYPE_PREFIX) and number.isdecimal() and number.isascii() else None


def is_features(name: str) -> bool:
    """Whether a column of this name holds features, of all nodes or of those of one type."""
    return name == "x" or type_of_column(name) is not None


_HOT_IDS, _HOT_ROWS = "hot_index", "hot_x"


def hot_columns(features: str) -> tuple[str, str]:
    """Names of the columns that hold store ids and rows of other hosts' nodes, for a column of features."""
    return features.replace("x", _HOT_IDS, 1), features.replace("x", _HOT_ROWS, 1)


def features_of_hot(name: str) -> str | None:
    """The inverse: which features a column of this name has ids or rows of; ``None`` for another name."""
    ends = [name.removeprefix(each) for each in (_HOT_IDS, _HOT_ROWS) if name.startswith(each)]
    return f"x{ends[0]}" if ends and is_features(f"x{ends[0]}") else None


def _labels(metadata: StoreMetadata) -> Form:
    forms: dict[str | None, Form] = {
        "classes": (("<i8",), ()),
        "multilabel": (("|u1",), (metadata.num_classes,)),
        "regression": (("<f4",), ()),
    }
    return forms.get(metadata.task, ((), ()))


COLUMNS: Registry[ColumnSpec] = Registry(
    "column",
    {
        "indptr": ColumnSpec(None, required=True, reorder="offsets", sampler="indptr"),
        "indices": ColumnSpec("edges", _sources, required=True, reorder="map", sampler="indices"),
        "x": ColumnSpec("nodes", _features, finite=True, shard="own", view="all", export="x"),
        f"{LEVELS_PREFIX}*": ColumnSpec(None, reorder="keep"),
        f"{TYPE_PREFIX}*": ColumnSpec("type", finite=True, shard="own", view="all"),
        "y": ColumnSpec("nodes", _labels, export="y"),
        "edge_type": ColumnSpec("edges", _edge_types, view="all", export="edge_type", sampler="edge_type"),
        "edge_weight": ColumnSpec("edges", "<f4", view="all", export="edge_weight", drawn=True),
        "edge_attr": ColumnSpec("edges", _edge_features, finite=True, view="all", export="edge_attr", drawn=True),
        "edge_time": ColumnSpec("edges", "<i8", view="all", export="edge_time"),
        "edge_weight_quantised": ColumnSpec("edges", "<u4", view="all", sampler="weights"),
        "node_time": ColumnSpec("nodes", "<i8", view="all", export="node_time"),
        "seed_time": ColumnSpec("nodes", "<i8", view="all", export="seed_time"),
        "self_loops": ColumnSpec("nodes", "<i4", view="all", sampler="self_loops"),
        "weight_sum": ColumnSpec("nodes", "<f8", view="all", sampler="weight_sums"),
        "loop_weight": ColumnSpec("nodes", "<f8", view="all", sampler="loop_weights"),
        f"{SPLIT_PREFIX}train": ColumnSpec("list", reorder="map", export="train_mask"),
        f"{SPLIT_PREFIX}val": ColumnSpec("list", reorder="map", export="val_mask"),
        f"{SPLIT_PREFIX}test": ColumnSpec("list", reorder="map", export="test_mask"),
        f"{SPLIT_PREFIX}*": ColumnSpec("list", reorder="map"),
        f"{HELD_PREFIX}val": ColumnSpec("held", _ends, reorder="map", export="held_val"),
        f"{HELD_PREFIX}val{HELD_TYPE_SUFFIX}": ColumnSpec("held", _edge_types, reorder="keep", export="held_val_type"),
        f"{HELD_PREFIX}test": ColumnSpec("held", _ends, reorder="map", export="held_test"),
        f"{HELD_PREFIX}test{HELD_TYPE_SUFFIX}": ColumnSpec(
            "held", _edge_types, reorder="keep", export="held_test_type"
        ),
        "original_index": ColumnSpec("nodes", "<i8", reorder="make", view="all", sampler="original"),
        "name": ColumnSpec("nodes", "<i8"),
        "name_offsets": ColumnSpec(None, reorder="offsets"),
        "name_bytes": ColumnSpec("bytes"),
        "presample_node": ColumnSpec("nodes", "<i8"),
        "presample_edge": ColumnSpec("edges", "<u4"),
        "presample_node*": ColumnSpec("nodes"),
        "presample_edge*": ColumnSpec("edges", shard="whole"),
        f"{_HOT_IDS}*": ColumnSpec(None, reorder="make"),
        f"{_HOT_ROWS}*": ColumnSpec(None, reorder="make"),
        "part_offsets": ColumnSpec(None, required=True, reorder="make"),
        "type_offsets": ColumnSpec(None, reorder="make"),
    },
)
"""Name of a column -> what it is; ``*`` at the end stands for any end that is not a name of its own."""

ROWS_BY = {"edges": "indptr", "bytes": "name_offsets"}
"""What rows are of -> the column that says where those of each node begin."""


def spec_of(name: str) -> ColumnSpec | None:
    """What a column is; ``None`` where nothing is known about it."""
    return known([name]).get(name)


def spec_by_shape(name: str, metadata: StoreMetadata, where: str) -> ColumnSpec:
    """What a column of a store is, where nothing is known about its name by its length.

    Args:
        name: of the column.
        metadata: of the store.
        where: for the message.

    Raises:
        StoreError: it cannot be told.
    """
    spec, shape = spec_of(name), metadata.columns[name].shape
    of_edges, of_nodes = shape[:1] == (metadata.num_edges,), shape[:1] == (metadata.num_nodes,)
    if spec is not None and {"edges": of_edges, "nodes": of_nodes}.get(f"{spec.of}", True):
        return spec
    if of_edges != of_nodes:
        return ColumnSpec("edges" if of_edges else "nodes")
    raise StoreError(
        f"it cannot be told whether column '{name}' {shape} belongs to nodes or to edges",
        where=where,
        fix="Leave the column out of the store, or upgrade Partita if a newer one made it",
    )


def known(names: Iterable[str]) -> dict[str, ColumnSpec]:
    """The columns that something is known about, in order of the table."""
    order = list(COLUMNS)
    found = sorted((order.index(entry), name) for name in names if (entry := _entry(name)) is not None)
    return {name: COLUMNS.find(order[at]) for at, name in found}


def derived(metadata: StoreMetadata) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """The columns that may be added to a store that is there, with dtype and shape."""
    forms = {
        name: spec.expected(metadata, name) for name, spec in known(COLUMNS).items() if name.startswith(DERIVED_PREFIX)
    }
    return {name: (np.dtype(form[0][0]), form[1]) for name, form in forms.items() if form is not None}


def _entry(name: str) -> str | None:
    if name in COLUMNS:
        return name
    return next((entry for entry in COLUMNS if entry.endswith("*") and name.startswith(entry[:-1])), None)


MASKS = {
    name.removeprefix(SPLIT_PREFIX): spec.export
    for name, spec in known(COLUMNS).items()
    if spec.of == "list" and spec.export is not None
}
"""Name of a split -> name of the mask of its nodes in exported files, which is that of PyG."""

HELD = {
    name.removeprefix(HELD_PREFIX): spec.export
    for name, spec in known(COLUMNS).items()
    if spec.of == "held" and spec.reorder == "map" and spec.export is not None
}
"""Name of a split of edges -> name of the array of its held-out edges in exported files; there is none for training."""
