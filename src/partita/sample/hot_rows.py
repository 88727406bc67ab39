"""Some rows of edges, copied to where they are drawn from fast; which ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from partita.core import progress
from partita.core.records import SIGNED
from partita.kernels.memory import to_device
from partita.sample.topology import EDGE_ARRAYS, ArrayTopology

_CHUNK_EDGES = 2**23
ROW_BYTES = 8
"""Of a copied row, besides its edges: where it begins."""
RANK_BYTES = 4
"""Of every node: which row is its."""


def most_drawn(
    local: ArrayTopology, budget: int, worth: Int[Tensor, "n"] | Float64[Tensor, "n"] | None = None
) -> Int64[Tensor, "h"]:
    """The nodes that come first and whose edges, and where they begin, take so many bytes; ascending.

    Args:
        local: where the edges are.
        budget: bytes for rows, besides a rank of every node.
        worth: of each of the nodes for which ``local`` draws; the highest come first. In-degrees if not given.
    """
    arrays, nodes = local.arrays(), local.nodes
    edge = sum(column.element_size() for column in edge_columns(local).values())
    degrees = arrays["indptr"][nodes.start : nodes.stop + 1].diff()
    order = torch.argsort(degrees if worth is None else worth, descending=True, stable=True)
    needed = (degrees[order] * edge + ROW_BYTES).cumsum(0)
    budget = max(0, budget - ROW_BYTES - RANK_BYTES * local.num_nodes)
    count = int(torch.searchsorted(needed, torch.tensor([budget]), right=True))
    return order[:count].sort().values + nodes.start


def copied_rows(
    local: ArrayTopology, hot: Int64[Tensor, "h"], device: torch.device, to: str
) -> tuple[Int64[Tensor, "h_1"], dict[str, Any]]:
    """The rows of some nodes behind one another: where they begin, and the columns of their edges.

    Args:
        local: where they are.
        hot: the nodes, ascending.
        device: where to put them.
        to: that place, for who watches.
    """
    arrays = local.arrays()
    begins = arrays["indptr"][hot] - arrays["first_edge"]
    counts = arrays["indptr"][hot + 1] - arrays["first_edge"] - begins
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    total = int(indptr[-1])
    columns = edge_columns(local)
    copies = {name: torch.empty(total, dtype=column.dtype, device=device) for name, column in columns.items()}
    first = 0
    with progress.task(f"copy edges to {to}", total=total, unit="edges") as task:
        while first < len(hot):
            goal = indptr[first : first + 1] + _CHUNK_EDGES
            last = max(first + 1, int(torch.searchsorted(indptr, goal, right=True)) - 1)
            low, high = int(indptr[first]), int(indptr[last])
            shift = torch.repeat_interleave(begins[first:last] - indptr[first:last], counts[first:last])
            at = shift + torch.arange(low, high)
            for name, copy in copies.items():
                copy[low:high] = to_device(_signed(columns[name])[at].view(copy.dtype), device)
            task.advance(high - low)
            first = last
    return indptr.to(device), copies


def _signed(column: Tensor) -> Tensor:
    """The same bits of a type that can be indexed everywhere."""
    return column.view(SIGNED.get(column.dtype, column.dtype))


def edge_columns(local: ArrayTopology) -> dict[str, Tensor]:
    """The columns of edges that there are."""
    arrays = local.arrays()
    return {name: arrays[name] for name in EDGE_ARRAYS if arrays[name] is not None}


def bytes_of(columns: Iterable[Any]) -> int:
    """Bytes of the values of columns; whatever is no column has none."""
    return sum(column.numel() * column.element_size() for column in columns if isinstance(column, Tensor))
