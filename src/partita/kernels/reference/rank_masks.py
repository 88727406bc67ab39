"""Passes over masks of workers, by numpy; see :mod:`partita.kernels.rank_masks`."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt64


def masks_to_sources(
    indptr: Int64[np.ndarray, "D_1"],
    indices: Int[np.ndarray, "E"],
    masks: UInt64[np.ndarray, "D"],
    found: UInt64[np.ndarray, "S"],
) -> None:
    """Add to each source the bits of its destinations."""
    np.bitwise_or.at(found, indices, np.repeat(masks, np.diff(indptr)))


def masks_from_sources(
    indptr: Int64[np.ndarray, "D_1"],
    indices: Int[np.ndarray, "E"],
    masks: UInt64[np.ndarray, "S"],
    found: UInt64[np.ndarray, "D"],
) -> None:
    """Add to each destination the bits of its sources."""
    np.bitwise_or.at(found, np.repeat(np.arange(len(found)), np.diff(indptr)), masks[indices])


def count_masks(
    masks: UInt64[np.ndarray, "n"], weights: Int64[np.ndarray, "m"], found: Int64[np.ndarray, "workers"]
) -> None:
    """Add to each worker the weights of the masks that have its bit; without weights, their number."""
    found += (_bits(masks, len(found)) * (weights[:, None] if len(weights) else 1)).sum(0)


def count_mask_pairs(
    left: UInt64[np.ndarray, "n"],
    right: UInt64[np.ndarray, "n"],
    groups: UInt64[np.ndarray, "G"],
    away: Int64[np.ndarray, "workers"],
    met: Int64[np.ndarray, "workers"],
) -> None:
    """See :func:`partita.kernels.rank_masks.count_pairs`; adds to ``away`` and ``met``."""
    for group in groups:
        asking, giving = _bits(left & group, len(away)), _bits(right & group, len(met))
        away += (asking * (giving.sum(1, keepdims=True) - giving)).sum(0)
        met += (giving * asking.sum(1, keepdims=True)).sum(0)


def _bits(masks: UInt64[np.ndarray, "n"], workers: int) -> Bool[np.ndarray, "n workers"]:
    return (masks[:, None] >> np.arange(workers, dtype=np.uint64)) & np.uint64(1) == 1
