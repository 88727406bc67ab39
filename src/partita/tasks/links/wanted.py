"""What a step on some edges needs: rows of nodes, where they go, and which negatives are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from partita.graph.store import GraphStore
from partita.kernels import distinct, equal_pairs
from partita.nn.decoders import Side
from partita.tasks.links.candidates import Group, Negatives
from partita.tasks.links.edges import SOURCE, TARGET, TIME
from partita.tasks.links.loops import LoopNegatives
from partita.tasks.links.true_edges import true_edges


@dataclass(frozen=True, eq=False)
class Wanted:
    """What is known of a step before any row is.

    Attributes:
        edges: the edges alone.
        sides: of each side the negatives of groups of edges.
        width: negatives of an edge on each side, its loop included.
        loops: behind the negatives of each side comes the other end in the place of the end.
        nodes: (R) ascending; distinct, or so at each time.
        times: (R) at which they are wanted, ascending for each node; ``None``: at no time in particular.
        sizes: how many rows are wanted of sources, of destinations, and of the negatives of each group of each side.
        places: where among ``nodes`` all these are, one after the other.
        left_out: negatives that do not count: numbers of their edges, of their sides, and among those of a side; some
            of them twice.
    """

    edges: Int[Tensor, "B columns"]
    sides: list[list[Group]]
    width: int
    loops: bool
    nodes: Int64[Tensor, "R"]
    sizes: list[int]
    places: Int64[Tensor, "n"]
    left_out: tuple[Int64[Tensor, "k"], Int64[Tensor, "k"], Int64[Tensor, "k"]]
    times: Int64[Tensor, "R"] | None = None

    @classmethod
    def of(
        cls,
        edges: Int[Tensor, "B columns"],
        drawn: Int[Tensor, "B w"],
        sides: Sequence[Side],
        negatives: Negatives,
        true_of: GraphStore | None,
        loops: LoopNegatives | None = None,
    ) -> Wanted:
        """Of edges, and what they carry of their negatives.

        Args:
            edges: of the step; where they have a column for it, at times, and then every edge has its own negatives.
            drawn: see :meth:`Negatives.drawn`; of no columns where they have no negatives.
            sides: which ends are replaced.
            negatives: what drew them.
            true_of: whose edges are no negatives; ``None``: only the edge itself is none.
            loops: says which are negatives; ``None``: none is.
        """
        groups, width = list[list[Group]](), 0
        if drawn.shape[1]:
            groups, width = negatives.groups(edges, drawn, sides), negatives.width_of(drawn, sides)
        loops = loops if width else None
        width += loops is not None
        wanted = [edges[:, SOURCE], edges[:, TARGET], *(each.flatten() for side in groups for _, each in side)]
        sizes = [len(each) for each in wanted]
        times: Tensor | None = None
        if edges.shape[1] <= TIME:
            nodes, places = distinct(torch.cat(wanted))
        else:
            times, slot = edges[:, TIME].unique(return_inverse=True)
            slots, several = max(1, len(times)), width - (loops is not None)
            at_times = [slot, slot, *(slot.repeat_interleave(several) for side in groups for _ in side)]
            requests, places = distinct(torch.cat(wanted) * slots + torch.cat(at_times))
            nodes, times = requests // slots, times[requests % slots]
        sources, targets, *others = places.split(sizes)
        own, of_groups = {"head": sources, "tail": targets}, iter(others)
        left_out = list[tuple[Tensor, Tensor, Tensor]]()
        for number, (side, some) in enumerate(zip(sides, groups)):
            for (which, candidates), at in zip(some, of_groups):
                mine, whose = (own[side], edges) if which is None else (own[side][which], edges[which])
                at = at.view(candidates.shape)
                if at.ndim == 1:
                    rows, columns = equal_pairs(mine, at, len(nodes))
                else:
                    rows, columns = (at == mine[:, None]).nonzero().unbind(1)
                if true_of is not None:
                    true = true_edges(true_of, whose, candidates.expand(len(whose), -1), side).nonzero()
                    # with most of the others once more
                    rows, columns = (torch.cat(pair) for pair in zip((rows, columns), true.unbind(1), strict=True))
                rows = rows if which is None else which[rows]
                left_out.append((rows, torch.full_like(rows, number), columns))
            if loops is not None:
                rows = (~loops.count(edges, side)).nonzero().squeeze(1)
                left_out.append((rows, torch.full_like(rows, number), torch.full_like(rows, width - 1)))
        none = torch.empty(0, dtype=torch.int64)
        at, of_side, negative = (torch.cat(each) for each in zip((none, none, none), *left_out, strict=True))
        return cls(edges, groups, width, loops is not None, nodes, sizes, places, (at, of_side, negative), times)

    def on(self, device: torch.device) -> Wanted:
        """The same for rows that are on a device; itself where they are in host memory.

        Candidates stay in host memory: only their shapes are read.
        """
        if device.type == "cpu":
            return self
        groups = [[(None if which is None else which.to(device), some) for which, some in side] for side in self.sides]
        at, side, negative = (each.to(device) for each in self.left_out)
        return replace(
            self, edges=self.edges.to(device), sides=groups, places=self.places.to(device),
            left_out=(at, side, negative),
        )  # fmt: skip
