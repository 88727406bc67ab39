"""Links that steps learn, as edges that carry no messages in them; and where in the store these edges are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from partita import kernels
from partita.core import progress
from partita.core.records import Pairs, TargetEdges
from partita.graph.store import GraphStore
from partita.sample.topology import as_tensor

_RELATION = 2  # column of links; before it are their sources and destinations
_locating = Lock()


@dataclass(frozen=True)
class TargetSide:
    """Which edges between the ends of a link are meant.

    Attributes:
        backward: those from its destination to its source.
        relations: int64 (R), the relation of the edges by that of the link, -1 where there are none; (1) where all
            links are of one relation and do not say so. ``None`` in untyped graphs.
    """

    backward: bool
    relations: Int64[Tensor, "R"] | None = None


def target_edges(
    links: Int64[Tensor, "B columns"], sides: Sequence[TargetSide], positions: Int64[Tensor, "k"] | None = None
) -> TargetEdges:
    """The edges of all sides of links; with their positions where they are known, see :class:`LinkPositions`."""
    if positions is not None:
        return TargetEdges.at(positions, lambda: _pairs(links, sides))
    return TargetEdges(*_pairs(links, sides))


def _pairs(links: Int64[Tensor, "B columns"], sides: Sequence[TargetSide]) -> Pairs:
    dst, src, kinds = list[Tensor](), list[Tensor](), list[Tensor]()
    source, destination = links[:, :_RELATION].T.contiguous().unbind(0)
    for side in sides:
        ends = [destination, source]
        if side.relations is not None:
            of_link = links[:, _RELATION] if links.shape[1] > _RELATION else links.new_zeros(len(links))
            kind = side.relations[of_link]
            if bool((kind < 0).any()):
                there = kind >= 0
                ends, kind = [column[there] for column in ends], kind[there]
            kinds.append(kind)
        dst.append(ends[side.backward])
        src.append(ends[not side.backward])
    return torch.cat(dst), torch.cat(src), torch.cat(kinds) if kinds else None


class LinkPositions:
    """Where the edges of links are in a store: looked up by the number of a link, and found when first asked for.

    It takes 4 bytes a link and side (8 from 2^31 edges on), and 8 for every one of parallel edges.

    Args:
        store: the whole graph.
        links: int64 (L, 2), or (L, 3) with relations.
        sides: which edges are meant.
    """

    def __init__(self, store: GraphStore, links: Int64[Tensor, "L columns"], sides: Sequence[TargetSide]) -> None:
        self._store, self._links, self._sides = store, links, sides
        self._found: tuple[Tensor, Tensor, Tensor] | None = None

    def find(self) -> tuple[Int[Tensor, "L sides"], Int64[Tensor, "C_1"], Int64[Tensor, "P"]]:
        """Codes of all sides, and groups, see :func:`partita.kernels.locate_edges`."""
        with _locating:
            if self._found is None:
                self._found = self._find()
        return self._found

    def _find(self) -> tuple[Tensor, Tensor, Tensor]:
        store, codes, offsets, positions = self._store, list[Tensor](), [torch.zeros(1, dtype=torch.int64)], []
        kinds = None if store.edge_type is None else as_tensor(store.edge_type)
        columns = as_tensor(store.indptr), as_tensor(store.indices), kinds
        number = edges = 0
        with progress.task("find the edges of links", total=len(self._sides), unit="sides") as task:
            for side in self._sides:
                code, begins, at = kernels.locate_edges(*columns, self._links, side.relations, backward=side.backward)
                code[code < -1] -= number
                codes.append(code)
                offsets.append(begins[1:] + edges)
                number, edges = number + len(begins) - 1, edges + len(at)
                positions.append(at)
                task.advance(1)
        # NumPy asks for large pages, and what is looked up for a batch is everywhere.
        table = torch.from_numpy(np.stack([code.numpy() for code in codes], axis=1))
        groups, places = (
            torch.from_numpy(np.concatenate([part.numpy() for part in parts])) for parts in (offsets, positions)
        )
        return table, groups, places

    def of(self, numbers: Int64[Tensor, "B"]) -> Int64[Tensor, "k"]:
        """Positions of all edges of some links, ascending, each once."""
        return kernels.gather_positions(*(self._found or self.find()), numbers)
