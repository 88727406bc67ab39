"""Edges that are left out of rows, compiled: how they are found, and how draws step over them.

Excluded positions are few and ascending. For every row that is drawn from it must be known whether it has any, so their
list comes with a directory: a bitmap of all positions from the first of them to the last, many positions to a bit, so
that one word or two tell of nearly every row without excluded edges that it has none. Element 0 is how many low bits of
a position's distance from the first one are dropped to get the number of its bit; then there are two elements for each
word of 64 bits: the word, and how many excluded positions are before those of the word.

The rows with excluded edges are mostly seeds, which the first layer that is drawn has all. What was found there is kept
for the others: once it is known of every excluded edge which row it is of, other rows need no look at the directory.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import or_empty
from partita.kernels.cpu.draws import GOLDEN, ONE, U
from partita.kernels.excluded import made_once
from partita.kernels.intrinsics import count_bits, prefetch
from partita.kernels.sorting import sort

_WORDS = 1 << 10  # of a directory, at least: few enough for the first cache
_BITS_PER_EDGE = 16  # at least; so a short row is taken for one with excluded edges once in 16 times at most
_MOST_IN_BUCKET = 64  # up to so many in a bucket, moving them one by one into order is fast
FEW_EXCLUDED = 16  # up to so many in a row are compared one by one, with many positions at a time
_FEW = 16  # up to so many sources in a row are compared one by one; more are looked up in a set
_AT_ONCE = 64  # edges that are compared before it is seen whether one of them was found
_AHEAD = 12  # rows ahead that are asked for
_LINE = 16  # edges in a cache line
_WORDS_PER_EDGE = 2  # rows are short, and each is waited for; for cutting work into ranges
_SET_WORDS = 1 << 10
_SET_SHIFT = U(64 - 16)  # from a mixed number to that of a bit in so many words
_MOST_KNOWN = 1 << 14  # excluded edges whose rows are kept; so at most each fourth bit is of one
_TWO, _THREE, _SIX, _LOW_SIX = U(2), U(3), U(6), U(63)


def find_edges(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Shaped[Tensor, "M"] | None,
    dst: Int[Tensor, "t"],
    src: Int[Tensor, "t"],
    kinds: Int[Tensor, "t"] | None,
    first_edge: int,
) -> Int[Tensor, "k"]:
    """See :func:`partita.kernels.reference.find_edges`; pairs are sorted by destination, relation and source."""
    store, count = indices.numpy(), dst.shape[0]
    runs, begins, ends = np.empty(count + 1, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    narrow = kinds is not None and edge_type is not None
    types = or_empty(edge_type if narrow else None, (0,), np.dtype(np.uint8))
    wanted = or_empty(kinds if narrow else None, (0,), np.dtype(np.int64))
    rows = rows_loop(indptr.numpy(), first_edge, dst.numpy(), types, wanted, runs, begins, ends)
    touched = np.zeros(rows + 1, np.int64)
    np.cumsum(ends[:rows] - begins[:rows], out=touched[1:])
    found: list[tuple[int, np.ndarray]] = []
    sources = src.numpy().astype(store.dtype)

    def work(low: int, high: int) -> None:
        found.append((low, find_loop(store, begins, ends, runs, sources, low, high)))

    threads.run(work, threads.balanced_bounds(touched, _WORDS_PER_EDGE))
    parts = [part for _, part in sorted(found, key=lambda each: each[0])]
    return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))


DIRECTORY = "directory"
_NONE = np.empty(0, np.int64)


def directory(excluded: Int64[Tensor, "k"]) -> tuple[np.ndarray, np.ndarray]:
    """Excluded positions, and their directory."""
    if not excluded.shape[0]:
        return _NONE, _NONE
    return made_once(excluded, DIRECTORY, lambda: (excluded.numpy(), directory_of(excluded.numpy())))


@njit(nogil=True, cache=True)
def directory_of(excluded):
    """The directory of excluded positions, of which there are some."""
    first, words, shift = excluded[0], _WORDS, 0
    while words * 64 < excluded.shape[0] * _BITS_PER_EDGE:
        words *= 2
    span = excluded[excluded.shape[0] - 1] - first
    while span >> shift >= 64 * words:
        shift += 1
    marks = np.zeros(2 * ((span >> shift >> 6) + 2) + 1, np.int64)
    marks[0] = shift
    for position in excluded:
        bit = (position - first) >> shift
        marks[1 + 2 * (bit >> 6)] |= np.int64(1) << (bit & 63)
        marks[4 + 2 * (bit >> 6)] += 1
    total = np.int64(0)
    for at in range(4, marks.shape[0], 2):
        total += marks[at]
        marks[at] = total
    return marks


@njit
def ascending_once(values):
    """Some whole numbers in order, each once.

    They are put into so many buckets of equal width that few share one; in their order few are out of place then.
    """
    size = values.shape[0]
    low, high = values[0], values[0]
    for value in values:
        low, high = min(low, value), max(high, value)
    buckets, shift = 1, 0
    while buckets < size:
        buckets *= 2
    while (high - low) >> shift >= buckets:
        shift += 1
    places, found = np.zeros(buckets + 1, np.int64), np.empty(size, np.int64)
    for value in values:
        places[((value - low) >> shift) + 1] += 1
    most = total = np.int64(0)
    for bucket in range(1, buckets + 1):
        most = max(most, places[bucket])
        total += places[bucket]
        places[bucket] = total
    for value in values:
        bucket = (value - low) >> shift
        found[places[bucket]] = value
        places[bucket] += 1
    if most > _MOST_IN_BUCKET:
        sort(found)
    else:
        for i in range(1, size):
            value, at = found[i], i
            while at > 0 and found[at - 1] > value:
                found[at] = found[at - 1]
                at -= 1
            found[at] = value
    last = 0
    for value in found:
        last += value != found[last]
        found[last] = value
    return found[: last + 1]


_NO_SKIPS = np.empty((0, 2), np.int64)


class RowsFound:
    """What was found in the rows of the layers of a step, so that those that follow need not look again.

    Args:
        indptr: where the rows begin.
        skipped: room for what :func:`leave_out` tells.

    Attributes:
        indptr, skipped: as given.
        first: the destinations of the first layer that is drawn, and their first edges and degrees as
            :func:`leave_out` says. Destinations of later layers mostly begin with them.
    """

    def __init__(self, indptr: Int64[Tensor, "N_1"], skipped: Shaped[np.ndarray, "k 2"]) -> None:
        self.indptr, self.skipped = indptr, skipped
        self.first: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def of_first(self, dst: Shaped[np.ndarray, "D"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The columns of the first layer, of no rows where it is this one; ids are of the type of ``dst``."""
        first = self.first
        return first if first is not None and first[0].dtype == dst.dtype else (dst[:0], _NONE, _NONE)

    def note(
        self, dst: Shaped[np.ndarray, "D"], begins: Shaped[np.ndarray, "D"], degrees: Shaped[np.ndarray, "D"]
    ) -> None:
        """Keep what was found of the rows of a layer, if it is the first one."""
        if self.first is None and len(self.skipped):
            self.first = dst.copy(), begins, degrees


