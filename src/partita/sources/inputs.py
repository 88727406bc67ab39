"""Opens all files of an ingest and decides, before the long work, what belongs to what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64, Shaped

from partita.core.errors import ConfigError, InputError
from partita.sources.array_graph import ArrayGraph
from partita.sources.arrays import ArrayFile, open_npy
from partita.sources.batch import Cells
from partita.sources.edges import EdgeTable, detect_format, open_table
from partita.sources.ids import IdMode
from partita.sources.node_tables import NodeTable, describe_table
from partita.sources.options import IngestOptions
from partita.sources.text import TextTable

FeatureRows = Callable[[], tuple[str, Iterator[tuple[int, Shaped[np.ndarray, "n F"]]]]]
"""Gives the name of the file, and runs of feature rows with the number of their first."""


NODE_FILES = ("nodes", "features", "labels", "splits")
"""The options that name files about nodes."""


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
        feature_rows: features by position, if any.
        label_array: labels by position, if any.
        split_array: splits by position, if any.
        header: whether the edge file has a header; ``None`` where the format knows none.
        notes: what the user should know.
    """

    graph: EdgeTable | ArrayGraph
    id_mode: IdMode
    num_nodes: int | None
    num_nodes_from: str
    tables: list[NodeTable]
    members: NodeTable | None
    feature_rows: FeatureRows | None
    label_array: ArrayFile | None
    split_array: ArrayFile | None
    header: bool | None
    notes: list[str]

    def rows_of(self, array: ArrayFile, name: str) -> Iterator[tuple[Int64[np.ndarray, "n"], Cells]]:
        """Rows of an array by position: the nodes, and a batch with one column for each column of the array."""
        import pyarrow as pa

        for start, block in array.blocks():

            def where(row: int, start: int = start) -> str:
                return f"{array.where}, row {start + row} (from 0)"

            native = block.astype(block.dtype.newbyteorder("="), copy=False)
            if native.dtype == np.float16:
                native = native.astype(np.float32)
            columns = [native] if native.ndim == 1 else [native[:, column] for column in range(native.shape[1])]
            names = [name] if native.ndim == 1 else [str(column) for column in range(native.shape[1])]
            arrays = [pa.array(np.ascontiguousarray(column)) for column in columns]
            yield np.arange(start, start + len(block)), Cells(arrays, names, where)


def open_inputs(
    source: Path, options: IngestOptions, *, arrays: dict[str, ArrayFile] | None = None, chunk_bytes: int
) -> IngestInputs:
    """Open everything and check what can be checked without reading rows.

    Args:
        source: of the edges.
        options: of the ingest.
        arrays: the graph, where it is in arrays and not in a file.
        chunk_bytes: of a file to read at once.

    Raises:
        InputError: a file or a column is missing or unusable, or arrays of different lengths.
        ConfigError: two arguments exclude each other.
    """
    graph: EdgeTable | ArrayGraph
    if arrays is not None or detect_format(source, options.format) == "npz":
        graph = ArrayGraph(source, arrays)
    else:
        wanted = (options.source_column, options.target_column, options.weight_column)
        table = open_table(
            source,
            format=options.format,
            delimiter=options.delimiter,
            header=options.header,
            comment=options.comment,
            wanted=wanted,
            chunk_bytes=chunk_bytes,
        )
        graph = EdgeTable(table, *wanted)
    opened = _open_node_files(options, chunk_bytes)
    labels, splits = opened.labels, opened.splits
    notes: list[str] = []
    if isinstance(graph, ArrayGraph):
        notes += graph.notes
        if graph.features() is not None and (opened.features is not None or any(t.features for t in opened.tables)):
            raise _twice("features")
        if graph.labels is not None and labels is not None:
            raise _twice("labels")
        labels = labels or graph.labels
    if sum(bool(table.labels) for table in opened.tables) + (labels is not None) > 1:
        raise _twice("labels")
    if sum(table.split is not None for table in opened.tables) + (splits is not None) > 1:
        raise _twice("splits")
    num_nodes, num_nodes_from = _count_nodes(graph, [opened.features, opened.labels, opened.splits])
    return IngestInputs(
        graph=graph,
        id_mode=_id_mode(options.ids, graph, opened.tables, num_nodes_from),
        num_nodes=num_nodes,
        num_nodes_from=num_nodes_from,
        tables=opened.tables,
        members=opened.members,
        feature_rows=_feature_rows(graph, opened.features),
        label_array=labels,
        split_array=splits,
        header=graph.table.has_header if isinstance(graph, EdgeTable) and isinstance(graph.table, TextTable) else None,
        notes=notes,
    )


