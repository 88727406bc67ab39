"""``ingest``: from a user's files to a graph store, with memory for the nodes but never for the edges."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Int64, Shaped

from partita.core import progress
from partita.core.errors import ConfigError, InputError, nearest
from partita.core.files import map_array
from partita.core.memory import available_bytes, available_memory, held_bytes
from partita.core.memory_need import MemoryNeed
from partita.core.options import size_of, takes
from partita.graph.build import EdgeTimes, TopologyBuilder, TopologySummary
from partita.graph.metadata import MULTILABEL, REGRESSION, TYPE_PREFIX
from partita.graph.schema import Schema
from partita.graph.small import BITS
from partita.graph.splits import seeded_split, write_splits
from partita.graph.times import ALWAYS, DATES, SPLIT_TIMES
from partita.graph.writer import StoreWriter
from partita.sources.array_graph import ArrayGraph
from partita.sources.batch import Cells, counted
from partita.sources.detect import source_of
from partita.sources.edge_features import EdgeFeatures
from partita.sources.edges import EdgeTable
from partita.sources.encoding import DROP, NOTE, TYPED_NOTE, Like
from partita.sources.features import Features
from partita.sources.held_out import SPLITS, HeldOut, repeated
from partita.sources.ids import IdMode, Ids, IndexIds, IntIds, NamedIds, StringIds
from partita.sources.inputs import HELD_FILES, NODE_FILES, IngestInputs, open_inputs, rows_of
from partita.sources.labels import AUTO, TASKS, LabelRules, Labels, LabelSummary, make_labels
from partita.sources.node_tables import Membership, NodeTable, Splits, located, times_of
from partita.sources.options import File, IngestOptions
from partita.sources.summary import IngestSummary
from partita.sources.text import NotOfKindError, TextTable
from partita.sources.times import TimeCells
from partita.sources.typed_edges import TypedEdges, count_types, refuse_options
from partita.sources.unpack import unpacked

_NODE_BYTES = 48
"""Of a node, beside its id: row pointers, counts, ranks, label, splits, and where its features are."""
_READING_BYTES = 64 << 20
"""Of reading and writing columns."""
_TIMES = "edge-times"
"""File of the times of the edges, in the order of the source."""
_THREADS = 8
"""Of libraries that read tables."""
_FIX = "Give a lower --memory-limit, or raise the limit"


@takes(IngestOptions)
def ingest(source: Any, store: File, options: IngestOptions) -> IngestSummary:
    """Make a graph store of a user's files.

    The nodes of the graph are those of the edges together with those of the node or feature table. Integer ids
    are ordered by value, names by first appearance (tables first, then edges, row by row, source before target).
    Neighbors of a node keep the order of the edges in the source.

    Args:
        source: edges: a text table (CSV, TSV, blank-separated, SNAP), a Parquet file or a directory of them, or a
            ``.npz`` file with ``edge_index`` (see :mod:`partita.sources.array_graph`), or one that SciPy has written.
            Text may be gzipped. A table of triples (head, relation, tail), or a directory with ``train.txt``,
            ``valid.txt`` and ``test.txt`` of them, is a typed graph with one node type, ``"entity"``. Or a directory in
            the layout of OGB's node-property datasets; a name such as ``"ogbn-arxiv"`` fetches one (see
            :mod:`partita.sources.ogb`). Or an object (see :mod:`partita.sources.objects`): ``Data`` or ``HeteroData``
            of PyG, or a dataset of one graph, a DGL graph, a SciPy sparse matrix, a dictionary of arrays, a graph of
            networkx, a data frame of pandas, Polars or Arrow
            with one edge per row, or two arrays ``(src, dst)`` of ids. Tables about nodes may be data frames too, and
            features, labels and splits arrays by position.
        store: directory to be made.
        options: see :class:`~partita.sources.options.IngestOptions`. ``delimiter`` and ``header`` that are ``None`` are
            found out; ``comment`` ``None`` says that there are no comment lines. Sources, targets and ids of nodes are
            in the first columns where others are not named, labels in the column "label" of ``nodes`` or in the rest
            of ``labels``, splits in the column "split" if there is one. ``ids`` "int" are integers >= 0 with gaps,
            "auto" is "int" where all ids are integers, else "str". ``task`` "auto" takes several label columns for
            multi-label, floats for a regression, integers and words for classes. ``split`` ``None`` makes no split;
            one is made of the labeled nodes. Edges of ``val_edges`` and ``test_edges`` are held out: they are no edges
            of the graph, see :meth:`partita.GraphStore.held_out_edges`. The memory limit is besides what is O(nodes);
            ``None``: a quarter of what is available.

    Returns:
        What was ingested.

    Raises:
        InputError: a file cannot be used; the message names file, line or row, and column.
        ConfigError: an argument is not one of its choices, or two arguments exclude each other.
        StoreError: there is something at ``store`` already.
        ResourceError: the disk is full, or this process may not take so much memory.
    """
    began = time.perf_counter()
    if options.task not in TASKS:
        raise ConfigError(f"'{options.task}' is not a choice", where="task", fix=nearest(options.task, TASKS))
    if options.feature_dtype in BITS and options.allow_nan:
        raise ConfigError(
            f"{options.feature_dtype} holds finite numbers only",
            where="allow_nan",
            fix="Leave it out and give missing='zero' or 'mean' (--missing), or use the feature dtype float16",
        )
    if options.split is not None:
        seeded_split(0, options.split, options.split_seed)  # complains about bad fractions before the long work
    limit = available_bytes() // 4 if options.memory_limit is None else size_of(options.memory_limit, "memory_limit")
    _require_memory(limit)
    roles = [
        (role, Path(value))
        for role in (*NODE_FILES, *HELD_FILES.values())
        if isinstance(value := getattr(options, role), str | os.PathLike)
    ]
    with (
        source_of(source, options, Path(store)) as found,
        unpacked([found.path, *(path for _, path in roles)], Path(store)) as (file, *files),
    ):
        unpacked_files: dict[str, Any] = {role: copy for (role, _), copy in zip(roles, files)}
        if found.nodes is not None:
            if options.nodes is not None or options.features is not None:
                fix = "Give what is known of them as attributes of its nodes"
                raise ConfigError(f"{found.path} has nodes already", where="nodes", fix=fix)
            unpacked_files["nodes"] = found.nodes
        for split, held_file in found.held.items():
            if (name := HELD_FILES[split]) in unpacked_files or getattr(options, name) is not None:
                raise ConfigError(f"the directory has {held_file.name} already", where=name, fix="Name the files")
            unpacked_files[name] = held_file
        options = replace(options, **unpacked_files, undirected=options.undirected or found.undirected)
        options = replace(options, **found.options)
        like = None if options.like is None else Like.read(options.like)
        chunk_bytes = max(1 << 16, min(8 << 20, limit // 64))
        encoding = None if like is None else like.encoding
        inputs = open_inputs(replace(found, path=file), options, encoding, chunk_bytes=chunk_bytes)
        job = _Job(options, inputs, like, str(found.path), Path(store), limit, began, list(found.notes), found.kept)
        try:
            return job.run(inputs.id_mode)
        except NotOfKindError as error:
            if options.ids != "auto" or inputs.id_mode != "int" or error.kind != "int":
                raise
            job.notes[:] = [f"the ids are names, not integers, because of {error.where}: {error.what}"]
        return job.run("str")


@dataclass
class _Job:
    """One ingest: everything that was asked for, and what was found out so far."""

    options: IngestOptions
    inputs: IngestInputs
    like: Like | None
    source: str
    store: Path
    memory_limit: int
    began: float
    notes: list[str] = field(default_factory=list)
    kept: Mapping[str, Any] = field(default_factory=dict)
    schema: Schema | None = None
    time_cells: TimeCells = field(default_factory=TimeCells)
    seed_time: Int64[np.ndarray, "N"] | None = None
    has_edge_times: bool = False
    split_times: tuple[int, int] | None = None
    edge_features: int = 0
    held_out: dict[str, int] = field(default_factory=dict)

    def run(self, mode: IdMode) -> IngestSummary:
        inputs, options = self.inputs, self.options
        if isinstance(inputs.graph, ArrayGraph) and inputs.graph.types is not None:
            refuse_options(options, str(inputs.graph.path))
        tables = [each.table for each in inputs.tables]
        tables += [inputs.graph.table] if isinstance(inputs.graph, EdgeTable) else []
        self.notes += [table.note for table in tables if table.note]
        self.notes += [note for table in inputs.tables for note in table.notes()]
        self.notes += inputs.graph.notes() if isinstance(inputs.graph, EdgeTable) and options.ids == "auto" else []
        self.notes += [note] if (note := inputs.graph.unused()) else []
        with StoreWriter(self.store, overwrite=options.overwrite) as writer:
            ids: Ids = IndexIds(inputs.num_nodes, inputs.num_nodes_from)
            if isinstance(inputs.graph, ArrayGraph) and inputs.graph.names is not None:
                ids = NamedIds(inputs.num_nodes, inputs.num_nodes_from, self._names(inputs.graph))
            if self._missing() == DROP and (mode == "index" or inputs.members is None):
                raise ConfigError(
                    "nodes are left out by their ids, and rows here belong to positions, or no table has the nodes",
                    where="missing",
                    fix="Give the features as a table with ids (--nodes, --features), or use --missing zero or mean",
                )
            if mode != "index":
                ids = IntIds() if mode == "int" else StringIds()
            members = None if inputs.members is None else Membership(inputs.members, ids)
            topology = self._read_edges(writer, ids, members)
            ids.write_names(writer)
            features = self._new_features(writer, len(ids), ids)
            splits = Splits(len(ids))
            labels = self._read_nodes(ids, members, features, splits)
            self._make_features(writer, features)
            typed_features = self._read_typed_features(writer, ids)
            if options.feature_dtype in BITS and not (features.width or typed_features):
                raise ConfigError(
                    f"there are no features to store as {options.feature_dtype}",
                    where="feature_dtype",
                    fix="Leave it out, or give features (--features FILE, --nodes FILE, --node-features degree)",
                )
            label_summary = None if labels is None else labels.finish(writer)
            rule = self._split(writer, splits, label_summary, ids)
            found = splits.nodes() if rule else {}
            if options.split_times is not None:
                found, rule = self._by_time(label_summary, options.split_times, rule)
            elif label_summary is not None and not rule:
                found, rule = self._seeded(label_summary)
            write_splits(writer, found)
            train = found.get("train", np.arange(len(ids)))
            reader = next((table.reader for table in inputs.tables if table.reader is not None), None)
            repeated = None if self.like is None else self.like.encoding
            encoding, notes = features.finish(train, reader, standardize=options.standardize, like=repeated)
            self.notes += notes
            known = bool(encoding.columns) or encoding.changes_values
            encoded: dict[str, Any] = dict(self.kept)
            encoded |= {NOTE: encoding.to_json()} if known else {}
            encoded |= {DATES: True} if self.time_cells.dates else {}
            encoded |= self._finish_typed_features(typed_features, found.get("train"))
            encoded |= {} if self.split_times is None else {SPLIT_TIMES: list(self.split_times)}
            task, classes, names = self._labels_of(label_summary)
            if isinstance(inputs.graph, ArrayGraph):
                self.notes += inputs.graph.notes
            if label_summary is not None:
                self.notes += label_summary.notes
            self.notes += [note for table in tables if isinstance(table, TextTable) and (note := table.left_out())]
            writer.finish(
                num_nodes=len(ids),
                num_edges=topology.num_edges,
                task=task,
                num_classes=classes,
                class_names=names,
                source=self.source,
                split_rule=rule or "none",
                ids=mode,
                schema=self.schema,
                allow_nan=self.options.allow_nan,
                ingest_notes=list(self.notes),
                **encoded,
            )
        seconds = time.perf_counter() - self.began
        table = inputs.graph.table if isinstance(inputs.graph, EdgeTable) else None
        return IngestSummary(
            path=str(self.store),
            nodes=len(ids),
            edges=topology.num_edges,
            features=features.width,
            edge_features=self.edge_features,
            task=task,
            classes=classes,
            splits={name: len(members_of) for name, members_of in found.items()},
            held_out=self.held_out,
            split_rule=rule or "none",
            ids=mode,
            header=table.has_header if isinstance(table, TextTable) else None,
            edges_read=topology.num_added,
            both_directions=topology.both_directions or topology.mirrored,
            self_loops=topology.self_loops,
            repeated_edges=topology.repeats,
            duplicates_dropped=topology.duplicates_dropped,
            class_sizes=self._class_sizes(label_summary, names),
            node_types={} if self.schema is None else dict(zip(self.schema.node_types, self.schema.num_nodes)),
            relations={} if self.schema is None else dict(zip(map(str, self.schema.relations), self.schema.num_edges)),
            type_features={name: of.width for name, of in typed_features.items()},
            notes=self.notes,
            seconds=seconds,
            edges_per_second=topology.num_edges / max(seconds, 1e-9),
        )

    # Nodes and edges

    def _read_edges(self, writer: StoreWriter, ids: Ids, members: Membership | None) -> TopologySummary:
        graph = self.inputs.graph
        undirected = self.options.undirected
        if isinstance(graph, ArrayGraph):
            if graph.mirrored and not undirected:
                self.notes.append("the file stores every undirected edge once, so all were mirrored")
            undirected = graph.mirrored or (undirected and not graph.both_directions)
        typed = TypedEdges.of(graph, reverse=undirected)
        held = HeldOut(writer.scratch, None if typed is None else typed.dtype)
        features = self._edge_features(writer)
        cells = self.time_cells
        edge_time, node_times = _times_of(graph, writer, cells)
        timed = isinstance(graph, EdgeTable) and graph.timed
        numbered = features is not None or edge_time is not None or timed
        builder = TopologyBuilder(
            writer,
            memory_limit=self.memory_limit,
            weighted=graph.weighted,
            edge_dtype=None if typed is None else typed.dtype,
            numbered=numbered,
            undirected=undirected and typed is None,
            unless_both=True,
            deduplicate=self.options.deduplicate,
            self_loops=self.options.self_loops,
        )
        path = writer.scratch / _TIMES
        with closing(graph.batches(ids.kind)) as batches, path.open("ab") as times:  # an error stops the reader
            done = 0
            for batch in batches:
                src, dst = ids.add_edges(batch)
                weight = batch.floats(2) if graph.weighted else None
                number = np.arange(done, done + len(batch)) if numbered else None
                kind = None if typed is None else typed.numbers(src, dst, batch, graph.kind_column)
                done += len(batch)
                if features is not None and isinstance(graph, EdgeTable):
                    first = 2 + graph.weighted
                    columns = range(first, first + graph.num_features)
                    features.put(batch.matrix(columns, missing=np.nan if self.options.allow_nan else None), batch.where)
                if timed:
                    cells.read(batch, graph.kind_column - 1).tofile(times)
                if (split := graph.split_of(batch)) is not None:
                    for at, name in enumerate(SPLITS, start=1):
                        mine = split == at
                        held.put(name, src[mine], dst[mine], None if kind is None else kind[mine])
                    stay = split == 0
                    src, dst = src[stay], dst[stay]
                    weight, kind, number = (None if each is None else each[stay] for each in (weight, kind, number))
                if typed is None or kind is None:
                    builder.add(src, dst, weight, number=number)
                else:
                    for edges in typed.both_ways(src, dst, weight, kind):
                        builder.add(*edges, number=number)
        for name, batch in graph.held_batches(ids.kind):
            src, dst = ids.add_edges(batch)
            held.put(name, src, dst, None if typed is None else typed.numbers(src, dst, batch, 2))
        try:
            rank = ids.freeze()
        except InputError as error:
            raise InputError(error.what, where=str(graph.path), fix=error.fix) from None
        if members is not None:
            members.freeze(ids, rank, gaps=self._missing() is not None)
            if self._missing() == DROP and (chosen := members.drop(ids)) is not None:
                rank = chosen
        if len(ids) == 0:
            raise InputError("there are no nodes", where=str(graph.path), fix="Give at least one edge or node")
        of_nodes = {"nodes": _NODE_BYTES * len(ids)}
        MemoryNeed(of_nodes, held_bytes(), available_memory()).require(f"ingest of {len(ids):,} nodes", _FIX)
        if timed:
            edge_time = _mapped_times(path)
        node_times = {name: _moved(values, rank) for name, values in node_times.items()}
        for table in self.inputs.tables:
            rows = located if members is None or table is not self.inputs.members else partial(_of_members, members)
            node_times |= times_of(table, ids, rows, cells)
        self.notes += cells.notes
        dated = edge_time is not None or "node_time" in node_times
        since = EdgeTimes(edge_time, node_times.get("node_time")) if dated else None
        found = builder.finish(len(ids), rank, None if features is None else features.rows(), since)
        for name, values in node_times.items():
            writer.write(name, values)
        self.seed_time = node_times.get("seed_time", node_times.get("node_time"))
        self.has_edge_times = dated
        if dated and node_times:
            self.notes.append("edges have times: neighbors are sampled not later than the time of each seed")
        self.edge_features = 0 if features is None else features.width
        self._hold_out(writer, held, rank)
        if typed is not None:
            counts = count_types(map_array(writer.directory / "edge_type.npy"), len(typed.relations))
            self.schema = typed.types.schema(typed.relations, counts, len(ids))
            self.notes += typed.notes + typed.only_held_out(counts)
            if self.options.undirected and not undirected:
                self.notes.append("both directions of every edge are in the source, so no reverse relation was added")
            elif not (undirected or found.both_directions or (self.schema.reverses >= 0).any() or not found.num_edges):
                self.notes.append(
                    "edges are taken as directed, from source to target; "
                    "--undirected adds the reverse of every relation"
                )
            return replace(found, num_added=found.num_added // typed.ways)
        if members is not None and self._missing() == DROP:
            self.notes.append(
                f"left out (--missing drop): {members.num_absent:,} nodes of the edges without a row, "
                f"{members.num_incomplete:,} rows with an empty feature cell, and their {found.left_out:,} of "
                f"{found.num_added:,} edges"
            )
        if self.options.undirected and not found.mirrored:
            self.notes.append("both directions of every edge are in the source, so none was mirrored")
        elif not found.mirrored and not found.both_directions and found.num_edges > found.self_loops:
            self.notes.append(
                "edges are taken as directed, from source to target; --undirected adds the other directions"
            )
        return found

    def _hold_out(self, writer: StoreWriter, held: HeldOut, rank: Int64[np.ndarray, "N"] | None) -> None:
        """Write the held-out edges, and say which of them are edges of the graph, too."""
        self.held_out = held.write(writer, rank)
        for split, count in self.held_out.items():
            if there := repeated(writer, split, self.memory_limit):
                self.notes.append(
                    f"{there:,} of the {count:,} edges that are held out for {split} are edges of the graph as well"
                )

    def _names(self, graph: ArrayGraph) -> Shaped[np.ndarray, "N"]:
        """The user's ids in an array.

        Raises:
            InputError: an id is there twice, within a node type.
        """
        assert graph.names is not None
        names = graph.names.load()
        sizes = (len(names),) if graph.types is None else graph.types.num_nodes
        for first, size in zip(np.cumsum((0, *sizes)), sizes):
            distinct, counts = np.unique(names[first : first + size], return_counts=True)
            if (counts > 1).any():
                what = f"has '{distinct[np.argmax(counts > 1)]}' twice"
                raise graph.names.fail(what, "Give every node of a type a name of its own")
        return names

    def _edge_features(self, writer: StoreWriter) -> EdgeFeatures | None:
        """Where the features of the edges are kept meanwhile; those of arrays are there already."""
        graph, options = self.inputs.graph, self.options
        arrays = graph.edge_features if isinstance(graph, ArrayGraph) else None
        if arrays is None and not (isinstance(graph, EdgeTable) and graph.num_features):
            return None
        path = writer.scratch / "edge-features"
        dtype = options.feature_dtype
        if dtype in BITS:
            self.notes.append(f"features of edges are kept as float32: {dtype} is for those of nodes")
            dtype = "float32"
        features = EdgeFeatures(path, np.dtype(dtype), allow_nan=options.allow_nan)
        if arrays is not None:
            with progress.task("read edge features", total=len(arrays), unit="edges") as task:
                for start, rows in arrays.blocks():
                    features.put(rows.reshape(len(rows), -1), counted(arrays.where, start, "edge"))
                    task.advance(len(rows))
        return features

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
                    if table.reader is not None:
                        features.put(nodes, table.reader.matrix(batch), batch.where)
                    if mine is not None:
                        mine.put(nodes, batch, range(wide, end))
                    if table.split is not None:
                        splits.put(nodes, batch, end)
                    for place, (name, _) in enumerate(table.masks, start=end + (table.split is not None)):
                        splits.put_marks(name, nodes, batch, place)
        if "features" in inputs.arrays:
            array = inputs.arrays["features"]
            features.put_blocks(array.blocks(), array.where)
        elif isinstance(inputs.graph, ArrayGraph) and inputs.graph.features is not None and self.schema is None:
            features.put_blocks(inputs.graph.features.blocks(), inputs.graph.features.first.where)
        if "labels" in inputs.arrays:
            array = inputs.arrays["labels"]
            kind = {"f": "float", "U": "str"}.get(array.dtype.kind, "int")
            width = array.shape[1] if len(array.shape) == 2 else 1
            task = MULTILABEL if self.options.task == AUTO and len(array.shape) == 2 else self.options.task
            rules = self._label_rules(array.where, task, by_convention=True)
            labels = make_labels(rules, [kind] * width, None, len(ids))  # type: ignore[list-item]
            for nodes, batch in rows_of(array, "label"):
                labels.put(nodes, batch, range(width))
        if "splits" in inputs.arrays:
            for nodes, batch in rows_of(inputs.arrays["splits"], "split"):
                splits.put(nodes, batch, 0)
        return labels

    def _new_features(
        self, writer: StoreWriter, num_nodes: int, ids: Ids, column: str = "x", first: int = 0
    ) -> Features:
        options = self.options
        small = options.feature_dtype if options.feature_dtype in BITS else None
        return Features(
            writer,
            num_nodes,
            np.dtype(options.feature_dtype if small is None else np.float32),
            allow_nan=options.allow_nan,
            name_of=lambda node: ids.name(first + node),
            missing=self._missing(),
            column=column,
            small=small,
        )

    def _read_typed_features(self, writer: StoreWriter, ids: Ids) -> dict[str, Features]:
        """Those of each type that has some, in a column of its own."""
        graph, found_of = self.inputs.graph, dict[str, Features]()
        if self.schema is None or not isinstance(graph, ArrayGraph) or graph.types is None:
            return found_of
        for number, (name, size) in enumerate(zip(self.schema.node_types, self.schema.num_nodes)):
            if (found := graph.types.features.get(name)) is not None:
                column, first = f"{TYPE_PREFIX}{number}", self.schema.first_nodes[number]
                features = self._new_features(writer, size, ids, column, first)
                features.put_blocks(found.blocks(), found.first.where)
                found_of[name] = features
        return found_of

    def _finish_typed_features(
        self, found: Mapping[str, Features], train: Int64[np.ndarray, "t"] | None
    ) -> dict[str, Any]:
        """Scale them, by the training nodes of the type, or all nodes of a type without such; how, for the notes."""
        encodings = {}
        for name, features in found.items():
            assert self.schema is not None
            number = self.schema.type_number(name)
            first, last = self.schema.first_nodes[number : number + 2]
            mine = np.arange(0) if train is None else train[(train >= first) & (train < last)] - first
            rows = mine if len(mine) else np.arange(last - first)
            encoding, notes = features.finish(rows, None, standardize=self.options.standardize, like=None)
            self.notes += [f"{name}: {note}" for note in notes]
            if encoding.changes_values:
                encodings[name] = encoding.to_json()
        return {TYPED_NOTE: encodings} if encodings else {}

    def _make_features(self, writer: StoreWriter, features: Features) -> None:
        """Those of a source without any, where the options say of what."""
        made: str | None = self.options.node_features
        if made is None and self.like is not None:
            made = self.like.encoding.made
        if made is None:
            return
        if features.width:
            fix = "Leave node_features out, or drop the features of the source"
            raise ConfigError("the source has features", where="node_features", fix=fix)
        features.make(made, map_array(writer.directory / "indptr.npy"))

    def _missing(self) -> str | None:
        return self.options.missing if self.like is None else self.like.encoding.missing

    def _labels_for(self, table: NodeTable, num_nodes: int) -> Labels | None:
        if not table.labels:
            return None
        kinds = [table.table.column_kind(column) for column in table.labels]
        names = [table.table.names[column] for column in table.labels] if table.table.has_header else None
        return make_labels(self._label_rules(table.where, self.options.task), kinds, names, num_nodes)

    def _label_rules(self, where: str, task: str, *, by_convention: bool = False) -> LabelRules:
        return LabelRules(task, where, self.options.unlabeled, self.options.keep_codes, by_convention, self.like)

    # Labels and splits

    def _labels_of(self, found: LabelSummary | None) -> tuple[str | None, int, list[str] | None]:
        """Task, number of classes, and their names, which an ``.npz`` may bring along."""
        if found is None:
            return None, 0, None
        names, graph = found.class_names, self.inputs.graph
        numbered = names is None or found.codes is not None
        if numbered and found.task != REGRESSION and isinstance(graph, ArrayGraph) and graph.labels is not None:
            given = graph.class_names
            codes = found.codes or range(found.num_classes)
            if given is not None and min(codes) >= 0 and max(codes) < len(given):
                names = [given[code] for code in codes]
            elif given is not None:
                self.notes.append(f"'class_names' has {len(given)} names for {found.num_classes} classes, not used")
        return found.task, found.num_classes, names

    def _class_sizes(self, found: LabelSummary | None, names: list[str] | None) -> dict[str, int]:
        if found is None:
            return {}
        return dict(zip(names or map(str, range(len(found.sizes))), found.sizes))

    def _split(self, writer: StoreWriter, splits: Splits, labels: LabelSummary | None, ids: Ids) -> str:
        """Where the splits in the files come from; empty if the files bring none."""
        inputs, graph = self.inputs, self.inputs.graph
        rule = ""
        if "splits" in inputs.arrays:
            rule = f"given: {inputs.arrays['splits'].where}"
        for table in inputs.tables:
            if names := table.split_names:
                rule = f"given: column{'s' if table.masks else ''} {names} of {table.where}"
        if not rule and isinstance(graph, ArrayGraph) and (count := graph.num_splits()):
            index = self.options.split_index or 0
            for name, mask in graph.masks(index).items():
                splits.put_mask(name, mask, str(graph.path), ids.name)
            rule = f"given: masks in {graph.path}" + (f", split {index} of {count}" if count > 1 else "")
        elif self.options.split_index is not None:
            what = f"split_index={self.options.split_index}, but the source has no numbered splits"
            raise InputError(what, where=str(graph.path), fix="Leave split_index out")
        if rule and labels is not None and (without := splits.leave_out(labels.labeled)):
            self.notes.append(f"{without} node(s) of the splits have no label and were left out of their split")
        return rule

    def _by_time(
        self, labels: LabelSummary | None, bounds: Sequence[str], given: str
    ) -> tuple[dict[str, Int64[np.ndarray, "s"]], str]:
        """Labeled nodes by the times at which they are asked about; those without a time are in no split.

        Links are split by the same times, which the store notes for them.
        """
        where = "split_times"
        if given:
            raise ConfigError(f"the source has a split ({given})", where=where, fix="Leave split_times out")
        if labels is None and not self.has_edge_times:
            fix = "Give labels, or times of edges, which are links to be predicted; or leave split_times out"
            raise ConfigError("there are neither labels nor times of edges", where=where, fix=fix)
        if labels is not None and self.seed_time is None:
            what = "nodes have no times at which they are asked about"
            raise ConfigError(
                what, where=where, fix="Give seed_time or node_time, or leave out the labels; or leave split_times out"
            )
        if len(bounds) != 2:
            fix = "Give when validation begins, and when tests do, for instance 2026-01-01,2026-02-01"
            raise ConfigError(f"{len(bounds)} times, not 2", where=where, fix=fix)
        val, test = self.time_cells.points([str(bound) for bound in bounds], where)
        if not ALWAYS < val <= test:
            raise ConfigError(f"{bounds[1]} is before {bounds[0]}", where=where, fix="Give the earlier time first")
        self.split_times, times = (val, test), self.seed_time
        rule = f"by time: validation from {bounds[0]}, tests from {bounds[1]}"
        if labels is None or times is None:
            return {}, rule
        there, part = labels.labeled & (times != ALWAYS), np.searchsorted([val, test], times, side="right")
        found = {name: np.flatnonzero(there & (part == number)) for number, name in enumerate(("train", "val", "test"))}
        return found, rule

    def _seeded(self, labels: LabelSummary) -> tuple[dict[str, Int64[np.ndarray, "s"]], str]:
        if self.options.split is None:
            return {}, ""
        labeled = np.flatnonzero(labels.labeled)
        shares = "/".join(f"{100 * part:g}" for part in self.options.split)
        # Stores keep this text, in the spelling that it has always had.
        rule = f"seeded: {shares} of the {len(labeled)} labelled nodes, seed {self.options.split_seed}"
        return seeded_split(labeled, self.options.split, self.options.split_seed), rule


def _require_memory(limit: int) -> None:
    """Say what is going to be taken of memory. How many nodes there are is known only when the edges are read.

    Raises:
        ResourceError: this process may not take so much.
    """
    need = MemoryNeed.of({"sorting": limit, "reading": _READING_BYTES}, threads=_THREADS)
    progress.say(f"{need.text}, and some {_NODE_BYTES} bytes for each node")
    need.require("ingest", _FIX)


def _times_of(
    graph: ArrayGraph | EdgeTable, writer: StoreWriter, cells: TimeCells
) -> tuple[Int64[np.ndarray, "E"] | None, dict[str, Int64[np.ndarray, "N"]]]:
    """Times of edges, in a file, and columns of times of nodes, as far as a source has them."""
    if not isinstance(graph, ArrayGraph):
        return None, {}
    of_nodes = {name: cells.of_array(array, array.load()) for name, array in graph.node_times.items()}
    if graph.edge_times is None:
        return None, of_nodes
    path = writer.scratch / _TIMES
    with path.open("wb") as file:
        for _, times in graph.edge_times.blocks():
            cells.of_array(graph.edge_times, times).tofile(file)
    return _mapped_times(path), of_nodes


def _mapped_times(path: Path) -> Int64[np.ndarray, "E"]:
    return np.memmap(path, np.int64, "r") if path.stat().st_size else np.empty(0, np.int64)


def _of_members(
    members: Membership, table: NodeTable, ids: Ids, labels: Labels | None
) -> Generator[tuple[Int[np.ndarray, "n"], Cells], None, None]:
    """See :meth:`Membership.located`."""
    return members.located(ids, labels, table)


def _moved(values: Int64[np.ndarray, "N"], rank: Int64[np.ndarray, "N"] | None) -> Int64[np.ndarray, "N"]:
    """Values of nodes by their numbers in a source, by their ids."""
    if rank is None:
        return values
    found = np.empty_like(values)
    found[rank] = values
    return found
