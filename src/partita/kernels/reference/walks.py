"""Random walks; the rule is in :mod:`partita.kernels.reference`."""

from __future__ import annotations

from itertools import accumulate

import torch
from jaxtyping import Bool, Int, Int32, Int64, UInt32
from torch import Tensor

from partita.core.keys import MASK64, below, fold
from partita.kernels.reference.excluded import remaining

SINK = -1


def next_node(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    weights: UInt32[Tensor, "M"] | None,
    first: int,
    excluded: Int[Tensor, "k"],
    node: int,
    draw: int,
) -> int:
    """Where a walk goes from a node; :data:`SINK` where there is nowhere to go."""
    row = remaining(excluded, int(indptr[node]) - first, int(indptr[node + 1]) - first).tolist()
    if weights is None:
        return int(indices[row[below(draw, len(row))]]) if row else SINK
    totals = list(accumulate(int(weights[position]) for position in row))
    if not totals or totals[-1] == 0:
        return SINK
    goal = below(draw, totals[-1])
    return int(indices[next(position for position, total in zip(row, totals) if total > goal)])


def random_walks(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    start: Int[Tensor, "n"],
    start_original: Int[Tensor, "n"],
    key: int,
    walks: int,
    length: int,
    threshold: int,
    weights: UInt32[Tensor, "M"] | None,
    excluded: Int[Tensor, "k"],
    out: Int[Tensor, "nR columns"],
) -> None:
    """Fill ``out``."""
    found = []
    for home, original in zip(start.tolist(), start_original.tolist()):
        for r in range(walks):
            walk_key, walk = fold(fold(key, original), r), [home]
            for s in range(length):
                node, h = walk[-1], fold(walk_key, s)
                if node == SINK:
                    walk.append(SINK)
                elif fold(h, 1) & 0xFFFF < threshold:
                    walk.append(home)
                else:
                    to = next_node(indptr, indices, weights, 0, excluded, node, fold(h, 0))
                    walk.append(home if to == SINK and node != home else to)
            found.append(walk)
    out.copy_(torch.tensor(found, dtype=out.dtype).reshape(out.shape))


def walk_step(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    ids: Int[Tensor, "n"],
    draws: Int64[Tensor, "n"],
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int[Tensor, "k"],
    out: Int[Tensor, "n"],
) -> None:
    """Fill ``out``."""
    wanted = zip(ids.tolist(), draws.tolist())
    found = [next_node(indptr, indices, weights, first_edge, excluded, node, draw & MASK64) for node, draw in wanted]
    out.copy_(torch.tensor(found, dtype=out.dtype))


def walk_draws(
    start_original: Int[Tensor, "n"],
    key: int,
    walks: int,
    step: int,
    threshold: int,
    draws: Int64[Tensor, "nR"],
    restarts: Bool[Tensor, "nR"],
) -> None:
    """Fill ``draws`` and ``restarts``."""
    for i, original in enumerate(start_original.tolist()):
        for r in range(walks):
            h = fold(fold(fold(key, original), r), step)
            draw = fold(h, 0)
            draws[i * walks + r] = draw - (draw >> 63 << 64)  # the same bits, signed
            restarts[i * walks + r] = fold(h, 1) & 0xFFFF < threshold


def top_visits(
    nodes: Int[Tensor, "nR columns"], start: Int[Tensor, "n"], walks: int, k: int
) -> tuple[Int64[Tensor, "n_1"], Int[Tensor, "E"], Int32[Tensor, "E"]]:
    """``indptr``, ids, counts."""
    visited = nodes[:, 1:].reshape(start.shape[0], walks * (nodes.shape[1] - 1)).tolist()
    rows = [0]
    ids: list[int] = []
    counts: list[int] = []
    for home, row in zip(start.tolist(), visited):
        times: dict[int, int] = {}  # by first visit
        for node in row:
            if node not in (home, SINK):
                times[node] = times.get(node, 0) + 1
        best = sorted(times, key=lambda node: -times[node])[:k]
        ids += best
        counts += [times[node] for node in best]
        rows.append(len(ids))
    return torch.tensor(rows), torch.tensor(ids, dtype=nodes.dtype), torch.tensor(counts, dtype=torch.int32)
