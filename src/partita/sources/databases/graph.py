"""From the tables of a database to a typed graph.

Every row of a table is a node. Every foreign key is a relation from the rows that have it to those that it refers to,
and another one back. Rows have times, from which on they are there. In memory are the ids of rows, and what is counted
of columns; features and edges pass through files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from partita.core.arrow import as_numpy
from partita.core.errors import ConfigError, InputError, StoreError
from partita.graph.column_specs import MASKS
from partita.graph.schema import REVERSE_PREFIX, check_names
from partita.graph.store import GraphStore
from partita.graph.times import ALWAYS, NEVER
from partita.sources.arrays import ArrayFile
from partita.sources.batch import Cells, Kind
from partita.sources.databases.columns import Encoder, Words, by_number, from_json, to_json, words_of
from partita.sources.databases.description import Description
from partita.sources.databases.schema import Database
from partita.sources.databases.tables import Table, tables_of
from partita.sources.ids import Ids, IntIds, StringIds
from partita.sources.options import IngestOptions
from partita.sources.times import TimeCells
from partita.sources.typed_pieces import Piece, Triple, TypedPieces, held, mapped

NOTE = "database"
"""In a store's notes: the tables that it was made of, with the encoders of their columns."""
_USED = ("label_column", "split_column", "drop_columns", "categorical", "like", "tables", "row_times", "targets")
"""Options that tell what tables and columns are."""


@dataclass
class DatabaseGraph:
    """What was read of a database.

    Attributes:
        arrays: by the names of :mod:`partita.sources.array_graph`.
        notes: what is worth saying.
        kept: for the notes of the store.
        options: of the ingest, which mean something else for the arrays.
    """

    arrays: dict[str, ArrayFile]
    notes: list[str]
    kept: dict[str, Any]
    options: dict[str, Any]


def database_graph(
    database: Database, description: Description, scratch: Path, options: IngestOptions
) -> DatabaseGraph:
    """Read a database.

    Args:
        database: to be read.
        description: what the user says of it.
        scratch: an empty directory for what is put together.
        options: of the ingest; of these count ``split_times`` and ``like``.

    Raises:
        InputError: something is missing or cannot be used; names table, row and column.
        ConfigError: names of tables differ by capitals only, or cannot be names of types.
        StoreError: ``like`` is not the store of a database.
    """
    return _Reading(database, description, scratch, options).graph()


@dataclass
class _Rows:
    """What is known of the rows of a table."""

    ids: Ids
    times: list[Int64[np.ndarray, "n"]] = field(default_factory=list)
    labels: list[tuple[Cells, int]] = field(default_factory=list)


