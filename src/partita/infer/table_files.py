"""Tables that are written as they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from partita.core.errors import ConfigError
from partita.core.files import require_parent

TABLES = {".parquet": "Parquet", ".csv": "CSV"}
"""Formats of tables by the suffix of their files."""


def check_table_file(path: Path) -> None:
    """See that a table can be written to a file.

    Raises:
        ConfigError: its suffix is that of no table, or there is no such directory.
    """
    if path.suffix not in TABLES:
        raise ConfigError(
            f"cannot write '{path.suffix}' files", where=str(path), fix=f"Name a file that ends in {', '.join(TABLES)}"
        )
    require_parent(path)


def write_tables(file: Path, suffix: str, tables: Iterator[pa.Table]) -> tuple[int, tuple[str, ...]]:
    """Write tables of the same columns below each other, as the suffix says.

    Returns:
        How many rows, and names of the columns.
    """
    count, writer, names = 0, None, ()
    for table in tables:
        if writer is None:
            kind = pa.parquet.ParquetWriter if suffix == ".parquet" else pa.csv.CSVWriter
            writer, names = kind(file, table.schema), tuple(table.column_names)
        writer.write_table(table)
        count += table.num_rows
    if writer is not None:
        writer.close()
    return count, names
