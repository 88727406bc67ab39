"""Which sources are relational databases, and what opens them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from partita.core.errors import ConfigError, InputError
from partita.sources.databases.description import OPTIONS, Description, is_description, of_file, of_options
from partita.sources.databases.duckdb import MAGIC as DUCKDB
from partita.sources.databases.duckdb import DuckDatabase
from partita.sources.databases.folder import FolderDatabase, is_folder_with_keys
from partita.sources.databases.schema import Database
from partita.sources.databases.sqlite import MAGIC as SQLITE
from partita.sources.databases.sqlite import SqliteDatabase
from partita.sources.options import IngestOptions

KINDS: Mapping[str, Callable[[Path], Database]] = {
    "sqlite": SqliteDatabase,
    "duckdb": DuckDatabase,
    "folder": FolderDatabase,
}
"""What opens databases, by what may be written before a path: ``duckdb:shop.db``."""


@dataclass(frozen=True)
class Opened:
    """A database, and what the user says of it."""

    path: Path
    database: Database
    description: Description


@contextmanager
def opened(source: str, options: IngestOptions) -> Iterator[Opened | None]:
    """The database that a source is; ``None``: it is none.

    Args:
        source: path of a database, of a folder of tables or of a description; with ``KIND:`` before it, or without.
        options: of the ingest.

    Raises:
        InputError: it cannot be read.
        ConfigError: an option does not go with it.
    """
    word, _, rest = source.partition(":")
    kind, path = (word, Path(rest)) if word in KINDS and rest else (None, Path(source))
    description = None
    if kind is None and is_description(path):
        found, description = of_file(path, options)
        if (kind := _kind_of(found)) is None and (kind := "folder" if found.is_dir() else None) is None:
            fix = "Name a database of SQLite or DuckDB, or a folder of tables"
            raise InputError(f"'{found}' is no database, or is not there", where=str(path), fix=fix)
        path = found
    elif kind is None and (kind := _kind_of(path)) is None:
        for name in OPTIONS:
            if getattr(options, name) is not None:
                raise ConfigError(f"is for relational databases, and {source} is none", where=name, fix="Leave it out")
        yield None
        return
    with closing(KINDS[kind](path)) as database:
        yield Opened(path, database, description or of_options(options, database))


def _kind_of(path: Path) -> str | None:
    """What a file or a folder is, by its first bytes."""
    if path.is_file():
        with path.open("rb") as file:
            first = file.read(max(len(SQLITE), 12))
        return "sqlite" if first.startswith(SQLITE) else "duckdb" if first[8:12] == DUCKDB else None
    return "folder" if is_folder_with_keys(path) else None
