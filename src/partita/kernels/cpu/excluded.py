"""Edges that are left out of rows, compiled: how they are found, and how draws step over them.

Excluded positions are few and ascending. For every row that is drawn from it must be known whether it has any, so their
list comes with a directory: a bitmap of all positions from the first of them to the last, many positions to a bit, so
that one word or two tell of nearly every row without excluded edges that it has none. Element 0 is how many low bits of
a position's distance from the first one are dropped to get the number of its bit; then there are two elements for each
word of 64 bits: the word, and how many excluded positions are before those of the word.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import or_empty
from partita.kernels.cpu.draws import ONE, U
from partita.kernels.excluded import made_once
from partita.kernels.intrinsics import count_bits, prefetch

_WORDS = 1 << 10  # of a directory, at least: few enough for the first cache
_BITS_PER_EDGE = 32  # at least; so a short row is taken for one with excluded edges once in 32 times
FEW_EXCLUDED = 16  # up to so many in a row are compared one by one, with many positions at a time
_ROWS_AT_ONCE = 256
_FEW = 16  # up to so many sources in a row are compared one by one; more are looked up in a set
_AT_ONCE = 64  # edges that are compared before it is seen whether one of them was found
_AHEAD = 12  # rows ahead that are asked for
_LINE = 16  # edges in a cache line
_WORDS_PER_EDGE = 2  # rows are short, and each is waited for; for cutting work into ranges
_SET_WORDS = 1 << 10


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


_NONE = np.empty(0, np.int64)


def directory(excluded: Int64[Tensor, "k"]) -> tuple[np.ndarray, np.ndarray]:
    """Excluded positions, and their directory."""
    if not excluded.shape[0]:
        return _NONE, _NONE
    found: tuple[np.ndarray, np.ndarray] = made_once(excluded, "directory", lambda: _directory(excluded.numpy()))
    return found


def _directory(positions: Int64[np.ndarray, "k"]) -> tuple[np.ndarray, np.ndarray]:
    span = int(positions[-1] - positions[0])
    words = max(_WORDS, 1 << (len(positions) * _BITS_PER_EDGE // 64 - 1).bit_length())
    shift = max(0, span.bit_length() - (64 * words).bit_length() + 1)
    marks = np.zeros(2 * ((span >> shift >> 6) + 1) + 3, np.int64)
    marks[0] = shift
    fill_directory(positions, marks)
    return positions, marks


@njit(nogil=True, cache=True)
def fill_directory(excluded, marks):
    """Fill all elements of a directory but the first; they are 0 before. One word follows that has no bits."""
    for position in excluded:
        bit = (position - excluded[0]) >> marks[0]
        marks[1 + 2 * (bit >> 6)] |= np.int64(1) << (bit & 63)
        marks[4 + 2 * (bit >> 6)] += 1
    for at in range(4, marks.shape[0], 2):
        marks[at] += marks[at - 2]


@njit
def _before(excluded, marks, position):
    """How many excluded positions, of which there are some, are below one."""
    first, last = excluded[0], excluded[excluded.shape[0] - 1]
    beyond = np.int64(position > last)
    position = min(max(position, first), last)
    bit = (position - first) >> marks[0]
    word = 1 + 2 * (bit >> 6)
    bits, low, high = U(marks[word]), marks[word + 1], marks[word + 3]
    if count_bits(bits) == high - low:  # each has a bit of its own
        low += count_bits(bits & ((ONE << U(bit & 63)) - ONE))
        return low + (excluded[low] < position) + beyond
    while low < high:
        middle = (low + high) >> 1
        if excluded[middle] < position:
            low = middle + 1
        else:
            high = middle
    return low + beyond


@njit
def _may_have(excluded, marks, begin, end):
    """Whether a row may have excluded edges; there are some. Without a branch that depends on the row, or hardly."""
    first, last = excluded[0], excluded[excluded.shape[0] - 1]
    low = (min(max(begin, first), last) - first) >> marks[0]
    high = (min(max(end - 1, first), last) - first) >> marks[0]
    word, other = 1 + 2 * (low >> 6), 1 + 2 * (high >> 6)
    found = U(marks[word]) >> U(low & 63)
    if word == other:
        found <<= U(63 - max(high - low, 0))
    else:
        found |= (U(marks[other]) << U(63 - (high & 63))) | U(other - word > 2)
    return begin < end and found != 0


@njit
def excluded_within(excluded, marks, begin, end):
    """Which of the excluded positions are in a row: the first, and one past the last; equal where there are none."""
    low = high = np.int64(0)
    if excluded.shape[0] > 0 and _may_have(excluded, marks, begin, end):
        low, high = _before(excluded, marks, begin), _before(excluded, marks, end)
    return low, high


@njit
def leave_out(excluded, marks, begins, degrees, skipped, low, high):
    """Tell of rows ``low`` to ``high`` which have excluded edges; degrees are then those without these.

    The others stay as they are. Where the first excluded edge of a row is the k-th of all, its first edge in ``begins``
    becomes -1 - k, and ``skipped[k]`` has that first edge, and the number of the excluded edge after its last one.
    """
    first, last, shift = excluded[0], excluded[excluded.shape[0] - 1], marks[0]
    some = np.empty(_ROWS_AT_ONCE, np.int64)
    for start in range(low, high, _ROWS_AT_ONCE):
        count = 0  # Rows that may have any are listed first: a call in a branch has numba count references to arrays.
        for i in range(start, min(start + _ROWS_AT_ONCE, high)):
            begin, end = begins[i], begins[i] + degrees[i]
            one = (min(max(begin, first), last) - first) >> shift
            other = max((min(max(end - 1, first), last) - first) >> shift, one)
            head, tail = 1 + 2 * (one >> 6), 1 + 2 * (other >> 6)
            found = U(marks[head]) >> U(one & 63)
            if head == tail:
                found <<= U(63 - (other - one))
            else:
                found |= (U(marks[tail]) << U(63 - (other & 63))) | U(tail - head > 2)
            some[count] = i
            count += found != 0
        for place in range(count):
            i = some[place]
            begin, end = begins[i], begins[i] + degrees[i]
            before = _before(excluded, marks, begin)
            if before < excluded.shape[0] and excluded[before] < end:
                after = before + 1  # mostly; looking for the end costs more than to see whether it is here
                if after < excluded.shape[0] and excluded[after] < end:
                    after = _before(excluded, marks, end)
                skipped[before, 0], skipped[before, 1] = begin, after
                begins[i], degrees[i] = -1 - before, degrees[i] - (after - before)


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
