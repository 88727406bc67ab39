"""What a step on some edges needs: rows of nodes, where they go, and which negatives are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from partita.graph.store import GraphStore
from partita.nn.decoders import Side
from partita.tasks.links.candidates import Group, Negatives
from partita.tasks.links.edges import COLUMN, SOURCE, TARGET
from partita.tasks.links.true_edges import true_edges


@dataclass(frozen=True, eq=False)
class Wanted:
    """What is known of a step before any row is.

    Attributes:
        edges: the edges alone.
        sides: of each side the negatives of groups of edges.
        width: negatives of an edge on each side.
        nodes: (R) distinct, ascending.
        sizes: how many rows are wanted of sources, of destinations, and of the negatives of each group of each side.
        places: where among ``nodes`` all these are, one after the other.
        left_out: rows and columns of the scores (B, 1 + K) of negatives that do not count.
    """

    edges: Int[Tensor, "B columns"]
    sides: list[list[Group]]
    width: int
    nodes: Int64[Tensor, "R"]
    sizes: list[int]
    places: Int64[Tensor, "n"]
    left_out: tuple[Int64[Tensor, "k"], Int64[Tensor, "k"]]

    @classmethod
    def of(
        cls,
        edges: Int[Tensor, "B columns"],
        drawn: Int[Tensor, "B w"],
        sides: Sequence[Side],
        negatives: Negatives,
        true_of: GraphStore | None,
    ) -> Wanted:
        """Of edges, and what they carry of their negatives.

        Args:
            edges: of the step.
            drawn: see :meth:`Negatives.drawn`; of no columns where they have no negatives.
            sides: which ends are replaced.
            negatives: what drew them.
            true_of: whose edges are no negatives; ``None``: only the edge itself is none.
        """
        groups, width = list[list[Group]](), 0
        if drawn.shape[1]:
            groups, width = negatives.groups(edges, drawn, sides), negatives.width_of(drawn, sides)
        wanted = [edges[:, SOURCE], edges[:, TARGET], *(each.flatten() for side in groups for _, each in side)]
        nodes, places = np.unique(torch.cat(wanted).numpy(), return_inverse=True)
        left_out = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)]
        for number, (side, some) in enumerate(zip(sides, groups)):
            for which, candidates in some:
                whose = edges if which is None else edges[which]
                rows, columns = _no_negatives(whose, candidates, side, true_of)
                left_out[0].append(rows if which is None else which[rows])
                left_out[1].append(columns + (1 + number * width))
        return cls(
            edges, groups, width, torch.from_numpy(nodes), [len(each) for each in wanted],
            torch.from_numpy(places.reshape(-1)), (torch.cat(left_out[0]), torch.cat(left_out[1])),
        )  # fmt: skip


def _no_negatives(
    edges: Int[Tensor, "b columns"], candidates: Int[Tensor, "... K"], side: Side, true_of: GraphStore | None
) -> tuple[Int64[Tensor, "k"], Int64[Tensor, "k"]]:
    """Rows and columns of candidates that are the edge itself, or make another one."""
    own = edges[:, COLUMN[side]]
    if true_of is not None:
        found = true_edges(true_of, edges, candidates.expand(len(edges), -1), side) | (candidates == own[:, None])
        rows, columns = found.nonzero().unbind(1)
        return rows, columns
    if candidates.ndim == 2:
        rows, columns = (candidates == own[:, None]).nonzero().unbind(1)
        return rows, columns
    some = torch.from_numpy(np.flatnonzero(np.isin(own.numpy(), candidates.numpy())))
    at, columns = (candidates == own[some, None]).nonzero().unbind(1)
    return some[at], columns
