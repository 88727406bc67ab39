"""Negatives of links, in plain Python. The rules are in :mod:`partita.kernels.reference`."""

from __future__ import annotations

from jaxtyping import Bool, Int, Int64, UInt64
from torch import Tensor

from partita.core.keys import MASK64, below, fold


def draw_candidates(
    key: int,
    first: Int64[Tensor, "B"],
    size: Int64[Tensor, "B"],
    alias: tuple[UInt64[Tensor, "N"], Int64[Tensor, "N"]] | None,
    order: Int64[Tensor, "N"] | None,
    out: Int64[Tensor, "B K"],
) -> None:
    """See :func:`partita.kernels.draw_candidates`."""
    thresholds, others = (None, None) if alias is None else (alias[0].numpy(), alias[1].numpy())
    for row, (begin, nodes) in enumerate(zip(first.tolist(), size.tolist(), strict=True)):
        row_key = fold(key, row)
        for place in range(out.shape[1]):
            draw = fold(row_key, place)
            node = begin + below(draw, nodes)
            if thresholds is not None and others is not None and (draw * nodes) & MASK64 >= int(thresholds[node]):
                node = int(others[node])
            out[row, place] = node if order is None else order[node]


def find_links(
    indptr: Int64[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Int[Tensor, "M"] | None,
    given: Int64[Tensor, "B"],
    relations: Int64[Tensor, "B"] | None,
    candidates: Int64[Tensor, "_ K"],
    tails: bool,
    out: Bool[Tensor, "B K"],
) -> None:
    """See :func:`partita.kernels.find_links`; one row of candidates is that of all."""
    candidates = candidates.expand(len(given), -1)
    for row, node in enumerate(given.tolist()):
        for column, candidate in enumerate(candidates[row].tolist()):
            source, target = (node, candidate) if tails else (candidate, node)
            edges = slice(int(indptr[target]), int(indptr[target + 1]))
            found = indices[edges] == source
            if edge_type is not None and relations is not None:
                found &= edge_type[edges].long() == relations[row]
            out[row, column] = bool(found.any())
