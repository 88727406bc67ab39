"""Edges that wait for their sources: taken by destination, given back by chunks of ascending sources."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int, Int64, Shaped
from torch import Tensor

from partita import kernels
from partita.core.records import Block
from partita.infer.scratch import Scratch

_COLUMNS = ("indices", "weight", "edge_type", "edge_attr")


class EdgesBySource:
    """The edges of some destinations, each with the chunk of store ids that its source is in.

    They are added block by block. Those of a block are sorted by chunk, and lie one behind the other: in memory where
    they fit, else in a file. Within a chunk and a destination they keep their order.

    Args:
        scratch: for the edges.
        most: of all of them, at most.
        num_nodes: N.
        chunk: so many store ids make a chunk.
    """

    def __init__(self, scratch: Scratch, most: int, num_nodes: int, chunk: int) -> None:
        self._scratch, self._most, self._chunk = scratch, most, chunk
        self.num_chunks = -(-num_nodes // chunk)
        self._columns = dict[str, Shaped[Tensor, "most ..."]]()
        self._bounds = list[list[int]]()

    def add(self, block: Block, first: int) -> None:
        """Add the edges of a block whose sources are store ids.

        Args:
            block: the edges.
            first: number of its first destination among all.
        """
        by_chunk = kernels.transpose(block.indptr, block.indices // self._chunk, self.num_chunks)
        begin = self._bounds[-1][-1] if self._bounds else 0
        new = {"dst": by_chunk.dst.int() + first}
        for name in _COLUMNS:
            column = getattr(block, name)
            if column is not None:
                new[name] = column[by_chunk.edge]
        if not self._columns:
            self._columns = self._room(new)
        for name, column in new.items():
            self._columns[name][begin : begin + len(column)] = column
        self._bounds.append((by_chunk.indptr + begin).tolist())

    def _room(self, like: dict[str, Tensor]) -> dict[str, Tensor]:
        """Columns for all edges, in one array: the widest elements first, so that all begin where they may."""
        sizes = {name: column.element_size() * column.shape[1:].numel() for name, column in like.items()}
        room = self._scratch.private("edges by source", self._most, sum(sizes.values()), torch.uint8).view(-1)
        found, at = dict[str, Tensor](), 0
        for name, column in sorted(like.items(), key=lambda each: -each[1].element_size()):
            part = room[at : at + self._most * sizes[name]].view(column.dtype)
            found[name] = part.view(self._most, *column.shape[1:])
            at += self._most * sizes[name]
        return found

    def sources(self, number: int) -> tuple[Int64[Tensor, "n"], Int[Tensor, "c"]]:
        """The distinct sources of a chunk's edges, ascending, and where each id of the chunk is among them."""
        first = number * self._chunk
        seen = torch.zeros(self._chunk, dtype=torch.bool)
        for bounds in self._bounds:
            seen[self._columns["indices"][bounds[number] : bounds[number + 1]].long() - first] = True
        at = torch.nonzero(seen).view(-1)
        place = torch.empty(self._chunk, dtype=torch.int32)
        place[at] = torch.arange(len(at), dtype=torch.int32)
        return at + first, place

    def pieces(self, number: int, most: int) -> Iterator[dict[str, Shaped[Tensor, "n ..."]]]:
        """The edges of a chunk by destination, at most so many at a time.

        Yields:
            Their columns by name: ``dst``, the number of each edge's destination; ``indices``, its source; and what
            the blocks had of ``weight``, ``edge_type`` and ``edge_attr``.
        """
        waiting, count = list[slice](), 0
        for bounds in self._bounds:
            for begin in range(bounds[number], bounds[number + 1], most):
                end = min(begin + most, bounds[number + 1])
                if count + end - begin > most:
                    yield self._read(waiting)
                    waiting, count = [], 0
                waiting.append(slice(begin, end))
                count += end - begin
        if waiting:
            yield self._read(waiting)

    def _read(self, pieces: list[slice]) -> dict[str, Tensor]:
        return {name: torch.cat([column[each] for each in pieces]) for name, column in self._columns.items()}
