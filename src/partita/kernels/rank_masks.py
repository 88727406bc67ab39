"""Who asks for which row, as bits: what a planner needs to estimate a step of many workers at once.

Row i of a level has a mask: bit r is set where worker r asks for the row. Up to 64 workers are followed through a
layer by one pass over its edges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int, Int64, UInt64

from partita.kernels.dispatch import implementation

MOST_WORKERS = 64

Masks = UInt64[np.ndarray, "n"]


def to_sources(
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
    implementation().masks_to_sources(indptr, indices, masks, found)
    return found


def from_sources(
    indptr: Int64[np.ndarray, "D_1"], indices: Int[np.ndarray, "E"], masks: UInt64[np.ndarray, "S"]
) -> UInt64[np.ndarray, "D"]:
    """The bits of each destination and of all its sources together."""
    found = masks[: len(indptr) - 1].copy()
    implementation().masks_from_sources(indptr, indices, masks, found)
    return found


def count(masks: UInt64[np.ndarray, "n"], workers: int, weights: Int64[np.ndarray, "n"] | None = None) -> Any:
    """For each worker, how many masks have its bit, or the sum of their weights; int64 (workers)."""
    found = np.zeros(MOST_WORKERS, np.int64)
    implementation().count_masks(masks, np.ones(0, np.int64) if weights is None else weights, found)
    return found[:workers]


def count_pairs(
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
    implementation().count_mask_pairs(left, right, groups, away, met)
    return away[:workers], met[:workers]