class _Reading:
    def __init__(self, database: Database, description: Description, scratch: Path, options: IngestOptions) -> None:
        self.database, self.description, self.scratch = database, description, scratch
        self.known = None if options.like is None else encoders_of(Path(options.like))
        self.classes = None if options.like is None else GraphStore.open(Path(options.like)).metadata.class_names
        self.tables = tables_of(database, description, self.known)
        nodes = [name for name, table in self.tables.items() if table.role != "targets"]
        check_names("node type", nodes, where=database.where)
        self.cells = TimeCells()
        self.rows = {name: _Rows(self._new_ids(self.tables[name])) for name in nodes}
        self.pieces = TypedPieces(Path(database.where), scratch, sizes=dict.fromkeys(nodes, 0))
        self.skipped = dict[str, int]()
        self.unlabeled, self.codes = options.unlabeled, False
        times = options.split_times
        self.bound = None if times is None or len(times) != 2 else self.cells.points(list(times), "split_times")[0]
        if self.bound is not None and not any(table.time is not None for table in self.tables.values()):
            what = "splits are made by time, and no table has a column of times"
            raise ConfigError(what, where="split_times", fix="Name it: --row-times TABLE.COLUMN, or leave this out")

    def _new_ids(self, table: Table) -> Ids:
        kind = table.reader.column_kind(table.key[0]) if len(table.key) == 1 else "int" if not table.key else "str"
        return IntIds() if kind == "int" else StringIds()

    def graph(self) -> DatabaseGraph:
        found, pieces = dict[str, ArrayFile](), self.pieces
        for name in self.rows:
            if self.known is None:
                self._count(self.tables[name])
        for name in self.rows:
            self._read(self.tables[name], self.rows[name])
        pieces.sizes.update({name: len(rows.ids) for name, rows in self.rows.items()})
        for name, rows in self.rows.items():
            if rows.labels:
                found |= self._labels(self.tables[name], rows)
        for name in self.rows:
            self._splits(self.tables[name])
        for back in (False, True):
            self._relate(back)
        found |= self._times()
        for at, name in enumerate(self.rows):
            width = sum(len(each.names) for each in self._encoders(self.tables[name]))
            if width:
                rows_of = mapped(self._features(at), np.float32, (pieces.sizes[name], width))
                pieces.features[name] = {"feat": [held(f"features of {self.tables[name].where}", rows_of)]}
        names = held(f"keys of {self.database.where}", self._names())
        done = dict.fromkeys(_USED) | ({"unlabeled": "-1"} if self.codes else {})
        return DatabaseGraph({**pieces.arrays(), **found, "name": names}, self._notes(), {NOTE: self._kept()}, done)

    def _features(self, number: int) -> Path:
        return self.scratch / f"features-{number}"

    def _encoders(self, table: Table) -> list[Encoder]:
        return [each for each in table.encoders.values() if not isinstance(each, Words)]

    # Passes

    def _batches(self, table: Table, columns: list[int], doing: str) -> Iterator[Cells]:
        """Some columns of a table; one that is asked for twice is read once."""
        kinds, distinct = list[Kind](), list(dict.fromkeys(columns))
        for at in distinct:
            encoder = table.encoders.get(at)
            key_kind = table.reader.column_kind(at) or "str"
            if at in table.key or at in table.references or at == table.label:
                kinds.append(key_kind)
            else:
                kinds.append("str" if encoder is None else encoder.reads)
        places = [distinct.index(at) for at in columns]
        with closing(table.reader.batches(distinct, kinds, doing=f"{doing} {table.name}")) as batches:
            for batch in batches:
                found = [batch.columns[place] for place in places]
                yield Cells(found, [batch.names[place] for place in places], batch.where)

    def _count(self, table: Table) -> None:
        """Look at the columns of features, in the rows that a model may learn from."""
        if not table.encoders:
            return
        columns = list(table.encoders)
        timed = [] if self.bound is None or table.time is None else [table.time]
        for batch in self._batches(table, [*columns, *timed], "look at"):
            counts = np.ones(len(batch), bool)
            if timed:
                counts = self.cells.read(batch, len(columns)) < self.bound
            for place, encoder in enumerate(table.encoders.values()):
                encoder.see(batch, place, counts)
        for at, encoder in table.encoders.items():
            if isinstance(encoder, Words):
                table.encoders[at] = encoder.decided()
        for at, encoder in list(table.encoders.items()):
            if not isinstance(encoder, Words) and not encoder.names:
                del table.encoders[at]
                table.notes.append(f"{table.name}.{table.column(at)} has one value in all rows, so is no feature")

    def _read(self, table: Table, rows: _Rows) -> None:
        """Number the rows, and write their features; times and labels are kept."""
        columns = [*table.encoders]
        place = dict[str, int]()
        for what, at in (("time", table.time), ("label", table.label)):
            if at is not None:
                place[what] = len(columns)
                columns.append(at)
        keys = range(len(columns), len(columns) + len(table.key))
        path = self._features(list(self.rows).index(table.name))
        with path.open("wb") as file:
            for batch in self._batches(table, [*columns, *table.key] or [0], "read"):
                before = len(rows.ids)
                ids, column = _key_cells(batch, list(keys), before)
                numbers = rows.ids.add_nodes(ids, column)
                expected = np.arange(before, before + len(batch))
                ids.check(numbers != expected, column, "the key {} is there twice", "Give every row a key of its own")
                parts = [encoder.rows(batch, at) for at, encoder in enumerate(self._encoders(table))]
                if parts:
                    np.concatenate(parts, axis=1).tofile(file)
                if "time" in place:
                    rows.times.append(self.cells.read(batch, place["time"]))
                if "label" in place:
                    rows.labels.append((batch, place["label"]))

    def _labels(self, table: Table, rows: _Rows) -> dict[str, ArrayFile]:
        """Words become classes by their order, and integers where -1 is one of them; other numbers stay."""
        place = table.label or 0
        where, kind = f"{table.where}, column {table.column(place)}", table.reader.column_kind(place)
        if kind == "float":
            values = np.concatenate([batch.floats(at, missing=np.nan) for batch, at in rows.labels])
            self.pieces.add_labels(table.name, slice(None), values, where)
            return {}
        self.codes = True
        there = np.concatenate([~batch.missing(at) for batch, at in rows.labels])
        if kind == "int" and self.unlabeled is None and self.classes is None:
            values = np.concatenate([batch.ints(at, missing=-1) for batch, at in rows.labels])
            if not (values[there] == -1).any():
                self.pieces.add_labels(table.name, slice(None), values, where)
                return {}
        words = [word for batch, at in rows.labels for word in words_of(batch, at).to_pylist()]
        none = ("", self.unlabeled)
        classes = list(self.classes or sorted({word for word in words if word not in none}, key=by_number))
        number = {word: at for at, word in enumerate(classes)}
        if unknown := sum(word not in number and word not in none for word in words):
            table.notes.append(f"{where}: {unknown:,} labels are no classes of the other store, so these have none")
        self.pieces.add_labels(table.name, slice(None), np.array([number.get(word, -1) for word in words]), where)
        return {"class_names": held(where, np.array(classes, dtype=str))}

    def _splits(self, table: Table) -> None:
        if table.split is None:
            return
        start, where = 0, f"{table.where}, column {table.column(table.split)}"
        for batch in self._batches(table, [table.split], "read splits of"):
            words = np.array(words_of(batch, 0).to_pylist(), dtype=object)
            strange = ~np.isin(words, ["", *MASKS])
            batch.check(strange, 0, "'{}' is no split", f"Write one of {', '.join(MASKS)}")
            for split in MASKS:
                self.pieces.add_split(split, table.name, start + np.flatnonzero(words == split), where)
            start += len(batch)

    # Edges

    def _relate(self, back: bool) -> None:
        """Edges of all foreign keys, from the rows that have them; ``back``: to these rows."""
        for table in self.tables.values():
            if table.role == "targets":
                if not back:
                    (first, question), (second, answer) = table.references.items()
                    self._add((question.table, table.name, answer.table), self._pairs(table, first, second))
                continue
            for at, key in table.references.items():
                name = table.column(at)
                if back:
                    self._add((key.table, f"{REVERSE_PREFIX}{name}", table.name), self._pairs(table, at, None))
                elif table.role == "rows":
                    self._add((table.name, name, key.table), self._pairs(table, None, at))

    def _add(self, triple: Triple, pieces: Iterator[Piece]) -> None:
        where = self.database.where
        if triple in self.pieces.triples:
            raise InputError(f"the relation {':'.join(triple)} is there twice", where=where, fix="Rename a column")
        self.pieces.relation(":".join(triple), where)
        self.pieces.add_edges(triple, pieces)

    def _pairs(self, table: Table, source: int | None, target: int | None) -> Iterator[Piece]:
        """Edges of a table: from one column to another, ``None`` standing for the row itself."""
        columns = [at for at in (source, target) if at is not None]
        start, count = 0, 0
        self.skipped |= {f"{table.name}.{table.column(at)}": 0 for at in columns}  # they are read for each direction
        for batch in self._batches(table, columns, "relate"):
            ends, there = list[Any](), np.ones(len(batch), bool)
            own = np.arange(start, start + len(batch))
            for at in (source, target):
                found = own if at is None else self._find(table, at, batch, columns.index(at))
                ends.append(found)
                there &= found >= 0
            yield str(table.where), start, np.stack(ends, axis=1)[there]
            start, count = start + len(batch), count + int(there.sum())
        if not count:
            table.notes.append(f"{table.name}: no row refers to another by {', '.join(map(table.column, columns))}")

    def _find(self, table: Table, column: int, batch: Cells, place: int) -> Int64[np.ndarray, "n"]:
        """Numbers of the rows that a foreign key refers to; -1 where it is empty.

        Raises:
            InputError: there is no such row.
        """
        import pyarrow as pa
        from pyarrow import compute

        key, found = table.references[column], np.full(len(batch), -1, np.int64)
        given = ~batch.missing(place)
        if self.rows[key.table].ids.kind == "str":  # text has empty cells
            given &= as_numpy(compute.not_equal(batch.strings(place, missing=""), ""))
        cells = Cells(
            [batch.columns[place].filter(pa.array(given))], [batch.names[place]],
            lambda row: batch.where(int(np.flatnonzero(given)[row])),
        )  # fmt: skip
        if len(cells) == 0:
            return found
        numbers = _numbers(self.rows[key.table].ids, cells, self.pieces.sizes[key.table])
        unknown = numbers < 0
        if self.description.skip_unmatched:
            name = f"{table.name}.{batch.names[place]}"
            self.skipped[name] += int(unknown.sum())
        else:
            what = f"no row of {key.table} has the key {{}}"
            fix = "Add the row, set the cell to NULL, or write unmatched_keys: skip in a description"
            cells.check(unknown, 0, what, fix)
        found[given] = numbers
        return found

    # What goes beside

    def _times(self) -> dict[str, ArrayFile]:
        """When rows are there, when questions are asked, and that targets never carry messages."""
        found, where = dict[str, ArrayFile](), self.database.where
        for name, questions in (("node_time", False), ("seed_time", True)):
            each = [
                np.concatenate([*rows.times, np.zeros(0, np.int64)])
                if rows.times and (self.tables[of].role == "questions") == questions
                else np.full(len(rows.ids), ALWAYS)
                for of, rows in self.rows.items()
            ]
            if any((times != ALWAYS).any() for times in each):
                found[name] = held(f"{name} of {where}", self.cells.array(np.concatenate(each)))
        if any(table.role == "targets" for table in self.tables.values()) and found:
            targets = {table.name for table in self.tables.values() if table.role == "targets"}
            path = self.scratch / "times"
            with path.open("wb") as file:
                for triple in self.pieces.triples:
                    when = NEVER if triple[1] in targets else ALWAYS
                    np.full(self.pieces.counts[triple], when).tofile(file)
            found["edge_time"] = held(
                f"times of {where}", self.cells.array(mapped(path, np.int64, (self.pieces.num_edges,)))
            )
        return found

    def _names(self) -> Shaped[np.ndarray, "N"]:
        """Keys of all rows; text where any table has text."""
        sizes = self.pieces.sizes  # ids of no row were numbered after those of the rows
        each = [rows.ids.in_order()[: sizes[name]] for name, rows in self.rows.items()]
        if all(rows.ids.kind == "int" for rows in self.rows.values()):
            return np.concatenate(each).astype(np.int64)
        return np.array([str(name) for names in each for name in names], dtype=str)

    def _notes(self) -> list[str]:
        notes = list[str]()
        for table in self.tables.values():
            if table.role == "targets":
                notes.append(f"{table.name}: links to be predicted, which carry no messages")
                continue
            times = "always there" if table.time is None else f"there from {table.column(table.time)} on"
            if table.role == "questions":
                times = "questions" + ("" if table.time is None else f", asked at {table.column(table.time)}")
            by_kind = dict[str, list[str]]()
            for encoder in self._encoders(table):
                by_kind.setdefault(encoder.kind, []).append(encoder.column)
            made = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in by_kind.items())
            notes.append(f"{table.name}: {times}" + (f"; {made}" if made else ""))
        notes += [note for table in self.tables.values() for note in table.notes]
        notes += [
            f"{count:,} values of {name} are keys of no row, taken for empty cells"
            for name, count in self.skipped.items()
            if count
        ]
        return notes

    def _kept(self) -> dict[str, Any]:
        return {
            name: {
                "role": table.role,
                "key": [table.column(at) for at in table.key],
                "references": {table.column(at): key.table for at, key in table.references.items()},
                **({} if table.time is None else {"time": table.column(table.time)}),
                **({} if table.label is None else {"label": table.column(table.label)}),
                "columns": to_json(self._encoders(table)),
            }
            for name, table in self.tables.items()
        }