@dataclass
class _Opened:
    """The files about nodes: tables, and arrays by what they hold."""

    tables: list[NodeTable]
    members: NodeTable | None = None
    features: ArrayFile | None = None
    labels: ArrayFile | None = None
    splits: ArrayFile | None = None


def _open_node_files(options: IngestOptions, chunk_bytes: int) -> _Opened:
    if options.nodes is not None and options.features is not None:
        fix = "Give the features in one of them"
        raise ConfigError("nodes and features exclude each other", where="features", fix=fix)
    column = options.label_column
    label_columns = [column] if isinstance(column, str | int) else column
    opened = _Opened([])
    for role in NODE_FILES:
        path: Path | None = getattr(options, role)
        if path is None:
            continue
        found = detect_format(path)
        if found == "npy" and role != "nodes":
            setattr(opened, role, _checked_array(role, open_npy(path)))
            continue
        if found in ("npy", "npz"):
            fix = "Give a text or Parquet table; .npy arrays go to features, labels or splits"
            raise InputError(f"is .{found}, which {role} cannot be", where=str(path), fix=fix)
        labels = label_columns if role == "labels" or (role == "nodes" and options.labels is None) else None
        split = options.split_column if _takes_split_column(role, options) else None
        wanted = (options.id_column, split, *(labels or ()), *(options.feature_columns or ()))
        table = describe_table(
            open_table(path, comment=options.comment, wanted=wanted, chunk_bytes=chunk_bytes),
            id_column=options.id_column,
            feature_columns=options.feature_columns if role in ("nodes", "features") else None,
            label_columns=labels,
            split_column=split,
            roles=role,
        )
        opened.tables.append(table)
        if role in ("nodes", "features"):
            opened.members = table
    return opened


def _takes_split_column(role: str, options: IngestOptions) -> bool:
    """Whether the user's ``split_column`` is about this file: the first of splits, nodes, labels that is given."""
    given = [name for name in ("splits", "nodes", "labels") if getattr(options, name) is not None]
    return bool(given) and given[0] == role


def _checked_array(role: str, array: ArrayFile) -> ArrayFile:
    if role == "features":
        array.expect("fiub", 2)
    elif role == "labels":
        array.expect("fiubU", 1, 2)
    else:
        array.expect("U", 1)
    return array


def _count_nodes(graph: EdgeTable | ArrayGraph, arrays: Sequence[ArrayFile | None]) -> tuple[int | None, str]:
    """N as the arrays by position say, and which of them; arrays of different lengths are an error."""
    counts = [(len(array), array.where) for array in arrays if array is not None]
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


def _feature_rows(graph: EdgeTable | ArrayGraph, array: ArrayFile | None) -> FeatureRows | None:
    if array is not None:
        return lambda: (array.where, array.blocks())
    if isinstance(graph, ArrayGraph) and graph.features() is not None:

        def rows() -> tuple[str, Iterator[tuple[int, Shaped[np.ndarray, "n F"]]]]:
            found = graph.features()
            if found is None:
                raise RuntimeError("the features were there before")
            return graph.features_from, found[1]

        return rows
    return None


def _twice(what: str) -> ConfigError:
    return ConfigError(f"there are {what} in two places", where=what, fix="Give them once")
