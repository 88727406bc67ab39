"""How columns about nodes become features: numbers as they are, words as one feature per word, gaps filled, scales.

What was done is kept in the notes of the store, so that the same can be done to the columns of another graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int64

from partita.core.arrow import as_numpy
from partita.core.errors import InputError, StoreError
from partita.core.typed import fitting, number, typed
from partita.graph.store import GraphStore
from partita.sources.batch import GAPS, Cells, Kind
from partita.sources.edges import TableReader
from partita.sources.options import File

TYPED_NOTE = "type_features"
"""In a store's notes: the encoding of the features of each node type."""
NOTE = "features"
"""Name of the encoding among the notes of a store."""

DROP = "drop"
"""What becomes of empty cells where their nodes are left out."""

MOST_CATEGORIES = 10_000
_SHOWN = 5
_FILL = "Fill it in, or give --missing zero or mean, or drop"


@dataclass(frozen=True)
class Column:
    """A column of the source.

    Attributes:
        name: of the column.
        width: how many features it is.
        categories: a feature for each; ``None``: numbers.
    """

    name: str
    width: int = 1
    categories: tuple[str, ...] | None = None

    @property
    def names(self) -> list[str]:
        """Of its features."""
        if self.categories is not None:
            return [f"{self.name}={category}" for category in self.categories]
        return [self.name] if self.width == 1 else [f"{self.name}[{place}]" for place in range(self.width)]


@dataclass(frozen=True)
class Encoding:
    """How features were made of columns.

    Attributes:
        columns: of the source, in the order of the features; empty where they have no names.
        missing: what became of empty cells: "zero", "mean", "drop" (of their nodes), or ``None``: there were to be
            none.
        fill: of each of the F features, what empty cells became; ``None``: nothing was filled.
        mean: of each feature, what was subtracted; ``None``: features are not standardized.
        scale: of each feature, by what was divided then.
        made: name in :data:`partita.sources.node_features.NODE_FEATURES` of features that no source had.
    """

    columns: tuple[Column, ...] = ()
    missing: str | None = None
    fill: tuple[float, ...] | None = None
    mean: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    made: str | None = None

    @property
    def names(self) -> list[str]:
        """Of the features; empty: they have none."""
        return [name for column in self.columns for name in column.names]

    @property
    def changes_values(self) -> bool:
        """Whether features are other numbers than the cells of their columns."""
        categories = any(column.categories is not None for column in self.columns)
        return categories or self.fill is not None or self.mean is not None

    def to_json(self) -> dict[str, Any]:
        """As it is kept in the notes of a store."""
        columns = [
            {"name": column.name, "width": column.width}
            | ({} if column.categories is None else {"categories": list(column.categories)})
            for column in self.columns
        ]
        others = {name: getattr(self, name) for name in ("missing", "fill", "mean", "scale", "made")}
        kept = {name: list(value) if isinstance(value, tuple) else value for name, value in others.items()}
        return {"columns": columns, **{name: value for name, value in kept.items() if value is not None}}

    @classmethod
    def of(cls, notes: Mapping[str, Any]) -> Encoding:
        """The encoding that a store's notes tell of.

        Raises:
            StoreError: they are of something else.
        """
        found = notes.get(NOTE, {})
        with fitting(NOTE, StoreError, "Make the store anew: its notes on features are damaged"):
            columns = [
                typed(Column, {**each, **({"categories": tuple(each["categories"])} if "categories" in each else {})})
                for each in found.get("columns", ())
            ]
            numbers = {name: tuple(map(number, found[name])) for name in ("fill", "mean", "scale") if name in found}
            others = {name: found[name] for name in ("missing", "made") if name in found}
            return typed(cls, {"columns": tuple(columns), **others, **numbers})


