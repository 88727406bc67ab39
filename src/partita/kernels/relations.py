"""Sampling of typed graphs: a number of in-edges of every relation, for every destination."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Int, UInt8, UInt16, UInt32
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
    rows, found, at, kinds = implementation(dst).sample_relations(
        checks.as_int64(indptr),
        indices,
        edge_type.contiguous(),
        checks.as_int64(dst),
        checks.as_int64(dst_original),
        key,
        tuple(fanouts),
        replace,
        weights,
        first_edge,
    )
    return Sampled(rows, found, at + first_edge if positions else None, edge_type=kinds)
