"""Databases of DuckDB, read with its own package. The file is opened for reading only."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from partita.core import progress
from partita.core.errors import ConfigError, InputError
from partita.sources.batch import Cells, Kind, counted, first_line
from partita.sources.columnar import Columnar
from partita.sources.databases.schema import ForeignKey, TableSchema
from partita.sources.databases.sqlite import quoted

MAGIC = b"DUCK"
"""What a file has at its ninth byte."""

_ROWS = 1 << 16
_MAIN = "main"
_MEMORY = "1GB"
"""What DuckDB keeps of a file that it scans; its own default is most of the machine's memory."""
_TABLES = """SELECT table_schema, table_name, table_type FROM information_schema.tables
WHERE table_catalog = current_database() AND table_schema NOT IN ('information_schema', 'pg_catalog')
ORDER BY table_schema, table_name"""
_COLUMNS = """SELECT table_schema, table_name, column_name FROM information_schema.columns
WHERE table_catalog = current_database() ORDER BY ordinal_position"""
_KEYS = """SELECT schema_name, table_name, constraint_type, constraint_column_names, referenced_table,
referenced_column_names FROM duckdb_constraints()
WHERE database_name = current_database() AND constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY')
ORDER BY constraint_index"""


class DuckDatabase:
    """See :class:`partita.sources.databases.schema.Database`. Tables of other schemas are called ``schema.table``.

    Args:
        path: of the file.

    Raises:
        InputError: it cannot be read, or is no database.
        ConfigError: the package is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            import duckdb
        except ImportError:
            what = "databases of DuckDB are read with the package duckdb, which is not installed"
            raise ConfigError(what, where=str(path), fix="Run: pip install duckdb") from None
        self.where, self._error = str(path), duckdb.Error
        if not path.is_file():
            raise InputError("no such file", where=self.where, fix="Check the path")
        with self._damage_of(self.where):
            # A view of a stranger's file reads no other files, and loads no code.
            self._connection: Any = duckdb.connect(
                str(path), read_only=True,
                config={
                    "enable_external_access": "false", "autoload_known_extensions": "false", "memory_limit": _MEMORY
                },
            )  # fmt: skip
            rows = self._connection.execute(_TABLES).fetchall()
            columns = self._connection.execute(_COLUMNS).fetchall()
            keys = self._connection.execute(_KEYS).fetchall()
            self._from = {
                name if schema == _MAIN else f"{schema}.{name}": (schema, name, kind) for schema, name, kind in rows
            }
            self.tables: Mapping[str, TableSchema] = {
                called: self._schema(called, columns, keys) for called in self._from
            }

    def _schema(self, called: str, columns: list[Any], keys: list[Any]) -> TableSchema:
        schema, table, kind = self._from[called]
        mine = [each[2:] for each in keys if each[:2] == (schema, table)]
        foreign = [each for each in mine if each[0] == "FOREIGN KEY"]
        return TableSchema(
            called,
            tuple(column for of_schema, of, column in columns if (of_schema, of) == (schema, table)),
            next((tuple(each[1]) for each in mine if each[0] == "PRIMARY KEY"), ()),
            tuple(
                ForeignKey(column[0], to if schema == _MAIN else f"{schema}.{to}", to_column[0])
                for _, column, to, to_column in foreign
                if len(column) == 1
            ),
            tuple(tuple(column) for _, column, *_ in foreign if len(column) > 1),
            view=kind == "VIEW",
        )

    def read(self, table: str, without: Collection[str] = ()) -> DuckTable:
        """See :class:`partita.sources.databases.schema.Database`."""
        schema, name, _ = self._from[table]
        columns = [column for column in self.tables[table].columns if column not in without]
        with self._damage_of(f"{self.where}, table {table}"):
            return DuckTable(self, f"{quoted(schema)}.{quoted(name)}", f"{self.where}, table {table}", columns)

    @contextmanager
    def query(self, query: str) -> Iterator[Any]:
        """What a query gives, as a reader of Arrow's batches."""
        with closing(self._connection.cursor()) as cursor:  # several may be read in turns
            found = cursor.sql(query)
            # The second is what versions before 1.4 call it.
            yield (found.to_arrow_reader if hasattr(found, "to_arrow_reader") else found.fetch_arrow_reader)(_ROWS)

    def one(self, query: str) -> Any:
        """The only cell that a query gives."""
        return self._connection.cursor().execute(query).fetchone()[0]

    @contextmanager
    def damage_of(self, where: str) -> Iterator[None]:
        """Turn what DuckDB raises into an :class:`InputError`."""
        with self._damage_of(where):
            yield

    @contextmanager
    def _damage_of(self, where: str) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            what = f"cannot be read as a database of DuckDB ({first_line(error)})"
            raise InputError(what, where=where, fix="Close programs that write to it, or write it again") from error

    def close(self) -> None:
        """See :class:`partita.sources.databases.schema.Database`."""
        self._connection.close()


class DuckTable(Columnar):
    """Rows of a table, in the order in which they were inserted."""

    def __init__(self, database: DuckDatabase, name: str, where: str, columns: Sequence[str]) -> None:
        self.path, self._database = Path(where), database
        self._from, self.names = name, tuple(columns)
        with database.query(f"SELECT {self._list(self.names)} FROM {name} LIMIT 0") as reader:
            self._schema = reader.schema
        self._rows: int = database.one(f"SELECT count(*) FROM {name}")

    def _list(self, columns: Sequence[str]) -> str:
        return ", ".join(map(quoted, columns)) or "1"

    def batches(self, columns: Sequence[int], kinds: Sequence[Kind], *, doing: str) -> Generator[Cells, None, None]:
        """See :class:`partita.sources.edges.TableReader`. Columns keep their types."""
        names, start = [self.names[column] for column in columns], 0
        # All columns, as views have no order of their own, but the same query gives the same one.
        query = f"SELECT {self._list(self.names)} FROM {self._from}"
        with (
            progress.task(doing, total=self._rows, unit="rows") as task,
            self._database.damage_of(str(self.path)),
            self._database.query(query) as reader,
        ):
            for part in reader:
                if part.num_rows:
                    yield Cells([part.column(column) for column in columns], names, counted(str(self.path), start))
                start += part.num_rows
                task.advance(part.num_rows)