def encoders_of(store: Path) -> dict[str, list[Encoder]]:
    """The encoders of the columns of each table that a store was made of.

    Raises:
        StoreError: it was not made of a database.
    """
    found = GraphStore.open(store).metadata.notes.get(NOTE)
    if not isinstance(found, Mapping):
        raise StoreError("was not made of a database", where=str(store), fix="Name the store that a database became")
    return {name: from_json(table.get("columns", ()), str(store)) for name, table in found.items()}


def _key_cells(batch: Cells, places: list[int], first: int) -> tuple[Cells, int]:
    """The keys of rows in one column: their numbers where there is none, joined where there are several."""
    import pyarrow as pa
    from pyarrow import compute

    if len(places) == 1:
        return batch, places[0]
    if not places:
        return Cells([pa.array(np.arange(first, first + len(batch)))], ["number"], batch.where), 0
    words = [batch.strings(place) for place in places]
    joined = compute.binary_join_element_wise(*words, pa.scalar(", ", pa.large_string()))
    return Cells([joined], [", ".join(batch.names[place] for place in places)], batch.where), 0


def _numbers(ids: Ids, cells: Cells, size: int) -> Int64[np.ndarray, "n"]:
    """Numbers of rows by their keys; -1 for keys of no row."""
    if ids.kind == "str":
        import pyarrow as pa

        if not pa.types.is_string(cells.columns[0].type):
            cells = Cells([cells.strings(0)], cells.names, cells.where)
    found = ids.add_nodes(cells, 0).astype(np.int64)
    return np.where(found < size, found, -1)
