"""Planted classes: nodes that are drawn by weight and class, and features that show the class."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64

from partita.core import progress
from partita.graph.hashing import fold_array, normal, uniform
from partita.graph.writer import StoreWriter

_VALUES_AT_ONCE = 1 << 20


def draw_classes(key: int, num_nodes: int, num_classes: int) -> Int64[np.ndarray, "N"]:
    """A class for each node, all alike frequent."""
    hashes = fold_array(key, np.arange(num_nodes))
    return (hashes % np.uint64(num_classes)).astype(np.int64)


def centroids(key: int, num_classes: int, num_features: int) -> Float64[np.ndarray, "C F"]:
    """Random directions of length 1, one per class."""
    draws = normal(key, np.arange(num_classes * num_features)).reshape(num_classes, num_features)
    return draws / np.linalg.norm(draws, axis=1, keepdims=True)


class WeightedNodes:
    """Nodes whose weights follow a power law, on a line: each takes as much of it as it weighs, class after class.

    Memory is O(nodes).

    Args:
        key: of the weights.
        y: class of each node.
        num_classes: C.
        power_law: exponent of the weights' density, above 1; with an infinite one all weigh the same. No node weighs
            more than the square root of the number of nodes.

    Attributes:
        y: class of each node.
        total: length of the line.
        begin, end: of each class on the line.
    """

    def __init__(self, key: int, y: Int64[np.ndarray, "N"], num_classes: int, power_law: float | int) -> None:
        self.y = y
        self._by_class = np.argsort(y, kind="stable")
        draws = uniform(key, self._by_class)
        weight = np.minimum((1.0 - draws) ** (-1.0 / (power_law - 1.0)), max(1.0, len(y) ** 0.5))
        self._ends = np.cumsum(weight)
        last = np.cumsum(np.bincount(y, minlength=num_classes))
        self.total = self._ends[-1]
        self.end: Float64[np.ndarray, "C"] = np.where(last > 0, self._ends[last - 1], 0.0)
        self.begin: Float64[np.ndarray, "C"] = np.concatenate([[0.0], self.end[:-1]])

    def at(self, position: Float64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Nodes at positions on the line."""
        slot = np.searchsorted(self._ends, position, side="right")
        return self._by_class[np.minimum(slot, len(self._ends) - 1)]


def write_features(
    writer: StoreWriter,
    column: str,
    shape: tuple[int, int],
    dtype: Any,
    *,
    noise_key: int,
    noise: float | int,
    y: Int64[np.ndarray, "N"] | None = None,
    directions: Float[np.ndarray, "C F"] | None = None,
    title: str = "generate features",
) -> None:
    """Write rows of Gaussian noise, by chunks; with the direction of each node's class added.

    Args:
        writer: of the store.
        column: to write.
        shape: nodes and features. Nothing is written for 0 features.
        dtype: float32 or float16.
        noise_key: of the noise.
        noise: standard deviation of the noise.
        y: class of each node.
        directions: of the classes.
        title: of the progress bar.
    """
    num_nodes, width = shape
    if not width:
        return
    x = writer.allocate(column, shape, dtype)
    rows = max(1, _VALUES_AT_ONCE // width)
    with progress.task(title, total=num_nodes, unit="rows") as task:
        for start in range(0, num_nodes, rows):
            stop = min(start + rows, num_nodes)
            values = normal(noise_key, np.arange(start * width, stop * width)).reshape(-1, width) * noise
            if y is not None and directions is not None:
                values += directions[y[start:stop]]
            x[start:stop] = values
            task.advance(stop - start)
