"""Times in tables and arrays: whole numbers of any unit, or dates."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from partita.core.arrow import as_numpy
from partita.graph.times import ALWAYS
from partita.sources.arrays import ArrayFile
from partita.sources.batch import GAPS, Cells

_FIX = "Write a whole number, or a date such as 2026-05-31T12:30:00; an empty cell stands for always"


class TimeCells:
    """Reads the cells of all columns of times of a source, which are of one unit.

    Whole numbers are taken as they are; dates become microseconds since 1970 (UTC, unless they say another zone). Cells
    without a value are :data:`~partita.graph.build.ALWAYS`.
    """

    def __init__(self) -> None:
        self._dates: bool | None = None

    @property
    def dates(self) -> bool:
        """Whether the times that were read are dates."""
        return self._dates is True

    @property
    def notes(self) -> list[str]:
        """What the times are counted in, where that is not what the cells say."""
        return ["times are dates, kept as microseconds since 1970-01-01 (UTC)"] if self._dates else []

    def read(self, batch: Cells, column: int) -> Int64[np.ndarray, "n"]:
        """Times of the rows of a batch.

        Raises:
            InputError: a cell is no time; or some are numbers and others are dates.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        array: Any = batch.columns[column]
        if pa.types.is_integer(array.type) or pa.types.is_null(array.type):
            return self._as(batch, column, batch.ints(column, missing=ALWAYS), dates=False)
        if not (pa.types.is_timestamp(array.type) or pa.types.is_date(array.type)):
            text = pc.utf8_trim_whitespace(batch.strings(column, missing=""))
            array = pc.if_else(pc.is_in(text, pa.array(GAPS, text.type)), pa.scalar(None, text.type), text)
            if array.null_count == len(array):
                return np.full(len(array), ALWAYS)
            if pc.all(pc.match_substring_regex(array, r"^[+-]?\d{1,19}$")).as_py():  # nanoseconds have 19 digits
                with contextlib.suppress(pa.ArrowInvalid):  # too large: no date either
                    values = pc.replace_substring_regex(array, r"^\+", "").cast(pa.int64())
                    return self._as(batch, column, as_numpy(values.fill_null(ALWAYS)), dates=False)
            array = self._parsed(batch, column, array)
        stamps = array.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).fill_null(ALWAYS)
        return self._as(batch, column, as_numpy(stamps), dates=True)

    def array(self, times: Int64[np.ndarray, "n"]) -> Shaped[np.ndarray, "n"]:
        """Times that were read, as an array that says whether they are dates; no copy."""
        return times.view("datetime64[us]") if self._dates else times

    def _parsed(self, batch: Cells, column: int, text: Any) -> Any:
        """Dates as text, all with a zone or all without one."""
        import pyarrow as pa

        kinds = pa.timestamp("us"), pa.timestamp("us", "UTC")

        def parsed(cells: Any) -> Any | None:
            for kind in kinds:
                try:
                    return cells.cast(kind)
                except pa.ArrowInvalid:
                    continue
            return None

        if (found := parsed(text)) is not None:
            return found
        for row in range(len(text)):
            if parsed(text[row : row + 1]) is None:
                raise batch.fail(row, column, f"'{text[row].as_py()}' is no time", _FIX)
        raise batch.fail(0, column, "some dates have a time zone and others have none", "Write all alike")

    def _as(self, batch: Cells, column: int, values: Int64[np.ndarray, "n"], *, dates: bool) -> Int64[np.ndarray, "n"]:
        if self._is_other(values, dates=dates):
            row = int(np.argmax(values != ALWAYS))
            raise batch.fail(row, column, "times are dates in some cells, and numbers in others", "Write all alike")
        return values

    def of_array(self, array: ArrayFile, values: Shaped[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Times in an array: integers as they are, dates as microseconds since 1970.

        Args:
            array: that they are of.
            values: some or all of it, in order from its beginning.

        Raises:
            InputError: an integer is too large; or some arrays hold integers and others dates.
        """
        dates = values.dtype.kind == "M"
        if values.dtype.kind == "u" and (values > np.iinfo(np.int64).max).any():
            raise array.fail("holds a time that is no signed 64-bit integer", "Convert the array")
        found = values.astype("datetime64[us]" if dates else np.int64).astype(np.int64)  # no date becomes always
        if self._is_other(found, dates=dates):
            raise array.fail("holds dates, and other times are numbers, or the other way round", "Write all alike")
        return found

    def points(self, texts: Sequence[str], where: str) -> list[int]:
        """Times that are written as those of a source are.

        Raises:
            InputError: one is none, or they are dates and those of the source are numbers, or the other way round.
        """
        import pyarrow as pa

        return self.read(Cells([pa.array(texts, pa.large_string())], [where], lambda row: where), 0).tolist()

    def _is_other(self, values: Int64[np.ndarray, "n"], *, dates: bool) -> bool:
        """Whether there are times of another kind than before."""
        some = bool((values != ALWAYS).any())
        if self._dates is None and some:
            self._dates = dates
        return some and self._dates != dates
