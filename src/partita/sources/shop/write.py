"""Writes the tables of the shop as a database: SQLite, DuckDB, or a folder of Parquet files."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from partita.core.asides import folder_written_aside, private_folder
from partita.core.errors import ConfigError, ResourceError
from partita.core.files import sync_file
from partita.sources.shop.tables import NUMBER, TABLES, TEXT, TIME, WHOLE, Table

_AT_ONCE = 1 << 16
"""Rows of a table that are written together."""

Write = Callable[[str, Any], None]
"""Writes an Arrow table of rows of a table that it names."""


class Batches:
    """Gathers rows until there are enough of them to be written together. Rows come after those that they refer to.

    Args:
        write: takes the rows.

    Attributes:
        counts: rows so far, by table.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: dict[str, list[Any]] = {name: [] for name in TABLES}
        self._schemas = {name: arrow_schema(table) for name, table in TABLES.items()}
        self.counts = dict.fromkeys(TABLES, 0)

    def add(self, name: str, rows: Mapping[str, Any]) -> None:
        """Take rows of a table: columns by name, of NumPy or Arrow."""
        import pyarrow as pa

        schema = self._schemas[name]
        arrays = [pa.array(rows[each.name]).cast(each.type) for each in schema]
        batch = pa.record_batch(arrays, schema=schema)
        self._waiting[name].append(batch)
        self.counts[name] += len(batch)
        if sum(map(len, self._waiting[name])) >= _AT_ONCE:
            self._flush(name)

    def finish(self) -> None:
        """Write all that waits."""
        for name in TABLES:
            self._flush(name)

    def _flush(self, name: str) -> None:
        import pyarrow as pa

        for parent in TABLES[name].refers.values():
            self._flush(parent)
        if waiting := self._waiting[name]:
            self._waiting[name] = []
            self._write(name, pa.Table.from_batches(waiting))


def arrow_schema(table: Table) -> Any:
    """Names, types and gaps of columns, and how RelBench describes keys and times in the files of its tables."""
    import pyarrow as pa

    kinds = {WHOLE: pa.int64(), NUMBER: pa.float64(), TEXT: pa.string(), TIME: pa.timestamp("us")}
    said = {
        "pkey_col": table.key[0] if len(table.key) == 1 else None,
        "fkey_col_to_pkey_table": dict(table.refers),
        "time_col": table.time,
    }
    fields = [pa.field(name, kinds[kind], nullable=name in table.gaps) for name, kind in table.columns.items()]
    return pa.schema(fields, {key: json.dumps(value) for key, value in said.items()})


@contextmanager
def written(path: Path, overwrite: bool) -> Iterator[Write]:
    """A database to write into, which is at ``path`` when the block ends without an error, and not before.

    Args:
        path: ends in .db, .sqlite or .sqlite3 for SQLite, in .duckdb for DuckDB; without an ending it is a folder.
        overwrite: replace a shop that is there.

    Raises:
        ConfigError: another ending; something is there that may not be replaced; DuckDB is not installed.
        ResourceError: the database refuses to write, for instance for want of space.
        OSError: of the block or of the system.
    """
    opened, names = _kind(path)
    _check_target(path, overwrite, names)
    path.parent.mkdir(parents=True, exist_ok=True)
    if opened is None:
        with folder_written_aside(path) as folder, _parquet(folder) as write:
            yield write
        return
    # In a folder of its own, so that journals, which lie beside a database, are never left.
    with private_folder(f".{path.name}.partial-", path.parent) as folder:
        aside = folder / path.name
        with opened(aside) as write:
            yield write
        sync_file(aside)
        os.replace(aside, path)


def _kind(path: Path) -> tuple[Callable[[Path], AbstractContextManager[Write]] | None, Callable[[Path], set[str]]]:
    """What opens a database of this name (``None``: a folder), and what names the tables of one."""
    ending = path.suffix.lower()
    if ending in (".db", ".sqlite", ".sqlite3"):
        return _sqlite, _sqlite_names
    if ending == ".duckdb":
        _duckdb_module(path)
        return _duckdb, _duckdb_names
    if ending == "":
        return None, lambda folder: {each.name.removesuffix(".parquet") for each in folder.iterdir()}
    raise ConfigError(
        f"'{ending}' is the ending of no database that can be written",
        where=str(path),
        fix="Name a SQLite database (shop.db), a DuckDB database (shop.duckdb), or a folder for Parquet files (shop)",
    )


