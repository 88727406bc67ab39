"""Sampling of typed graphs: a number of in-edges of every relation, for every destination."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int, Int64, UInt8, UInt16, UInt32
from torch import Tensor

from partita.core.records import Sampled
from partita.kernels import checks
from partita.kernels.dispatch import implementation


def sample_relations(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: UInt8[Tensor, "M"] | UInt16[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    fanouts: Sequence[int],
    *,
    replace: bool = False,
    weights: UInt32[Tensor, "M"] | None = None,
    positions: bool = False,
    first_edge: int = 0,
) -> Sampled:
    """Draw in-neighbors of every destination, relation by relation: a function of ``key`` and ``dst_original``.

    The edges of a relation in a row are drawn as :func:`~partita.kernels.sample_neighbors` draws the row of a node of
    its own, whose original index is ``original * R + relation``. Rows are sorted by relation, so those edges are found
    by search.

    Args:
        indptr, indices, dst, dst_original, key, replace, weights, positions, first_edge: as of
            :func:`~partita.kernels.sample_neighbors`.
        edge_type: number of the relation of every edge of ``indices``, ascending in every row.
        fanouts: edges of each of the R relations per destination; -1 for all, 0 for none.

    Returns:
        the sample, with ``edge_type``; a destination's edges are in order of their relations.

    Raises:
        ValueError: a fanout is below -1; lengths do not fit.
        IndexError: a destination is no node of the store, or its edges are not among ``indices``.
    """
    if min(fanouts, default=0) < -1:
        raise ValueError(f"fanout {min(fanouts)}: must be -1 (all neighbors) or at least 0")
    if edge_type.shape != indices.shape:
        raise ValueError(f"{edge_type.shape[0]} types for {indices.shape[0]} edges")
    weights, indices = checks.weights_match(weights, indices), checks.as_ids(indices)
    checks.destinations(indptr, dst, dst_original, first_edge, first_edge + indices.shape[0])
    chosen = [relation for relation, fanout in enumerate(fanouts) if fanout]
    relations = torch.tensor(chosen, dtype=torch.int64, device=dst.device)
    drawer = implementation(dst)
    bounds = drawer.relation_bounds(
        checks.as_int64(indptr), edge_type.contiguous(), checks.as_int64(dst), relations, first_edge
    )
    at = torch.nonzero(bounds[:, 1] > bounds[:, 0]).reshape(-1)  # runs that have edges, by destination and relation
    bounds, row, column = bounds[at], at // max(1, len(chosen)), at % max(1, len(chosen))
    keys = checks.as_int64(dst_original)[row] * len(fanouts) + relations[column]

    # Runs of one fanout are drawn together; then all are put in order. ``bounds`` is read as the rows of a store of
    # which every second one is a run.
    wanted = torch.tensor([fanouts[relation] for relation in chosen], dtype=torch.int64, device=dst.device)[column]
    counts = torch.zeros_like(row)
    drawn = list[tuple[Int64[Tensor, "n"], Int64[Tensor, "n_1"], Int[Tensor, "e"], Int64[Tensor, "e"]]]()
    for fanout in sorted({fanouts[relation] for relation in chosen}):
        (runs,) = torch.nonzero(wanted == fanout, as_tuple=True)
        every_second = 2 * torch.arange(runs.shape[0], dtype=indices.dtype, device=dst.device)
        rows, ids, places = drawer.sample_neighbors(
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
    return Sampled(
        indptr=of_dst.cumsum(0),
        indices=found,
        positions=where + first_edge if positions else None,
        edge_type=torch.repeat_interleave(relations[column].to(torch.int32), counts, output_size=num_edges),
    )
