"""A batch of table rows: arrow columns that become numpy arrays, and every bad cell named by file, row and column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from partita.core.arrow import as_numpy
from partita.core.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["int", "float", "str"]
"""What a column is read as: int64, float32, or UTF-8 strings."""


GAPS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""Words for a cell without a value, where a column holds numbers or categories."""


@dataclass(frozen=True)
class Cells:
    """Some consecutive rows of a table, some of its columns.

    Attributes:
        columns: arrow arrays, one per requested column, in the order of the request.
        names: how to call these columns in a message.
        where: says where a row of this batch is, for instance ``"edges.csv, line 17"``.
    """

    columns: Sequence[pa.Array]
    names: Sequence[str]
    where: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.columns[0])

    def fail(self, row: int, column: int, what: str, fix: str | None = None) -> InputError:
        """The error to raise for one cell."""
        return InputError(what, where=f"{self.where(row)}, column {self.names[column]}", fix=fix)

    def check(self, bad: Bool[np.ndarray, "n"], column: int, what: str, fix: str | None = None) -> None:
        """Raise for the first bad row, if any; ``{}`` in ``what`` becomes its cell."""
        if bad.any():
            row = int(np.argmax(bad))
            raise self.fail(row, column, what.format(self.columns[column][row].as_py()), fix)

    def missing(self, column: int) -> Bool[np.ndarray, "n"]:
        """Where a column has no value (null)."""
        return as_numpy(self.columns[column].is_null())

    def ints(self, column: int, *, missing: int | None = None) -> Int64[np.ndarray, "n"]:
        """A column as int64; cells without a value become ``missing``, or are an error where that is ``None``."""
        import pyarrow as pa

        array = self.columns[column]
        if pa.types.is_null(array.type):
            array = array.cast(pa.int64())
        elif pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        elif not pa.types.is_integer(array.type):
            raise self.fail(0, column, f"holds {array.type}, not integers", "Name another column, or cast it")
        array = self._without_nulls(array, column, missing)
        values = as_numpy(array)
        if values.dtype == np.uint64:
            self.check(values > np.iinfo(np.int64).max, column, "{} does not fit a signed 64-bit integer")
        return values.astype(np.int64, copy=False)

    def floats(self, column: int, *, missing: float | None = None) -> Float[np.ndarray, "n"]:
        """A column of numbers as float32 or float64; cells without a value become ``missing`` (``None``: error)."""
        import pyarrow as pa

        array = self.columns[column]
        if pa.types.is_null(array.type):
            array = array.cast(pa.float32())
        elif pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        elif pa.types.is_decimal(array.type):
            array = array.cast(pa.float64())
        elif not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
            raise self.fail(0, column, f"holds {array.type}, not numbers", "Leave the column out, or cast it")
        if array.null_count and pa.types.is_integer(array.type):
            array = array.cast(pa.float64(), safe=False)
        values = as_numpy(self._without_nulls(array, column, missing))
        return values if values.dtype.kind == "f" else values.astype(np.float64)

    def strings(self, column: int, *, missing: str | None = None) -> pa.Array:
        """A column as arrow strings; cells without a value become ``missing``, or are an error (``None``)."""
        import pyarrow as pa

        array = self.columns[column]
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_nested(array.type) or pa.types.is_floating(array.type):
            raise self.fail(0, column, f"holds {array.type}, not names or integers", "Name another column, or cast it")
        try:
            if not pa.types.is_large_string(array.type):
                array = array.cast(pa.large_string())
            array.validate(full=True)
        except (pa.ArrowException, ValueError) as error:
            raise self.fail(0, column, f"cannot be read as UTF-8 text ({first_line(error)})") from error
        return self._without_nulls(array, column, missing)

    def matrix(self, columns: Sequence[int], *, missing: float | None) -> Float32[np.ndarray, "n F"]:
        """Several columns of numbers, or columns of equally long lists of numbers, side by side as float32."""
        parts = [self._wide(column, missing) for column in columns]
        widths = [1 if part.ndim == 1 else part.shape[1] for part in parts]
        values = np.empty((len(self), sum(widths)), np.float32)
        offset = 0
        with np.errstate(over="ignore"):  # too large a number becomes inf, which the caller reports
            for part, width in zip(parts, widths):
                values[:, offset : offset + width] = part.reshape(len(self), width)
                offset += width
        return values

    def _wide(self, column: int, missing: float | None) -> Float[np.ndarray, "n ..."]:
        import pyarrow as pa
        import pyarrow.compute as pc

        array = self.columns[column]
        kind = array.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            return self.floats(column, missing=missing)
        self.check(self.missing(column), column, "the cell is empty", "Give every row a list of numbers")
        if len(array) == 0:
            return np.empty((0, kind.list_size if pa.types.is_fixed_size_list(kind) else 0), np.float32)
        lengths = as_numpy(pc.list_value_length(array))
        self.check(lengths != lengths[0], column, f"the lists are not equally long (the first has {lengths[0]})")
        inner = Cells([array.flatten()], [self.names[column]], lambda row: self.where(row // max(int(lengths[0]), 1)))
        return inner.floats(0, missing=missing).reshape(len(array), int(lengths[0]))

    def _without_nulls(self, array: pa.Array, column: int, missing: int | float | str | None) -> pa.Array:
        if array.null_count == 0:
            return array
        if missing is None:
            self.check(self.missing(column), column, "the cell is empty", "Fill it in, or delete the row")
        return array.fill_null(missing)


def counted(where: str, start: int, noun: str = "row") -> Callable[[int], str]:
    """Says where a row is in a file, counted from its first, of a batch that begins with row ``start``."""
    return lambda row: f"{where}, {noun} {start + row} (from 0)"


def first_line(error: BaseException) -> str:
    """What an error says, without the lines that tell more; its type where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]
