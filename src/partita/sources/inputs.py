"""Opens all files of an ingest and decides, before the long work, what belongs to what."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from partita.core.errors import ConfigError, InputError
from partita.sources.array_graph import ArrayGraph
from partita.sources.arrays import ArrayFile, open_npy
from partita.sources.batch import Cells, counted
from partita.sources.columnar import FrameTable, is_frame
from partita.sources.detect import Source
from partita.sources.edges import EdgeTable, TableReader, detect_format, find_columns, open_table
from partita.sources.encoding import ColumnReader, Encoding
from partita.sources.ids import IdMode
from partita.sources.node_tables import NodeTable, describe_table
from partita.sources.objects import array_of, labels_of, name_of
from partita.sources.options import ColumnName, IngestOptions
from partita.sources.text import TextTable
from partita.sources.typed_edges import refuse_options

NODE_FILES = ("nodes", "features", "labels", "splits")
"""The options that name files about nodes."""

HELD_FILES = {"val": "val_edges", "test": "test_edges"}
"""The options that name tables of held-out edges, by split."""

_EXPECTED = {"features": ("fiub", (2,)), "labels": ("fiubU", (1, 2)), "splits": ("U", (1,))}
"""Kinds and ranks of the arrays that those files may hold instead of tables."""


@dataclass(frozen=True)
class IngestInputs:
    """All files, opened.

    Attributes:
        graph: where the edges are.
        id_mode: how ids are to be read.
        num_nodes: N, where arrays say it; ``None`` where reading the ids will tell.
        num_nodes_from: the array that says so.
        tables: about nodes.
        members: the one of the tables that says which nodes there are; ``None``: the edges do.
        arrays: "features", "labels" and "splits" by position, if present; features in a graph of arrays are not.
    """

    graph: EdgeTable | ArrayGraph
    id_mode: IdMode
    num_nodes: int | None
    num_nodes_from: str
    tables: list[NodeTable]
    members: NodeTable | None
    arrays: dict[str, ArrayFile]


def rows_of(array: ArrayFile, name: str) -> Iterator[tuple[Int64[np.ndarray, "n"], Cells]]:
    """Rows of an array by position: the nodes, and a batch with one column for each column of the array."""
    import pyarrow as pa

    for start, block in array.blocks():
        native = block.astype(block.dtype.newbyteorder("="), copy=False)
        if native.dtype == np.float16:
            native = native.astype(np.float32)
        columns = {name: native} if native.ndim == 1 else {str(column): of for column, of in enumerate(native.T)}
        arrays = [pa.array(np.ascontiguousarray(column)) for column in columns.values()]
        yield np.arange(start, start + len(block)), Cells(arrays, list(columns), counted(array.where, start))


def open_inputs(source: Source, options: IngestOptions, like: Encoding | None, *, chunk_bytes: int) -> IngestInputs:
    """Open everything and check what can be checked without reading rows.

    Args:
        source: of the edges.
        options: of the ingest.
        like: the encoding of features to repeat.
        chunk_bytes: of a file to read at once.

    Raises:
        InputError: a file or a column is missing or unusable, or arrays of different lengths.
        ConfigError: two arguments exclude each other.
    """
    graph: EdgeTable | ArrayGraph
    wanted = (options.source_column, options.target_column, options.weight_column)
    edge_features, relation = options.edge_feature_columns or (), options.relation_column
    of_nodes = [*NODE_FILES, "missing", "node_features", "standardize", "like"]
    given = (getattr(options, name) for name in of_nodes)
    is_about_nodes = any(value is not None and value is not False for value in given)
    triples = True if source.triples else False if is_about_nodes else None
    if source.table is not None:
        graph = EdgeTable(source.table, *wanted, edge_features, relation, triples, options.time_column)
    elif source.arrays is not None or detect_format(source.path, options.format) == "npz":
        graph = ArrayGraph(source.path, source.arrays)
        if edge_features:
            what = "names columns, and the features of edges are the array 'edge_attr' here"
            raise ConfigError(what, where="edge_feature_columns", fix="Leave it out")
        for name in ("relation_column", "time_column", *HELD_FILES.values()):
            if getattr(options, name) is not None:
                what = (
                    "is for tables, and edges are in arrays here: 'edge_type' has relations, 'edge_time' times and "
                    "'edge_split' splits"
                )
                raise ConfigError(what, where=name, fix="Leave it out")
    else:
        table = open_table(
            source.path,
            format=options.format,
            delimiter=options.delimiter,
            header=options.header,
            comment=options.comment,
            wanted=(*wanted, *edge_features, options.time_column, relation),
            exact_ids=options.ids == "auto",
            chunk_bytes=chunk_bytes,
        )
        graph = EdgeTable(table, *wanted, edge_features, relation, triples, options.time_column)
    if isinstance(graph, EdgeTable):
        if graph.has_relations:
            refuse_options(options, str(graph.path))
        _hold_out(graph, options, chunk_bytes)
    tables, members, by_position = _open_node_files(options, like, chunk_bytes)
    num_nodes, num_nodes_from = _count_nodes(graph, by_position.values())
    if isinstance(graph, ArrayGraph):
        if (graph.features is not None or graph.types is not None) and (
            "features" in by_position or any(table.features for table in tables)
        ):
            raise _twice("features")
        if graph.labels is not None and "labels" in by_position:
            raise _twice("labels")
        if graph.labels is not None:
            by_position["labels"] = graph.labels
    if sum(bool(table.labels) for table in tables) + ("labels" in by_position) > 1:
        raise _twice("labels")
    if sum(bool(table.split_names) for table in tables) + ("splits" in by_position) > 1:
        raise _twice("splits")
    id_mode = _id_mode(options.ids, graph, tables, num_nodes_from)
    return IngestInputs(graph, id_mode, num_nodes, num_nodes_from, tables, members, by_position)


def _hold_out(graph: EdgeTable, options: IngestOptions, chunk_bytes: int) -> None:
    """Open the tables of held-out edges, which are written as the table of edges is, if both are text."""
    for split, name in HELD_FILES.items():
        if (value := getattr(options, name)) is None:
            continue
        if not isinstance(value, str | os.PathLike):
            if not is_frame(value):
                raise InputError("is no table", where=name, fix="Give a file, or a data frame with one edge per row")
            graph.hold_out(split, FrameTable(f"{name_of(value)} of {name}", value))
            continue
        delimiter, header = options.delimiter, options.header
        if isinstance(graph.table, TextTable):
            delimiter, header = graph.table.dialect.delimiter.decode(), graph.table.has_header
        table = open_table(
            Path(value),
            delimiter=delimiter,
            header=header,
            comment=options.comment,
            exact_ids=options.ids == "auto",
            chunk_bytes=chunk_bytes,
        )
        graph.hold_out(split, table)


def _open_node_files(
    options: IngestOptions, like: Encoding | None, chunk_bytes: int
) -> tuple[list[NodeTable], NodeTable | None, dict[str, ArrayFile]]:
    """The files about nodes: tables, the one of them that says which nodes there are, and arrays by what they hold."""
    if options.nodes is not None and options.features is not None:
        fix = "Give the features in one of them"
        raise ConfigError("nodes and features exclude each other", where="features", fix=fix)
    column = options.label_column
    label_columns = [column] if isinstance(column, str | int) else column
    given = [role for role in ("splits", "nodes", "labels") if getattr(options, role) is not None]
    tables, members, arrays = list[NodeTable](), None, dict[str, ArrayFile]()
    for role in NODE_FILES:
        if (value := getattr(options, role)) is None:
            continue
        labels = label_columns if role == "labels" or (role == "nodes" and options.labels is None) else None
        split = options.split_column if role in given[:1] else None  # it is about one file
        times = (
            {"node_time": options.node_time_column, "seed_time": options.seed_time_column} if role == "nodes" else {}
        )
        wanted = (options.id_column, split, *times.values(), *(labels or ()), *(options.feature_columns or ()))
        opened = _open_node_file(role, value, options, wanted, chunk_bytes)
        if isinstance(opened, ArrayFile):
            arrays[role] = opened
            continue
        table = describe_table(
            opened,
            id_column=options.id_column,
            feature_columns=_feature_columns(options, like) if role in ("nodes", "features") else None,
            drop_columns=options.drop_columns if role in ("nodes", "features") else None,
            label_columns=labels,
            split_column=split,
            time_columns=times,
            roles=role,
        )
        if table.features:
            table = replace(table, reader=_column_reader(table, options, like))
        tables.append(table)
        if role in ("nodes", "features"):
            members = table
    return tables, members, arrays


def _feature_columns(options: IngestOptions, like: Encoding | None) -> Sequence[ColumnName] | None:
    if like is None or not like.columns:
        return options.feature_columns
    return [column.name for column in like.columns]


def _column_reader(table: NodeTable, options: IngestOptions, like: Encoding | None) -> ColumnReader:
    if like is not None and like.columns:
        categorical = [at for at, column in zip(table.features, like.columns) if column.categories is not None]
    else:
        categorical = find_columns(table.table, options.categorical or (), "categorical")
        if strange := [table.table.names[column] for column in categorical if column not in table.features]:
            what = f"column {strange[0]} is categorical, but no feature"
            raise ConfigError(what, where="categorical", fix="Name it in feature_columns too, or leave it out")
    missing = options.missing if like is None else like.missing
    return ColumnReader(
        table.table, table.features, categorical, missing=missing, allow_nan=options.allow_nan, like=like
    )


def _open_node_file(
    role: str, value: Any, options: IngestOptions, wanted: Sequence[ColumnName | None], chunk_bytes: int
) -> TableReader | ArrayFile:
    """A table about nodes, or an array by position: in a file, or in memory."""
    if isinstance(value, TableReader):
        return value
    if is_frame(value):
        return FrameTable(f"{name_of(value)} of {role}", value)
    if not isinstance(value, str | os.PathLike):
        array = array_of(role, value)
        if role not in _EXPECTED:
            raise InputError("is an array, not a table", where=role, fix="Give it as features, labels or splits")
        kinds, ranks = _EXPECTED[role]
        return ArrayFile.held(role, labels_of(array) if role == "labels" else array).expect(kinds, *ranks)
    path = Path(value)
    found = detect_format(path)
    if found == "npy" and role in _EXPECTED:
        kinds, ranks = _EXPECTED[role]
        return open_npy(path).expect(kinds, *ranks)
    if found in ("npy", "npz"):
        fix = "Give a text or Parquet table; .npy arrays go to features, labels or splits"
        raise InputError(f"is .{found}, which {role} cannot be", where=str(path), fix=fix)
    return open_table(
        path,
        header=options.header,
        comment=options.comment,
        wanted=wanted,
        exact_ids=options.ids == "auto",
        chunk_bytes=chunk_bytes,
    )


def _count_nodes(graph: EdgeTable | ArrayGraph, arrays: Iterable[ArrayFile]) -> tuple[int | None, str]:
    """N as the arrays by position say, and which of them; arrays of different lengths are an error."""
    counts = [(len(array), array.where) for array in arrays]
    if isinstance(graph, ArrayGraph) and graph.num_nodes is not None:
        counts.insert(0, (graph.num_nodes, graph.num_nodes_from))
    if not counts:
        return None, ""
    number, where = counts[0]
    for other, elsewhere in counts[1:]:
        if other != number:
            what = f"has {other} rows, but {where} has {number} nodes"
            raise InputError(what, where=elsewhere, fix="Give one row for every node")
    return number, where


def _id_mode(ids: str, graph: EdgeTable | ArrayGraph, tables: Sequence[NodeTable], array: str) -> IdMode:
    by_position = str(graph.path) if isinstance(graph, ArrayGraph) else array
    if by_position and ids == "str":
        what = f"ids=str does not go together with {by_position}, whose rows belong to the nodes 0, 1, 2, ..."
        raise ConfigError(what, where="ids", fix="Use ids=index, or give a table with node ids")
    if by_position or ids == "index":
        return "index"
    if ids in ("int", "str"):
        return "int" if ids == "int" else "str"
    integers = graph.integer_ids if isinstance(graph, EdgeTable) else True
    return "int" if integers and all(table.table.column_kind(table.id_column) == "int" for table in tables) else "str"


def _twice(what: str) -> ConfigError:
    return ConfigError(f"there are {what} in two places", where=what, fix="Give them once")
