"""The state of a softmax over edges that are dealt out to parts (Milakov and Gimelshein, arXiv 1805.02867).

A state of H heads of C columns has H columns with the largest logit e (-inf without edges), H with the sum of
``exp(e - largest)``, and H C with the sum of ``exp(e - largest) h_u``. The largest logit only shifts the exponent: the
result does not depend on it, so no gradient flows through it, and the gradient is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from partita.core.records import Block
from partita.nn import ops


def state_width(heads: int, columns: int) -> int:
    """Columns of a state."""
    return heads * (2 + columns)


def state_over(
    block: Block,
    logits: Float[Tensor, "E H"],
    rows: Float[Tensor, "S HC"],
    *,
    edge_rows: Float[Tensor, "E HC"] | None = None,
    of: Block | None = None,
) -> Float[Tensor, "D state"]:
    """The state over a block's edges.

    Args:
        block: its edges.
        logits: of every edge and head.
        rows: what sources send.
        edge_rows: what is added to it along each edge.
        of: a block with the same destinations and edges whose sources the rows belong to; ``None``: ``block``.
    """
    largest = ops.edges_max(block, logits)
    weights = torch.exp(logits - ops.destination_to_edges(block, finite(largest)))
    sums = ops.edges_to_destination(block, weights)
    total = ops.aggregate_heads(of or block, rows, weights)
    if edge_rows is not None:
        weighted = edge_rows.unflatten(1, (weights.shape[1], -1)) * weights.unsqueeze(-1)
        total = total + ops.edges_to_destination(block, weighted.flatten(1))
    return torch.cat([largest, sums, total], dim=1)


def state_of_one(logits: Float[Tensor, "D H"], rows: Float[Tensor, "D HC"]) -> Float[Tensor, "D state"]:
    """The state over one edge of every destination."""
    largest = logits.detach()
    weights = torch.exp(logits - largest)  # 1; the gradient of the logit flows through it
    weighted = rows.unflatten(1, (logits.shape[1], -1)) * weights.unsqueeze(-1)
    return torch.cat([largest, weights, weighted.flatten(1)], dim=1)


def neutral(rows: int, heads: int, columns: int, like: Tensor) -> Float[Tensor, "rows state"]:
    """States without edges."""
    state = like.new_zeros(rows, state_width(heads, columns))
    state[:, :heads] = -torch.inf
    return state


def merge(states: Sequence[Float[Tensor, "D state"]], heads: int, columns: int) -> Float[Tensor, "D state"]:
    """States of the same destinations over disjoint sets of edges, as one."""
    stacked = torch.stack(list(states))
    largest, total = stacked[..., :heads].detach(), stacked[..., heads:]
    new_largest = largest.amax(0)
    factor = torch.exp(largest - finite(new_largest)).unsqueeze(-1)
    sums, rows = total[..., :heads], total[..., heads:]
    merged_sums = (sums * factor.squeeze(-1)).sum(0)
    merged_rows = (rows.unflatten(-1, (heads, columns)) * factor).sum(0)
    return torch.cat([new_largest, merged_sums, merged_rows.flatten(1)], dim=1)


def finish(state: Float[Tensor, "D state"], heads: int, columns: int) -> Float[Tensor, "D H C"]:
    """What the softmax weights the rows to: 0 for a destination without edges."""
    sums, rows = state[:, heads : 2 * heads], state[:, 2 * heads :].unflatten(1, (heads, columns))
    return rows / sums.masked_fill(sums == 0, 1.0).unsqueeze(-1)


def shares(block: Block, logits: Float[Tensor, "E H"]) -> Float[Tensor, "E H"]:
    """The softmax of the logits over each destination's edges, where all of them are here."""
    weights = torch.exp(logits - ops.destination_to_edges(block, finite(ops.edges_max(block, logits))))
    sums = ops.edges_to_destination(block, weights)
    return weights * ops.destination_to_edges(block, sums.masked_fill(sums == 0, 1.0).reciprocal())


def finite(largest: Tensor) -> Tensor:
    """-inf (no edge) becomes the lowest number, so that ``exp(-inf - largest)`` is 0 instead of nan."""
    return largest.clamp(min=torch.finfo(largest.dtype).min)
