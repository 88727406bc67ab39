"""The edges of a block by destination and relation, compiled."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int, Int32, Int64
from numba import njit
from torch import Tensor


def pair_edges(
    indptr: Int[Tensor, "D_1"], edge_type: Int[Tensor, "E"], num_relations: int
) -> tuple[
    Int64[Tensor, "P"], Int64[Tensor, "P_1"], Int64[Tensor, "E"], Int64[Tensor, "R"], Int64[Tensor, "D_1"],
    Int32[Tensor, "P"],
]:  # fmt: skip
    """See :func:`partita.kernels.pair_edges`."""
    bounds, kinds = indptr.numpy(), edge_type.numpy()
    sizes, of_dst = np.zeros(num_relations, np.int64), np.zeros(len(bounds), np.int64)
    count_pairs(bounds, kinds, sizes, of_dst)
    pairs = int(of_dst[-1])
    dst, rows, place = np.empty(pairs, np.int64), np.zeros(pairs + 1, np.int64), np.empty(pairs, np.int32)
    edges = np.empty(len(kinds), np.int64)
    fill_pairs(bounds, kinds, sizes, dst, rows, edges, place)
    arrays = (dst, rows, edges, sizes, of_dst, place)
    return tuple(torch.from_numpy(array) for array in arrays)  # type: ignore[return-value]


@njit(nogil=True, cache=True)
def count_pairs(indptr, kinds, sizes, of_dst):
    """Pairs of each relation; and of all destinations before each one."""
    for i in range(indptr.shape[0] - 1):
        found, before = of_dst[i], np.int64(-1)
        for edge in range(indptr[i], indptr[i + 1]):
            kind = np.int64(kinds[edge])
            if kind != before:
                sizes[kind] += 1
                found += 1
                before = kind
        of_dst[i + 1] = found


@njit(nogil=True, cache=True)
def fill_pairs(indptr, kinds, sizes, dst, rows, edges, place):
    """Number the pairs, relation by relation; then list the edges of each."""
    relations = sizes.shape[0]
    following = np.empty(relations, np.int64)
    total = np.int64(0)
    for kind in range(relations):
        following[kind] = total
        total += sizes[kind]
    first = np.empty(dst.shape[0], np.int64)
    seen = 0
    for i in range(indptr.shape[0] - 1):
        before, pair = np.int64(-1), np.int64(0)
        for edge in range(indptr[i], indptr[i + 1]):
            kind = np.int64(kinds[edge])
            if kind != before:
                pair = following[kind]
                following[kind] += 1
                dst[pair], first[pair], place[seen] = i, edge, pair
                seen += 1
                before = kind
            rows[pair + 1] += 1
    at = 0
    for pair in range(dst.shape[0]):
        count = rows[pair + 1]
        rows[pair + 1] += rows[pair]
        for edge in range(first[pair], first[pair] + count):
            edges[at] = edge
            at += 1
