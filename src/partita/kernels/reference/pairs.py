"""The edges of a block by destination and relation."""

from __future__ import annotations

import torch
from jaxtyping import Int, Int32, Int64
from torch import Tensor


def pair_edges(
    indptr: Int[Tensor, "D_1"], edge_type: Int[Tensor, "E"], num_relations: int
) -> tuple[
    Int64[Tensor, "P"], Int64[Tensor, "P_1"], Int64[Tensor, "E"], Int64[Tensor, "R"], Int64[Tensor, "D_1"],
    Int32[Tensor, "P"],
]:  # fmt: skip
    """See :func:`partita.kernels.pair_edges`."""
    num_dst, num_edges, device = indptr.shape[0] - 1, edge_type.shape[0], indptr.device
    kinds = edge_type.long()
    dst_of_edge = torch.repeat_interleave(torch.arange(num_dst, device=device), indptr.diff(), output_size=num_edges)
    begins = torch.ones_like(kinds, dtype=torch.bool)
    begins[1:] = (dst_of_edge.diff() != 0) | (kinds.diff() != 0)
    (first,) = torch.nonzero(begins, as_tuple=True)
    order = torch.argsort(kinds[first], stable=True)
    lengths = torch.cat([first, first.new_full((1,), num_edges)]).diff()[order]
    dst, starts = dst_of_edge[first][order], first[order]
    rows = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    edges = torch.repeat_interleave(starts - rows[:-1], lengths, output_size=num_edges)
    edges += torch.arange(num_edges, device=device)
    of_dst = torch.zeros(num_dst + 1, dtype=torch.int64, device=device)
    of_dst[1:] = torch.bincount(dst, minlength=num_dst).cumsum(0)
    place = torch.empty_like(order)
    place[order] = torch.arange(first.shape[0], device=device)
    sizes = torch.bincount(kinds[first], minlength=num_relations)
    return dst, rows, edges, sizes, of_dst, place.int()
