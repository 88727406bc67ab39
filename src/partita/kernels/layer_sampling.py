"""Drawing a layer as a whole, by when its edges arrive: arguments checked, implementation called."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Int64, UInt32
from torch import Tensor

from partita.core.records import Sampled
from partita.kernels import checks
from partita.kernels.dispatch import implementation
from partita.kernels.excluded import numbers
from partita.kernels.reference.draws import LOG_BITS, NEVER, decoded

MOST_EDGES = 2**20
"""The largest budget: the times of so many arrivals of a single edge, or of those that it takes until each of so many
edges of a node has arrived, do not overflow."""


def arrival_times(
    indptr: Int[Tensor, "N_1"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    wanted: int,
    *,
    replace: bool = False,
    weights: UInt32[Tensor, "M"] | None = None,
    first_edge: int = 0,
    last_edge: int | None = None,
    excluded: Int64[Tensor, "k"] | None = None,
) -> Int[Tensor, "wanted"]:
    """The smallest distinct times at which in-edges of some nodes arrive: functions of ``key`` and ``dst_original``.

    The exact rule is in :mod:`partita.kernels.reference`.

    Args:
        indptr: rows of the store, int64.
        dst: store ids, repeated or not.
        dst_original: their original indices, the key of their draws.
        key: 64-bit key of the step and layer.
        wanted: how many times.
        replace: every edge arrives again and again, instead of once.
        weights: uint32 weight of every edge of the store, which is its rate; 1 where there are none.
        first_edge: position in the store of the first of ``weights``.
        last_edge: one past the position of the last edge that is there; ``None``: all are.
        excluded: positions in the store of edges that are left out, ascending: rows are drawn from as if they were not
            there.

    Returns:
        int64 (wanted), ascending, filled up with :data:`~partita.kernels.reference.draws.NEVER`.

    Raises:
        ValueError: ``wanted`` is below 1 or above :data:`MOST_EDGES` + 1; lengths do not fit.
        IndexError: a destination is no node of the store, or its edges are not there.
    """
    if not 1 <= wanted <= MOST_EDGES + 1:
        raise ValueError(f"{wanted} times: at least 1 and at most {MOST_EDGES + 1}")
    last_edge = int(indptr[-1]) if last_edge is None else last_edge
    if weights is not None and weights.shape[0] < last_edge - first_edge:
        raise ValueError(f"{weights.shape[0]} weights for {last_edge - first_edge} edges")
    checks.destinations(indptr, dst, dst_original, first_edge, last_edge)
    return implementation(dst).arrival_times(
        checks.as_int64(indptr),
        checks.as_int64(dst),
        checks.as_int64(dst_original),
        key,
        wanted,
        replace,
        None if weights is None else weights.contiguous(),
        first_edge,
        numbers(excluded, first_edge, dst),
    )


def pick_arrivals(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    before: int,
    *,
    replace: bool = False,
    weights: UInt32[Tensor, "M"] | None = None,
    positions: bool = False,
    first_edge: int = 0,
    excluded: Int64[Tensor, "k"] | None = None,
) -> Sampled:
    """Take all in-edges of some nodes that arrive before a time, as often as they do.

    Args:
        indptr, dst, dst_original, key, replace, weights, excluded: see :func:`arrival_times`.
        indices: in-neighbors of the store, int32 or int64; all of them, or a range that has all those of ``dst``.
        before: the time; :data:`~partita.kernels.reference.draws.NEVER` takes all edges without replacement, and none
            with replacement, where it means that there is none.
        positions: return the position of every picked edge in the store.
        first_edge: position in the store of the first of ``indices`` and ``weights``.

    Returns:
        The picks, with their ``weights`` where there are some.

    Raises:
        ValueError: lengths do not fit.
        IndexError: a destination is no node of the store, or its edges are not among ``indices``.
    """
    weights = checks.weights_match(weights, indices.shape[0])
    checks.destinations(indptr, dst, dst_original, first_edge, first_edge + indices.shape[0])
    rows, ids, at = implementation(dst).pick_arrivals(
        checks.as_int64(indptr),
        checks.as_ids(indices),
        checks.as_int64(dst),
        checks.as_int64(dst_original),
        key,
        0 if replace and before == NEVER else before,
        replace,
        weights,
        first_edge,
        numbers(excluded, first_edge, dst),
    )
    # Through int32: PyTorch 2.6 cannot index uint32 on the CPU.
    picked = None if weights is None else weights.view(torch.int32)[at].view(torch.uint32)
    return Sampled(rows, ids, at + first_edge if positions else None, weights=picked)


def importance(
    before: int | Sequence[int],
    num_edges: int,
    weights: UInt32[Tensor, "E"] | None,
    replace: bool,
    *,
    edge_type: Int[Tensor, "E"] | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "E"]:
    """How often each edge that arrived before the time of the first loser must count.

    Args:
        before: that time, as :func:`arrival_times` has it; of a typed graph, of each relation.
        num_edges: E, edges that arrived before it.
        weights: of these edges; ``None`` where all are 1.
        replace: see :func:`arrival_times`.
        edge_type: relation of each of these edges; ``None`` where there is one.
        device: where to put it; the CPU if not given.

    Returns:
        float64 (E).
    """
    times = [_passed(time) for time in ([before] if isinstance(before, int) else before)]
    if weights is None:
        found = torch.tensor([_once(time, replace) for time in times], dtype=torch.float64, device=device)
        return found.expand(num_edges).clone() if edge_type is None else found[edge_type.long()]
    passed = torch.tensor(times, dtype=torch.float64, device=device)
    passed = weights.double() * (passed if edge_type is None else passed[edge_type.long()])
    return 1 / passed if replace else -1 / torch.expm1(-passed)


def _passed(time: int) -> float:
    """A time in units of 1 / weight; infinite where there is no such time."""
    return math.inf if time == NEVER else math.log(2) * decoded(time) / 2**LOG_BITS


def _once(time: float, replace: bool) -> float:
    """What an edge of weight 1 must count."""
    if time in (0, math.inf):  # nothing is drawn, or everything
        return 1.0
    return 1 / time if replace else -1 / math.expm1(-time)
