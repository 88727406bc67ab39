"""How the columns of a table become features of its rows, by what they hold.

=========== ==================================================================================================
numbers     minus the mean, by the standard deviation; an empty cell is 0, and a second feature says that it is
categories  a feature for each word that occurs, 1 for the word of the row; none for words that are not known
dates       sine and cosine of the time of the day, the day of the week and the day of the year
text        its words, each hashed to one of a few features with a sign, scaled to length 1
vectors     lists of numbers of one length, as they are
=========== ==================================================================================================

Everything that is counted (means, deviations, words) is counted in the rows that a model may learn from, so that the
features of these do not tell what came later. It is kept with the store, and other tables are encoded likewise.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import xxhash
from jaxtyping import Bool, Float32, Float64, Int64

from partita.core.arrow import as_numpy
from partita.core.errors import InputError, StoreError, nearest
from partita.core.registry import Registry
from partita.graph.times import ALWAYS
from partita.sources.batch import GAPS, Cells, Kind
from partita.sources.columnar import Columnar
from partita.sources.edges import TableReader
from partita.sources.times import TimeCells

MOST_CATEGORIES = 64
"""A column of more words is text."""
TEXT_WIDTH = 32
_LOOK = 1 << 12
"""Cells that tell whether text is dates."""
_DATE = r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?(Z|[+-]\d{2}:?\d{2})?$"
_DAY = 86_400_000_000
"""Microseconds."""
_SUNDAY = 3 * _DAY
"""The first one after 1970-01-01, a Thursday."""
_YEAR = 365.2425 * _DAY


@runtime_checkable
class Encoder(Protocol):
    """Makes features of a column.

    Attributes:
        kind: its name in :data:`ENCODERS`.
        reads: what cells are read as.
        column: its name.
        names: of the features, with the column's.
    """

    kind: ClassVar[str]
    reads: ClassVar[Kind]
    column: str

    @property
    def names(self) -> list[str]: ...  # noqa: D102

    def see(self, batch: Cells, place: int, counts: Bool[np.ndarray, "n"]) -> None:
        """Count what is to be known of the column, in some of the rows of a batch.

        Raises:
            InputError: a cell cannot be read.
        """

    def rows(self, batch: Cells, place: int) -> Float32[np.ndarray, "n F"]:
        """Features of the rows of a batch, once all have been seen.

        Raises:
            InputError: a cell cannot be read.
        """


@dataclass
class Numbers:
    """Numbers, and whether one is missing.

    Attributes:
        column: its name.
        count: of cells with a number.
        mean: of these.
        squares: sum of the squared differences from the mean.
        gaps: whether there are empty cells.
    """

    kind: ClassVar[str] = "number"
    reads: ClassVar[Kind] = "float"
    column: str
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    gaps: bool = False

    @property
    def names(self) -> list[str]:
        """Of the number, if it is not always the same, and of the gaps."""
        return [self.column] * (self.squares > 0) + [f"{self.column} is missing"] * self.gaps

    def see(self, batch: Cells, place: int, counts: Bool[np.ndarray, "n"]) -> None:
        """See :class:`Encoder`. Means of pieces are merged, which loses no digits where they are large."""
        values = self._values(batch, place)[counts]
        there = values[~np.isnan(values)]
        self.gaps |= len(there) < len(values)
        if len(there):
            mean, total = float(there.mean()), self.count + len(there)
            apart = mean - self.mean
            self.squares += float(((there - mean) ** 2).sum()) + apart**2 * self.count * len(there) / total
            self.mean += apart * len(there) / total
            self.count = total

    def rows(self, batch: Cells, place: int) -> Float32[np.ndarray, "n F"]:
        """See :class:`Encoder`."""
        values = self._values(batch, place)
        missing, found = np.isnan(values), list[np.ndarray]()
        if self.squares > 0:
            scaled = (values - self.mean) / np.sqrt(self.squares / self.count)
            found.append(np.where(missing, 0.0, scaled))
        if self.gaps:
            found.append(missing)
        return np.stack(found, axis=1).astype(np.float32) if found else np.zeros((len(batch), 0), np.float32)

    def _values(self, batch: Cells, place: int) -> Float64[np.ndarray, "n"]:
        values = batch.floats(place, missing=np.nan).astype(np.float64)
        batch.check(np.isinf(values), place, "{} is not finite", "Correct it, or leave the column out")
        return values


@dataclass
class Category:
    """Words, each with a feature of its own.

    Attributes:
        column: its name.
        words: that are known, in order.
    """

    kind: ClassVar[str] = "category"
    reads: ClassVar[Kind] = "str"
    column: str
    words: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Of the words."""
        return [f"{self.column}={word}" for word in self.words]

    def see(self, batch: Cells, place: int, counts: Bool[np.ndarray, "n"]) -> None:
        """See :class:`Encoder`."""
        self.words = sorted({*self.words, *_distinct(batch, place, counts)}, key=by_number)

    def rows(self, batch: Cells, place: int) -> Float32[np.ndarray, "n F"]:
        """See :class:`Encoder`."""
        import pyarrow as pa
        from pyarrow import compute

        words = words_of(batch, place)
        codes = as_numpy(compute.index_in(words, pa.array(self.words, words.type)).fill_null(-1))
        found = np.zeros((len(words), len(self.words)), np.float32)
        at = np.flatnonzero(codes >= 0)
        found[at, codes[at]] = 1
        return found


