"""Graphs of DGL's file formats, read without DGL: GraphBolt's on-disk datasets, and chunked graphs.

- An on-disk dataset is a directory with ``metadata.yaml``, which lists node types with their numbers of nodes, edges of
  each type in CSV files without a header or in arrays (2, E), features, and tasks with their seeds and labels.
- A chunked graph is a directory with ``metadata.json``, as DGL's distributed partitioning and GraphStorm's
  construction of graphs take it and write it: the edges and the data of nodes, each in several files.

Both number nodes within their types. They become the arrays of :mod:`partita.sources.typed_arrays`; what is O(edges)
passes through files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from partita.core.errors import InputError, nearest
from partita.graph.column_specs import MASKS
from partita.sources.arrays import ArrayFile, Taker, damage_of, open_npy
from partita.sources.edges import open_table
from partita.sources.typed_pieces import ONE_TYPE, Piece, TypedPieces, held, mapped

ON_DISK, CHUNKED = "metadata.yaml", "metadata.json"
LABELS = ("label", "labels", "y")
SETS = {"train_set": "train", "validation_set": "val", "test_set": "test"}
_ROWS = 1 << 18


def is_dgl_files(path: Path) -> bool:
    """Whether a directory, or the metadata in one, is of either format."""
    if path.name in (ON_DISK, CHUNKED):
        return path.is_file()
    return path.is_dir() and any((path / name).is_file() for name in (ON_DISK, CHUNKED))


def dgl_arrays(path: Path, scratch: Path) -> dict[str, ArrayFile]:
    """The graph, by the names of :mod:`partita.sources.array_graph`.

    Args:
        path: the directory, or its metadata.
        scratch: an empty directory for what is put together.

    Raises:
        InputError: something is missing or cannot be used; names it.
    """
    folder = path if path.is_dir() else path.parent
    is_on_disk = path.name == ON_DISK or (path.is_dir() and (path / ON_DISK).is_file())
    reader = _OnDisk if is_on_disk else _Chunked
    return reader(folder, scratch).arrays()


class _OnDisk:
    """GraphBolt's on-disk dataset."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.where = str(folder / ON_DISK)
        with damage_of(self.where):
            text = (folder / ON_DISK).read_text(encoding="utf-8")
        try:
            self.metadata = _mapping(yaml.safe_load(text), self.where)
        except yaml.YAMLError as error:
            raise InputError(f"is not YAML ({str(error).splitlines()[0]})", where=self.where) from None
        self.graph = TypedPieces(folder, scratch)

    def arrays(self) -> dict[str, ArrayFile]:
        graph, where = self.graph, self.where
        topology = _mapping(_needed(self.metadata, "graph", where), f"{where}, graph")
        for entry in _list(_needed(topology, "nodes", f"{where}, graph"), f"{where}, nodes"):
            kind = entry.get("type")
            graph.sizes[ONE_TYPE[0] if kind is None else str(kind)] = _count(
                _needed(entry, "num", f"{where}, nodes"), where
            )
        if not graph.sizes:
            raise InputError("names no nodes", where=where, fix="Give the number of nodes of each type")
        for entry in _list(_needed(topology, "edges", f"{where}, graph"), f"{where}, edges"):
            triple = graph.relation(entry.get("type"), f"{where}, edges")
            at = f"{where}, edges of {':'.join(triple)}"
            path, form = graph.path(_needed(entry, "path", at), at), _needed(entry, "format", at)
            graph.add_edges(triple, _edges(path, form, ",", at, by_row=True))
        for entry in _list(self.metadata.get("feature_data") or [], f"{where}, feature_data"):
            self._features(entry)
        self._tasks()
        return graph.arrays()

    def _features(self, entry: Mapping[str, Any]) -> None:
        graph, where = self.graph, f"{self.where}, feature_data"
        name = str(_needed(entry, "name", where))
        file = _array(graph.path(_needed(entry, "path", where), where), entry.get("format"), where)
        if entry.get("domain") == "edge":
            graph.add_edge_data(entry.get("type"), name, [file], where)
            return
        kind = graph.known(entry.get("type"), where)
        if file.dtype.kind in "fiub" and len(file.shape) in (1, 2):
            graph.features.setdefault(kind, {})[name] = [file]
        else:
            graph.unused[f"{name} of {kind}"] = file

    def _tasks(self) -> None:
        """Seeds and labels of the first task that has nodes as seeds."""
        graph = self.graph
        for task in _list(self.metadata.get("tasks") or [], f"{self.where}, tasks"):
            where = f"{self.where}, task {task.get('name')}"
            of_nodes = False
            for key, split in SETS.items():
                for entry in _list(task.get(key) or [], f"{where}, {key}"):
                    of_nodes |= self._set(entry, split, f"{where}, {key}")
            if of_nodes:
                break
            graph.unused[f"task {task.get('name')}"] = held(where, np.zeros(0))

    def _set(self, entry: Mapping[str, Any], split: str, where: str) -> bool:
        graph, arrays = self.graph, dict[str, np.ndarray]()
        for data in _list(_needed(entry, "data", where), where):
            path = graph.path(_needed(data, "path", where), where)
            arrays[str(_needed(data, "name", where))] = _array(path, data.get("format"), where).load()
        seeds = next((arrays[name] for name in ("seeds", "seed_nodes") if name in arrays), None)
        if seeds is None or seeds.ndim != 1 or seeds.dtype.kind not in "iu":
            return False  # pairs of nodes: links
        kind = graph.known(entry.get("type"), where)
        graph.add_split(split, kind, seeds, where)
        if "labels" in arrays:
            if len(arrays["labels"]) != len(seeds):
                what = f"has {len(arrays['labels']):,} labels for {len(seeds):,} seeds"
                raise InputError(what, where=where, fix="Give one label for every seed")
            graph.add_labels(kind, seeds, arrays["labels"], where)
        return True


