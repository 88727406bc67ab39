"""Where a graph comes from: tables of edges (text or Parquet) and ``.npz`` files, behind one interface."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from partita.core.errors import InputError, nearest
from partita.sources.batch import Cells, Kind
from partita.sources.columnar import ParquetTable
from partita.sources.options import ColumnName
from partita.sources.roles import ends_by_name, ends_by_position, triple
from partita.sources.text import TextTable

Format = Literal["text", "parquet", "npz", "npy"]
_SUFFIXES: dict[str, Format] = {
    **dict.fromkeys((".csv", ".tsv", ".txt", ".edges"), "text"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **{".npz": "npz", ".npy": "npy"},
}
_MAGIC: dict[bytes, Format] = {b"PAR1": "parquet", b"PK\x03\x04": "npz", b"\x93NUM": "npy"}
_SHOWN_NAMES = 8
_OTHER_ARCHIVES = frozenset((".bz2", ".zip", ".zst", ".xz", ".7z", ".rar", ".tar", ".tgz"))
_BY_NETWORKX = "Read it with networkx and give the graph to partita.ingest"
_BY_PANDAS = "Read it with pandas and give the data frame to partita.ingest, or save it as CSV or Parquet"
_PICKLES = "Save its arrays as .npz: pickles run any code that they hold, so none is opened"
_OTHER_FORMATS = {
    ".mtx": "Read it with scipy.io.mmread and give the matrix to partita.ingest",
    **dict.fromkeys((".graphml", ".gml", ".gexf", ".net", ".graph6", ".dot", ".xml"), _BY_NETWORKX),
    **dict.fromkeys((".json", ".jsonl", ".ndjson", ".xls", ".xlsx", ".ods"), _BY_PANDAS),
    **dict.fromkeys((".feather", ".arrow", ".orc", ".h5", ".hdf5", ".avro"), _BY_PANDAS),
    **dict.fromkeys((".pt", ".pth", ".pkl", ".pickle", ".joblib", ".mat"), _PICKLES),
}
"""What to do with files of other formats, by their suffix."""
_OTHER_BEGINNINGS = {b"%%MatrixMarket": ".mtx", b"<?xml": ".xml", b"<graphml": ".graphml", b"{": ".json", b"[": ".json"}
_LONGEST_BEGINNING = max(map(len, _OTHER_BEGINNINGS))
_ALIASES: dict[str, Format] = {
    **dict.fromkeys(("text", "csv", "tsv", "snap"), "text"),
    **{"parquet": "parquet", "npz": "npz", "npy": "npy"},
}


@runtime_checkable
class TableReader(Protocol):
    """Rows and columns that are read front to back.

    Attributes:
        path: of the file or directory.
        names: of the columns; positions as text where they have none.
        has_header: whether the columns have names of the user's.
        note: what a user should know of how the table is read; empty: nothing.
    """

    path: Path
    names: tuple[str, ...]
    has_header: bool
    note: str

    def column_kind(self, column: int) -> Kind | None:
        """What a column holds, by its type or by the look of its first cells; ``None``: neither tells."""

    def holds_words(self, column: int) -> bool:
        """Whether none of the first cells of a column is a number."""

    def batches(self, columns: Sequence[int], kinds: Sequence[Kind], *, doing: str) -> Generator[Cells, None, None]:
        """Read some columns, in the order of the file; ``doing`` is what the progress display says."""


def detect_format(path: Path, named: str = "auto") -> Format:
    """Which format a file has: as the user says, else by its suffix, else by its first bytes.

    Raises:
        InputError: no such file, or an unknown format name.
    """
    if named != "auto" and named not in _ALIASES:
        raise InputError(f"there is no format '{named}'", where="format", fix=nearest(named, ["auto", *_ALIASES]))
    if not path.exists():
        raise InputError("no such file", where=str(path), fix="Check the path")
    if named != "auto":
        return _ALIASES[named]
    if path.is_dir():
        return "parquet"
    if path.suffix.lower() in _OTHER_ARCHIVES:
        what = f"is packed as {path.suffix.lower()}, which is not read; gzip is"
        raise InputError(what, where=str(path), fix="Unpack it, or pack it with gzip")
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix.lower() in _SUFFIXES:
        return _SUFFIXES[suffix.lower()]
    try:
        with path.open("rb") as file:
            first = file.read(_LONGEST_BEGINNING)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(path)) from error
    other = suffix.lower() if suffix.lower() in _OTHER_FORMATS else None
    other = other or next((kind for begin, kind in _OTHER_BEGINNINGS.items() if first.startswith(begin)), None)
    if other is not None:
        raise InputError(f"is a {other} file, which is not read", where=str(path), fix=_OTHER_FORMATS[other])
    return _MAGIC.get(first[:4], "text")


def open_table(
    path: Path,
    *,
    format: str = "auto",
    delimiter: str | None = None,
    header: bool | None = None,
    comment: str | None = "#",
    wanted: Collection[ColumnName | None] = (),
    exact_ids: bool = False,
    chunk_bytes: int = 8 << 20,
) -> TableReader:
    """Open a text or Parquet table.

    Args:
        path: file, or directory of Parquet files.
        format: "auto", "text" ("csv", "tsv", "snap" mean the same), or "parquet".
        delimiter: of a text file; ``None``: guess.
        header: whether a text file names its columns; ``None``: guess.
        comment: how comment lines of a text file begin; ``None``: there are none.
        wanted: columns that the user named, which help to tell a header.
        exact_ids: integers with zeros before them are no integers, as the zeros would be lost.
        chunk_bytes: how much text is parsed at once.

    Raises:
        InputError: the file cannot be read as such a table.
    """
    found = detect_format(path, format)
    if found == "parquet":
        return ParquetTable(path, batch_bytes=chunk_bytes // 2)
    if found != "text":
        raise InputError(f"is .{found}, not a table", where=str(path), fix="Give a text or Parquet table")
    if format == "tsv" and delimiter is None:
        delimiter = "\t"
    named = [name for name in wanted if isinstance(name, str)]
    return TextTable(
        path, delimiter=delimiter, header=header, comment=comment, wanted=named, exact_ids=exact_ids,
        chunk_bytes=chunk_bytes,
    )  # fmt: skip


def find_column(table: TableReader, name: ColumnName, role: str) -> int:
    """Position of a column that the user named.

    Args:
        table: where to look.
        name: a name, or a position (an integer, or digits where no column is named so).
        role: what the column is for, for the message.

    Raises:
        InputError: there is no such column, or two of that name.
    """
    where, positions = str(table.path), f"0..{len(table.names) - 1}"
    if isinstance(name, str) and table.has_header and name in table.names:
        if table.names.count(name) > 1:
            fix = "Rename one of them, or give the position, counted from 0, as an integer"
            raise InputError(f"two columns are named '{name}'", where=where, fix=fix)
        return table.names.index(name)
    if isinstance(name, int) or name.isdecimal():
        if 0 <= int(name) < len(table.names):
            return int(name)
        raise InputError(f"there is no column {name} ({role})", where=where, fix=f"Positions are {positions}")
    no_header = f"The file has no header; give a position, {positions}, or header=yes"
    fix = nearest(name, table.names) if table.has_header else no_header
    raise InputError(f"there is no column '{name}' ({role})", where=where, fix=fix)


def find_columns(table: TableReader, names: Sequence[ColumnName], role: str) -> list[int]:
    """Positions of columns that the user named, each once, by patterns such as ``"age_*"`` too.

    Raises:
        InputError: there is no such column, or none that a pattern fits.
    """
    found: dict[int, None] = {}
    for name in names:
        if not isinstance(name, str) or name in table.names or not any(letter in name for letter in "*?["):
            found[find_column(table, name, role)] = None
            continue
        fitting = [position for position, each in enumerate(table.names) if fnmatchcase(each, name)]
        if not fitting or not table.has_header:
            raise InputError(f"no column fits '{name}' ({role})", where=str(table.path), fix=nearest(name, table.names))
        found.update(dict.fromkeys(fitting))
    return list(found)


def unused_columns(table: TableReader, used: Collection[int]) -> str:
    """Says which columns of a table are not read; empty: all are."""
    others = [name for position, name in enumerate(table.names) if position not in used]
    if not others:
        return ""
    more = ", ..." if len(others) > _SHOWN_NAMES else ""
    shown = ", ".join(name or "(without a name)" for name in others[:_SHOWN_NAMES]) + more
    return f"{table.path}: {len(others)} column{'s' * (len(others) > 1)} not used: {shown}"


class EdgeTable:
    """Edges in a table: one column of sources, one of targets, and perhaps one of weights.

    Args:
        table: the rows.
        source: column of the sources; ``None``: as the names of two columns say, else the first that has a name.
        target: column of the targets; ``None``: likewise, else the second.
        weight: column of the weights; ``None``: there are none.
        features: columns of the edges' features.
        relation: column of the names of the relations; ``None``: there are none, unless the table looks so.
        triples: three columns are a head, a relation and a tail: ``True`` says so, ``None``: if they look so.
        time: column of the times; ``None``: there are none.

    Attributes:
        weighted: there are weights.
        timed: the column behind the features has the time of each edge.
        num_features: how many columns of features there are.
        has_relations: the last column that is read names the relation of each edge.
        held: tables of held-out edges, by split; see :meth:`hold_out`.

    Raises:
        InputError: a column does not exist, or source and target are one column.
    """

    def __init__(
        self,
        table: TableReader,
        source: ColumnName | None,
        target: ColumnName | None,
        weight: ColumnName | None,
        features: Sequence[ColumnName] = (),
        relation: ColumnName | None = None,
        triples: bool | None = False,
        time: ColumnName | None = None,
    ) -> None:
        self.table = table
        self.held = dict[str, EdgeTable]()
        self.path = table.path
        if len(table.names) < 2:
            raise InputError(
                "has one column, but edges need two",
                where=str(table.path),
                fix="Name the separator (delimiter), or give another file",
            )
        by_name = ends_by_name(table.names) if table.has_header else None
        named = None if relation is None else find_column(table, relation, "relation")
        guessed = triples is not False and (source, target, weight, named, time, *features) == (None,) * 5
        sample = table.dialect.sample if isinstance(table, TextTable) else ()
        three = triple(table.names, sample, has_header=table.has_header, sure=triples is True) if guessed else None
        self._guessed = three is not None and by_name is None
        if three is not None:
            named, by_name = three[2], three[:2]
        found = by_name or _others(table, named)
        ends = [find_column(table, found[0] if source is None else source, "source")]
        ends.append(find_column(table, found[1] if target is None else target, "target"))
        self._said = source is not None and target is not None
        others = [column for column in range(len(table.names)) if column != named]
        self._sure = self._guessed or by_name == tuple(others[:2]) or (by_name is None and len(others) == 2)
        if ends[0] == ends[1]:
            what = f"source and target are both column {table.names[ends[0]]}"
            raise InputError(what, where=str(table.path), fix="Name two columns")
        self._columns = ends if weight is None else [*ends, find_column(table, weight, "weight")]
        self.weighted = weight is not None
        found_features = find_columns(table, features, "edge feature")
        if taken := [table.names[column] for column in found_features if column in self._columns]:
            what = f"column {taken[0]} is a feature of the edges, and their source, target or weight"
            raise InputError(what, where=str(table.path), fix="Leave it out of --edge-feature-columns")
        self._columns += found_features
        self.num_features = len(found_features)
        self.timed = time is not None
        if time is not None:
            when = find_column(table, time, "time")
            if when in self._columns:
                what = f"column {table.names[when]} has the times, and is the source, target, weight or a feature"
                raise InputError(what, where=str(table.path), fix="Name another column with --time-column")
            self._columns.append(when)
        self.has_relations = named is not None
        if named is not None and named in self._columns:
            what = f"column {table.names[named]} names the relations, and is the source, the target or something else"
            raise InputError(what, where=str(table.path), fix="Name another column with --relation-column")
        self._columns += [] if named is None else [named]

    @property
    def kind_column(self) -> int:
        """Which column of a batch names the relations."""
        return 2 + self.weighted + self.num_features + self.timed

    @property
    def integer_ids(self) -> bool:
        """Whether all ends are integers, as far as can be told without reading everything."""
        mine = all(self.table.column_kind(column) == "int" for column in self._columns[:2])
        return mine and all(table.integer_ids for table in self.held.values())

    def hold_out(self, split: str, table: TableReader) -> None:
        """Add a table of held-out edges, with the same columns for source, target and relation.

        Raises:
            InputError: it has no such column.
        """
        names = self.table.names if self.table.has_header and table.has_header else None
        columns = [*self._columns[:2], *self._columns[self.kind_column :]]
        same: list[ColumnName] = [column if names is None else names[column] for column in columns]
        relation = same[2] if self.has_relations else None
        self.held[split] = EdgeTable(table, same[0], same[1], None, relation=relation)

    def notes(self) -> list[str]:
        """How the columns were chosen, where the user did not say, and ids that are numbers but no integers."""
        one, other = (self.table.names[column] for column in self._columns[:2])
        found = []
        if not (self._said or self._sure):
            named = f"from column {one} to column {other}"
            found.append(f"{self.path}: edges run {named}; --source-column and --target-column name others")
        if self._guessed:
            relation = self.table.names[self._columns[-1]]
            what = f"column {relation} names the relations of edges from column {one} to column {other}"
            fix = "--relation-column names another column, --source-column with --target-column none"
            found.append(f"{self.path}: {what}; {fix}")
        decimals = [name for name, at in zip((one, other), self._columns) if self.table.column_kind(at) == "float"]
        if decimals:
            found.append(f"{self.path}: the ids of column {decimals[0]} are no integers, so ids are names, as written")
        return found

    def unused(self) -> str:
        """Says which columns are not read; empty: all are."""
        return unused_columns(self.table, self._columns)

    def batches(self, kind: Kind) -> Generator[Cells, None, None]:
        """Edges in the order of the file: column 0 source, 1 target, then weight, features, time and relation, if
        there.

        Args:
            kind: what to read the two ends as.
        """
        kinds: list[Kind] = [kind, kind, *["float"] * (self.weighted + self.num_features)]  # type: ignore[list-item]
        kinds += ["str"] * (self.timed + self.has_relations)
        for batch in self.table.batches(self._columns, kinds, doing="read edges"):
            if self.weighted:
                check_weights(batch)
            yield batch

    def relations(self) -> Generator[Cells, None, None]:
        """Batches of one column, the relations, of the edges that are not held out."""
        yield from self.table.batches(self._columns[-1:], ["str"], doing="find relations")

    def held_batches(self, kind: Kind) -> Iterator[tuple[str, Cells]]:
        """Held-out edges by split: column 0 source, 1 target, 2 relation, if there."""
        for split, table in self.held.items():
            with closing(table.batches(kind)) as batches:
                for batch in batches:
                    yield split, batch

    def split_of(self, batch: Cells) -> None:
        """Edges of one table are all of one split."""
        return None


def _others(table: TableReader, relation: int | None) -> tuple[int, int]:
    """The first two columns that may be ends of edges."""
    if relation is None:
        return ends_by_position(table.names, has_header=table.has_header)
    left = [column for column in range(len(table.names)) if column != relation]
    if len(left) < 2:
        fix = "Give a table with a source, a target and a relation"
        raise InputError("has one column beside the relations, but edges need two", where=str(table.path), fix=fix)
    one, other = ends_by_position([table.names[column] for column in left], has_header=table.has_header)
    return left[one], left[other]


def check_weights(batch: Cells) -> None:
    """Check that the weights, column 2, are finite and not negative.

    Raises:
        InputError: naming the first bad one.
    """
    weights = batch.floats(2)
    fix = "Weights are numbers >= 0; fix the weight, or drop the edge"
    batch.check(np.isnan(weights), 2, "the weight is not a number", fix)
    batch.check(weights < 0, 2, "the weight {} is negative", fix)
    batch.check(weights > np.finfo(np.float32).max, 2, "the weight {} is too large for float32", fix)
