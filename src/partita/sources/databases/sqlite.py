"""Databases of SQLite, read with Python's own module. The file is opened for reading only."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from partita.core import progress
from partita.core.errors import InputError
from partita.sources.batch import Cells, Kind, counted, first_line
from partita.sources.columnar import Columnar
from partita.sources.databases.schema import ForeignKey, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"SQLite format 3\0"
"""What a file begins with."""

_ROWS = 1 << 16
_CELLS_AT_ONCE = 1 << 19
_TABLES = (
    "SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
)


class SqliteDatabase:
    """See :class:`partita.sources.databases.schema.Database`.

    Args:
        path: of the file.

    Raises:
        InputError: it cannot be read, or is no database.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        with _damage_of(self.where):
            if not path.is_file():
                raise InputError("no such file", where=self.where, fix="Check the path")
            self._connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
            self._connection.execute("PRAGMA query_only = ON")
            self._connection.execute("PRAGMA trusted_schema = OFF")  # views of a stranger's file run nothing
            self._columns: dict[str, dict[str, str]] = {}
            self.tables: Mapping[str, TableSchema] = {
                name: self._schema(name, kind) for name, kind in self._all(f"{_TABLES} ORDER BY rowid")
            }

    def _all(self, query: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query).fetchall()

    def _schema(self, name: str, kind: str) -> TableSchema:
        columns = self._all(f"PRAGMA table_xinfo({quoted(name)})")  # with columns that are computed
        shown = [each for each in columns if each[6] != 1]
        self._columns[name] = {column: declared or "" for _, column, declared, *_ in shown}
        keys = sorted((place, column) for _, column, _, _, _, place, _ in shown if place)
        by_number = dict[int, list[tuple[str, str, str | None]]]()
        for number, _, table, column, to, *_ in self._all(f"PRAGMA foreign_key_list({quoted(name)})"):
            by_number.setdefault(number, []).append((column, table, to))
        found = [by_number[number] for number in sorted(by_number, reverse=True)]  # SQLite gives the last one first
        return TableSchema(
            name,
            tuple(self._columns[name]),
            tuple(column for _, column in keys),
            tuple(ForeignKey(*key[0]) for key in found if len(key) == 1),
            tuple(tuple(column for column, _, _ in key) for key in found if len(key) > 1),
            view=kind == "view",
        )

    def read(self, table: str, without: Collection[str] = ()) -> SqliteTable:
        """See :class:`partita.sources.databases.schema.Database`."""
        declared = {name: kind for name, kind in self._columns[table].items() if name not in without}
        with _damage_of(f"{self.where}, table {table}"):
            return SqliteTable(self._connection, self.where, table, declared, _order(self._connection, table))

    def close(self) -> None:
        """See :class:`partita.sources.databases.schema.Database`."""
        self._connection.close()


class SqliteTable(Columnar):
    """Rows of a table.

    SQLite lets any cell hold any kind of value. The kind of a column is found by looking at all of its cells: integers,
    numbers, text, or bytes. What is declared a number and holds text is refused; where other columns hold both, all
    cells are text.
    """

    def __init__(
        self, connection: sqlite3.Connection, where: str, name: str, declared: dict[str, str], order: str
    ) -> None:
        import pyarrow as pa

        self.path, self._connection = Path(f"{where}, table {name}"), connection
        kinds = ", ".join(
            f"max(typeof({quoted(column)}) = '{kind}')" for column in declared for kind in ("text", "real", "blob")
        )
        found = connection.execute(f"SELECT count(*), {kinds or 1} FROM {quoted(name)}").fetchone()
        self._rows: int = found[0]
        types, chosen = list[Any](), list[str]()
        for place, (column, kind) in enumerate(declared.items()):
            text, real, blob = (bool(each) for each in found[1 + 3 * place : 4 + 3 * place])
            if text and _is_number(kind):
                odd = f"SELECT {quoted(column)} FROM {quoted(name)} WHERE typeof({quoted(column)}) = 'text' LIMIT 1"
                raise InputError(
                    f"is declared {kind} and holds text, for instance '{connection.execute(odd).fetchone()[0]}'",
                    where=f"{self.path}, column {column}",
                    fix="Correct these cells or set them to NULL, or leave the column out",
                )
            types.append(pa.binary() if blob else pa.string() if text else pa.float64() if real else pa.int64())
            chosen.append(f"CAST({quoted(column)} AS TEXT)" if text else quoted(column))
        self.names = tuple(declared)
        self._schema = pa.schema(list(zip(self.names, types)))
        self._query, self._ordered = f"SELECT {{}} FROM {quoted(name)}{order}", bool(order)
        self._expressions = chosen

    def batches(self, columns: Sequence[int], kinds: Sequence[Kind], *, doing: str) -> Generator[Cells, None, None]:
        """See :class:`partita.sources.edges.TableReader`. Columns have the types that were found."""
        # Views have no order of their own, but the same query gives the same one.
        wanted = columns if self._ordered else range(len(self.names))
        query = self._query.format(", ".join(self._expressions[column] for column in wanted))
        place = {column: at for at, column in enumerate(wanted)}
        rows, start = max(1, min(_ROWS, _CELLS_AT_ONCE // max(1, len(wanted)))), 0
        names = [self.names[column] for column in columns]
        with (
            progress.task(doing, total=self._rows, unit="rows") as task,
            _damage_of(str(self.path)),
            closing(self._connection.execute(query)) as cursor,
        ):
            while part := cursor.fetchmany(rows):
                by_column = list(zip(*part))
                arrays = [self._array(by_column[place[column]], column, start) for column in columns]
                yield Cells(arrays, names, counted(str(self.path), start))
                start += len(part)
                task.advance(len(part))

    def _array(self, values: Sequence[Any], column: int, start: int) -> pa.Array:
        import pyarrow as pa

        kind = self._schema.types[column]
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError) as error:
            where = f"{self.path}, column {self.names[column]}, a row from {start} on"
            raise InputError(f"cannot be read as {kind} ({first_line(error)})", where=where) from error


def quoted(name: str) -> str:
    """A name of a table or of a column in SQL."""
    return '"' + name.replace('"', '""') + '"'


def _is_number(declared: str) -> bool:
    """Whether SQLite would make numbers of what a column of this type is given: its rule of affinity.

    What is declared a date or a time falls under that rule, too, and usually holds text.
    """
    kind = declared.upper()
    if any(word in kind for word in ("DATE", "TIME", "CHAR", "CLOB", "TEXT", "BLOB")):
        return False
    return any(word in kind for word in ("INT", "REAL", "FLOA", "DOUB", "NUMERIC", "DECIMAL", "BOOL"))


def _order(connection: sqlite3.Connection, table: str) -> str:
    """What puts rows in the same order whichever columns are read: an index could be read in place of the table."""
    kind = connection.execute("SELECT type FROM sqlite_schema WHERE name = ?", (table,)).fetchone()[0]
    if kind == "view":
        return ""
    try:
        connection.execute(f"SELECT rowid FROM {quoted(table)} LIMIT 0")
    except sqlite3.OperationalError:  # it has none
        keys = [each for each in connection.execute(f"PRAGMA table_info({quoted(table)})") if each[5]]
        return " ORDER BY " + ", ".join(quoted(each[1]) for each in sorted(keys, key=lambda each: each[5]))
    return " ORDER BY rowid"


@contextmanager
def _damage_of(where: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        fix = "Check it with sqlite3 FILE 'PRAGMA integrity_check', or write it again"
        raise InputError(
            f"cannot be read as a database of SQLite ({first_line(error)})", where=where, fix=fix
        ) from error