class _Chunked:
    """DGL's chunked graph."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.where = str(folder / CHUNKED)
        with damage_of(self.where):
            text = (folder / CHUNKED).read_text(encoding="utf-8")
        try:
            self.metadata = _mapping(json.loads(text), self.where)
        except (ValueError, RecursionError) as error:
            raise InputError(f"is not JSON ({error})", where=self.where) from None
        self.graph = TypedPieces(folder, scratch)

    def arrays(self) -> dict[str, ArrayFile]:
        graph, where = self.graph, self.where
        kinds = [str(kind) for kind in _needed(self.metadata, "node_type", where)]
        graph.sizes = dict(zip(kinds, self._counts("num_nodes", len(kinds)), strict=True))
        relations = _needed(self.metadata, "edge_type", where)
        expected = self._counts("num_edges", len(relations))
        edges = _mapping(_needed(self.metadata, "edges", where), f"{where}, edges")
        for name, count in zip(relations, expected, strict=True):
            at = f"{where}, edges of {name}"
            triple = graph.relation(name, at)
            form, files = self._files(_mapping(_needed(edges, name, f"{where}, edges"), at), at)
            delimiter = str(form.get("delimiter") or ",")
            pieces = (piece for path in files for piece in _edges(path, form.get("name"), delimiter, at, by_row=False))
            if (found := graph.add_edges(triple, pieces)) != count:
                what = f"the files have {found:,} edges, the metadata say {count:,}"
                raise InputError(what, where=at, fix="Write the graph again")
        for kind, by_name in _mapping(self.metadata.get("node_data") or {}, f"{where}, node_data").items():
            for name, entry in _mapping(by_name, f"{where}, node_data of {kind}").items():
                self._node_data(graph.known(kind, f"{where}, node_data"), name, entry)
        for relation, by_name in _mapping(self.metadata.get("edge_data") or {}, f"{where}, edge_data").items():
            for name, entry in _mapping(by_name, f"{where}, edge_data of {relation}").items():
                at = f"{where}, {name} of {relation}"
                form, paths = self._files(_mapping(entry, at), at)
                chunks = [each for path in paths for each in _chunk(path, form.get("name"), at, graph.scratch)]
                graph.add_edge_data(relation, name, chunks, at)
        return graph.arrays()

    def _counts(self, what: str, number: int) -> list[int]:
        """Nodes, or edges, of each type: in all, or chunk by chunk."""
        where, chunks = self.where, self.metadata.get(f"{what}_per_chunk")
        if chunks is None:
            counts = [_count(each, where) for each in _needed(self.metadata, f"{what}_per_type", where)]
        else:
            counts = [sum(_count(each, where) for each in of) for of in chunks]
        if len(counts) != number:
            what = f"has {what} of {len(counts)} types, and {number} types"
            raise InputError(what, where=where, fix="Write the graph again")
        return counts

    def _files(self, entry: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], list[Path]]:
        form, data = _mapping(_needed(entry, "format", where), where), _needed(entry, "data", where)
        return form, [self.graph.path(each, where) for each in (data if isinstance(data, list) else [data])]

    def _node_data(self, kind: str, name: str, entry: Any) -> None:
        where, graph = f"{self.where}, {name} of {kind}", self.graph
        form, paths = self._files(_mapping(entry, where), where)
        files = [file for path in paths for file in _chunk(path, form.get("name"), where, graph.scratch)]
        split = next((split for split, mask in MASKS.items() if mask == name), None)
        usable = all(file.dtype.kind in "fiub" and len(file.shape) in (1, 2) for file in files)
        if split is None and name not in LABELS:
            target = graph.features.setdefault(kind, {}) if usable else None
            if target is None:
                graph.unused[f"{name} of {kind}"] = files[0]
            else:
                target[name] = files
            return
        values = np.concatenate([file.load() for file in files])
        if len(values) != graph.sizes[kind]:
            what = f"has {len(values):,} rows for {graph.sizes[kind]:,} nodes of type '{kind}'"
            raise InputError(what, where=where, fix="Give one row for every node of the type")
        if split is None:
            graph.add_labels(kind, slice(None), values, where)
        else:
            graph.add_split(split, kind, values.reshape(len(values), -1)[:, 0].astype(bool), where)


def _edges(path: Path, form: Any, delimiter: str, where: str, *, by_row: bool) -> Iterator[Piece]:
    """The edges of a file, some at a time; ``by_row``: an array has the sources in row 0, else in column 0."""
    if form in ("numpy", "npy"):
        array = open_npy(path).expect("iu", 2)
        if array.shape[0 if by_row else 1] != 2:
            wanted = "(2, number of edges)" if by_row else "(number of edges, 2)"
            raise array.fail(f"has shape {array.shape}, not {wanted}", "Transpose it")
        if by_row and not array.fortran_order:
            count = array.shape[1]
            ends = [Taker(array.stream(row * count, (row + 1) * count), array.dtype) for row in (0, 1)]
            for start in range(0, count, _ROWS):
                size = min(_ROWS, count - start)
                yield str(path), start, np.stack([end.take(size) for end in ends], axis=1).astype(np.int64)
        elif by_row:
            yield str(path), 0, np.ascontiguousarray(array.load().T.astype(np.int64))
        else:
            for start, rows in array.blocks():
                yield str(path), start, rows.astype(np.int64)
    elif form in ("csv", "parquet"):
        table = open_table(path, format=form, delimiter=delimiter if form == "csv" else None, header=False)
        start = 0
        with closing(table.batches([0, 1], ["int", "int"], doing=f"read {path.name}")) as batches:
            for batch in batches:
                yield str(path), start, np.stack([batch.ints(0), batch.ints(1)], axis=1)
                start += len(batch)
    else:
        fix = "Write the edges as csv, parquet or numpy"
        raise InputError(f"edges of the format '{form}' are not read", where=where, fix=fix)


def _array(path: Path, form: Any, where: str) -> ArrayFile:
    """An array in a file."""
    if form in (None, "numpy") and path.suffix == ".npy":
        return open_npy(path)
    fix = "Save it with numpy.save; files of torch.save run any code that they hold, so none is opened"
    raise InputError(f"'{path.name}' of the format '{form}' is not read", where=where, fix=fix)


def _chunk(path: Path, form: Any, where: str, scratch: Path) -> list[ArrayFile]:
    """The rows of a file of a chunked graph; those of Parquet pass through a file."""
    if form != "parquet":
        return [_array(path, form, where)]
    table = open_table(path, format="parquet")
    columns = range(len(table.names))
    kinds = [table.column_kind(column) or "float" for column in columns]
    if "str" in kinds:
        raise InputError(f"'{path.name}' holds words", where=where, fix="Write numbers")
    count, width, copy = 0, len(kinds), scratch / f"chunk-{len(list(scratch.iterdir()))}"
    dtype = np.int64 if kinds == ["int"] else np.float32
    with copy.open("wb") as file, closing(table.batches(list(columns), kinds, doing=f"read {path.name}")) as batches:
        for batch in batches:
            rows = batch.ints(0)[:, None] if dtype == np.int64 else batch.matrix(list(columns), missing=None)
            rows.tofile(file)
            count, width = count + len(rows), rows.shape[1]
    return [ArrayFile.held(str(path), mapped(copy, dtype, (count, width)))]


def _needed(values: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in values:
        raise InputError(f"has no '{key}'", where=where, fix=nearest(key, [str(each) for each in values]))
    return values[key]


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"holds {type(value).__name__}, not names with values", where=where, fix="Write it again")
    return {str(key): each for key, each in value.items()}


def _list(value: Any, where: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise InputError(f"holds {type(value).__name__}, not a list", where=where, fix="Write it again")
    return [_mapping(each, where) for each in value]


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
        raise InputError(f"'{value}' is no number of nodes or edges", where=where, fix="Write a whole number")
    return value
