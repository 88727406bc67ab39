"""Typed graphs in tables, which a YAML file names: a table for each node type, a list of edges for each relation.

For instance::

    nodes:
      paper: {file: papers.csv, id: paper_id, label: field, split: split, features: [year, "emb_*"]}
      author: {file: authors.parquet}
      institute: {}
    edges:
      - {source: author, name: wrote, target: paper, file: wrote.csv, reverse: true}
      - {source: author, name: works_at, target: institute, file: works.csv, time_column: since}

Ids are the user's, and unique within a node type. Paths are relative to the file. A column ``split`` of edges says
which are held out (``val``, ``test``); they have no reverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jaxtyping import Shaped

from partita.core.errors import InputError, nearest
from partita.graph.column_specs import HELD, MASKS
from partita.graph.schema import REVERSE_PREFIX, check_names
from partita.graph.times import ALWAYS
from partita.sources.arrays import ArrayFile, damage_of
from partita.sources.batch import Cells, Kind
from partita.sources.dgl_files import ON_DISK
from partita.sources.edges import TableReader, find_column, find_columns, open_table
from partita.sources.ids import Ids, IntIds, StringIds
from partita.sources.options import ColumnName
from partita.sources.roles import ends_by_name
from partita.sources.times import TimeCells
from partita.sources.typed_pieces import Piece, Triple, TypedPieces, held, mapped

_TOP = ("nodes", "edges")
_NODE = ("file", "id", "features", "label", "split", "time", "seed_time")
_EDGE = (
    "source", "name", "target", "file", "source_column", "target_column", "weight_column", "features", "time_column",
    "split", "reverse",
)  # fmt: skip


def is_tables(path: Path) -> bool:
    """Whether a file describes tables."""
    return path.suffix.lower() in (".yaml", ".yml") and path.name != ON_DISK and path.is_file()


def table_arrays(path: Path, scratch: Path, *, chunk_bytes: int) -> dict[str, ArrayFile]:
    """The graph, by the names of :mod:`partita.sources.array_graph`, with the user's ids as ``name``.

    Args:
        path: of the description.
        scratch: an empty directory for what is put together.
        chunk_bytes: of a table to read at once.

    Raises:
        InputError: something is missing or cannot be used; names file, row and column.
        ConfigError: names of types differ by capitals only, or cannot be names.
    """
    return _Tables(path, scratch, chunk_bytes).arrays()


@dataclass
class _Type:
    """A node type.

    Attributes:
        table: of its nodes; ``None``: they are those that edges name.
        ids: of its nodes, by number.
        columns: of the table: id, features, and then label, split and times as far as there are some.
        wide: how many are features.
        times: columns of times, by what arrays of them are called.
    """

    where: str
    table: TableReader | None
    ids: Ids
    columns: list[int] = field(default_factory=list)
    wide: int = 0
    label: int | None = None
    split: int | None = None
    times: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Relation:
    """Edges of one kind, in a table.

    Attributes:
        columns: of the table: source, target, and then weight, features, time and split as far as there are some.
        wide: how many are features.
        timed: it has times.
        divided: it has a split.
    """

    triple: Triple
    table: TableReader
    columns: Sequence[int]
    weighted: bool
    wide: int
    timed: bool
    divided: bool
    reverse: bool


class _Tables:
    def __init__(self, path: Path, scratch: Path, chunk_bytes: int) -> None:
        self.where, self.folder, self.chunk_bytes = str(path), path.parent, chunk_bytes
        with damage_of(self.where):
            text = path.read_text(encoding="utf-8")
        try:
            given = _mapping(yaml.safe_load(text), self.where, _TOP)
        except yaml.YAMLError as error:
            raise InputError(f"is not YAML ({' '.join(str(error).split())})", where=self.where) from None
        nodes = _mapping(given.get("nodes"), f"{self.where}, nodes")
        edges = given.get("edges")
        if not nodes or not isinstance(edges, list) or not edges:
            fix = "Name at least one node type under nodes, and one list of edges under edges"
            raise InputError("describes no graph", where=self.where, fix=fix)
        check_names("node type", list(nodes), where=f"{self.where}, nodes")
        self.pieces = TypedPieces(self.folder, scratch, sizes=dict.fromkeys(nodes, 0))
        self.declared = set[Triple]()
        self._times, self._time_cells = dict[tuple[str, str], list[Any]](), TimeCells()
        self.relations = [self._relation(entry, at) for at, entry in enumerate(edges)]
        self.types = {name: self._type(name, entry or {}) for name, entry in nodes.items()}
        self._check_alike()

    # The description

    def _open(self, given: Any, where: str, wanted: Sequence[Any]) -> TableReader:
        path = self.pieces.path(given, where)
        named: list[ColumnName | None] = [name for name in wanted if isinstance(name, str | int)]
        return open_table(path, wanted=named, exact_ids=True, chunk_bytes=self.chunk_bytes)

    def _relation(self, entry: Any, at: int) -> _Relation:
        where = f"{self.where}, edges, entry {at} (from 0)"
        given = _mapping(entry, where, _EDGE)
        for key in ("source", "name", "target", "file"):
            if not isinstance(given.get(key), str):
                raise InputError(f"has no '{key}'", where=where, fix=f"Give the {key} as a word")
        triple = self.pieces.relation(":".join(given[key] for key in ("source", "name", "target")), where)
        if triple in self.declared:
            raise InputError(f"the relation {':'.join(triple)} is there twice", where=where, fix="Give its edges once")
        self.declared.add(triple)
        features = _words(given.get("features") or [], f"{where}, features")
        wanted = [given.get(f"{role}_column") for role in ("source", "target", "weight")]
        table = self._open(given["file"], where, [*wanted, *features, given.get("time_column"), given.get("split")])
        by_name = ends_by_name(table.names) if table.has_header else None
        columns = [
            find_column(table, (by_name or (0, 1))[end] if name is None else name, role)
            for end, (role, name) in enumerate(zip(("source", "target"), wanted))
        ]
        if columns[0] == columns[1]:
            what = f"source and target are both column {table.names[columns[0]]}"
            raise InputError(what, where=f"{where}, {table.path}", fix="Name two columns")
        weight = [] if wanted[2] is None else [find_column(table, wanted[2], "weight")]
        wide = find_columns(table, features, "edge feature")
        time = [] if given.get("time_column") is None else [find_column(table, given["time_column"], "time")]
        split = [] if given.get("split") is None else [find_column(table, given["split"], "split")]
        reverse = given.get("reverse", False)
        if not isinstance(reverse, bool):
            raise InputError(f"reverse is '{reverse}'", where=where, fix="Give true or false")
        columns += [*weight, *wide, *time, *split]
        return _Relation(triple, table, columns, bool(weight), len(wide), bool(time), bool(split), reverse)

    def _type(self, name: str, entry: Any) -> _Type:
        where = f"{self.where}, nodes, {name}"
        given = _mapping(entry, where, _NODE)
        if given.get("file") is None:
            if given:
                raise InputError("has no file", where=where, fix="Name the table, or leave the rest out")
            ends = [
                relation.table.column_kind(relation.columns[end])
                for relation in self.relations
                for end in (0, 1)
                if relation.triple[2 * end] == name
            ]
            return _Type(where, None, IntIds() if ends and set(ends) == {"int"} else StringIds())
        patterns = given.get("features")
        chosen = None if patterns is None else _words(patterns, f"{where}, features")
        roles = ("id", "label", "split", "time", "seed_time")
        table = self._open(given["file"], where, [*map(given.get, roles), *(chosen or ())])
        key = find_column(table, given.get("id", 0), "id")
        label, split = (
            None if given.get(role) is None else find_column(table, given[role], role) for role in ("label", "split")
        )
        times = {
            name: find_column(table, given[role], role)
            for name, role in (("node_time", "time"), ("seed_time", "seed_time"))
            if given.get(role) is not None
        }
        taken = {key, label, split, *times.values()}
        if chosen is not None:
            features = [column for column in find_columns(table, chosen, "feature") if column not in taken]
        else:
            numbers = (column for column in range(len(table.names)) if table.column_kind(column) in ("int", "float"))
            features = [column for column in numbers if column not in taken]
        ids: Ids = IntIds() if table.column_kind(key) == "int" else StringIds()
        columns = [key, *features, *(column for column in (label, split) if column is not None), *times.values()]
        return _Type(f"{where}, {table.path}", table, ids, columns, len(features), label, split, times)

    def _check_alike(self) -> None:
        """Weights, and features of edges, are of all relations or of none; labels of one type."""
        for what, kinds in (
            ("weights", {each.triple: int(each.weighted) for each in self.relations}),
            ("features", {each.triple: each.wide for each in self.relations}),
        ):
            if len(set(kinds.values())) > 1:
                low, high = (pick(kinds, key=lambda triple: kinds[triple]) for pick in (min, max))
                raise InputError(
                    f"the edges of {':'.join(high)} have {kinds[high]} column(s) of {what}, those of "
                    f"{':'.join(low)} {kinds[low]}",
                    where=f"{self.where}, edges",
                    fix=f"Give all relations as many columns of {what}, or none",
                )
        for role in ("label", "split"):
            having = [name for name, kind in self.types.items() if getattr(kind, role) is not None]
            if len(having) > 1:
                fix = "Keep that of the type that is to be predicted"
                raise InputError(
                    f"{role}s of several types: {', '.join(having)}", where=f"{self.where}, nodes", fix=fix
                )

    # The tables

    def arrays(self) -> dict[str, ArrayFile]:
        pieces, types = self.pieces, self.types
        found: dict[str, Any] = {}
        read = {name: self._read_nodes(name, kind) for name, kind in types.items() if kind.table is not None}
        for relation in self.relations:  # nodes without a table are those of the edges
            if any(types[relation.triple[end]].table is None for end in (0, 2)):
                for batch in self._batches(relation, "find nodes"):
                    for column, end in enumerate((0, 2)):
                        if types[relation.triple[end]].table is None:
                            self._kind(relation.triple[end]).add_nodes(batch, column)
        pieces.sizes.update({name: len(kind.ids) for name, kind in types.items()})
        for name, (labels, splits) in read.items():
            if labels:
                found |= self._labels(name, labels)
            for number, words in splits:
                self._splits(name, number, words)
        for relation in self.relations:
            pieces.add_edges(relation.triple, self._edges(relation, back=False))
        for relation in self.relations:
            if relation.reverse:
                source, name, target = relation.triple
                triple = pieces.relation(f"{target}:{REVERSE_PREFIX}{name}:{source}", f"{self.where}, edges")
                pieces.add_edges(triple, self._edges(relation, back=True))
        for name, kind in types.items():
            if kind.wide:
                path = pieces.scratch / f"features-{list(types).index(name)}"
                rows = mapped(path, np.float32, (len(kind.ids), kind.wide))
                pieces.features[name] = {"feat": [held(f"features of {kind.where}", rows)]}
        first, total = self.relations[0], pieces.num_edges
        if first.weighted:
            found["edge_weight"] = held(
                "weights of the edges", mapped(pieces.scratch / "weights", np.float32, (total,))
            )
        if first.wide:
            rows = mapped(pieces.scratch / "edge-features", np.float32, (total, first.wide))
            found["edge_attr"] = held("features of the edges", rows)
        if any(relation.timed for relation in self.relations):
            times = self._time_cells.array(mapped(pieces.scratch / "times", np.int64, (total,)))
            found["edge_time"] = held("times of the edges", times)
        found |= self._node_times()
        if any(relation.divided for relation in self.relations):
            found["edge_split"] = held("splits of the edges", mapped(pieces.scratch / "splits", np.uint8, (total,)))
        return {**pieces.arrays(), **found, "name": held(f"ids of {self.where}", self._names())}

    def _kind(self, name: str) -> Ids:
        return self.types[name].ids

    def _read_nodes(self, name: str, kind: _Type) -> tuple[list[Any], list[tuple[int, Any]]]:
        """Number the nodes of a table, and keep its features; labels and splits come back."""
        assert kind.table is not None
        kinds: list[Kind] = [kind.ids.kind, *["float"] * kind.wide]  # type: ignore[list-item]
        if kind.label is not None:
            kinds.append(kind.table.column_kind(kind.label) or "str")
        kinds += ["str"] * ((kind.split is not None) + len(kind.times))
        labels, splits, at = [], [], 1 + kind.wide
        path = self.pieces.scratch / f"features-{list(self.types).index(name)}"
        with path.open("wb") as file, closing(kind.table.batches(kind.columns, kinds, doing=f"read {name}")) as batches:
            for batch in batches:
                before = len(kind.ids)
                numbers = kind.ids.add_nodes(batch, 0)
                expected = np.arange(before, before + len(batch))
                batch.check(numbers != expected, 0, "the id {} is there twice", "Give every node one row")
                if kind.wide:
                    batch.matrix(range(1, at), missing=None).tofile(file)
                if kind.label is not None:
                    labels.append((batch, at))
                if kind.split is not None:
                    splits.append((before, batch.strings(at + (kind.label is not None), missing="")))
                for place, key in enumerate(kind.times, start=len(kind.columns) - len(kind.times)):
                    self._times.setdefault((name, key), []).append(self._time_cells.read(batch, place))
        return labels, splits

    def _node_times(self) -> dict[str, ArrayFile]:
        """Times of the nodes of all types; those of a type without any were always there."""
        found = dict[str, ArrayFile]()
        for key in sorted({key for _, key in self._times}):
            parts = [
                np.concatenate(self._times.get((name, key), [np.full(len(kind.ids), ALWAYS)]))
                for name, kind in self.types.items()
            ]
            found[key] = held(f"{key} of {self.where}", self._time_cells.array(np.concatenate(parts)))
        return found

    def _labels(self, name: str, found: Sequence[tuple[Cells, int]]) -> dict[str, ArrayFile]:
        """Words become classes by their order; numbers stay."""
        where, kind = f"labels of {self.types[name].where}", self.types[name]
        assert kind.table is not None
        assert kind.label is not None
        of = kind.table.column_kind(kind.label)
        if of == "int":
            values = np.concatenate([batch.ints(at, missing=-1) for batch, at in found])
        elif of == "float":
            values = np.concatenate([batch.floats(at, missing=np.nan) for batch, at in found])
        else:
            words = [word for batch, at in found for word in batch.strings(at, missing="").to_pylist()]
            classes = sorted({word for word in words if word})
            number = {word: place for place, word in enumerate(classes)}
            self.pieces.add_labels(name, slice(None), np.array([number.get(word, -1) for word in words]), where)
            return {"class_names": held(where, np.array(classes, dtype=str))}
        self.pieces.add_labels(name, slice(None), values, where)
        return {}

    def _splits(self, name: str, first: int, words: Any) -> None:
        where = f"splits of {self.types[name].where}"
        cells = _split_words(words, where, first)
        for split in MASKS:
            self.pieces.add_split(split, name, first + np.flatnonzero(cells == split), where)

    def _edges(self, relation: _Relation, *, back: bool) -> Iterator[Piece]:
        """The edges of a table by the numbers of their ends; ``back``: the other way round, but those held out."""
        start, scratch = 0, self.pieces.scratch
        with (
            (scratch / "weights").open("ab") as weights,
            (scratch / "edge-features").open("ab") as features,
            (scratch / "times").open("ab") as times,
            (scratch / "splits").open("ab") as splits,
        ):
            for batch in self._batches(relation, f"read {relation.triple[1]}"):
                ends = []
                for column, end in enumerate((0, 2)):
                    kind = self.types[relation.triple[end]]
                    numbers = kind.ids.add_nodes(batch, column).astype(np.int64)
                    what = f"{{}} is the id of no node of type '{relation.triple[end]}'"
                    fix = f"Add it to the table of {relation.triple[end]}, or leave the edge out"
                    batch.check(numbers >= self.pieces.sizes[relation.triple[end]], column, what, fix)
                    ends.append(numbers)
                split = np.zeros(len(batch), np.uint8)
                if relation.divided:
                    words = batch.strings(len(relation.columns) - 1, missing="")
                    cells = _split_words(words, f"splits of {relation.table.path}", start)
                    for number, name in enumerate(HELD, start=1):
                        split[cells == name] = number
                taken = split == 0 if back else np.ones(len(batch), bool)
                split[taken].tofile(splits)
                if relation.weighted:
                    batch.floats(2).astype(np.float32)[taken].tofile(weights)
                if relation.wide:
                    begin = 2 + relation.weighted
                    batch.matrix(range(begin, begin + relation.wide), missing=None)[taken].tofile(features)
                when = np.full(len(batch), ALWAYS)
                if relation.timed:
                    when = self._time_cells.read(batch, 2 + relation.weighted + relation.wide)
                when[taken].tofile(times)
                yield str(relation.table.path), start, np.stack(ends[::-1] if back else ends, axis=1)[taken]
                start += len(batch)

    def _batches(self, relation: _Relation, doing: str) -> Iterator[Cells]:
        """Rows of a table of edges; ends are read as the ids of their types are."""
        ends: list[Kind] = [self.types[relation.triple[end]].ids.kind for end in (0, 2)]
        kinds = [*ends, *["float"] * (relation.weighted + relation.wide)]
        kinds += ["str"] * (relation.timed + relation.divided)
        with closing(relation.table.batches(relation.columns, kinds, doing=doing)) as batches:  # type: ignore[arg-type]
            yield from batches

    def _names(self) -> Shaped[np.ndarray, "N"]:
        """The user's ids of all nodes; text where any type has text."""
        each = [kind.ids.in_order() for kind in self.types.values()]
        if all(kind.ids.kind == "int" for kind in self.types.values()):
            return np.concatenate(each).astype(np.int64)
        return np.array([str(name) for names in each for name in names], dtype=str)


def _split_words(words: Any, where: str, first: int) -> Shaped[np.ndarray, "n"]:
    """Names of splits, or empty, in an array of objects.

    Raises:
        InputError: one is none; names the row, ``first`` being that of the first word.
    """
    cells = np.array(words.to_pylist(), dtype=object)
    strange = ~np.isin(cells, ["", *MASKS])
    if strange.any():
        row = int(np.argmax(strange))
        what = f"'{cells[row]}' is no split"
        raise InputError(what, where=f"{where}, row {first + row} (from 0)", fix=f"Write one of {', '.join(MASKS)}")
    return cells


def _mapping(value: Any, where: str, known: Sequence[str] = ()) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        what = f"holds {'nothing' if value is None else type(value).__name__}, not names with values"
        raise InputError(what, where=where, fix="See partita.sources.typed_tables for an example")
    if known and (strange := [key for key in value if key not in known]):
        raise InputError(f"there is no '{strange[0]}' here", where=where, fix=nearest(str(strange[0]), known))
    return {str(key): each for key, each in value.items()}


def _words(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str | int) for each in value):
        raise InputError(f"is '{value}', not a list of columns", where=where, fix="Write [one, two]")
    return [str(each) for each in value]