@dataclass
class Text:
    """Text, by its words: counts of hashed words (Weinberger et al., "Feature hashing for large scale multitask
    learning", ICML 2009), scaled to length 1.

    Attributes:
        column: its name.
        width: features.
    """

    kind: ClassVar[str] = "text"
    reads: ClassVar[Kind] = "str"
    column: str
    width: int = TEXT_WIDTH

    @property
    def names(self) -> list[str]:
        """Of the places that words are hashed to."""
        return [f"{self.column}[{place}]" for place in range(self.width)]

    def see(self, batch: Cells, place: int, counts: Bool[np.ndarray, "n"]) -> None:
        """Nothing is counted."""

    def rows(self, batch: Cells, place: int) -> Float32[np.ndarray, "n F"]:
        """See :class:`Encoder`."""
        from pyarrow import compute

        lower = compute.utf8_lower(words_of(batch, place))
        parts = compute.split_pattern_regex(lower, r"[^\pL\pN]+")
        row = as_numpy(compute.list_parent_indices(parts))
        encoded = parts.flatten().dictionary_encode()
        words = encoded.dictionary.to_pylist()
        hashes = np.array([xxhash.xxh64_intdigest(word.encode()) for word in words], np.uint64)
        signs = np.where(hashes >> np.uint64(63), 1.0, -1.0) * np.array([word != "" for word in words])
        codes = as_numpy(encoded.indices)
        at = row * self.width + (hashes % np.uint64(self.width)).astype(np.int64)[codes]
        size = len(batch) * self.width
        found = np.bincount(at, signs[codes], size).reshape(len(batch), self.width)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return (found / np.where(lengths > 0, lengths, 1)).astype(np.float32)


