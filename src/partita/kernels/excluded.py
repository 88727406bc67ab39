"""Edges that are left out of rows: what is made of their positions, and what numbers the others of a row have."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

Made = TypeVar("Made")


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
