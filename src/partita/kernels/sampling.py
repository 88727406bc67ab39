"""Sampling, relabeling and what goes with them: arguments checked, implementation called."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Int64, UInt32
from torch import Tensor

from partita.core.records import Sampled
from partita.kernels import checks
from partita.kernels.dispatch import implementation
from partita.kernels.excluded import numbers
from partita.kernels.relabeller import Relabeller


def sample_neighbors(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"] | None,
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    fanout: int,
    *,
    replace: bool = False,
    weights: UInt32[Tensor, "M"] | None = None,
    positions: bool = False,
    first_edge: int = 0,
    excluded: Int64[Tensor, "k"] | None = None,
) -> Sampled:
    """Draw in-neighbors of every destination: a pure function of ``key`` and ``dst_original``.

    The exact rule of the draws is in :mod:`partita.kernels.reference`.

    Args:
        indptr: rows of the store, int64.
        indices: in-neighbors of the store, int32 or int64; all of them, or those of a range of nodes that has all
            of ``dst``. Where ``dst`` is on a device, ``indptr``, ``indices`` and ``weights`` may lie in pinned host
            memory. ``None``: they are not at hand; the sample has positions in their place. On the CPU only.
        dst: store ids, distinct.
        dst_original: their original indices, the key of their draws.
        key: 64-bit key of the step and layer.
        fanout: neighbors per destination; -1 takes all of them, in row order, without drawing.
        replace: draw exactly ``fanout`` times with replacement where there is a neighbor. Otherwise
            ``min(fanout, degree)`` distinct edges, and all of them in row order where the degree is at most the fanout.
        weights: uint32 weight of every edge of the store: draw in proportion. Edges of weight 0 are never taken.
        positions: return the position of every sampled edge in the store.
        first_edge: position in the store of the first of ``indices`` and ``weights``.
        excluded: positions in the store of edges that are left out, ascending: rows are drawn from as if they were not
            there.

    Raises:
        ValueError: fanout below -1; lengths do not fit.
        IndexError: a destination is no node of the store, or its edges are not among ``indices``.
    """
    if fanout < -1:
        raise ValueError(f"fanout {fanout}: must be -1 (all neighbors) or at least 0")
    column, num_edges = checks.column_or_none(indices, weights, indptr, first_edge, dst)
    weights = checks.weights_match(weights, num_edges)
    checks.destinations(indptr, dst, dst_original, first_edge, first_edge + num_edges)
    rows, ids, at = implementation(dst).sample_neighbors(
        checks.as_int64(indptr),
        column,
        dst.to(column.dtype).contiguous(),
        checks.as_int64(dst_original),
        key,
        fanout,
        replace,
        weights,
        first_edge,
        numbers(excluded, first_edge, dst),
    )
    at = at + first_edge if first_edge else at
    return Sampled(rows, at if indices is None else ids, at if positions else None)


def relabel(
    dst: Int[Tensor, "D"], indices: Int[Tensor, "E"], relabeller: Relabeller
) -> tuple[Int[Tensor, "S"], Int[Tensor, "E"]]:
    """De-duplicate and number the sources of a sample.

    Args:
        dst: store ids of the destinations, distinct.
        indices: store ids of the sampled neighbors, int32 or int64.
        relabeller: scratch.

    Returns:
        ``src``, the destinations first, then new sources by first appearance, in the dtype of ``indices``; int32
        local indices into it.

    Raises:
        ValueError: a node is twice among ``dst``.
        IndexError: an id is no node of the relabeller's store; :class:`EdgesError` for one of ``indices``.
    """
    checks.within("dst", dst, relabeller.num_nodes)
    checks.sources(indices, relabeller.num_nodes)
    indices = checks.as_ids(indices)
    return implementation(dst).relabel(dst.to(indices.dtype).contiguous(), indices, relabeller)


def gcn_coefficients(
    store_indptr: Int[Tensor, "N_1"],
    self_loops: Int[Tensor, "N"] | None,
    dst: Int[Tensor, "D"],
    src: Int[Tensor, "S"] | None,
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "E"], Float[Tensor, "D"]]:
    """Symmetric normalization of sampled edges u -> v, with one self loop per node.

    ``weight = (d_v / k_v) / sqrt(n_u * n_v)``, 0 for a self loop of the data; ``self_weight = 1 / n_v``; where
    n = (in-degree without self loops) + 1, d_v is the in-degree of v (all edges), k_v its number of sampled edges.

    Args:
        store_indptr: rows of the store, int64.
        self_loops: int32 self loops of every node of the store; ``None`` where there are none.
        dst: store ids of the destinations.
        src: store ids of the sources, or ``None`` where ``indices`` are store ids.
        indptr: rows of the block.
        indices: sources of the sampled edges.
        dtype: of the result, float32 or float64; computed in float64.

    Returns:
        ``weight`` (E), ``self_weight`` (D).
    """
    checks.output_dtype(dtype)
    checks.edges_match(indptr, indices)
    if src is None:
        checks.sources(indices, store_indptr.shape[0] - 1)
    weight, self_weight = dst.new_empty(indices.shape[0], dtype=dtype), dst.new_empty(dst.shape[0], dtype=dtype)
    implementation(dst).gcn_coefficients(
        checks.as_int64(store_indptr),
        self_loops,
        checks.as_ids(dst),
        None if src is None else checks.as_ids(src),
        checks.as_int64(indptr),
        checks.as_ids(indices),
        weight,
        self_weight,
    )
    return weight, self_weight


def count_distinct(ids: Int[Tensor, "n"], num_nodes: int) -> int:
    """Number of distinct store ids, of ``num_nodes`` nodes."""
    checks.within("ids", ids, num_nodes)
    return int(implementation(ids).count_distinct(checks.as_ids(ids), num_nodes))


def keyed_permutation(
    start: int, stop: int, n: int, key: int, *, device: torch.device | str | None = None
) -> Int[Tensor, "m"]:
    """Places ``start`` to ``stop - 1`` of a pseudo-random permutation of 0 to n - 1, without holding it.

    Args:
        start: first place.
        stop: after the last place.
        n: how many are permuted.
        key: 64-bit key.
        device: where to put them; the CPU if not given.

    Returns:
        int64 (stop - start).

    Raises:
        ValueError: not ``0 <= start <= stop <= n``.
    """
    if not 0 <= start <= stop <= n:
        raise ValueError(f"places {start} to {stop} of a permutation of {n}")
    out = torch.empty(stop - start, dtype=torch.int64, device=device)
    implementation(out).keyed_permutation(start, n, key, out)
    return out
