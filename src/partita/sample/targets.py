"""Links that steps learn, as edges that carry no messages in them; and where in the store these edges are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from partita import kernels
from partita.core import progress
from partita.core.records import TargetEdges
from partita.graph.store import GraphStore
from partita.kernels.excluded import sorted_once
from partita.sample.topology import as_tensor

_SOURCE, _DESTINATION, _RELATION = 0, 1, 2
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
    """The edges of all sides of links, see :func:`LinkPositions`; with their positions where they are known."""
    dst, src, kinds = list[Tensor](), list[Tensor](), list[Tensor]()
    for side in sides:
        ends = [links[:, _DESTINATION], links[:, _SOURCE]]
        if side.relations is not None:
            of_link = links[:, _RELATION] if links.shape[1] > _RELATION else links.new_zeros(len(links))
            kind = side.relations[of_link]
            if bool((kind < 0).any()):
                there = kind >= 0
                ends, kind = [column[there] for column in ends], kind[there]
            kinds.append(kind)
        dst.append(ends[side.backward])
        src.append(ends[not side.backward])
    return TargetEdges(torch.cat(dst), torch.cat(src), torch.cat(kinds) if kinds else None, positions)


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
        self._found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] | None = None

    def find(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Of every side codes, and groups, see :func:`partita.kernels.locate_edges`."""
        with _locating:
            if self._found is None:
                store, found = self._store, []
                kinds = None if store.edge_type is None else as_tensor(store.edge_type)
                columns = as_tensor(store.indptr), as_tensor(store.indices), kinds
                with progress.task("find the edges of links", total=len(self._sides), unit="sides") as task:
                    for side in self._sides:
                        located = kernels.locate_edges(*columns, self._links, side.relations, backward=side.backward)
                        codes, offsets, positions = (column.numpy() for column in located)
                        found.append((codes, offsets, positions))
                        task.advance(1)
                self._found = found
        return self._found

    def of(self, numbers: Int64[Tensor, "B"]) -> Int64[Tensor, "k"]:
        """Positions of all edges of some links, ascending, each once."""
        chosen, parts = numbers.numpy(), list[np.ndarray]()
        for codes, offsets, positions in self._found or self.find():
            code = codes[chosen]
            parts.append(code[code >= 0])
            if len(positions) and len(groups := sorted_once(-2 - code[code < -1].astype(np.int64))):
                begins, sizes = offsets[groups], offsets[groups + 1] - offsets[groups]
                parts.append(positions[np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())])
        return torch.from_numpy(sorted_once(np.concatenate(parts).astype(np.int64, copy=False)))