def _check_target(path: Path, overwrite: bool, names: Callable[[Path], set[str]]) -> None:
    """Refuse before the work what could not be written after it."""
    if not os.path.lexists(path) or (path.is_dir() and path.suffix == "" and not any(path.iterdir())):
        return
    if not overwrite:
        fix = "Choose another path, or allow overwriting (--overwrite)"
        raise ConfigError("already exists", where=str(path), fix=fix)
    found = set[str]()
    with contextlib.suppress(Exception):  # no database, or a damaged one
        found = names(path)
    if found != set(TABLES):
        fix = "Choose another path, or remove it yourself"
        raise ConfigError("what is here is not a generated shop, so it is not replaced", where=str(path), fix=fix)


@contextmanager
def _sqlite(path: Path) -> Iterator[Write]:
    import pyarrow as pa

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database, _refused(path, sqlite3.Error):
        # Nobody reads the file before it is whole and on the disk.
        for pragma in ("journal_mode = OFF", "synchronous = OFF"):
            database.execute(f"PRAGMA {pragma}")
        for name, table in TABLES.items():
            database.execute(_create(name, table, {WHOLE: "INTEGER", NUMBER: "REAL", TEXT: "TEXT", TIME: "TIMESTAMP"}))
        database.execute("BEGIN")

        def write(name: str, rows: Any) -> None:
            whole_seconds = (
                each.cast(pa.timestamp("s")).cast(pa.string()) if pa.types.is_timestamp(each.type) else each
                for each in rows.columns
            )
            cells = zip(*(each.to_pylist() for each in whole_seconds), strict=True)
            marks = ", ".join("?" * rows.num_columns)
            database.executemany(f"INSERT INTO {name} VALUES ({marks})", cells)

        yield write
        database.execute("COMMIT")


@contextmanager
def _duckdb(path: Path) -> Iterator[Write]:
    duckdb = _duckdb_module(path)
    with contextlib.closing(duckdb.connect(str(path))) as database, _refused(path, duckdb.Error):
        for name, table in TABLES.items():
            database.execute(_create(name, table, {WHOLE: "BIGINT", NUMBER: "DOUBLE", TEXT: "TEXT", TIME: "TIMESTAMP"}))

        def write(name: str, rows: Any) -> None:
            database.register("batch", rows)
            database.execute(f"INSERT INTO {name} SELECT * FROM batch")
            database.unregister("batch")

        yield write


@contextmanager
def _parquet(folder: Path) -> Iterator[Write]:
    from pyarrow import parquet

    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context(parquet.ParquetWriter(folder / f"{name}.parquet", arrow_schema(table)))
            for name, table in TABLES.items()
        }
        yield lambda name, rows: files[name].write_table(rows)
    for name in TABLES:
        sync_file(folder / f"{name}.parquet")


def _create(name: str, table: Table, kinds: Mapping[str, str]) -> str:
    """The statement that makes a table, with its keys."""
    lines = [f"{each} {kinds[kind]}{'' if each in table.gaps else ' NOT NULL'}" for each, kind in table.columns.items()]
    lines.append(f"PRIMARY KEY ({', '.join(table.key)})")
    lines += [
        f"FOREIGN KEY ({each}) REFERENCES {other} ({TABLES[other].key[0]})" for each, other in table.refers.items()
    ]
    return f"CREATE TABLE {name} ({', '.join(lines)})"


@contextmanager
def _refused(path: Path, errors: type[Exception]) -> Iterator[None]:
    """What a database says, as an error of ours."""
    try:
        yield
    except errors as error:
        fix = "Free space on that disk, or choose another path"
        raise ResourceError(f"the database cannot be written: {error}", where=path.name, fix=fix) from error


def _duckdb_module(path: Path) -> Any:
    try:
        import duckdb
    except ImportError:
        raise ConfigError(
            "the package duckdb is not installed",
            where=str(path),
            fix="Install it with: pip install duckdb; or write a SQLite database (shop.db) or a folder (shop)",
        ) from None
    return duckdb


def _sqlite_names(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _duckdb_names(path: Path) -> set[str]:
    with contextlib.closing(_duckdb_module(path).connect(str(path), read_only=True)) as database:
        return {name for (name,) in database.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
