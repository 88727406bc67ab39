"""Sorts for compiled loops, in place of numba's.

The parts of numba's sorts are closures whose compiled names do not tell ``sort`` from ``argsort``. Where loops that one
process has compiled are loaded from disk beside those of another process, a sort may so be given a part of the other
one, and leaves rows unsorted, without an error. Functions of a module have names of their own.
"""

from __future__ import annotations

import numpy as np

from partita.kernels.compile import compiled

_RUN = 16  # so many are put in order one by one


@compiled
def sort(values):
    """Put a 1-dimensional array in ascending order, where it lies: merge sort."""
    size = values.shape[0]
    for begin in range(0, size, _RUN):
        for i in range(begin + 1, min(begin + _RUN, size)):
            value, at = values[i], i
            while at > begin and value < values[at - 1]:
                values[at] = values[at - 1]
                at -= 1
            values[at] = value
    merged = np.empty(size if size > _RUN else 0, values.dtype)
    width = _RUN
    while width < size:
        for begin in range(0, size, 2 * width):
            middle, end = min(begin + width, size), min(begin + 2 * width, size)
            left, right = begin, middle
            for at in range(begin, end):
                if left < middle and (right == end or values[left] <= values[right]):
                    merged[at] = values[left]
                    left += 1
                else:
                    merged[at] = values[right]
                    right += 1
        values[:] = merged
        width *= 2


@compiled
def argsort(values):
    """The order in which a 1-dimensional array ascends, equal ones as they lie: merge sort of positions."""
    size = values.shape[0]
    order = np.arange(size)
    for begin in range(0, size, _RUN):
        for i in range(begin + 1, min(begin + _RUN, size)):
            at = i
            while at > begin and values[i] < values[order[at - 1]]:
                order[at] = order[at - 1]
                at -= 1
            order[at] = i
    merged = np.empty(size if size > _RUN else 0, np.int64)
    width = _RUN
    while width < size:
        for begin in range(0, size, 2 * width):
            middle, end = min(begin + width, size), min(begin + 2 * width, size)
            left, right = begin, middle
            for at in range(begin, end):
                if left < middle and (right == end or values[order[left]] <= values[order[right]]):
                    merged[at] = order[left]
                    left += 1
                else:
                    merged[at] = order[right]
                    right += 1
        order[:] = merged
        width *= 2
    return order
