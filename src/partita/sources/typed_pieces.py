"""A typed graph that is put together from files of each type and relation, as arrays by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int64, Shaped

from partita.core import progress
from partita.core.errors import InputError, nearest
from partita.core.relation_names import separated
from partita.graph.column_specs import MASKS
from partita.graph.schema import MOST_RELATIONS
from partita.sources.arrays import ArrayFile

FEATURES = "feat"
"""Of several arrays of a node type, the one that is its features; without it all that are neither labels nor masks."""
ONE_TYPE = ("_N", "_E")
"""What DGL calls the types of nodes and edges where there is one of each."""
WEIGHTS = ("weight", "weights", "edge_weight")
"""Names of arrays of edges that are their weights; the first that is there counts."""

Triple = tuple[str, str, str]
"""Source type, name and target type of a relation."""

Piece = tuple[str, int, Int64[np.ndarray, "n 2"]]
"""Some edges of a file: what to call it, the number of the first of them, and their ends within their types."""


@dataclass
class TypedPieces:
    """What is found of a typed graph, type by type; edges, and features in several files, pass through files.

    Attributes:
        folder: that paths are relative to.
        scratch: for files.
        sizes: nodes of each type.
        triples: source type, name and target type of the relations, in order.
        features: files of each type, by the name of the array.
        edge_data: files of each relation, likewise.
        counts: edges of each relation.
    """

    folder: Path
    scratch: Path
    sizes: dict[str, int] = field(default_factory=dict)
    triples: list[Triple] = field(default_factory=list)
    features: dict[str, dict[str, list[ArrayFile]]] = field(default_factory=dict)
    edge_data: dict[Triple, dict[str, list[ArrayFile]]] = field(default_factory=dict)
    counts: dict[Triple, int] = field(default_factory=dict)
    unused: dict[str, ArrayFile] = field(default_factory=dict)
    num_edges: int = 0
    _labels: dict[str, list[tuple[Any, Shaped[np.ndarray, "n ..."]]]] = field(default_factory=dict)
    _masks: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def first(self) -> dict[str, int]:
        """Number of the first node of each type, among all nodes."""
        begins = np.cumsum([0, *self.sizes.values()])
        return dict(zip(self.sizes, begins.tolist()))

    def known(self, name: Any, where: str) -> str:
        """A node type.

        Raises:
            InputError: there is none of this name.
        """
        if name is None and len(self.sizes) == 1:
            return next(iter(self.sizes))
        if name not in self.sizes:
            raise InputError(f"there is no node type '{name}'", where=where, fix=nearest(str(name), self.sizes))
        return str(name)

    def relation(self, name: Any, where: str) -> Triple:
        """The ends and the name of a relation that is written ``source:name:target``.

        Raises:
            InputError: it is not, a type is not known, or the relation is there already.
        """
        triple = self._triple(name, where)
        if triple in self.triples:
            raise InputError(f"the relation {':'.join(triple)} is there twice", where=where, fix="Give its edges once")
        if len(self.triples) == MOST_RELATIONS:
            fix = "Make one relation of several"
            raise InputError(f"there are more than {MOST_RELATIONS:,} relations", where=where, fix=fix)
        return triple

    def add_edge_data(self, relation: Any, name: str, files: list[ArrayFile], where: str) -> None:
        """An array of the edges of a relation that is there, in one file or several.

        Raises:
            InputError: there is no such relation, or the array has not one row for each of its edges.
        """
        triple = self._triple(relation, where)
        if triple not in self.counts:
            known = [":".join(each) for each in self.counts]
            raise InputError(f"there is no relation '{relation}'", where=where, fix=nearest(str(relation), known))
        if not files or any(file.dtype.kind not in "fiub" or len(file.shape) not in (1, 2) for file in files):
            self.unused[f"{name} of the edges {':'.join(triple)}"] = files[0] if files else held(where, np.zeros(0))
            return
        if (rows := sum(map(len, files))) != self.counts[triple]:
            what = f"{rows:,} rows of '{name}' for {self.counts[triple]:,} edges of {':'.join(triple)}"
            raise InputError(what, where=files[0].where, fix="Give one row for every edge of the relation")
        self.edge_data.setdefault(triple, {})[name] = files

    def _triple(self, name: Any, where: str) -> Triple:
        source, relation, target = separated("" if name is None else str(name))
        if name is None and len(self.sizes) == 1:
            source = target = next(iter(self.sizes))
            relation = ONE_TYPE[1]
        if not (source and relation and target):
            fix = "Write source type, name and target type between colons"
            raise InputError(f"'{name}' is no type of edges", where=where, fix=fix)
        return self.known(source, where), relation, self.known(target, where)

    def path(self, given: Any, where: str) -> Path:
        """A file that metadata name.

        Raises:
            InputError: it is not there.
        """
        if not isinstance(given, str) or not given:
            raise InputError(f"'{given}' is no path", where=where, fix="Name a file, relative to the metadata")
        path = self.folder / given
        if not path.is_file():
            raise InputError(f"names the file '{given}', which is not there", where=where, fix="Check the path")
        return path

    # Edges

    def add_edges(self, triple: Triple, pieces: Iterable[Piece]) -> int:
        """Append the edges of a relation to the file of all edges.

        Args:
            triple: the relation.
            pieces: of its edges.

        Returns:
            How many they are.

        Raises:
            InputError: an end is no node.
        """
        number, first, count = len(self.triples), self.first, 0
        self.triples.append(triple)
        shift = np.array([first[triple[0]], first[triple[2]]])
        bounds = [(end, kind, self.sizes[kind]) for end, kind in (("source", triple[0]), ("target", triple[2]))]
        with (self.scratch / "ends").open("ab") as ends, (self.scratch / "kinds").open("ab") as kinds:
            for where, start, pairs in pieces:
                for column, (end, kind, size) in enumerate(bounds):
                    wrong = (pairs[:, column] < 0) | (pairs[:, column] >= size)
                    if wrong.any():
                        row = int(np.argmax(wrong))
                        what = f"{end} {pairs[row, column]} of edge {start + row:,} (from 0) is none of {size:,} nodes"
                        raise InputError(f"{what} of type '{kind}'", where=where, fix="Correct the edge")
                (pairs + shift).tofile(ends)
                np.full(len(pairs), number, np.uint16).tofile(kinds)
                count += len(pairs)
        self.num_edges += count
        self.counts[triple] = count
        return count

    # Nodes

    def add_labels(self, kind: str, at: Any, values: Shaped[np.ndarray, "n ..."], where: str) -> None:
        """Labels of some nodes of a type, or (``slice(None)``) of all."""
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1 or values.dtype.kind not in "iubf":
            what = f"holds {values.dtype.name} of shape {values.shape}; labels are one number for each node"
            raise InputError(what, where=where, fix="Give one class or one value per node")
        self._labels.setdefault(kind, []).append((at, values))

    def add_split(self, name: str, kind: str, at: Any, where: str) -> None:
        """Nodes of a type that a split has: positions, or a mask of all."""
        size, at = self.sizes[kind], np.asarray(at)
        if at.dtype.kind in "iu" and len(at) and (at.min() < 0 or at.max() >= size):
            raise InputError(f"names a node that is none of {size:,} of type '{kind}'", where=where, fix="Correct it")
        mask = self._masks.setdefault(name, np.zeros(sum(self.sizes.values()), bool))
        part = mask[self.first[kind] : self.first[kind] + size]
        part[at] = True

    def arrays(self) -> dict[str, ArrayFile]:
        """All of it, put together."""
        sizes, total = list(self.sizes.values()), self.num_edges
        dtype = np.uint8 if len(sizes) <= 256 else np.uint16
        found = {
            "node_type": held("node types", np.repeat(np.arange(len(sizes), dtype=dtype), sizes)),
            "node_type_names": held("node type names", np.array(list(self.sizes), dtype=str)),
            "edge_type_names": held("edge type names", np.array([name for _, name, _ in self.triples], dtype=str)),
        }
        ends = mapped(self.scratch / "ends", np.int64, (total, 2))
        found["edge_index"] = held(f"edges of {self.folder}", ends.T)
        found["edge_type"] = held(f"edge types of {self.folder}", mapped(self.scratch / "kinds", np.uint16, (total,)))
        found |= self._edge_arrays()
        for kind, by_name in self.features.items():
            chosen = [FEATURES] if FEATURES in by_name else list(by_name)
            found[f"x_{kind}"] = self._joined(kind, [by_name[name] for name in chosen])
            self.unused |= {f"{name} of {kind}": by_name[name][0] for name in by_name if name not in chosen}
        if len(self._labels) > 1:
            fix = "Keep those that are to be predicted"
            raise InputError(f"labels of several types: {', '.join(self._labels)}", where=str(self.folder), fix=fix)
        for kind, given in self._labels.items():
            found["y"] = held(f"labels of '{kind}' in {self.folder}", self._all_labels(kind, given))
        for name, mask in self._masks.items():
            found[MASKS[name]] = held(f"split {name} of {self.folder}", mask)
        return {**found, **self.unused}

    def _all_labels(self, kind: str, given: Sequence[tuple[Any, np.ndarray]]) -> np.ndarray:
        floats = any(values.dtype.kind == "f" for _, values in given)
        labels = np.full(sum(self.sizes.values()), np.nan if floats else -1, np.float32 if floats else np.int64)
        mine = labels[self.first[kind] : self.first[kind] + self.sizes[kind]]
        for at, values in given:
            mine[at] = values
        return labels

    def _edge_arrays(self) -> dict[str, ArrayFile]:
        """Weights and features of the edges, which all relations have, or none.

        Raises:
            InputError: only some relations have weights.
        """
        chosen = dict[str, dict[Triple, list[list[ArrayFile]]]](edge_weight={}, edge_attr={})
        named = dict[Triple, list[str]]()
        for triple, by_name in self.edge_data.items():
            weight = next((name for name in WEIGHTS if name in by_name), None)
            if weight is not None:
                if any(_width(file) != 1 for file in by_name[weight]):
                    raise by_name[weight][0].fail("has several columns, a weight is one", "Give one weight per edge")
                chosen["edge_weight"][triple] = [by_name[weight]]
            others = [name for name in by_name if name != weight and name not in MASKS.values()]
            named[triple] = [FEATURES] if FEATURES in others else others
            if named[triple]:
                chosen["edge_attr"][triple] = [by_name[name] for name in named[triple]]
            left = [name for name in by_name if name != weight and name not in named[triple]]
            self.unused |= {f"{name} of the edges {':'.join(triple)}": by_name[name][0] for name in left}
        weights, features = chosen["edge_weight"], chosen["edge_attr"]
        if weights and (missing := [":".join(triple) for triple in self.triples if triple not in weights]):
            fix = "Give all relations weights, or none"
            raise InputError(f"{missing[0]} has no weights, but others have", where=str(self.folder), fix=fix)
        widths = {sum(_width(files[0]) for files in columns) for columns in features.values()}
        if len(features) < len(self.triples) or len(widths) > 1:  # columns of one kind for all edges, or none
            for triple in features:
                arrays = {name: self.edge_data[triple][name][0] for name in named[triple]}
                self.unused |= {f"{name} of the edges {':'.join(triple)}": file for name, file in arrays.items()}
            chosen["edge_attr"] = {}
        found = {}
        for key, columns in ((key, columns) for key, columns in chosen.items() if columns):
            every = [files for each in columns.values() for files in each]
            width, dtype = sum(_width(files[0]) for files in columns[self.triples[0]]), _dtype_of(every)
            rows = np.memmap(self.scratch / key, dtype, "w+", shape=(max(1, self.num_edges), width))
            begin = 0
            for triple in self.triples:
                _fill(rows[begin : begin + self.counts[triple]], columns[triple], ":".join(triple))
                begin += self.counts[triple]
            rows.flush()
            shape = (self.num_edges,) if key == "edge_weight" else (self.num_edges, width)
            found[key] = held(f"{key} of {self.folder}", mapped(self.scratch / key, dtype, shape))
        return found

    def _joined(self, kind: str, columns: Sequence[Sequence[ArrayFile]]) -> ArrayFile:
        """The features of a type: arrays side by side, each in one file or several; copied where they are several."""
        size, where = self.sizes[kind], f"features of '{kind}' in {self.folder}"
        for files in columns:
            if (rows := sum(map(len, files))) != size:
                what = f"{rows:,} rows of features for {size:,} nodes of type '{kind}'"
                raise InputError(what, where=files[0].where, fix="Give one row for every node of the type")
        first = columns[0][0]
        if len(columns) == len(columns[0]) == 1 and len(first.shape) == 2:
            return first
        width, dtype = sum(_width(files[0]) for files in columns), _dtype_of(columns)
        path = self.scratch / f"x{list(self.sizes).index(kind)}"
        joined = np.memmap(path, dtype, "w+", shape=(max(1, size), width))
        _fill(joined[:size], columns, kind)
        joined.flush()
        return held(where, np.memmap(path, dtype, "r", shape=(size, width)))


def _width(file: ArrayFile) -> int:
    return 1 if len(file.shape) == 1 else file.shape[1]


def _dtype_of(columns: Sequence[Sequence[ArrayFile]]) -> np.dtype[Any]:
    half = all(file.dtype == np.float16 for files in columns for file in files)
    return np.dtype(np.float16 if half else np.float32)


def _fill(rows: Float[np.ndarray, "n F"], columns: Sequence[Sequence[ArrayFile]], what: str) -> None:
    """Write arrays side by side, each in one file or several.

    Raises:
        InputError: files of one array have other widths.
    """
    begin = 0
    with progress.task(f"read features of {what}", total=len(rows) * len(columns), unit="rows") as task:
        for files in columns:
            done, width = 0, _width(files[0])
            for file in files:
                if width != _width(file):
                    raise file.fail(f"has shape {file.shape}, another width than the first of {what}", "Correct it")
                for _, block in file.blocks():
                    rows[done : done + len(block), begin : begin + width] = block.reshape(len(block), width)
                    done += len(block)
                    task.advance(len(block))
            begin += width


def held(where: str, array: Shaped[np.ndarray, "..."]) -> ArrayFile:
    """An array in memory, or mapped into it."""
    return ArrayFile.held(where, array)


def mapped(path: Path, dtype: Any, shape: tuple[int, ...]) -> Shaped[np.ndarray, "..."]:
    """What a file holds, without a copy."""
    return np.memmap(path, dtype, "r", shape=shape) if shape[0] else np.empty(shape, dtype)
