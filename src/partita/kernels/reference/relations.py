"""Draws of typed graphs made of those of untyped ones: edges of one relation are the row of a node of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int, Int64, Shaped, UInt32
from torch import Tensor

Drawn = tuple[Int[Tensor, "D_1"], Int[Tensor, "E"], Int[Tensor, "E"], Int[Tensor, "E"]]
"""Rows, ids, positions among the edges at hand, and relations."""


def drawn_by_run(
    bounds_of: Callable[..., Int[Tensor, "DC 2"]],
    draw: Callable[..., tuple[Tensor, Tensor, Tensor]],
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Shaped[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    fanouts: Sequence[int],
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
) -> Drawn:
    """Draw with an implementation's ``relation_bounds`` and ``sample_neighbors``.

    Runs of one fanout are drawn together, as if their bounds were the rows of a store of which every second one is a
    run; then all are put in order.
    """
    chosen = [relation for relation, fanout in enumerate(fanouts) if fanout]
    relations = torch.tensor(chosen, dtype=torch.int64, device=dst.device)
    bounds = bounds_of(indptr, edge_type, dst, relations, first_edge)
    at = torch.nonzero(bounds[:, 1] > bounds[:, 0]).reshape(-1)  # runs that have edges, by destination and relation
    bounds, row, column = bounds[at], at // max(1, len(chosen)), at % max(1, len(chosen))
    keys = dst_original[row] * len(fanouts) + relations[column]
    wanted = torch.tensor([fanouts[relation] for relation in chosen], dtype=torch.int64, device=dst.device)[column]
    counts = torch.zeros_like(row)
    drawn = list[tuple[Int64[Tensor, "n"], Int64[Tensor, "n_1"], Int[Tensor, "e"], Int64[Tensor, "e"]]]()
    for fanout in sorted({fanouts[relation] for relation in chosen}):
        (runs,) = torch.nonzero(wanted == fanout, as_tuple=True)
        every_second = 2 * torch.arange(runs.shape[0], dtype=indices.dtype, device=dst.device)
        rows, ids, places = draw(
            bounds[runs].reshape(-1), indices, every_second, keys[runs], key, fanout, replace, weights, first_edge
        )
        counts[runs] = rows.diff()
        drawn.append((runs, rows, ids, places))
    begin = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    num_edges = int(begin[-1])
    found = torch.empty(num_edges, dtype=indices.dtype, device=dst.device)
    where = torch.empty(num_edges, dtype=torch.int64, device=dst.device)
    for runs, rows, ids, places in drawn:
        to = torch.arange(ids.shape[0], device=dst.device)
        to += torch.repeat_interleave(begin[runs] - rows[:-1], rows.diff(), output_size=ids.shape[0])
        found[to], where[to] = ids, places
    of_dst = torch.zeros(dst.shape[0] + 1, dtype=torch.int64, device=dst.device)
    of_dst[1:].index_add_(0, row, counts)
    kinds = torch.repeat_interleave(relations[column].to(torch.int32), counts, output_size=num_edges)
    return of_dst.cumsum(0), found, where, kinds