def rows_found(excluded: Int64[Tensor, "k"], indptr: Int64[Tensor, "N_1"]) -> RowsFound:
    """What is known of the rows of ``indptr``: the same object for all layers of a step.

    Where there are so many excluded edges that they are hardly those of a step, it is a new one.
    """
    count = len(excluded)
    if not count or count > _MOST_KNOWN:
        return RowsFound(indptr, np.empty((count, 2), np.int64) if count else _NO_SKIPS)
    kept = made_once(excluded, "rows", dict[str, RowsFound])
    found = kept.get("last")
    if found is None or found.indptr.data_ptr() != indptr.data_ptr() or len(found.indptr) != len(indptr):
        found = kept["last"] = RowsFound(indptr, np.full((count, 2), -1))
    return found


@njit
def known_rows(skipped):
    """The rows that have excluded edges, where :func:`leave_out` has told of all of them; otherwise nothing.

    No other row has any then, as every excluded edge is one of a single row. They are a set of bits, which other rows
    have in common with them now and then, see :func:`known`. Another thread may be writing what is read here: the same
    whenever it does.
    """
    count, k = skipped.shape[0], 0
    rows = np.zeros(_SET_WORDS if count <= _MOST_KNOWN else 0, np.uint64)
    if not rows.shape[0]:
        return rows
    while k < count:
        begin, after = skipped[k, 0], skipped[k, 1]
        if begin < 0 or after <= k:
            return rows[:0]
        place = U(begin) * GOLDEN >> _SET_SHIFT
        rows[place >> _SIX] |= ONE << (place & _LOW_SIX)
        k = after
    return rows


