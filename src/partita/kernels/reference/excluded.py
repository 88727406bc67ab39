"""Edges that are left out of rows; the rule is in :mod:`partita.kernels.reference`."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped
from torch import Tensor


def find_edges(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Shaped[Tensor, "M"] | None,
    dst: Int[Tensor, "t"],
    src: Int[Tensor, "t"],
    kinds: Int[Tensor, "t"] | None,
    first_edge: int,
) -> Int[Tensor, "k"]:
    """Where among the given edges those between some pairs are, ascending."""
    found = set[int]()
    for i, (node, source) in enumerate(zip(dst.tolist(), src.tolist())):
        for position in range(int(indptr[node]) - first_edge, int(indptr[node + 1]) - first_edge):
            meant = edge_type is None or kinds is None or int(edge_type[position]) == int(kinds[i])
            if meant and int(indices[position]) == source:
                found.add(position)
    return torch.tensor(sorted(found), dtype=torch.int64)


def remaining(excluded: Int[Tensor, "k"], begin: int, end: int) -> Int64[np.ndarray, "d"]:
    """Where the edges of a row are that are not left out: its slots."""
    return np.setdiff1d(np.arange(begin, end), excluded.numpy())
