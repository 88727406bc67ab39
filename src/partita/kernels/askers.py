"""Who asks for which row, as bits: what a planner needs to foresee a step of many workers at once.

Row i of a level has a mask: bit r is set where worker r asks for the row. Up to 64 workers are followed through a
layer by one pass over its edges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int, Int64, UInt64

from partita.kernels.compile import compiled

MOST_WORKERS = 64

Masks = UInt64[np.ndarray, "n"]


def below(
    indptr: Int64[np.ndarray, "D_1"], indices: Int[np.ndarray, "E"], masks: UInt64[np.ndarray, "D"], num_src: int
) -> UInt64[np.ndarray, "S"]:
    """Who needs each source of a block, the destinations being the first of them: who asks for one of its destinations.

    Args:
        indptr, indices: the block, its sources de-duplicated.
        masks: who computes each destination.
        num_src: S.
    """
    found = np.zeros(num_src, np.uint64)
    found[: len(masks)] = masks
    _below(indptr, indices, masks, found)
    return found


def above(
    indptr: Int64[np.ndarray, "D_1"], indices: Int[np.ndarray, "E"], masks: UInt64[np.ndarray, "S"]
) -> UInt64[np.ndarray, "D"]:
    """The bits of each destination and of all its sources together."""
    found = masks[: len(indptr) - 1].copy()
    _above(indptr, indices, masks, found)
    return found


def tally(masks: UInt64[np.ndarray, "n"], workers: int, weights: Int64[np.ndarray, "n"] | None = None) -> Any:
    """For each worker, how many masks have its bit, or the sum of their weights; int64 (workers)."""
    found = np.zeros(MOST_WORKERS, np.int64)
    _tally(masks, np.ones(0, np.int64) if weights is None else weights, found)
    return found[:workers]


def meetings(
    left: UInt64[np.ndarray, "n"], right: UInt64[np.ndarray, "n"], groups: UInt64[np.ndarray, "G"], workers: int
) -> tuple[Int64[np.ndarray, "W"], Int64[np.ndarray, "W"]]:
    """How often workers on the left meet others, and workers on the right anybody, at the same place and in one group.

    Args:
        left, right: masks of the same places.
        groups: the workers of each group.
        workers: how many there are.

    Returns:
        int64 (workers): for each worker of the left, over all places, the workers of its group on the right other
        than itself; and for each worker of the right, those of its group on the left, itself among them.
    """
    away, met = np.zeros(MOST_WORKERS, np.int64), np.zeros(MOST_WORKERS, np.int64)
    _meetings(left, right, groups, away, met)
    return away[:workers], met[:workers]


@compiled
def _below(indptr, indices, masks, found):  # type: ignore[no-untyped-def]
    for i in range(len(masks)):
        for e in range(indptr[i], indptr[i + 1]):
            found[indices[e]] |= masks[i]


@compiled
def _above(indptr, indices, masks, found):  # type: ignore[no-untyped-def]
    for i in range(len(found)):
        for e in range(indptr[i], indptr[i + 1]):
            found[i] |= masks[indices[e]]


@compiled
def _tally(masks, weights, found):  # type: ignore[no-untyped-def]
    one, zero = np.uint64(1), np.uint64(0)
    for i in range(len(masks)):
        rest, weight = masks[i], np.int64(1)
        if len(weights) > 0:
            weight = weights[i]
        worker = 0
        while rest != zero:
            if rest & one != zero:
                found[worker] += weight
            rest >>= one
            worker += 1


@compiled
def _meetings(left, right, groups, away, met):  # type: ignore[no-untyped-def]
    one, zero = np.uint64(1), np.uint64(0)
    for i in range(len(left)):
        for group in range(len(groups)):
            asking, giving = left[i] & groups[group], right[i] & groups[group]
            if asking == zero or giving == zero:
                continue
            many = 0  # who asks
            rest = asking
            while rest != zero:
                rest &= rest - one
                many += 1
            others = 0  # who gives
            rest = giving
            while rest != zero:
                rest &= rest - one
                others += 1
            worker = 0
            rest = asking | giving
            while rest != zero:
                bit = one << np.uint64(worker)
                if asking & bit != zero:
                    away[worker] += others - (1 if giving & bit != zero else 0)
                if giving & bit != zero:
                    met[worker] += many
                rest &= ~bit
                worker += 1
