"""Edges that are left out of rows: which they are, and what numbers the others of a row have."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped, UInt8, UInt16
from torch import Tensor

from partita.kernels import checks
from partita.kernels.dispatch import implementation

Made = TypeVar("Made")


def find_edges(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: UInt8[Tensor, "M"] | UInt16[Tensor, "M"] | None,
    dst: Int[Tensor, "t"],
    src: Int[Tensor, "t"],
    kinds: Int[Tensor, "t"] | None = None,
    *,
    first_edge: int = 0,
) -> Int64[Tensor, "k"]:
    """Positions in the store of all edges between some pairs of nodes, ascending.

    It reads the rows of the destinations once, of each no more than the edges of the relations that are asked for.

    Args:
        indptr: rows of the store, int64.
        indices: in-neighbors of the store, int32 or int64; all of them, or a range that has all those of ``dst``.
        edge_type: relation of every edge in ``indices``, ascending in every row; ``None`` where all have the same.
        dst: store ids of destinations, in any order. Pairs may be repeated, or have no edge.
        src: store ids of their sources.
        kinds: number of the relation whose edges are meant, of every pair; ``None``: those of all relations.
        first_edge: position in the store of the first of ``indices``.

    Raises:
        ValueError: lengths do not fit.
        IndexError: an id is no node of the store, or its edges are not among ``indices``.
    """
    if dst.shape != src.shape or (kinds is not None and kinds.shape != dst.shape):
        raise ValueError(f"{dst.shape[0]} destinations with {src.shape[0]} sources")
    num_nodes = indptr.shape[0] - 1
    checks.within("src", src, num_nodes)
    checks.rows_within("dst", indptr, dst, first_edge, first_edge + indices.shape[0])
    kinds = None if edge_type is None else kinds
    dst, src, kinds = _distinct(dst.long(), src.long(), None if kinds is None else kinds.long(), num_nodes)
    found: Tensor = implementation(dst).find_edges(
        checks.as_int64(indptr),
        checks.as_ids(indices),
        None if kinds is None or edge_type is None else edge_type.contiguous(),
        dst,
        src,
        kinds,
        first_edge,
    )
    return found + first_edge if first_edge else found


def _distinct(dst: Tensor, src: Tensor, kinds: Tensor | None, num_nodes: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Every pair once, by destination, relation and source."""
    if not dst.numel():
        return dst, src, kinds
    relations = 1 if kinds is None else int(kinds.max()) + 1
    if kinds is not None and int(kinds.min()) < 0:
        raise ValueError(f"relation {int(kinds.min())}")
    if num_nodes * relations * num_nodes >= 2**63:
        columns = [dst, src] if kinds is None else [dst, kinds, src]
        dst, *between, src = torch.stack(columns).unique(dim=1).unbind(0)
        return dst.contiguous(), src.contiguous(), between[0].contiguous() if between else None
    rows = dst if kinds is None else dst * relations + kinds
    both = rows * num_nodes + src
    both = both.unique() if both.is_cuda else torch.from_numpy(sorted_once(both.numpy()))
    rows = both // num_nodes
    src = both - rows * num_nodes
    if kinds is None:
        return rows, src, None
    dst = rows // relations
    return dst, src, rows - dst * relations


def sorted_once(values: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "m"]:
    """As ``np.unique``, several times as fast: it looks for no values that are no numbers."""
    values = np.sort(values)
    fresh = np.empty(len(values), np.bool_)
    fresh[:1] = True
    np.not_equal(values[1:], values[:-1], out=fresh[1:])
    return values[fresh]


def numbers(excluded: Int64[Tensor, "k"] | None, first_edge: int, like: Tensor) -> Int64[Tensor, "k"]:
    """Where among the edges at hand those are that are left out, as implementations take it; none for ``None``."""
    if excluded is None:
        return _none(like.device)
    if not first_edge:
        return excluded.contiguous()
    return made_once(excluded, f"numbers {first_edge}", lambda: excluded - first_edge)


def made_once(positions: Int64[Tensor, "k"], what: str, make: Callable[[], Made]) -> Made:
    """What is made of excluded positions: the same for all layers of a step, or for all steps; kept beside them."""
    kept = positions.__dict__.setdefault("partita", {})
    if what not in kept:
        kept[what] = make()
    made: Made = kept[what]
    return made


@cache
def _none(device: torch.device) -> Int64[Tensor, "0"]:
    return torch.empty(0, dtype=torch.int64, device=device)


def left_out(
    excluded: Int64[Tensor, "k"], begins: Int64[Tensor, "n"], ends: Int64[Tensor, "n"]
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
    """How many edges are left out before rows begin, and how many in them."""
    before = torch.searchsorted(excluded, begins)
    return before, torch.searchsorted(excluded, ends) - before


def stepped(
    excluded: Int64[Tensor, "k"], positions: Int64[Tensor, "E"], before: Int64[Tensor, "E"]
) -> Int64[Tensor, "E"]:
    """Where edges are that are counted on from the first of their row, those that are left out not counted.

    With x_k the k-th excluded position, counted from 0, and b of them before the row, the edge at position p so counted
    is at p + c, where c is how many k >= b there are with x_k - (k - b) <= p.

    Args:
        excluded: positions, ascending.
        positions: of edges, see above.
        before: how many are left out before the row of each.
    """
    if not excluded.shape[0]:
        return positions
    shifted = excluded - torch.arange(excluded.shape[0], device=excluded.device)
    return positions + torch.searchsorted(shifted, positions - before, right=True) - before


def by_row(values: Shaped[Tensor, "n"], rows: Int64[Tensor, "n_1"], num_edges: int) -> Shaped[Tensor, "E"]:
    """Give every edge its row's value."""
    return torch.repeat_interleave(values, rows.diff(), output_size=num_edges)
