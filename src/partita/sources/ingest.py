"""``ingest``: from a user's files to a graph store, with memory for the nodes but never for the edges."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from jaxtyping import Int64

from partita.core.errors import ConfigError, InputError, nearest
from partita.graph.build import TopologyBuilder, TopologySummary
from partita.graph.metadata import MULTILABEL, REGRESSION
from partita.graph.splits import seeded_split, write_splits
from partita.graph.writer import StoreWriter
from partita.sources.array_graph import ArrayGraph
from partita.sources.detect import graph_of
from partita.sources.edges import ColumnName
from partita.sources.ids import IdMode, Ids, IndexIds, IntIds, StringIds
from partita.sources.inputs import IngestInputs, NodeFiles, open_inputs
from partita.sources.labels import AUTO, TASKS, Labels, LabelSummary, make_labels
from partita.sources.node_tables import Features, Membership, NodeTable, Splits, located
from partita.sources.summary import IngestSummary
from partita.sources.text import NotOfKindError
from partita.sources.unpack import unpacked

_CHOICES = {
    "ids": ("auto", *get_args(IdMode)),
    "task": TASKS,
    "self_loops": ("keep", "drop", "add"),
    "feature_dtype": ("float32", "float16"),
}


def ingest(
    source: Any,
    store: str | os.PathLike[str],
    *,
    format: str = "auto",
    delimiter: str | None = None,
    header: bool | None = None,
    comment: str | None = "#",
    source_column: ColumnName | None = None,
    target_column: ColumnName | None = None,
    weight_column: ColumnName | None = None,
    undirected: bool = False,
    deduplicate: bool = False,
    self_loops: str = "keep",
    ids: str = "auto",
    nodes: str | os.PathLike[str] | None = None,
    features: str | os.PathLike[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    splits: str | os.PathLike[str] | None = None,
    id_column: ColumnName | None = None,
    feature_columns: Sequence[ColumnName] | None = None,
    label_column: ColumnName | Sequence[ColumnName] | None = None,
    split_column: ColumnName | None = None,
    task: str = "auto",
    feature_dtype: str = "float32",
    allow_nan: bool = False,
    split: Sequence[float] | None = (0.6, 0.2, 0.2),
    split_seed: int = 0,
    split_index: int | None = None,
    memory_limit: int | None = None,
    overwrite: bool = False,
) -> IngestSummary:
    """Make a graph store of a user's files.

    The nodes of the graph are those of the edges together with those of the node or feature table. Integer ids
    are ordered by value, names by first appearance (tables first, then edges, row by row, source before target).
    Neighbors of a node keep the order of the edges in the source.

    Args:
        source: edges: a text table (CSV, TSV, blank-separated, SNAP), a Parquet file or a directory of them, or a
            ``.npz`` file with ``edge_index`` (see :mod:`partita.sources.array_graph`), or one that SciPy has written.
            Text may be gzipped. Or a directory in the layout of OGB's node-property datasets; a name such as
            ``"ogbn-arxiv"`` fetches one (see :mod:`partita.sources.ogb`). Or an object: PyG's ``Data`` or a dataset of
            one graph, a DGL graph, a SciPy sparse matrix, or a dictionary of arrays (see
            :mod:`partita.sources.objects`).
        store: directory to be made.
        format: "auto", "text" (or "csv", "tsv", "snap"), "parquet", "npz".
        delimiter: of text tables: one character, "tab", or "space" for runs of blanks; ``None``: found out.
        header: whether the text table of edges names its columns; ``None``: found out (for other tables always).
        comment: how comment lines of text tables begin; ``None``: there are none.
        source_column: name or position (from 0) of the sources; ``None``: the first column.
        target_column: of the targets; ``None``: the second column.
        weight_column: of the edge weights, >= 0; ``None``: none.
        undirected: every edge stands for both directions.
        deduplicate: keep only the first of edges with the same ends.
        self_loops: "keep", "drop", or "add" one to every node.
        ids: "int": integers >= 0 with gaps; "index": 0..N-1; "str": names; "auto": int if all ids are integers.
        nodes: table with the node ids and any of features, labels, split.
        features: table with node ids and features, or a ``.npy`` array whose row i belongs to node i.
        labels: table with node ids and labels (and perhaps a split), or a ``.npy`` array.
        splits: table with node ids and train, val or test, or a ``.npy`` array of these words.
        id_column: of the node ids in these tables; ``None``: the first.
        feature_columns: ``None``: all columns of the node or feature table that are nothing else.
        label_column: one or several; ``None``: the column "label" of ``nodes``, the rest of ``labels``.
        split_column: ``None``: the column "split", if there is one.
        task: "classes", "multilabel", "regression"; "auto": several label columns are multi-label, floats a
            regression, integers and words classes.
        feature_dtype: "float32" or "float16".
        allow_nan: accept features that are not finite.
        split: fractions of training, validation and test nodes for a seeded split of the labeled nodes, where
            the files bring none; ``None``: no split.
        split_seed: of the seeded split.
        split_index: which of several splits of an ``.npz`` file; ``None``: the first.
        memory_limit: bytes of private memory besides what is O(nodes); ``None``: a quarter of what is available.
        overwrite: replace a store that is there already.

    Returns:
        What was ingested.

    Raises:
        InputError: a file cannot be used; the message names file, line or row, and column.
        ConfigError: an argument is not one of its choices, or two arguments exclude each other.
        StoreError: there is something at ``store`` already.
        ResourceError: the disk is full.
    """
    began = time.perf_counter()
    for name, value in {"ids": ids, "task": task, "self_loops": self_loops, "feature_dtype": feature_dtype}.items():
        if value not in _CHOICES[name]:
            raise ConfigError(f"'{value}' is not a choice", where=name, fix=nearest(str(value), _CHOICES[name]))
    if split is not None:
        seeded_split(0, split, split_seed)  # complains about bad fractions before the long work
    if memory_limit is None:
        memory_limit = _quarter_of_memory()
    elif memory_limit <= 0:
        raise ConfigError(f"{memory_limit} is not a size in bytes", where="memory_limit", fix="Give a number > 0")
    given = [None if path is None else Path(path) for path in (nodes, features, labels, splits)]
    with graph_of(source, Path(store)) as (file, arrays), unpacked([file, *given], Path(store)) as paths:
        edges, node_table, feature_file, label_file, split_file = paths
        assert edges is not None
        files = NodeFiles(
            nodes=node_table,
            features=feature_file,
            labels=label_file,
            splits=split_file,
            id_column=id_column,
            feature_columns=feature_columns,
            label_columns=[label_column] if isinstance(label_column, str | int) else label_column,
            split_column=split_column,
        )
        inputs = open_inputs(
            edges,
            files,
            arrays=arrays,
            ids=ids,
            format=format,
            delimiter=delimiter,
            header=header,
            comment=comment,
            source_column=source_column,
            target_column=target_column,
            weight_column=weight_column,
            chunk_bytes=max(1 << 16, min(8 << 20, memory_limit // 64)),
        )
        job = _Job(
            inputs=inputs,
            source=str(file),
            store=Path(store),
            overwrite=overwrite,
            undirected=undirected,
            deduplicate=deduplicate,
            self_loops=self_loops,
            task=task,
            feature_dtype=np.dtype(feature_dtype),
            allow_nan=allow_nan,
            split=split,
            split_seed=split_seed,
            split_index=split_index,
            memory_limit=memory_limit,
            began=began,
        )
        try:
            return job.run(inputs.id_mode)
        except NotOfKindError as error:
            if ids != "auto" or inputs.id_mode != "int" or error.kind != "int":
                raise
            job.notes[:] = [f"the ids are names, not integers, because of {error.where}: {error.what}"]
        return job.run("str")


@dataclass
class _Job:
    """One ingest: everything that was asked for, and what was found out so far."""

    inputs: IngestInputs
    source: str
    store: Path
    overwrite: bool
    undirected: bool
    deduplicate: bool
    self_loops: str
    task: str
    feature_dtype: np.dtype[Any]
    allow_nan: bool
    split: Sequence[float] | None
    split_seed: int
    split_index: int | None
    memory_limit: int
    began: float
    notes: list[str] = field(default_factory=list)

    def run(self, mode: IdMode) -> IngestSummary:
        inputs = self.inputs
        with StoreWriter(self.store, overwrite=self.overwrite) as writer:
            ids = self._make_ids(mode)
            members = None if inputs.members is None else Membership(inputs.members, ids)
            topology = self._read_edges(writer, ids, members)
            ids.write_names(writer)
            features = Features(writer, len(ids), self.feature_dtype, allow_nan=self.allow_nan, name_of=ids.name)
            splits = Splits(len(ids))
            labels = self._read_nodes(ids, members, features, splits)
            label_summary = None if labels is None else labels.finish(writer)
            rule = self._split(writer, splits, label_summary, ids)
            found = splits.nodes() if rule else {}
            if label_summary is not None and not rule:
                found, rule = self._seeded(label_summary)
            write_splits(writer, found)
            task, classes, names = self._labels_of(label_summary)
            self.notes += inputs.notes
            writer.finish(
                num_nodes=len(ids),
                num_edges=topology.num_edges,
                task=task,
                num_classes=classes,
                class_names=names,
                source=self.source,
                split_rule=rule or "none",
                ids=mode,
                allow_nan=self.allow_nan,
                ingest_notes=list(self.notes),
            )
        seconds = time.perf_counter() - self.began
        return IngestSummary(
            path=str(self.store),
            nodes=len(ids),
            edges=topology.num_edges,
            features=features.width,
            task=task,
            classes=classes,
            splits={name: len(members_of) for name, members_of in found.items()},
            split_rule=rule or "none",
            ids=mode,
            header=inputs.header,
            self_loops=topology.self_loops,
            duplicates_dropped=topology.duplicates_dropped,
            notes=self.notes,
            seconds=seconds,
            edges_per_second=topology.num_edges / max(seconds, 1e-9),
        )

    # Nodes and edges

    def _make_ids(self, mode: IdMode) -> Ids:
        if mode == "str":
            return StringIds()
        if mode == "int":
            return IntIds()
        return IndexIds(self.inputs.num_nodes, self.inputs.num_nodes_from)

    def _read_edges(self, writer: StoreWriter, ids: Ids, members: Membership | None) -> TopologySummary:
        graph = self.inputs.graph
        undirected = self.undirected
        if isinstance(graph, ArrayGraph):
            if undirected and graph.both_directions:
                self.notes.append("the file stores both directions of every edge, so none was mirrored")
            elif graph.mirrored and not undirected:
                self.notes.append("the file stores every undirected edge once, so all were mirrored")
            undirected = graph.mirrored or (undirected and not graph.both_directions)
        builder = TopologyBuilder(
            writer,
            memory_limit=self.memory_limit,
            weighted=graph.weighted,
            undirected=undirected,
            deduplicate=self.deduplicate,
            self_loops=self.self_loops,
        )
        with closing(graph.batches(ids.kind)) as batches:  # an error here must stop the reader's threads
            for batch in batches:
                src, dst = ids.add_edges(batch)
                builder.add(src, dst, batch.floats(2) if graph.weighted else None)
        with _about(graph.path):
            rank = ids.freeze()
        if members is not None:
            members.freeze(ids, rank)
        if len(ids) == 0:
            raise InputError("there are no nodes", where=str(graph.path), fix="Give at least one edge or node")
        return builder.finish(len(ids), rank)

    def _read_nodes(self, ids: Ids, members: Membership | None, features: Features, splits: Splits) -> Labels | None:
        """Read everything that the files say about nodes, except the masks of an ``.npz``."""
        inputs = self.inputs
        labels: Labels | None = None
        for table in inputs.tables:
            if not table.columns:  # it only says which nodes there are
                continue
            mine = self._labels_for(table, len(ids))
            labels = mine or labels
            rows = (
                located(table, ids, mine)
                if members is None or table is not inputs.members
                else members.located(ids, mine)
            )
            wide, end = len(table.features), len(table.features) + len(table.labels)
            with closing(rows):
                for nodes, batch in rows:
                    if wide:
                        missing = np.nan if self.allow_nan else None
                        features.put(nodes, batch.matrix(range(wide), missing=missing), batch.where)
                    if mine is not None:
                        mine.put(nodes, batch, range(wide, end))
                    if table.split is not None:
                        splits.put(nodes, batch, end)
        if inputs.feature_rows is not None:
            where, blocks = inputs.feature_rows()
            features.put_blocks(blocks, where)
        if inputs.label_array is not None:
            array = inputs.label_array
            kind = {"f": "float", "U": "str"}.get(array.dtype.kind, "int")
            width = array.shape[1] if len(array.shape) == 2 else 1
            labels = make_labels(
                MULTILABEL if self.task == AUTO and len(array.shape) == 2 else self.task,
                [kind] * width,  # type: ignore[list-item]
                None,
                len(ids),
                array.where,
            )
            for nodes, batch in inputs.rows_of(array, "label"):
                labels.put(nodes, batch, range(width))
        if inputs.split_array is not None:
            for nodes, batch in inputs.rows_of(inputs.split_array, "split"):
                splits.put(nodes, batch, 0)
        return labels

    def _labels_for(self, table: NodeTable, num_nodes: int) -> Labels | None:
        if not table.labels:
            return None
        kinds = [table.table.column_kind(column) for column in table.labels]
        names = [table.table.names[column] for column in table.labels] if table.table.has_header else None
        return make_labels(self.task, kinds, names, num_nodes, table.where)

    # Labels and splits

    def _labels_of(self, found: LabelSummary | None) -> tuple[str | None, int, list[str] | None]:
        """Task, number of classes, and their names, which an ``.npz`` may bring along."""
        if found is None:
            return None, 0, None
        names, graph = found.class_names, self.inputs.graph
        if names is None and found.task != REGRESSION and isinstance(graph, ArrayGraph) and graph.labels is not None:
            given = graph.class_names
            if given is not None and len(given) == found.num_classes:
                names = given
            elif given is not None:
                self.notes.append(f"'class_names' has {len(given)} names for {found.num_classes} classes, not used")
        return found.task, found.num_classes, names

    def _split(self, writer: StoreWriter, splits: Splits, labels: LabelSummary | None, ids: Ids) -> str:
        """Where the splits in the files come from; empty if the files bring none."""
        inputs, graph = self.inputs, self.inputs.graph
        rule = ""
        if inputs.split_array is not None:
            rule = f"given: {inputs.split_array.where}"
        for table in inputs.tables:
            if table.split is not None:
                rule = f"given: column {table.table.names[table.split]} of {table.where}"
        if not rule and isinstance(graph, ArrayGraph) and (count := graph.num_splits()):
            index = self.split_index or 0
            for name, mask in graph.masks(index).items():
                splits.put_mask(name, mask, str(graph.path), ids.name)
            rule = f"given: masks in {graph.path}" + (f", split {index} of {count}" if count > 1 else "")
        elif self.split_index is not None:
            what = f"split_index={self.split_index}, but the source has no numbered splits"
            raise InputError(what, where=str(graph.path), fix="Leave split_index out")
        if rule and labels is not None and (without := splits.leave_out(labels.labeled)):
            self.notes.append(f"{without} node(s) of the splits have no label and were left out of their split")
        return rule

    def _seeded(self, labels: LabelSummary) -> tuple[dict[str, Int64[np.ndarray, "s"]], str]:
        if self.split is None:
            return {}, ""
        labeled = np.flatnonzero(labels.labeled)
        shares = "/".join(f"{100 * part:g}" for part in self.split)
        rule = f"seeded: {shares} of the {len(labeled)} labeled nodes, seed {self.split_seed}"
        return seeded_split(labeled, self.split, self.split_seed), rule


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """Name the file in an error that does not know it."""
    try:
        yield
    except InputError as error:
        if error.where is not None:
            raise
        raise InputError(error.what, where=str(path), fix=error.fix) from None


def _quarter_of_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available) // 4