@njit(inline="always")
def known(rows, begin):
    """Whether a row may be one of :func:`known_rows`; it is named by its first edge."""
    place = U(begin) * GOLDEN >> _SET_SHIFT
    return (rows[place >> _SIX] >> (place & _LOW_SIX)) & ONE


@njit
def _search(excluded, low, high, position):
    """How many excluded positions are below one, where this is known to be so many at least and at most."""
    while low < high:
        middle = (low + high) >> 1
        if excluded[middle] < position:
            low = middle + 1
        else:
            high = middle
    return low


@njit(inline="always")
def before(excluded, first, last, shift, marks, position):
    """How many excluded positions, the first and the last of which are given, are below one, uint64."""
    bit = U(min(max(position, first), last) - first) >> shift
    word = ONE + ((bit >> _SIX) << ONE)
    bits, low, high = U(marks[word]), U(marks[word + ONE]), U(marks[word + _THREE])
    if U(count_bits(bits)) == high - low:  # each has a bit of its own
        low += U(count_bits(bits & ((ONE << (bit & _LOW_SIX)) - ONE)))
        return low + U(excluded[low] < position)
    return U(_search(excluded, np.int64(low), np.int64(high), position))


@njit(inline="always")
def marked(first, last, shift, marks, begin, degree):
    """Whether a row may have excluded edges, the first and the last of which are given; without a branch."""
    low = min(max(begin, first), last)
    one = U(low - first) >> shift
    others = (U(min(max(begin + degree - 1, low), last) - first) >> shift) - one
    word, start = ONE + ((one >> _SIX) << ONE), one & _LOW_SIX
    bits = (U(marks[word]) >> start) | ((U(marks[word + _TWO]) << ONE) << (_LOW_SIX - start))
    return (bits << (_LOW_SIX - min(others, _LOW_SIX))) | (others >> _SIX) != U(0)


@njit
def excluded_within(excluded, marks, begin, end):
    """Which of the excluded positions are in a row: the first, and one past the last; equal where there are none."""
    low = high = np.int64(0)
    if excluded.shape[0] > 0 and begin < end:
        first, last, shift = excluded[0], excluded[excluded.shape[0] - 1], U(marks[0])
        if marked(first, last, shift, marks, begin, end - begin):
            low = np.int64(before(excluded, first, last, shift, marks, begin))
            high = np.int64(before(excluded, first, last, shift, marks, end))
    return low, high


@njit
def leave_out(excluded, marks, begins, degrees, skipped, some):
    """Tell of some rows which of them have excluded edges; degrees are then those without these.

    The others stay as they are. Where the first excluded edge of a row is the k-th of all, its first edge in ``begins``
    becomes -1 - k, and ``skipped[k]`` has that first edge, and the number of the excluded edge after its last one.
    """
    size = U(excluded.shape[0])
    first, last, shift = excluded[0], excluded[size - ONE], U(marks[0])
    for at in range(some.shape[0]):
        i = U(some[at])  # without a sign, as it is an index that is not counted from the end
        begin, degree = begins[i], degrees[i]
        low = before(excluded, first, last, shift, marks, begin)
        if low < size and excluded[low] < begin + degree:
            high = low + ONE  # mostly; looking for the end costs more than to see whether it is here
            if high < size and excluded[high] < begin + degree:
                high = before(excluded, first, last, shift, marks, begin + degree)
            skipped[low, 0], skipped[low, 1] = begin, np.int64(high)
            begins[i], degrees[i] = -1 - np.int64(low), degree - np.int64(high - low)


@njit
def step_over(excluded, low, high, position):
    """See :func:`partita.kernels.excluded.stepped`; ``low`` to ``high`` are those of the row."""
    first, last = low, high
    while first < last:
        middle = (first + last) >> 1
        if excluded[middle] - (middle - low) <= position:
            first = middle + 1
        else:
            last = middle
    return position + first - low


@njit
def step_all(excluded, low, high, positions, begin, end):
    """:func:`step_over` for ``positions[begin:end]``."""
    for e in range(begin, end):
        positions[e] = step_over(excluded, low, high, positions[e])


