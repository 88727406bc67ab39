"""Tables whose columns have types: Parquet files, and data frames in memory."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.core import progress
from partita.core.errors import InputError
from partita.sources.batch import Cells, Kind, counted, first_line

if TYPE_CHECKING:
    import pyarrow as pa


class Columnar:
    """What the schema of a table tells."""

    path: Path
    names: tuple[str, ...]
    has_header = True
    note = ""
    _schema: pa.Schema

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._schema

    def column_kind(self, column: int) -> Kind | None:
        """See :class:`partita.sources.edges.TableReader`."""
        import pyarrow as pa

        kind = self._schema.types[column]
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            return "int"
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return "float"
        return None if pa.types.is_null(kind) else "str"

    def holds_words(self, column: int) -> bool:
        """See :class:`partita.sources.edges.TableReader`."""
        import pyarrow as pa

        kind = self._schema.types[column]
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


class ParquetTable(Columnar):
    """A table in a Parquet file, or in all ``*.parquet`` files of a directory in the order of their names."""

    def __init__(self, path: Path, *, batch_bytes: int = 4 << 20) -> None:
        """Read the schema.

        Raises:
            InputError: no such file, not Parquet, no file in the directory, or files with different columns.
        """
        self.path = path
        self._batch_bytes = batch_bytes
        self._files = [path]
        if path.is_dir():
            self._files = sorted(file for file in path.iterdir() if file.suffix in (".parquet", ".pq"))
            if not self._files:
                raise InputError("the directory holds no .parquet file", where=str(path), fix="Name another source")
        self._rows = 0
        for file in self._files:
            with _parquet(file) as opened:
                schema = opened.schema_arrow
                self._rows += opened.metadata.num_rows
            if file == self._files[0]:
                self._schema = schema
            elif schema.names != self._schema.names:
                raise InputError(
                    f"the columns {schema.names} differ from those of {self._files[0].name}, {self._schema.names}",
                    where=str(file),
                    fix="Keep only files of one table in the directory",
                )
        self.names = tuple(self._schema.names)

    def batches(self, columns: Sequence[int], kinds: Sequence[Kind], *, doing: str) -> Generator[Cells, None, None]:
        """See :class:`partita.sources.edges.TableReader`. Columns keep their types; ``kinds`` is not needed."""
        names = [self.names[column] for column in columns]
        rows = max(1 << 10, min(1 << 18, self._batch_bytes // (8 * len(names))))
        with progress.task(doing, total=self._rows, unit="rows") as task:
            for file in self._files:
                start = 0
                with _parquet(file) as opened:
                    for part in opened.iter_batches(batch_size=rows, columns=list(dict.fromkeys(names))):
                        if part.num_rows:
                            yield Cells([part.column(name) for name in names], names, counted(str(file), start))
                        start += part.num_rows
                        task.advance(part.num_rows)


class FrameTable(Columnar):
    """A table in memory: a data frame of pandas or Polars, an Arrow table, or columns of one's own.

    Args:
        name: what to call it in messages.
        frame: anything that speaks the Arrow interface for streams, or columns by name.
        note: see :class:`partita.sources.edges.TableReader`.

    Raises:
        InputError: a column mixes types, or holds what Arrow has no type for.
    """

    def __init__(self, name: str, frame: Any, note: str = "") -> None:
        self.path, self.note = Path(name), note
        self._table = _arrow_table(name, frame)
        self._schema = self._table.schema
        self.names = tuple(self._schema.names)

    def batches(self, columns: Sequence[int], kinds: Sequence[Kind], *, doing: str) -> Generator[Cells, None, None]:
        """See :class:`partita.sources.edges.TableReader`. Columns keep their types; ``kinds`` is not needed."""
        names = [self.names[column] for column in columns]
        start = 0
        with progress.task(doing, total=self._table.num_rows, unit="rows") as task:
            for part in self._table.select(list(columns)).to_batches(max_chunksize=1 << 18):
                if part.num_rows:
                    yield Cells(part.columns, names, counted(str(self.path), start))
                start += part.num_rows
                task.advance(part.num_rows)


def is_frame(value: object) -> bool:
    """Whether :class:`FrameTable` reads it: a data frame of pandas or Polars, or an Arrow table."""
    return hasattr(value, "__arrow_c_stream__") and hasattr(value, "columns")


def _arrow_table(name: str, frame: Any) -> pa.Table:
    import pyarrow as pa

    fix = "Give every column one type: numbers, or text"
    try:
        if isinstance(frame, dict):
            return pa.table(frame)
        if hasattr(frame, "reset_index"):  # pandas: an index that has a name is a column, others are row numbers
            frame = frame.reset_index() if any(level is not None for level in frame.index.names) else frame
            if not frame.columns.is_unique:
                twice = frame.columns[frame.columns.duplicated()][0]
                raise InputError(f"two columns are named '{twice}'", where=name, fix="Rename one of them")
            return pa.Table.from_pandas(frame, preserve_index=False)
        return frame.to_arrow() if hasattr(frame, "to_arrow") else pa.table(frame)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"cannot be read as a table ({first_line(error)})", where=name, fix=fix) from error


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True) as file:
            yield file
    except FileNotFoundError as error:
        raise InputError("no such file", where=str(path)) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        what = f"is damaged or not a Parquet file ({first_line(error)})"
        raise InputError(what, where=str(path), fix="Write it again") from error
