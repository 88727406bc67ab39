"""The options of an ingest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from partita.core.options import SEEDS, SIZES, Options, Range, Size, fractions, parse_bytes

ColumnName = str | int
"""Name of a column, or its position from 0."""

File = str | os.PathLike[str]

About = str | os.PathLike[str] | object
"""A file about nodes; or a data frame, or an array by position."""


def column(text: str) -> ColumnName:
    """A column by its name, or by its position where the text is a number."""
    return int(text) if text.isdecimal() else text


def columns(text: str) -> list[ColumnName]:
    """Columns by names or positions between commas."""
    return [column(part) for part in text.split(",")]


def words_by_commas(text: str) -> list[str]:
    """Words between commas."""
    return [part.strip() for part in text.split(",")]


@dataclass(frozen=True, kw_only=True)
class IngestOptions(Options):
    """See :func:`partita.ingest`."""

    format: Annotated[str, "auto, csv, tsv, snap, parquet or npz."] = "auto"
    delimiter: Annotated[str | None, "One character, tab, or space (default: auto-detect)."] = None
    header: Annotated[
        bool | None, "Whether the first line of text tables names the columns (default: decided by evidence)."
    ] = None
    comment: Annotated[str | None, "How comment lines of text tables begin."] = "#"
    source_column: Annotated[ColumnName | None, "Name or position (from 0) of the sources.", column] = None
    target_column: Annotated[ColumnName | None, "Name or position of the targets.", column] = None
    weight_column: Annotated[ColumnName | None, "Name or position of the edge weights.", column] = None
    time_column: Annotated[
        ColumnName | None, "Name or position of the times of the edges: whole numbers, or dates.", column
    ] = None
    relation_column: Annotated[
        ColumnName | None, "Name or position of the relations of a typed graph (found in tables of triples).", column
    ] = None
    val_edges: Annotated[About | None, "Table of edges that are held out for validation, with the same columns."] = None
    test_edges: Annotated[About | None, "Table of edges that are held out for tests, likewise."] = None
    edge_feature_columns: Annotated[
        Sequence[ColumnName] | None, "Columns of the edges that are their features, by commas (* and ? as below).",
        columns,
    ] = None  # fmt: skip
    undirected: Annotated[bool, "Store every edge in both directions."] = False
    deduplicate: Annotated[bool, "Keep only the first of equal edges."] = False
    self_loops: Annotated[Literal["keep", "drop", "add"], "keep, drop or add (one per node)."] = "keep"
    ids: Annotated[Literal["auto", "int", "str", "index"], "Node ids: auto, int, str, or index (0 to N-1)."] = "auto"
    nodes: Annotated[About | None, "Table: id, features, label, split."] = None
    features: Annotated[About | None, "Table: id, features; or .npy, row i is node i."] = None
    labels: Annotated[About | None, "Table: id, label; or .npy."] = None
    splits: Annotated[About | None, "Table: id, train/val/test; or .npy."] = None
    id_column: Annotated[ColumnName | None, "Name or position of the ids in these tables.", column] = None
    feature_columns: Annotated[
        Sequence[ColumnName] | None, "Which columns are features, by commas (* and ? stand for any letters); else all.",
        columns,
    ] = None  # fmt: skip
    drop_columns: Annotated[
        Sequence[ColumnName] | None, "Columns that are not features, by commas (* and ? stand for any letters).",
        columns,
    ] = None  # fmt: skip
    categorical: Annotated[
        Sequence[ColumnName] | None, "Columns of categories: one feature for each of their words or codes.", columns
    ] = None
    missing: Annotated[
        Literal["zero", "mean", "drop"] | None,
        "Empty feature cells and nodes without a row: zero, the mean of the training nodes, or drop: leave these nodes "
        "and their edges out (default: refused).",
    ] = None
    node_features: Annotated[
        Literal["degree", "constant"] | None,
        "For a source without features: degree (logarithm of the in-degree, and one-hot buckets) or constant (ones).",
    ] = None
    standardize: Annotated[bool, "Scale numeric features to mean 0, deviation 1 of the training nodes."] = False
    like: Annotated[
        File | None, "Store of the graph that a model was trained on: same columns, categories, fills and scales."
    ] = None
    label_column: Annotated[
        ColumnName | Sequence[ColumnName] | None,
        "The label column; several, separated by commas, for multi-label.",
        columns,
    ] = None
    node_time_column: Annotated[
        ColumnName | None, "The column of times from which on nodes are there (default: node_time).", column
    ] = None
    seed_time_column: Annotated[
        ColumnName | None, "The column of times at which nodes are asked about as seeds (default: seed_time).", column
    ] = None
    split_column: Annotated[ColumnName | None, "The column of train, val, test.", column] = None
    tables: Annotated[
        Sequence[str] | None, "Of a database: the tables that make the graph, by commas (default: all).",
        words_by_commas,
    ] = None  # fmt: skip
    row_times: Annotated[
        Sequence[str] | None,
        "Of a database: the columns, as table.column by commas, that say from when on a row is there, or when its "
        "question is asked (default: a table's only column of dates).",
        words_by_commas,
    ] = None
    targets: Annotated[
        Sequence[str] | None,
        "Of a database: tables whose rows are links to be predicted, from questions to what answers them.",
        words_by_commas,
    ] = None
    unlabeled: Annotated[str | None, "Label that means that a node has none, for instance -1; none: no label does."] = (
        None
    )
    keep_codes: Annotated[bool, "Integer labels are the classes, also with gaps (default: numbered 0..C-1)."] = False
    task: Annotated[str, "auto, classes, multilabel or regression."] = "auto"
    feature_dtype: Annotated[
        Literal["float32", "float16", "int8", "int4"],
        "float32 or float16; or int8 or int4: small integers with a scale for each column.",
    ] = "float32"
    allow_nan: Annotated[bool, "Accept features that are not finite."] = False
    split: Annotated[
        Sequence[float] | None, "Fractions of a random train/val/test split, if the source has none.", fractions
    ] = (0.6, 0.2, 0.2)  # fmt: skip
    split_times: Annotated[
        Sequence[str] | None, "Two times, by a comma: seeds from the first on are for validation, from the second on "
        "for tests; all others for training. So are labeled nodes, and links where edges have times.", words_by_commas,
    ] = None  # fmt: skip
    split_seed: Annotated[int, "Seed of the random split.", SEEDS] = 0
    split_index: Annotated[int | None, "Which of several splits of an .npz file.", Range(0, 2**31 - 1)] = None
    memory_limit: Annotated[Size | None, "Private memory for sorting, for instance 2GiB.", SIZES, parse_bytes] = None
    overwrite: Annotated[bool, "Replace an existing store."] = False