@dataclass(frozen=True)
class Like:
    """What another store says of how to read the columns of this one.

    Attributes:
        encoding: of its features.
        task: its task; ``None`` without labels.
        classes: names of its classes, numbers where they have none.
        named: whether the classes have names.
    """

    encoding: Encoding
    task: str | None = None
    classes: tuple[str, ...] = ()
    named: bool = False

    @classmethod
    def read(cls, store: File) -> Like:
        """Of the store at a path.

        Raises:
            StoreError: there is no store.
        """
        metadata = GraphStore.open(Path(store)).metadata
        names = metadata.class_names
        classes = tuple(map(str, range(metadata.num_classes))) if names is None else names
        return cls(Encoding.of(metadata.notes), metadata.task, classes, names is not None)


class ColumnReader:
    """Reads the feature columns of a table as features.

    Args:
        table: the rows.
        columns: positions of the feature columns.
        categorical: those of them that hold categories.
        missing: see :class:`Encoding`.
        allow_nan: empty cells are NaN.
        like: the encoding to repeat.

    Raises:
        InputError: a column holds words and is not categorical, or has too many categories.
    """

    def __init__(
        self,
        table: TableReader,
        columns: Sequence[int],
        categorical: Sequence[int],
        *,
        missing: str | None = None,
        allow_nan: bool = False,
        like: Encoding | None = None,
    ) -> None:
        self._keep_gaps = allow_nan or missing is not None
        self._categorical = [column in categorical for column in columns]
        words = [table.names[column] for column in columns if column not in categorical and table.holds_words(column)]
        if words:
            shown = ",".join(words[:_SHOWN]) + (",..." if len(words) > _SHOWN else "")
            plural = "columns hold words" if len(words) > 1 else "column holds words"
            raise InputError(
                f"{len(words)} {plural}, not numbers: {shown}",
                where=str(table.path),
                fix=f"Give --categorical {shown} for one feature per word, or --drop-columns {shown}",
            )
        self.kinds: list[Kind] = ["str" if word else "float" for word in self._categorical]
        self.columns: list[Column] | None = None if like is None else list(like.columns)
        self._categories: list[tuple[str, ...] | None] = [None] * len(columns)
        self.unknown: dict[str, int] = {}
        if like is not None:
            self._categories = [column.categories for column in like.columns]
        elif any(self._categorical):
            self._find_categories(table, columns)
        self._names = [table.names[column] for column in columns]

    def _find_categories(self, table: TableReader, columns: Sequence[int]) -> None:
        mine = [place for place, word in enumerate(self._categorical) if word]
        found: list[set[str]] = [set() for _ in mine]
        positions, kinds = [columns[place] for place in mine], [self.kinds[place] for place in mine]
        with closing(table.batches(positions, kinds, doing=f"find categories in {table.path.name}")) as batches:
            for batch in batches:
                for number, words in enumerate(found):
                    words.update(word for word in _words(batch, number).unique().to_pylist() if word)
                    if len(words) > MOST_CATEGORIES:
                        what = f"column {batch.names[number]} has more than {MOST_CATEGORIES:,} different words"
                        fix = "It is no category, then: give --drop-columns"
                        raise InputError(what, where=str(table.path), fix=fix)
        for place, words in zip(mine, found):
            self._categories[place] = tuple(sorted(words, key=_by_number))

    def matrix(self, batch: Cells) -> Float32[np.ndarray, "n F"]:
        """Features of some rows, whose first columns are those of the reader; NaN where a cell is empty.

        Raises:
            InputError: a cell is empty and gaps are not allowed, or is not a number.
        """
        gap = np.nan if self._keep_gaps else None
        for place, words in enumerate(self._categories):
            if words is None and not self._keep_gaps:
                batch.check(batch.missing(place), place, "the cell is empty", _FILL)
        parts = [
            batch.matrix([place], missing=gap) if words is None else self._one_hot(batch, place, words)
            for place, words in enumerate(self._categories)
        ]
        if self.columns is None:
            found = zip(self._names, parts, self._categories)
            self.columns = [Column(name, part.shape[1], words) for name, part, words in found]
        return np.concatenate(parts, axis=1) if len(parts) != 1 else parts[0]

    def incomplete(self, batch: Cells) -> Bool[np.ndarray, "n"]:
        """Which rows, as for :meth:`matrix`, have an empty cell."""
        found = np.zeros(len(batch), bool)
        for place, words in enumerate(self._categories):
            if words is None:
                found |= np.isnan(batch.matrix([place], missing=np.nan)).any(axis=1)
            else:
                found |= _empty(_words(batch, place))
        return found

    def _one_hot(self, batch: Cells, place: int, categories: Sequence[str]) -> Float32[np.ndarray, "n c"]:
        import pyarrow as pa
        from pyarrow import compute

        words = _words(batch, place)
        codes = compute.index_in(words, pa.array(categories, words.type))
        known = as_numpy(codes.fill_null(-1))
        empty = _empty(words)
        if not self._keep_gaps:
            batch.check(empty, place, "the cell is empty", _FILL)
        if strange := int(np.count_nonzero((known < 0) & ~empty)):
            self.unknown[batch.names[place]] = self.unknown.get(batch.names[place], 0) + strange
        found = np.zeros((len(words), len(categories)), np.float32)
        rows = np.flatnonzero(known >= 0)
        found[rows, known[rows]] = 1
        return found