@njit
def remaining_weights(weights, begin, degree, excluded, low, high):
    """The weights of the ``degree`` edges of a row that are not left out."""
    found = np.empty(degree, weights.dtype)
    position = begin
    for slot in range(degree):
        while low < high and excluded[low] == position:
            position += 1
            low += 1
        found[slot] = weights[position]
        position += 1
    return found


@njit(nogil=True, cache=True)
def rows_loop(indptr, first, dst, kinds, wanted, runs, begins, ends):
    """Rows that are searched, and which of the pairs each of them is searched for: ``runs[i]:runs[i + 1]``.

    Pairs come sorted. Where relations are ``wanted``, rows are narrowed to the edges of one; they ascend in a row.
    Returns how many rows there are.
    """
    count, typed, rows = dst.shape[0], wanted.shape[0] > 0, 0
    for i in range(count):
        prefetch(indptr, dst[min(i + _AHEAD, count - 1)])
        if i and dst[i] == dst[i - 1] and (not typed or wanted[i] == wanted[i - 1]):
            continue
        runs[rows] = i
        begins[rows], ends[rows] = indptr[dst[i]] - first, indptr[dst[i] + 1] - first
        rows += 1
    runs[rows] = count
    if typed:
        for row in range(rows):
            kind, begin, end = wanted[runs[row]], begins[row], ends[row]
            begins[row] = _first_of(kinds, begin, end, kind)
            ends[row] = _first_of(kinds, begins[row], end, kind + 1)
    return rows


@njit
def _first_of(kinds, low, high, kind):
    """Where the first edge of a relation, or of one after it, is in a row."""
    while low < high:
        middle = (low + high) >> 1  # no division: that could raise, which costs more than the search
        if np.int64(kinds[middle]) < kind:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def _has(row, source):
    """Whether an id is in a row: compared many at a time, so it is not stopped where it is found."""
    found = False
    for j in range(row.shape[0]):
        found |= row[j] == source
    return found


@njit
def _has_marked(row, marks):
    """Whether a row may have any of the ids that are marked, which have some bits in common with others."""
    found = np.uint64(0)
    for j in range(row.shape[0]):
        found |= marks[(row[j] >> 6) & (_SET_WORDS - 1)] >> np.uint64(row[j] & 63)
    return found & np.uint64(1) != 0


@njit(nogil=True, cache=True)
def find_loop(indices, begins, ends, runs, sources, low, high):
    """Where edges from ``sources[runs[i]:runs[i + 1]]`` are in ``indices[begins[i]:ends[i]]``, of rows i in order."""
    found, size = np.empty(2 * (runs[high] - runs[low]) + 16, np.int64), 0
    marks = np.zeros(_SET_WORDS, np.uint64)
    for i in range(low, high):
        ahead = min(i + _AHEAD, high - 1)
        prefetch(indices, begins[ahead])
        prefetch(indices, min(begins[ahead] + _LINE, max(ends[ahead] - 1, 0)))
        first, last = runs[i], runs[i + 1]
        few = last - first <= _FEW
        if not few:
            for k in range(first, last):
                marks[(sources[k] >> 6) & (_SET_WORDS - 1)] |= np.uint64(1) << np.uint64(sources[k] & 63)
        for start in range(begins[i], ends[i], _AT_ONCE):
            row = indices[start : min(start + _AT_ONCE, ends[i])]
            if few:
                hit = False
                for k in range(first, last):
                    hit |= _has(row, sources[k])
            else:
                hit = _has_marked(row, marks)
            if not hit:
                continue
            for j in range(row.shape[0]):
                k, end = first, last
                if not few:  # they ascend
                    while k < end:
                        middle = (k + end) >> 1
                        if sources[middle] < row[j]:
                            k = middle + 1
                        else:
                            end = middle
                    end = min(k + 1, last)
                while k < end and sources[k] != row[j]:
                    k += 1
                if k == end:
                    continue
                if size == found.shape[0]:
                    more = np.empty(2 * size, np.int64)
                    more[:size] = found
                    found = more
                found[size] = start + j
                size += 1
        if not few:
            for k in range(first, last):
                marks[(sources[k] >> 6) & (_SET_WORDS - 1)] = np.uint64(0)
    return found[:size].copy()
