"""Features for the nodes of graphs that have none, made of the edges or of nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float32, Int64

from partita.sources.encoding import Column

MOST_BUCKETS = 16
_BUCKETS = ("0", *(f"{2**bucket - 1}-{2 ** (bucket + 1) - 2}" for bucket in range(1, MOST_BUCKETS - 1)))


def degree_features(degree: Int64[np.ndarray, "n"]) -> Float32[np.ndarray, "n 17"]:
    """``log(1 + degree)``, and one of 16 buckets, one-hot.

    Bucket b has the degrees from ``2^b - 1`` to ``2^(b+1) - 2``, the last one all that are larger. The widths depend on
    no graph, so that a model takes the features of another one.

    Args:
        degree: in-edges of nodes as stored: repeats, self loops and mirrored edges count.
    """
    rows = np.zeros((len(degree), 1 + MOST_BUCKETS), np.float32)
    rows[:, 0] = np.log1p(degree)
    bucket = np.minimum(np.frexp((degree + 1).astype(np.float64))[1] - 1, MOST_BUCKETS - 1)
    rows[np.arange(len(degree)), 1 + bucket] = 1
    return rows


def constant_features(degree: Int64[np.ndarray, "n"]) -> Float32[np.ndarray, "n 1"]:
    """Ones."""
    return np.ones((len(degree), 1), np.float32)


_DEGREE = (
    Column("log1p(in-degree)"),
    Column("in-degree", MOST_BUCKETS, (*_BUCKETS, f"{2 ** (MOST_BUCKETS - 1) - 1}+")),
)
NODE_FEATURES: dict[str, tuple[Callable[..., np.ndarray], tuple[Column, ...]]] = {
    "degree": (degree_features, _DEGREE),
    "constant": (constant_features, (Column("constant"),)),
}
"""By name: rows from in-degrees, and what the columns are called."""
