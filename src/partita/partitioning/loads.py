"""Loads of parts, and what goes to the part with the least load."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt16

from partita.core.partitioning import PartitionTask
from partita.kernels.compile import compiled


class Unbounded:
    """Base of partitioners that promise no balance."""

    def bound(self, task: PartitionTask) -> float | None:
        """No bound is known."""
        return None


@compiled
def sift_down(heap, key, at):
    """Move ``heap[at]`` down to its place in a binary heap of ids that is ordered by (``key[id]``, id)."""
    moving = heap[at]
    while True:
        child = 2 * at + 1
        if child >= len(heap):
            break
        other = child + 1
        if other < len(heap):
            a, b = heap[child], heap[other]
            if key[b] < key[a] or (key[b] == key[a] and b < a):
                child = other
        least = heap[child]
        if key[moving] < key[least] or (key[moving] == key[least] and moving < least):
            break
        heap[at] = least
        at = child
    heap[at] = moving


@compiled
def heapify(heap, key):
    """Make any list of distinct ids a heap; see :func:`sift_down`."""
    for at in range(len(heap) // 2 - 1, -1, -1):
        sift_down(heap, key, at)


def part_loads(
    parts: Integer[np.ndarray, "N"], num_parts: int, weights: Int64[np.ndarray, "W"]
) -> Int64[np.ndarray, "P"]:
    """Load of every part, int64; nodes without a part (-1) are left out.

    Args:
        parts: of every node; or the cluster of each.
        num_parts: P.
        weights: load of every node, or empty (every node weighs 1).
    """
    loads = np.zeros(num_parts, dtype=np.int64)
    _add_loads(parts, weights, loads)
    return loads


def class_loads(
    parts: Integer[np.ndarray, "N"],
    num_parts: int,
    weights: Int64[np.ndarray, "W"],
    classes: UInt16[np.ndarray, "C"],
) -> Int64[np.ndarray, "K P"]:
    """Load of every class in every part; nodes without a part (-1) are left out.

    Args:
        parts: of every node.
        num_parts: P.
        weights: load of every node, or empty (every node weighs 1).
        classes: of every node, or empty (there is one).
    """
    count = int(classes.max()) + 1 if len(classes) else 1
    loads = np.zeros((count, num_parts), dtype=np.int64)
    _add_class_loads(parts, weights, classes, loads)
    return loads


def class_caps(loads: Int64[np.ndarray, "K P"], epsilon: float) -> Int64[np.ndarray, "K"]:
    """The most of each class that a part is to have: ``1 + epsilon`` times the mean, rounded up."""
    return np.ceil((1 + epsilon) * loads.sum(axis=1) / loads.shape[1]).astype(np.int64)


def deal_out(
    order: Integer[np.ndarray, "n"], load: Integer[np.ndarray, "C"], parts: Int32[np.ndarray, "C"], num_parts: int
) -> None:
    """Give clusters, in an order, each to the part with the least load so far, ties to the lower part.

    Args:
        order: of the clusters that are dealt out.
        load: of every cluster.
        parts: receives the part of each that is dealt out.
        num_parts: P.
    """
    _deal_out(order, load, parts, np.zeros(num_parts, dtype=np.int64), np.arange(num_parts))


def spread_rest(parts: Int32[np.ndarray, "N"], num_parts: int, weights: Int64[np.ndarray, "W"]) -> None:
    """Give every node without a part (-1) to the part with the least load, ties to the lower part; in place."""
    loads = part_loads(parts, num_parts, weights)
    heap = np.arange(num_parts)
    heapify(heap, loads)
    _spread(parts, weights, loads, heap)


@compiled
def _add_loads(parts, weights, loads):
    for v in range(len(parts)):
        if parts[v] >= 0:
            loads[parts[v]] += weights[v] if len(weights) > 0 else 1


@compiled
def _add_class_loads(parts, weights, classes, loads):
    for v in range(len(parts)):
        if parts[v] >= 0:
            loads[classes[v] if len(classes) > 0 else 0, parts[v]] += weights[v] if len(weights) > 0 else 1


@compiled
def _deal_out(order, load, parts, loads, heap):
    for c in order:
        parts[c] = heap[0]
        loads[heap[0]] += load[c]
        sift_down(heap, loads, 0)


@compiled
def _spread(parts, weights, loads, heap):
    for v in range(len(parts)):
        if parts[v] < 0:
            part = heap[0]
            parts[v] = part
            loads[part] += weights[v] if len(weights) > 0 else 1
            sift_down(heap, loads, 0)
