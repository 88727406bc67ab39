"""Node-wise sampling by draws that all destinations of a layer share: arguments checked, implementation called."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int, Int64, UInt8, UInt16, UInt32
from torch import Tensor

from partita.core.records import Sampled
from partita.kernels import checks
from partita.kernels.dispatch import implementation
from partita.kernels.excluded import numbers
from partita.kernels.reference.shared_draws import SharedKey


def sample_shared(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    dst: Int[Tensor, "D"],
    original: Int[Tensor, "N"] | None,
    key: SharedKey,
    fanouts: Sequence[int],
    *,
    edge_type: UInt8[Tensor, "M"] | UInt16[Tensor, "M"] | None = None,
    weights: UInt32[Tensor, "M"] | None = None,
    positions: bool = False,
    first_edge: int = 0,
    excluded: Int64[Tensor, "k"] | None = None,
    num_nodes: int | None = None,
) -> Sampled:
    """Draw in-neighbors of every destination, of each those whose own draws are smallest.

    LABOR-0 of Balin and Catalyurek, "Layer-neighbor sampling: defusing neighborhood explosion in GNNs" (NeurIPS 2023),
    in its sequential Poisson form (there, appendix A.3). A draw is a pure function of ``key`` and the source's original
    index; the exact rule is in :mod:`partita.kernels.reference`. There are no kernels for a device.

    Args:
        indptr: rows of the store, int64.
        indices: in-neighbors of the store, int32 or int64; all of them, or those of a range of nodes that has all of
            ``dst``.
        dst: store ids, repeated or not.
        original: int64, original index of every node of the store, the key of its draw; ``None`` where it is the id.
        key: of the draws.
        fanouts: edges per destination, of each of the R relations; one number where there is no ``edge_type``. -1 takes
            all of them, and so do rows with no more.
        edge_type: relation of every edge in ``indices``, ascending in every row.
        weights: uint32 weight of every edge of the store: draw in proportion. Edges of weight 0 are never taken.
        positions: return the position of every sampled edge in the store.
        first_edge: position in the store of the first of ``indices``, ``edge_type`` and ``weights``.
        excluded: positions in the store of edges that are left out, ascending: rows are drawn from as if they were not
            there.
        num_nodes: of the graph, where ``indptr`` has rows of only some of its nodes.

    Returns:
        The picks in the order of the rows, with ``edge_type`` where edges have types.

    Raises:
        ValueError: a fanout below -1; lengths do not fit.
        IndexError: a destination is no node of the store, or its edges are not among ``indices``.
    """
    if min(fanouts, default=0) < -1:
        raise ValueError(f"fanout {min(fanouts)}: must be -1 (all neighbors) or at least 0")
    if edge_type is None and len(fanouts) != 1:
        raise ValueError(f"{len(fanouts)} fanouts for edges without types")
    if edge_type is not None and edge_type.shape[0] != indices.shape[0]:
        raise ValueError(f"{edge_type.shape[0]} types for {indices.shape[0]} edges")
    num_nodes = indptr.shape[0] - 1 if num_nodes is None else num_nodes
    if original is not None and original.shape[0] != num_nodes:
        raise ValueError(f"{original.shape[0]} original indices for {num_nodes} nodes")
    weights, indices = checks.weights_match(weights, indices.shape[0]), checks.as_ids(indices)
    checks.rows_within("dst", indptr, dst, first_edge, first_edge + indices.shape[0])
    if not any(fanouts):  # for layers that read no neighbors
        none = torch.empty(0, dtype=torch.int64)
        rows = torch.zeros(len(dst) + 1, dtype=torch.int64)
        kinds = None if edge_type is None else none.int()
        return Sampled(rows, none.to(indices.dtype), none if positions else None, edge_type=kinds)
    rows, found, at, kinds = implementation(dst).sample_shared(
        checks.as_int64(indptr),
        indices,
        None if edge_type is None else edge_type.contiguous(),
        checks.as_int64(dst),
        None if original is None else checks.as_int64(original),
        key,
        tuple(fanouts),
        weights,
        first_edge,
        numbers(excluded, first_edge, dst),
        num_nodes,
    )
    return Sampled(rows, found, at + first_edge if positions else None, edge_type=None if edge_type is None else kinds)
