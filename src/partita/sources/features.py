"""Takes feature rows and writes the ``x`` column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int64, Shaped

from partita.core import progress
from partita.core.errors import InputError
from partita.core.options import format_bytes
from partita.graph.column_specs import levels_column
from partita.graph.columns import map_new_column
from partita.graph.small import BITS, Levels
from partita.graph.writer import StoreWriter
from partita.sources.batch import counted
from partita.sources.encoding import Column, ColumnReader, Encoding, Statistics, numeric, rows_at_once
from partita.sources.node_features import NODE_FEATURES
from partita.sources.node_tables import NameOf

_NAMED_IN_MESSAGES = 5
_WIDE = 1000
_MOSTLY = 0.9
_SAMPLE_ROWS = 1000
_MADE_AT_ONCE = 1 << 18


class Features:
    """Takes feature rows in any order and writes the ``x`` column.

    Args:
        writer: of the store.
        num_nodes: N.
        dtype: float32 or float16.
        small: ``"int8"`` or ``"int4"``: rows are kept in a temporary file until all are there, and then made small
            integers, see :mod:`partita.graph.small`.
        allow_nan: accept values that are not finite.
        name_of: for messages.
        missing: what becomes of NaN and of nodes without a row, see :class:`~partita.sources.encoding.Encoding`;
            ``None``: NaN is no value.
        column: name of the column.
    """

    def __init__(
        self,
        writer: StoreWriter,
        num_nodes: int,
        dtype: np.dtype[Any],
        *,
        allow_nan: bool,
        name_of: NameOf,
        missing: str | None = None,
        column: str = "x",
        small: str | None = None,
    ) -> None:
        self._writer = writer
        self._num_nodes = num_nodes
        self._dtype = dtype
        self._small = small
        self._allow_nan = allow_nan
        self._name_of = name_of
        self._missing = missing
        self._column = column
        self._x: Shaped[np.ndarray, "N F"] | None = None
        self._there = np.zeros(num_nodes, bool)
        self._gaps: Int64[np.ndarray, "F"] | None = None
        self._made: str | None = None

    @property
    def width(self) -> int:
        """F; 0 before the first rows."""
        return 0 if self._x is None else self._x.shape[1]

    def put(
        self, nodes: Int[np.ndarray, "n"] | slice, rows: Float[np.ndarray, "n F"], where: Callable[[int], str]
    ) -> None:
        """The features of some nodes.

        Raises:
            InputError: a value is not finite or does not fit the dtype, or the rows are not as wide as before.
        """
        if self._x is None:
            if rows.shape[1] == 0:
                raise InputError("the rows hold no features", where=where(0), fix="Leave the features out")
            self._x = self._allocated((self._num_nodes, rows.shape[1]))
            self._gaps = np.zeros(rows.shape[1], np.int64)
        assert self._gaps is not None
        if rows.shape[1] != self._x.shape[1]:
            raise InputError(f"the row has {rows.shape[1]} features, not {self._x.shape[1]}", where=where(0))
        with np.errstate(over="ignore"):
            kept = rows.astype(self._dtype, copy=False)
        usable = np.isfinite(kept)
        if not usable.all():
            gaps = np.isnan(rows)
            self._gaps += np.count_nonzero(gaps, axis=0)
            if self._missing is not None:
                usable |= gaps
            if not (self._allow_nan or usable.all()):
                raise self._unusable(nodes, rows, usable, where)
        self._x[nodes] = kept
        self._there[nodes] = True

    def _allocated(self, shape: tuple[int, int]) -> Shaped[np.ndarray, "N F"]:
        """Room for the rows: the column itself, or a temporary file of what becomes small integers."""
        if self._small is None:
            return self._writer.allocate(self._column, shape, self._dtype)
        return map_new_column(self._writer.scratch / f"{self._column}.npy", shape, self._dtype).view(np.ndarray)

    def _unusable(
        self,
        nodes: Int[np.ndarray, "n"] | slice,
        rows: Float[np.ndarray, "n F"],
        usable: Bool[np.ndarray, "n F"],
        where: Callable[[int], str],
    ) -> InputError:
        row, column = (int(place) for place in np.argwhere(~usable)[0])
        node = self._name_of(nodes.start + row if isinstance(nodes, slice) else int(nodes[row]))
        value = rows[row, column]
        fits = f"does not fit {self._dtype.name}" if np.isfinite(value) else "is not finite"
        fix = f"Correct it, or {'use --feature-dtype float32 and' if self._small else 'give'} --allow-nan"
        fix += ", or --missing zero or mean, or drop" if np.isnan(value) else ""
        return InputError(
            f"feature {column} of node {node} is {value}, which {fits}",
            where=where(row),
            fix=fix if not np.isfinite(value) else "Use feature_dtype=float32",
        )

    def put_blocks(self, blocks: Iterator[tuple[int, Shaped[np.ndarray, "n F"]]], where: str) -> None:
        """The features of all nodes in order, from an array."""
        with progress.task("read features", total=self._num_nodes, unit="rows") as task:
            for start, rows in blocks:
                rows = rows if rows.dtype.kind == "f" else rows.astype(np.float32)
                self.put(slice(start, start + len(rows)), rows, counted(where, start))
                task.advance(len(rows))

    def make(self, name: str, indptr: Int64[np.ndarray, "N_1"]) -> None:
        """Features of all nodes that no source has.

        Args:
            name: in :data:`~partita.sources.node_features.NODE_FEATURES`.
            indptr: of the graph.
        """
        rows_of, self._made = NODE_FEATURES[name][0], name
        for start in range(0, self._num_nodes, _MADE_AT_ONCE):
            rows = rows_of(np.diff(indptr[start : start + _MADE_AT_ONCE + 1]))
            self.put(slice(start, start + len(rows)), rows, counted(name, start))

    def finish(
        self, train: Int64[np.ndarray, "t"], reader: ColumnReader | None, *, standardize: bool, like: Encoding | None
    ) -> tuple[Encoding, list[str]]:
        """Fill the gaps and scale, and say what was done.

        Args:
            train: nodes that means and deviations are of.
            reader: of the columns, if they came from a table.
            standardize: scale features that are numbers.
            like: take everything from there instead.

        Raises:
            InputError: the features are not as many as those of ``like``.
        """
        columns = () if reader is None or reader.columns is None else tuple(reader.columns)
        if self._made is not None:
            columns = NODE_FEATURES[self._made][1]
        notes = self._told(columns, reader)
        if self._x is None:
            return Encoding(), notes
        numbers = numeric(columns or None, self.width)
        if not self._there.all():
            absent = np.flatnonzero(~self._there)
            for start in range(0, len(absent), rows_at_once(self.width)):
                self._x[np.ix_(absent[start : start + rows_at_once(self.width)], numbers)] = np.nan
        if like is not None:
            if like.mean is not None and len(like.mean) != self.width:
                raise InputError(f"there are {self.width} features, {len(like.mean)} in the other store", where="like")
            encoding = replace(like, columns=columns, made=self._made)
        else:
            found = Statistics.of(self._x, train) if standardize or self._missing == "mean" else None
            fill = mean = scale = None
            if self._missing in ("zero", "mean"):
                by_mean = numbers & (self._missing == "mean")
                fill = tuple(np.where(by_mean, 0.0 if found is None else found.mean, 0.0).tolist())
            if standardize and found is not None:
                mean = tuple(np.where(numbers, found.mean, 0.0).tolist())
                scale = tuple(np.where(numbers, found.scale, 1.0).tolist())
            encoding = Encoding(columns, self._missing, fill, mean, scale, self._made)
        self._apply(encoding, numbers)
        notes += self._size_note()
        self._write_small()
        return encoding, notes

    def _write_small(self) -> None:
        """Make the column of small integers: the least and the largest value of each column, then every row."""
        if self._small is None or self._x is None:
            return
        chunk = rows_at_once(self.width)
        starts = range(0, self._num_nodes, chunk)
        with progress.task("store small rows", total=2 * self._num_nodes, unit="rows") as task:
            self._require_finite(starts, chunk)
            try:
                blocks = (self._x[start : start + chunk] for start in starts)
                levels = Levels.of_blocks(self._small, blocks, self.width)
            except OverflowError as error:
                raise InputError(
                    f"feature {error.args[0]} has values further apart than the largest float32",
                    where=self._column,
                    fix="Scale the features, or use --feature-dtype float32",
                ) from None
            task.advance(self._num_nodes)
            shape = (self._num_nodes, levels.row_bytes)
            small = self._writer.allocate(self._column, shape, levels.stored_dtype)
            for start in starts:
                rows = self._x[start : start + chunk]
                small[start : start + len(rows)] = levels.stored(rows)
                task.advance(len(rows))
        self._writer.write(levels_column(self._column), levels.as_column())
        (self._writer.scratch / f"{self._column}.npy").unlink()

    def _require_finite(self, starts: range, chunk: int) -> None:
        """Gaps that nothing has filled, and what scaling made infinite, are no small integers."""
        assert self._x is not None
        for start in starts:
            usable = np.isfinite(self._x[start : start + chunk])
            if not usable.all():
                row, column = (int(place) for place in np.argwhere(~usable)[0])
                raise InputError(
                    f"feature {column} of node {self._name_of(start + row)} is {self._x[start + row, column]}, which "
                    f"{self._small} does not hold",
                    where=self._column,
                    fix="Correct it, give --missing zero or mean, or use --feature-dtype float32",
                )

    def _size_note(self) -> list[str]:
        """Says how large features are that are mostly 0, as words counted in texts."""
        assert self._x is not None
        if self.width < _WIDE:
            return []
        sample = self._x[:: max(1, self._num_nodes // _SAMPLE_ROWS)]
        zeros = 1 - np.count_nonzero(sample) / sample.size
        if zeros < _MOSTLY:
            return []
        taken = self._x.nbytes * BITS[self._small] // 32 if self._small else self._x.nbytes
        less = "; --feature-dtype float16 halves them" if self._dtype == np.float32 and not self._small else ""
        size = format_bytes(taken)
        return [f"{self.width:,} features, {zeros:.1%} of them 0, take {size}, as each is stored{less}"]

    def _told(self, columns: Sequence[Column], reader: ColumnReader | None) -> list[str]:
        notes = []
        if self._gaps is not None and self._gaps.any():
            names = [name for column in columns for name in column.names] or [str(c) for c in range(self.width)]
            worst = np.argsort(-self._gaps, kind="stable")[: min(_NAMED_IN_MESSAGES, np.count_nonzero(self._gaps))]
            shown = ", ".join(f"{names[c]} {self._gaps[c]:,} ({self._gaps[c] / self._num_nodes:.1%})" for c in worst)
            done = {"zero": "filled with 0", "mean": "filled with the mean of the training nodes"}
            more = ", ..." if np.count_nonzero(self._gaps) > len(worst) else ""
            became = done.get(self._missing or "", "kept as NaN")
            notes.append(f"{int(self._gaps.sum()):,} empty or NaN feature values, {became}: {shown}{more}")
        if self._x is not None and not self._there.all():
            absent = int(np.count_nonzero(~self._there))
            notes.append(f"{absent:,} nodes without a row of features, taken as empty cells")
        if reader is not None:
            for column, count in reader.unknown.items():
                notes.append(
                    f"column {column}: {count:,} cells with categories that the other store does not have, as 0"
                )
        return notes

    def _apply(self, encoding: Encoding, numbers: Bool[np.ndarray, "F"]) -> None:
        assert self._x is not None
        chunk = rows_at_once(self.width)
        if encoding.fill is None and encoding.mean is None:
            return
        for start in range(0, self._num_nodes, chunk):
            rows = self._x[start : start + chunk].astype(np.float64)
            if encoding.fill is not None:
                rows = np.where(np.isnan(rows), np.array(encoding.fill), rows)
            if encoding.mean is not None and encoding.scale is not None:
                rows = (rows - np.array(encoding.mean)) / np.array(encoding.scale)
            self._x[start : start + chunk] = rows.astype(self._dtype)
