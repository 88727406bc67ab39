"""Negatives of links, and which of them are links themselves: arguments checked, implementation called."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int, Int64, UInt64
from torch import Tensor

from partita.kernels import checks
from partita.kernels.dispatch import implementation

Alias = tuple[UInt64[Tensor, "N"], Int64[Tensor, "N"]]
"""Of every cell, the fraction of its draws that stay there, times 2^64, and the cell that the others go to."""


def draw_candidates(
    key: int,
    first: Int64[Tensor, "B"],
    size: Int64[Tensor, "B"],
    count: int,
    *,
    alias: Alias | None = None,
    order: Int64[Tensor, "N"] | None = None,
) -> Int64[Tensor, "B K"]:
    """Draw nodes of a range for every row: a pure function of ``key``, the place of the row and that of the draw.

    The exact rule is in :mod:`partita.kernels.reference`.

    Args:
        key: 64-bit key.
        first, size: the range of each row; sizes are at least 1.
        count: K.
        alias: makes some nodes of a range more likely than others; ``None``: all alike.
        order: what each node is written as; ``None``: as it is.

    Raises:
        ValueError: a number is out of range, or lengths do not fit.
        IndexError: a range is outside ``order`` or ``alias``.
    """
    if first.shape != size.shape or count < 0:
        raise ValueError(f"{first.shape[0]} ranges with {size.shape[0]} sizes, {count} draws")
    if len(size) and int(size.min()) < 1:
        raise ValueError("there is nothing to draw from an empty range")
    for table in (*(alias or ()), *(() if order is None else (order,))):
        checks.within("first", first, table.shape[0])
        checks.within("size", first + size - 1, table.shape[0])
    out = torch.empty((len(first), count), dtype=torch.int64)
    implementation(first).draw_candidates(key, checks.as_int64(first), checks.as_int64(size), alias, order, out)
    return out


def find_links(
    indptr: Int64[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Int[Tensor, "M"] | None,
    given: Int64[Tensor, "B"],
    relations: Int64[Tensor, "B"] | None,
    candidates: Int64[Tensor, "B K"],
    *,
    tails: bool,
) -> Bool[Tensor, "B K"]:
    """Which pairs of a given node and a candidate are edges of a graph.

    Args:
        indptr: rows of the store.
        indices: sources of its edges.
        edge_type: relation of each, ascending within a row; ``None``: untyped.
        given: one end of each row.
        relations: that the edge must have; ``None``: untyped.
        candidates: the other ends. Where all rows have the same ones, as one row that was expanded, the edges of each
            candidate are read once.
        tails: the candidates are where edges lead to; else where they come from.

    Raises:
        ValueError: lengths do not fit, or relations are on one side only.
        IndexError: an id is no node.
    """
    checks.edges_match(indptr, indices)
    if (edge_type is None) != (relations is None):
        raise ValueError("relations are needed of the store and of the pairs, or of neither")
    if len(given) != len(candidates) or (relations is not None and len(relations) != len(given)):
        raise ValueError(f"{len(given)} given nodes with {len(candidates)} rows of candidates")
    checks.within("given", given, len(indptr) - 1)
    shared = len(candidates) > 0 and candidates.stride(0) == 0
    checks.within("candidates", candidates[:1] if shared else candidates, len(indptr) - 1)
    out = torch.zeros(candidates.shape, dtype=torch.bool)
    implementation(given).find_links(
        checks.as_int64(indptr),
        checks.as_ids(indices),
        edge_type,
        checks.as_int64(given),
        None if relations is None else checks.as_int64(relations),
        candidates[:1].contiguous() if shared else checks.as_int64(candidates),
        tails,
        out,
    )
    return out
