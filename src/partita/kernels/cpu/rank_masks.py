"""Passes over masks of workers, compiled; see :mod:`partita.kernels.rank_masks`."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def masks_to_sources(indptr: np.ndarray, indices: np.ndarray, masks: np.ndarray, found: np.ndarray) -> None:
    """Add to each source the bits of its destinations."""
    for i in range(len(masks)):
        for e in range(indptr[i], indptr[i + 1]):
            found[indices[e]] |= masks[i]


@njit(nogil=True, cache=True)
def masks_from_sources(indptr: np.ndarray, indices: np.ndarray, masks: np.ndarray, found: np.ndarray) -> None:
    """Add to each destination the bits of its sources."""
    for i in range(len(found)):
        for e in range(indptr[i], indptr[i + 1]):
            found[i] |= masks[indices[e]]


@njit(nogil=True, cache=True)
def count_masks(masks: np.ndarray, weights: np.ndarray, found: np.ndarray) -> None:
    """Add to each worker the weights of the masks that have its bit; without weights, their number."""
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


@njit(nogil=True, cache=True)
def count_mask_pairs(
    left: np.ndarray, right: np.ndarray, groups: np.ndarray, away: np.ndarray, met: np.ndarray
) -> None:
    """See :func:`partita.kernels.rank_masks.count_pairs`; adds to ``away`` and ``met``."""
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
