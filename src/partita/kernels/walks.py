"""Random walks and what they visit: arguments checked, implementation called."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int, Int32, Int64, UInt32
from torch import Tensor

from partita.kernels import checks
from partita.kernels.dispatch import implementation
from partita.kernels.excluded import numbers


def random_walks(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    start: Int[Tensor, "n"],
    start_original: Int[Tensor, "n"],
    key: int,
    *,
    walks: int,
    length: int,
    restart: float = 0.0,
    weights: UInt32[Tensor, "M"] | None = None,
    excluded: Int64[Tensor, "k"] | None = None,
) -> Int[Tensor, "nR columns"]:
    """Walk along in-edges: a pure function of ``key`` and ``start_original``.

    The exact rule of the draws is in :mod:`partita.kernels.reference`.

    Args:
        indptr: rows of the store, int64.
        indices: in-neighbors of the store, int32 or int64, of all nodes.
        start: store ids, repeated or not.
        start_original: their original indices, the key of their draws.
        key: 64-bit key.
        walks: R, walks from every start.
        length: steps of every walk.
        restart: probability, before every step, to go back to the start instead of moving; in [0, 1).
        weights: uint32 weight of every edge of the store: move in proportion.
        excluded: positions of edges that are left out, ascending: walks go as if they were not there.

    Returns:
        (n R, length + 1) store ids in the dtype of ``indices``: walk r of start i is row ``i R + r``, its first column
        the start; -1 after the end of a walk, which is only where a start has nowhere to go.

    Raises:
        ValueError: a number is out of range, or lengths do not fit.
        IndexError: a start is no node of the store; :class:`EdgesError`: an edge comes from none.
    """
    _check_walks(start, start_original, walks, length)
    weights = checks.weights_match(weights, indices.shape[0])
    if indices.shape[0] != int(indptr[-1]):
        raise ValueError(f"a walk goes anywhere, but of {int(indptr[-1])} edges {indices.shape[0]} are there")
    checks.within("start", start, indptr.shape[0] - 1)
    out = start.new_empty((start.shape[0] * walks, length + 1), dtype=checks.as_ids(indices).dtype)
    implementation(start).random_walks(
        checks.as_int64(indptr),
        checks.as_ids(indices),
        start.to(out.dtype).contiguous(),
        checks.as_int64(start_original),
        key,
        walks,
        length,
        checks.restart_rule(restart),
        weights,
        numbers(excluded, 0, start),
        out,
    )
    checks.walked(out, indptr.shape[0] - 1)
    return out


def walk_step(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    ids: Int[Tensor, "n"],
    draws: Int64[Tensor, "n"],
    *,
    weights: UInt32[Tensor, "M"] | None = None,
    first_edge: int = 0,
    excluded: Int64[Tensor, "k"] | None = None,
    num_nodes: int | None = None,
) -> Int[Tensor, "n"]:
    """Where walks that stand at some nodes go next.

    Args:
        indptr: rows of the store, int64.
        indices: in-neighbors of the store, int32 or int64; all of them, or those of a range of nodes that has all
            of ``ids``.
        ids: store ids, repeated or not.
        draws: the 64 bits of the draw of each; see :func:`walk_draws`.
        weights: uint32 weight of every edge of the store: move in proportion.
        first_edge: position in the store of the first of ``indices`` and ``weights``.
        excluded: positions in the store of edges that are left out, ascending.
        num_nodes: of the graph, where ``indptr`` has rows of only some of its nodes.

    Returns:
        (n) store ids in the dtype of ``indices``; -1 where a node has no in-neighbor, or only edges of weight 0.

    Raises:
        ValueError: lengths do not fit.
        IndexError: an id is no node of the store, or its edges are not among ``indices``; :class:`EdgesError`: a walk
            came to an id that is no node.
    """
    out = moved(indptr, indices, ids, draws, weights, first_edge, excluded)
    checks.walked(out, indptr.shape[0] - 1 if num_nodes is None else num_nodes)
    return out


def moved(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    ids: Int[Tensor, "n"],
    draws: Int64[Tensor, "n"],
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int64[Tensor, "k"] | None,
) -> Int[Tensor, "n"]:
    """As :func:`walk_step`, of rows that need not be nodes; where walks come to is not looked at."""
    if ids.shape != draws.shape:
        raise ValueError(f"{ids.shape[0]} walks with {draws.shape[0]} draws")
    weights = checks.weights_match(weights, indices.shape[0])
    checks.rows_within("ids", indptr, ids, first_edge, first_edge + indices.shape[0])
    indices = checks.as_ids(indices)
    out = ids.new_empty(ids.shape[0], dtype=indices.dtype)
    implementation(ids).walk_step(
        checks.as_int64(indptr),
        indices,
        ids.to(indices.dtype).contiguous(),
        checks.as_int64(draws),
        weights,
        first_edge,
        numbers(excluded, first_edge, ids),
        out,
    )
    return out


def walk_draws(
    start_original: Int[Tensor, "n"], key: int, *, walks: int, step: int, restart: float = 0.0
) -> tuple[Int64[Tensor, "nR"], Bool[Tensor, "nR"]]:
    """The draws of one step of walks that are taken step by step.

    Args:
        start_original: original indices of the starts.
        key, walks, restart: see :func:`random_walks`.
        step: 0-based.

    Returns:
        For every walk, in the order of :func:`random_walks`: the 64 bits of the draw that says where it moves; whether
        it goes back to its start instead.
    """
    _check_walks(start_original, start_original, walks, 1)
    draws = start_original.new_empty(start_original.shape[0] * walks, dtype=torch.int64)
    restarts = torch.empty_like(draws, dtype=torch.bool)
    threshold = checks.restart_rule(restart)
    original = checks.as_int64(start_original)
    implementation(original).walk_draws(original, key, walks, step, threshold, draws, restarts)
    return draws, restarts


def top_visits(
    nodes: Int[Tensor, "nR columns"], start: Int[Tensor, "n"], k: int
) -> tuple[Int64[Tensor, "n_1"], Int[Tensor, "E"], Int32[Tensor, "E"]]:
    """The nodes that the walks of each start visit most, other than the start itself.

    Args:
        nodes: what :func:`random_walks` returns.
        start: the starts.
        k: nodes per start, at most.

    Returns:
        ``indptr`` (n+1); ids, of each start by visits, most first, ties by first visit; the number of visits of each.

    Raises:
        ValueError: ``k`` is below 1, or the walks are not equally many for every start.
    """
    if k < 1:
        raise ValueError(f"{k} nodes per start: must be at least 1")
    count = start.shape[0]
    walks = nodes.shape[0] // max(count, 1)
    if nodes.shape[0] != walks * count or nodes.shape[1] < 1:
        raise ValueError(f"{nodes.shape[0]} walks of {nodes.shape[1]} nodes for {count} starts")
    nodes = checks.as_ids(nodes)
    found: tuple[Tensor, Tensor, Tensor] = implementation(nodes).top_visits(
        nodes, start.to(nodes.dtype).contiguous(), walks, min(k, walks * (nodes.shape[1] - 1))
    )
    return found


def _check_walks(start: Tensor, start_original: Tensor, walks: int, length: int) -> None:
    if walks < 1 or length < 1:
        raise ValueError(f"{walks} walks of {length} steps: must be at least 1 of each")
    if start.shape != start_original.shape:
        raise ValueError(f"{start.shape[0]} starts with {start_original.shape[0]} original indices")
