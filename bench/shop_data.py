"""Tables of a generated shop as arrays, read from the database itself: SQLite, DuckDB, or Parquet files."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partita.sources.shop.tables import DAY, NUMBER, TABLES, TEXT, TIME, WHOLE

Columns = dict[str, np.ndarray]
"""By name: int64, float64 (NaN where a cell is empty), text, and seconds since 1970 of times."""


def read(path: Path) -> dict[str, Columns]:
    """All tables. Keys are replaced by the positions of rows, from 0."""
    tables = {name: _read_table(path, name) for name in TABLES}
    order = {name: tables[name][table.key[0]] for name, table in TABLES.items() if len(table.key) == 1}
    for name, table in TABLES.items():
        for column, other in table.refers.items():
            tables[name][column] = np.searchsorted(order[other], tables[name][column])
    return tables


def _read_table(path: Path, name: str) -> Columns:
    kinds, (first, *_) = TABLES[name].columns, TABLES[name].key
    if path.is_dir():
        from pyarrow import parquet

        found = parquet.read_table(path / f"{name}.parquet")
        cells = {each: found[each].to_numpy() for each in kinds}
        return {each: _as(kinds[each], array) for each, array in cells.items()}
    seconds = "epoch({})" if path.suffix == ".duckdb" else "CAST(strftime('%s', {}) AS INTEGER)"
    wanted = ", ".join(seconds.format(each) if kind == TIME else each for each, kind in kinds.items())
    query = f"SELECT {wanted} FROM {name} ORDER BY {first}"
    if path.suffix == ".duckdb":
        import duckdb

        with closing(duckdb.connect(str(path), read_only=True)) as database:
            arrays = list(database.execute(query).fetchnumpy().values())
    else:
        with closing(sqlite3.connect(path)) as database:
            arrays = [np.array(cells) for cells in zip(*database.execute(query).fetchall(), strict=True)]
    return {each: _as(kinds[each], array) for each, array in zip(kinds, arrays, strict=True)}


def _as(kind: str, array: np.ndarray) -> np.ndarray:
    if np.ma.isMaskedArray(array):
        array = array.astype(np.float64).filled(np.nan) if kind == WHOLE else array.filled("")
    if kind == TIME:
        return array.astype("datetime64[s]").astype(np.int64) if array.dtype.kind == "M" else array.astype(np.int64)
    if kind == TEXT:
        return np.array([each or "" for each in array.tolist()])
    if kind == WHOLE and array.dtype.kind not in "iu":
        array = array.astype(np.float64)  # with gaps
    return array.astype(np.float64) if kind == NUMBER else array


@dataclass(frozen=True)
class Questions:
    """Rows of a table of questions.

    Attributes:
        customer: int64, whom they are about.
        asked: int64, seconds.
        split: of each 0 for training, 1 for validation, 2 for tests: by time.
        val_time: seconds, from when on questions are for validation.
    """

    customer: np.ndarray
    asked: np.ndarray
    split: np.ndarray
    val_time: int

    @classmethod
    def of(cls, table: Columns) -> Questions:
        asked = table["asked"]
        *_, val, test = np.unique(asked)
        return cls(table["customer_id"], asked, (asked >= val).astype(int) + (asked >= test), int(val))


class History:
    """What customers did, in order of time.

    Args:
        who, when: of each thing.
        values: about each thing, by name; a running sum of each is kept.
    """

    def __init__(self, who: np.ndarray, when: np.ndarray, values: Columns) -> None:
        order = np.lexsort((when, who))
        self._keys = who[order] << 32 | when[order]
        self.when = when[order]
        self.values = {name: each[order] for name, each in values.items()}
        self._sums = {name: np.concatenate([[0.0], np.cumsum(each)]) for name, each in self.values.items()}

    def until(self, who: np.ndarray, when: np.ndarray) -> np.ndarray:
        """Where the things end that are of somebody, and not later."""
        return np.searchsorted(self._keys, who << 32 | np.maximum(when, 0), side="right")

    def count(self, who: np.ndarray, when: np.ndarray, days: float | None) -> np.ndarray:
        """Things of the days before, or all of them."""
        return self.until(who, when) - self._begin(who, when, days)

    def sum(self, name: str, who: np.ndarray, when: np.ndarray, days: float | None) -> np.ndarray:
        """Sums over the same things."""
        sums = self._sums[name]
        return sums[self.until(who, when)] - sums[self._begin(who, when, days)]

    def _begin(self, who: np.ndarray, when: np.ndarray, days: float | None) -> np.ndarray:
        if days is None:
            return np.searchsorted(self._keys, who << 32)
        return self.until(who, when - int(days * DAY))

    def nth_last(self, number: int, who: np.ndarray, when: np.ndarray) -> np.ndarray:
        """The positions of the last things (1), of those before (2), and so on; -1 where there is none."""
        found = self.until(who, when) - number
        return np.where(found >= np.searchsorted(self._keys, who << 32), found, -1)
