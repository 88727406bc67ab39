"""Tables from which nodes are drawn in proportion to their weights, in one step."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from partita.kernels.compile import compiled

_WORD = 2.0**64
_LARGEST = 2.0**64 - 2048.0  # the largest float64 below 2^64


def alias_table(
    weights: Float64[np.ndarray, "N"], first: Int64[np.ndarray, "T"], sizes: Int64[np.ndarray, "T"]
) -> tuple[UInt64[np.ndarray, "N"], Int64[np.ndarray, "N"]]:
    """The table of :func:`partita.kernels.draw_candidates` for weights of nodes, range by range.

    Vose, "A linear algorithm for generating random numbers with a given distribution", IEEE TSE 1991. Only sums,
    products and quotients in a fixed order are taken, so all machines make the same table.

    Args:
        weights: finite and >= 0.
        first, sizes: the ranges; in each that is not empty some weight is above 0.
    """
    thresholds, others = np.zeros(len(weights), np.uint64), np.arange(len(weights))
    for begin, size in zip(first.tolist(), sizes.tolist(), strict=True):
        if size:
            scaled = np.empty(size)
            _fill(weights[begin : begin + size], begin, scaled, others[begin : begin + size], np.empty(size, np.int64))
            # A cell that stays goes to itself otherwise, so it may be cut off a little below 1.
            thresholds[begin : begin + size] = np.minimum(scaled * _WORD, _LARGEST).astype(np.uint64)
    return thresholds, others


@compiled
def _fill(weights, begin, scaled, others, stack):  # type: ignore[no-untyped-def]
    """Write which share of its draws every cell keeps, and whom the others go to."""
    size = len(weights)
    total, heaviest = 0.0, 0
    for i in range(size):
        total += weights[i]
        if weights[i] > weights[heaviest]:
            heaviest = i
    low, high = 0, size  # of the stack: cells below the mean from its bottom, others from its top
    for i in range(size):
        scaled[i] = weights[i] / total * size
        if scaled[i] < 1.0:
            stack[low] = i
            low += 1
        else:
            high -= 1
            stack[high] = i
    while low > 0 and high < size:
        low -= 1
        small, large = stack[low], stack[high]
        others[small] = begin + large
        scaled[large] = (scaled[large] + scaled[small]) - 1.0
        if scaled[large] < 1.0:
            high += 1
            stack[low] = large
            low += 1
    # What is left is 1 but for rounding, and goes to itself; but what has no weight must not be drawn.
    while low > 0:
        low -= 1
        if weights[stack[low]] > 0.0:
            scaled[stack[low]] = 1.0
        else:
            others[stack[low]] = begin + heaviest
    while high < size:
        scaled[stack[high]] = 1.0
        high += 1
