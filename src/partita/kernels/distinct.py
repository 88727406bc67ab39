"""Ids without repetition, and where the same ids are: sorted by their digits, which takes no comparisons."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from partita.kernels import checks
from partita.kernels.compile import compiled

_BITS = 11  # of a digit: counts of all its values stay in the processor's nearest cache


def distinct(ids: Int[Tensor, "n"]) -> tuple[Int64[Tensor, "m"], Int64[Tensor, "n"]]:
    """Every id once, ascending, and where each of the given ones is among these.

    Args:
        ids: at least 0, in host memory.

    Raises:
        ValueError: one is negative.
    """
    given = checks.as_int64(ids).numpy()
    most = int(given.max(initial=0))
    if given.min(initial=0) < 0:
        raise ValueError(f"ids from {given.min()} on: must be at least 0")
    found, places = np.empty_like(given), np.empty_like(given)
    count = _number(given, max(1, -(-most.bit_length() // _BITS)), found, places)
    return torch.from_numpy(found[:count]), torch.from_numpy(places)


def equal_pairs(
    left: Int64[Tensor, "n"], right: Int64[Tensor, "m"], bound: int
) -> tuple[Int64[Tensor, "p"], Int64[Tensor, "p"]]:
    """Places of all pairs of equal numbers, one on each side; ascending on the left, then on the right.

    Args:
        left: numbers.
        right: numbers.
        bound: above all of them.

    Raises:
        IndexError: a number is negative, or not below the bound.
    """
    checks.within("left", left, bound)
    checks.within("right", right, bound)
    of_left, of_right = checks.as_int64(left).numpy(), checks.as_int64(right).numpy()
    first, following = np.full(bound, -1, np.int64), np.empty(len(of_right), np.int64)
    pairs = np.empty((2, _chain(of_left, of_right, first, following)), np.int64)
    _fill(of_left, first, following, pairs)
    found = torch.from_numpy(pairs)
    return found[0], found[1]


@compiled
def _number(ids, digits, found, places):  # type: ignore[no-untyped-def]
    """Sort by one digit after the other, the lowest first; then number what differs. Returns how many there are."""
    n, order, other = ids.shape[0], np.arange(ids.shape[0]), np.empty(ids.shape[0], np.int64)
    starts = np.empty((1 << _BITS) + 1, np.int64)
    for digit in range(digits):
        shift = digit * _BITS
        starts[:] = 0
        for i in range(n):
            starts[((ids[i] >> shift) & ((1 << _BITS) - 1)) + 1] += 1
        for value in range(1 << _BITS):
            starts[value + 1] += starts[value]
        for i in range(n):
            value = (ids[order[i]] >> shift) & ((1 << _BITS) - 1)
            other[starts[value]] = order[i]
            starts[value] += 1
        order, other = other, order
    count = 0
    for i in range(n):
        node = ids[order[i]]
        if count == 0 or found[count - 1] != node:
            found[count] = node
            count += 1
        places[order[i]] = count - 1
    return count


@compiled
def _chain(left, right, first, following):  # type: ignore[no-untyped-def]
    """Of each number its first place on the right, and of each place there the next of the same; how many pairs."""
    for place in range(right.shape[0] - 1, -1, -1):
        following[place] = first[right[place]]
        first[right[place]] = place
    count = 0
    for row in range(left.shape[0]):
        place = first[left[row]]
        while place >= 0:
            count += 1
            place = following[place]
    return count


@compiled
def _fill(left, first, following, pairs):  # type: ignore[no-untyped-def]
    """List the pairs."""
    at = 0
    for row in range(left.shape[0]):
        place = first[left[row]]
        while place >= 0:
            pairs[0, at] = row
            pairs[1, at] = place
            at += 1
            place = following[place]
