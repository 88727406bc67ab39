"""What weighted degrees are made of: two columns of nodes that follow from the weights of the edges."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Float64, Int, Int64

from partita.core import progress
from partita.graph.soundness import rows_of

NAMES = ("weight_sum", "loop_weight")
_CHUNK = 1 << 20


def largest_weights(indptr: Int64[np.ndarray, "N_1"], weight: Float32[np.ndarray, "E"]) -> Float32[np.ndarray, "N"]:
    """Of every node the largest weight of an in-edge, 0 without one."""
    largest = np.zeros(len(indptr) - 1, dtype=np.float32)
    for first in range(0, len(weight), _CHUNK):
        part = weight[first : first + _CHUNK]
        np.maximum.at(largest, rows_of(np.asarray(indptr), first, first + len(part)), part)
    return largest


def weight_sums(
    indptr: Int64[np.ndarray, "N_1"], indices: Int[np.ndarray, "E"], weight: Float32[np.ndarray, "E"]
) -> tuple[Float64[np.ndarray, "N"], Float64[np.ndarray, "N"]]:
    """For every node the sum of the weights of its in-edges but self loops, and the weight of its last self loop.

    Weights are added in the order of the rows, one after the other, so that the sums do not depend on any size. A node
    without a self loop has 1, the weight of the loop that :class:`~partita.nn.layers.gcn.GCN` adds.
    """
    sums, loops = np.zeros(len(indptr) - 1), np.ones(len(indptr) - 1)
    with progress.task("sum weights", total=len(weight), unit="edges") as task:
        for first in range(0, len(weight), _CHUNK):
            part, src = weight[first : first + _CHUNK], indices[first : first + _CHUNK]
            row = rows_of(np.asarray(indptr), first, first + len(part))
            is_loop = src == row
            loops[row[is_loop]] = part[is_loop]
            np.add.at(sums, row[~is_loop], part[~is_loop].astype(np.float64))
            task.advance(len(part))
    return sums, loops