@dataclass
class Dates:
    """Dates and times as places on three circles: a day, a week, a year. Years themselves are left out: those to come
    are not among those that a model learns from.

    Attributes:
        column: its name.
        hours: whether there are times of the day.
    """

    kind: ClassVar[str] = "time"
    reads: ClassVar[Kind] = "str"
    column: str
    hours: bool = False

    @property
    def names(self) -> list[str]:
        """Of sine and cosine of each circle."""
        circles = [*["time of day"] * self.hours, "day of week", "day of year"]
        return [f"{self.column}: {part} of {circle}" for circle in circles for part in ("sine", "cosine")]

    def see(self, batch: Cells, place: int, counts: Bool[np.ndarray, "n"]) -> None:
        """See :class:`Encoder`."""
        times, there = self._times(batch, place)
        self.hours |= bool((times[there & counts] % _DAY != 0).any())

    def rows(self, batch: Cells, place: int) -> Float32[np.ndarray, "n F"]:
        """See :class:`Encoder`. Cells without a date are 0."""
        times, there = self._times(batch, place)
        turns = [
            *[times % _DAY / _DAY] * self.hours,
            (times - _SUNDAY) % (7 * _DAY) / (7 * _DAY),
            times % _YEAR / _YEAR,
        ]
        found = np.stack([of(2 * np.pi * turn) for turn in turns for of in (np.sin, np.cos)], axis=1)
        return (found * there[:, None]).astype(np.float32)

    def _times(self, batch: Cells, place: int) -> tuple[Int64[np.ndarray, "n"], Bool[np.ndarray, "n"]]:
        cells = TimeCells()
        times = cells.read(batch, place)
        there = times != ALWAYS
        if there.any() and not cells.notes:
            raise batch.fail(int(np.argmax(there)), place, "is a number, not a date", "Read the column as numbers")
        return np.where(there, times, 0), there


@dataclass
class Vectors:
    """Lists of numbers of one length.

    Attributes:
        column: its name.
        width: numbers of a list.
    """

    kind: ClassVar[str] = "vector"
    reads: ClassVar[Kind] = "float"
    column: str
    width: int = 0

    @property
    def names(self) -> list[str]:
        """Of the places in a list."""
        return [f"{self.column}[{place}]" for place in range(self.width)]

    def see(self, batch: Cells, place: int, counts: Bool[np.ndarray, "n"]) -> None:
        """See :class:`Encoder`."""
        self.width = self.rows(batch, place).shape[1]

    def rows(self, batch: Cells, place: int) -> Float32[np.ndarray, "n F"]:
        """See :class:`Encoder`."""
        found = batch.matrix([place], missing=None)
        if self.width and found.shape[1] != self.width:
            raise batch.fail(0, place, f"the list has {found.shape[1]} numbers, others have {self.width}")
        batch.check(~np.isfinite(found).all(axis=1), place, "holds what is not finite", "Leave the column out")
        return found


