"""Folders of tables: a Parquet or CSV file for each, or a folder of Parquet files.

Parquet files may say what their keys are, as RelBench's do: in the metadata of their schema, ``pkey_col`` names the
primary key, ``fkey_col_to_pkey_table`` says which columns refer to which tables, and ``time_col`` from when on rows are
there; each as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from partita.core.errors import InputError
from partita.sources.batch import Cells, Kind
from partita.sources.columnar import ParquetTable
from partita.sources.databases.schema import ForeignKey, TableSchema
from partita.sources.edges import TableReader, open_table

_PARQUET = (".parquet", ".pq")
_SUFFIXES = (*_PARQUET, ".csv", ".tsv")
_KEY, _FOREIGN, _TIME = b"pkey_col", b"fkey_col_to_pkey_table", b"time_col"
_CHUNK_BYTES = 4 << 20


def is_folder_with_keys(path: Path) -> bool:
    """Whether the first Parquet file of a folder says what its primary key is, or that it has none."""
    files = sorted(file for file in path.iterdir() if file.suffix in _PARQUET) if path.is_dir() else []
    return bool(files) and _KEY in _metadata(files[0])


class FolderDatabase:
    """See :class:`partita.sources.databases.schema.Database`.

    Args:
        path: of the folder.

    Raises:
        InputError: there is no table in it, or one cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        if not path.is_dir():
            raise InputError("no such folder", where=self.where, fix="Check the path")
        self._files: dict[str, Path] = {}
        for file in sorted(path.iterdir()):
            stem = file.name.removesuffix(".gz")
            if not (file.is_dir() and any(each.suffix in _PARQUET for each in file.iterdir())):
                if Path(stem).suffix not in _SUFFIXES:
                    continue
                stem = Path(stem).stem
            if stem in self._files:
                what = f"{self._files[stem].name} and {file.name} would both be the table {stem}"
                raise InputError(what, where=self.where, fix="Keep one of them")
            self._files[stem] = file
        if not self._files:
            raise InputError("holds no table: no .parquet, .csv or .tsv file", where=self.where)
        self.tables: Mapping[str, TableSchema] = {name: _schema(name, file) for name, file in self._files.items()}

    def read(self, table: str, without: Collection[str] = ()) -> TableReader:
        """See :class:`partita.sources.databases.schema.Database`."""
        reader = _open(self._files[table])
        return reader if not without else _Some(reader, without)

    def close(self) -> None:
        """Nothing is open."""


class _Some:
    """Some columns of a table."""

    def __init__(self, reader: TableReader, without: Collection[str]) -> None:
        self._reader = reader
        self._kept = [at for at, name in enumerate(reader.names) if name not in without]
        self.names = tuple(reader.names[at] for at in self._kept)
        self.path, self.has_header, self.note = reader.path, reader.has_header, reader.note

    def column_kind(self, column: int) -> Kind | None:
        return self._reader.column_kind(self._kept[column])

    def holds_words(self, column: int) -> bool:
        return self._reader.holds_words(self._kept[column])

    def batches(self, columns: Sequence[int], kinds: Sequence[Kind], *, doing: str) -> Generator[Cells, None, None]:
        return self._reader.batches([self._kept[column] for column in columns], kinds, doing=doing)


def _open(file: Path) -> TableReader:
    return open_table(file, header=None if file.is_dir() or file.suffix in _PARQUET else True, chunk_bytes=_CHUNK_BYTES)


def _schema(name: str, file: Path) -> TableSchema:
    columns = _open(file).names
    said = _metadata(
        next(each for each in sorted(file.iterdir()) if each.suffix in _PARQUET) if file.is_dir() else file
    )
    where = f"{file}, metadata of the schema"
    key, time = (_said(said, which, where) for which in (_KEY, _TIME))
    foreign = _said(said, _FOREIGN, where) or {}
    if not isinstance(foreign, dict) or not all(isinstance(each, str) for each in foreign.values()):
        raise InputError(f"{_FOREIGN.decode()} is '{foreign}', not columns with their tables", where=where)
    return TableSchema(
        name,
        columns,
        (str(key),) if key else (),
        tuple(ForeignKey(column, table) for column, table in foreign.items()),
        time=str(time) if time else None,
    )


def _said(metadata: dict[bytes, bytes], name: bytes, where: str) -> Any:
    """A value of the metadata: JSON, or a word."""
    if name not in metadata:
        return None
    text = metadata[name].decode(errors="replace")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _metadata(file: Path) -> dict[bytes, bytes]:
    return dict(ParquetTable(file).schema.metadata or {}) if file.suffix in _PARQUET and file.is_file() else {}