def _words(batch: Cells, column: int) -> Any:
    """A column as trimmed words; numbers without a fraction as whole numbers, as pandas makes decimals of them."""
    import pyarrow as pa
    from pyarrow import compute

    array = batch.columns[column]
    if pa.types.is_floating(array.type):
        values = array.drop_null()
        if compute.all(compute.equal(values, compute.floor(values))).as_py() is not False:
            batch = Cells([array.cast(pa.int64(), safe=False)], [batch.names[column]], batch.where)
            column = 0
    words = compute.utf8_trim_whitespace(batch.strings(column, missing=""))
    return compute.if_else(compute.is_in(words, pa.array(GAPS, words.type)), pa.scalar("", words.type), words)


def _empty(words: Any) -> Bool[np.ndarray, "n"]:
    from pyarrow import compute

    return as_numpy(compute.equal(words, ""))


def _by_number(word: str) -> tuple[bool, int, str]:
    """Numbers in their order, before words in theirs."""
    number = word.lstrip("-").isdecimal()
    return not number, int(word) if number else 0, word


def numeric(columns: Iterable[Column] | None, width: int) -> Bool[np.ndarray, "F"]:
    """Which features are numbers, not categories."""
    if columns is None:
        return np.ones(width, bool)
    return np.concatenate([np.full(len(column.names), column.categories is None) for column in columns])


def rows_at_once(width: int) -> int:
    """How many rows of float64 are some 32 MiB."""
    return max(1, (1 << 22) // max(width, 1))


@dataclass(frozen=True)
class Statistics:
    """Of the features of some nodes, NaN left out.

    Attributes:
        mean: of each feature.
        scale: standard deviation of each feature (of the population); 1 where it is 0.
    """

    mean: Float64[np.ndarray, "F"]
    scale: Float64[np.ndarray, "F"]

    @classmethod
    def of(cls, x: Float[np.ndarray, "N F"], nodes: Int64[np.ndarray, "n"]) -> Statistics:
        """In two passes over the rows of ``nodes``."""
        chunk = rows_at_once(x.shape[1])
        count, total = np.zeros(x.shape[1]), np.zeros(x.shape[1])
        for start in range(0, len(nodes), chunk):
            rows = x[nodes[start : start + chunk]].astype(np.float64)
            count += np.count_nonzero(~np.isnan(rows), axis=0)
            total += np.nansum(rows, axis=0)
        mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
        squares = np.zeros(x.shape[1])
        for start in range(0, len(nodes), chunk):
            squares += np.nansum((x[nodes[start : start + chunk]].astype(np.float64) - mean) ** 2, axis=0)
        deviation = np.sqrt(np.divide(squares, count, out=np.zeros_like(total), where=count > 0))
        return cls(mean, np.where(deviation > 0, deviation, 1.0))