@dataclass
class Words:
    """Categories or text: decided by how many words occur.

    Attributes:
        column: its name.
        words: how often each occurs; no longer counted once there are too many.
    """

    reads: ClassVar[Kind] = "str"
    column: str
    words: Counter[str] = field(default_factory=Counter)
    count: int = 0

    def see(self, batch: Cells, place: int, counts: Bool[np.ndarray, "n"]) -> None:
        """See :class:`Encoder`."""
        if len(self.words) <= MOST_CATEGORIES:
            self.words.update(_distinct(batch, place, counts))
        self.count += int(counts.sum())

    def decided(self) -> Encoder:
        """Categories, if words are few, and fewer than half of the rows."""
        few = len(self.words) <= min(MOST_CATEGORIES, max(2, self.count // 2))
        return Category(self.column, sorted(self.words, key=by_number)) if few else Text(self.column)


ENCODERS: Registry[type[Any]] = Registry(
    "kind of column",
    {each.kind: f"{__name__}:{each.__name__}" for each in (Numbers, Category, Text, Dates, Vectors)},
)
"""What makes features of a column, by what the user calls it."""
DROP = "drop"
"""What the user calls a column that is no feature."""


def encoder_for(reader: TableReader, column: int, given: str | None, where: str) -> Encoder | Words | None:
    """What makes features of a column.

    Args:
        reader: of the table.
        column: its place.
        given: what the user calls it; ``None``: its type says.
        where: for messages.

    Returns:
        ``None`` for columns of which no features are made.

    Raises:
        ConfigError: there is no such kind of column.
    """
    name = reader.names[column]
    if given is not None:
        return None if given == DROP else ENCODERS.find(given)(name)  # type: ignore[no-any-return]
    return _by_type(reader, column, name)


def _by_type(reader: TableReader, column: int, name: str) -> Encoder | Words | None:
    import pyarrow as pa

    kind = reader.schema.types[column] if isinstance(reader, Columnar) else None
    if kind is not None and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return Dates(name)
    if kind is not None and (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        inner = kind.value_type
        return Vectors(name) if pa.types.is_floating(inner) or pa.types.is_integer(inner) else None
    words = kind is None or pa.types.is_dictionary(kind) or reader.holds_words(column)
    if kind is not None and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_nested(kind)):
        return None
    if reader.column_kind(column) in ("int", "float"):
        return Numbers(name)
    if reader.column_kind(column) is None or not words:
        return None
    return Dates(name) if holds_dates(reader, column) else Words(name)


def holds_dates(reader: TableReader, column: int) -> bool:
    """Whether the first cells of a column are dates, or text that is."""
    import pyarrow as pa
    from pyarrow import compute

    if isinstance(reader, Columnar):
        kind = reader.schema.types[column]
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            return True
        if not reader.holds_words(column):
            return False
    elif reader.column_kind(column) != "str":
        return False
    for batch in reader.batches([column], ["str"], doing="look at dates"):
        words = batch.strings(0, missing="").slice(0, _LOOK)
        words = words.filter(compute.invert(compute.is_in(words, pa.array(GAPS, words.type))))
        if len(words):
            return bool(compute.all(compute.match_substring_regex(words, _DATE)).as_py())
    return False


def words_of(batch: Cells, column: int) -> Any:
    """A column as trimmed words, empty where a cell has no value."""
    import pyarrow as pa
    from pyarrow import compute

    array = batch.columns[column]
    if pa.types.is_boolean(array.type) or pa.types.is_floating(array.type) or pa.types.is_decimal(array.type):
        values = array.cast(pa.float64(), safe=False) if not pa.types.is_boolean(array.type) else array
        batch = Cells([values.cast(pa.string())], [batch.names[column]], batch.where)
        column = 0
    words = compute.utf8_trim_whitespace(batch.strings(column, missing=""))
    return compute.if_else(compute.is_in(words, pa.array(GAPS, words.type)), pa.scalar("", words.type), words)


def _distinct(batch: Cells, place: int, counts: Bool[np.ndarray, "n"]) -> list[str]:
    import pyarrow as pa

    return [word for word in words_of(batch, place).filter(pa.array(counts)).unique().to_pylist() if word]


def by_number(word: str) -> tuple[bool, int, str]:
    """Numbers in their order, before words in theirs."""
    number = re.fullmatch(r"-?\d{1,18}", word) is not None
    return not number, int(word) if number else 0, word


def to_json(encoders: Sequence[Encoder]) -> list[dict[str, Any]]:
    """Encoders as the notes of a store keep them."""
    return [{"kind": each.kind, **asdict(each)} for each in encoders]  # type: ignore[call-overload]


def from_json(found: Any, where: str) -> list[Encoder]:
    """Encoders of the notes of a store.

    Raises:
        StoreError: they are damaged.
    """
    try:
        return [
            ENCODERS.find(each["kind"])(**{name: value for name, value in each.items() if name != "kind"})
            for each in found
        ]
    except (TypeError, KeyError, ValueError, InputError) as error:
        fix = "Make the store anew: its notes on features are damaged"
        raise StoreError(f"columns cannot be read ({error})", where=where, fix=fix) from error


def columns_named(given: Mapping[str, str], known: Sequence[str], where: str) -> None:
    """See that columns that a user names are there.

    Raises:
        InputError: one is not.
    """
    for name in given:
        if name not in known:
            raise InputError(f"there is no column '{name}'", where=where, fix=nearest(name, known))
