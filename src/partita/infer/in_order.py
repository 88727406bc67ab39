"""A layer whose sources are read in the order in which they lie in a file, for tables that are larger than memory.

Destinations are taken in blocks whose states fit into memory. The sources of a block are read in ascending order,
chunk by chunk and each once: of every chunk's edges a partial state is made of each destination, and merged with what
earlier chunks gave. Where all states fit, the sources are read once, however many edges there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from partita.core.mapped_pages import MappedPages
from partita.core.records import Block
from partita.infer.edges_by_source import EdgesBySource
from partita.infer.memory_need import OrderedMemory
from partita.infer.neighbors import Neighbors
from partita.infer.row_table import RowTable
from partita.infer.scratch import Scratch
from partita.nn.layers import Split
from partita.nn.stage import Stage

_EDGE_BYTES = 64
"""Of an edge that is sorted or computed, without its rows: its columns, their order, and copies of both."""
_ID_BYTES = 40
"""Of a store id of a chunk, twice: whether it is a source, its number, its place."""


class OrderedTable:
    """Reads the rows of a table that lies in a file, and holds no more of its pages than those of one call.

    Args:
        table: the rows; those that are not mapped are read as they are.
    """

    def __init__(self, table: RowTable) -> None:
        self.table = table
        self._pages = [None if rows is None else MappedPages.of(rows.x) for rows in (table.home, table.extra)]

    @property
    def num_bytes(self) -> int:
        """Of the rows in files."""
        return sum(pages.num_bytes for pages in self._pages if pages is not None)

    def ask(self, ids: Int[Tensor, "n"]) -> None:
        """Let the system begin to read the rows of ascending store ids, while something else is done."""
        for pages, at in zip(self._pages, self.table.places(ids)):
            if pages is not None:
                pages.ask(at)

    def read(self, ids: Int[Tensor, "n"]) -> Float[Tensor, "n F"]:
        """Rows of store ids, of which those that lie in files were best asked for; see :meth:`RowTable.read`."""
        rows = self.table.read(ids)
        for pages in self._pages:
            if pages is not None:
                pages.give_back()
        return rows


@dataclass(frozen=True, slots=True)
class LayerInOrder:
    """Computes a layer in this way.

    Attributes:
        stage: the layer, which is split, and what follows on it.
        number: of the layer, 1 = input side.
        table: rows of the nodes.
        messages: what every node sends along its edges; ``None``: its row.
        neighbors: the neighbors of nodes.
        scratch: for edges.
        memory: that may be taken.
        num_nodes: N.
    """

    stage: Stage
    number: int
    table: OrderedTable
    messages: OrderedTable | None
    neighbors: Neighbors
    scratch: Scratch
    memory: OrderedMemory
    num_nodes: int

    @property
    def _split(self) -> Split:
        split = self.stage.layer.split
        assert split is not None
        return split

    def rows(self, ids: Int[Tensor, "n"]) -> Iterator[tuple[int, Float[Tensor, "m out"]]]:
        """The layer's rows of distinct store ids, in their order; yields (position in ids, rows)."""
        step = max(1, self.memory.states // self.memory.node_bytes)
        for start in range(0, len(ids), step):
            for at, rows in self._block(ids[start : start + step]):
                yield start + at, rows

    def _block(self, ids: Tensor) -> Iterator[tuple[int, Tensor]]:
        split, table, item = self._split, self.table, self.table.table.dtype.itemsize
        layer, width = self.stage.layer, table.table.width
        destinations, edges = self._edges(ids)
        states = split.neutral(len(ids), torch.empty(0, dtype=table.table.dtype))
        # Own row, own term, query; then a handful of copies on the way through linear maps, norm and activation.
        row_bytes = item * (2 * width + 2 * split.self_width + 3 * split.state_width + 6 * layer.out_width)
        pieces = list(_steps(len(ids), self.memory.work, row_bytes + item * split.query_width))
        queries = self._queries(destinations, pieces) if split.query_width else None
        self._join(states, queries, destinations, edges)
        del edges, queries
        for piece, block in ((each, _some(destinations, each)) for each in pieces):
            own = split.self_term(self._own_rows(block), block)
            rows = split.finish(states[piece], own, block)
            yield piece.start, self.stage.post(rows, block.dst_original, None, self.number)

    def _edges(self, ids: Tensor) -> tuple[Block, EdgesBySource]:
        """A block of the destinations without edges, and their edges."""
        most, item = self.neighbors.most(ids), self.table.table.dtype.itemsize
        width = self.stage.layer.in_width if self.messages is None else self.messages.table.width
        chunk = max(1, self.memory.work // 2 // (item * width + _ID_BYTES))
        edges = EdgesBySource(self.scratch, int(most.sum()), self.num_nodes, min(chunk, self.num_nodes))
        cost = most * (_EDGE_BYTES + 3 * item * (1 + self.stage.layer.edge_width)) + 64 + self.neighbors.node_bytes
        bare = list[Block]()
        for start, stop in cut(torch.cumsum(cost, dim=0), self.memory.work):
            block = self.neighbors.block(ids[start:stop], self.stage.layer, self.number, None, self.table.table.dtype)
            edges.add(self._split.divisible(block), start)
            bare.append(_without_edges(block))
        return _joined(bare), edges

    def _queries(self, destinations: Block, pieces: list[slice]) -> Float[Tensor, "D q"]:
        found = torch.empty((destinations.num_dst, self._split.query_width), dtype=self.table.table.dtype)
        for piece in pieces:
            block = _some(destinations, piece)
            query = self._split.query(self._own_rows(block), block)
            assert query is not None
            found[piece] = query
        return found

    def _own_rows(self, block: Block) -> Float[Tensor, "D F"]:
        """Rows of the destinations."""
        self.table.ask(block.dst.sort().values)
        return self.table.read(block.dst)

    def _join(self, states: Tensor, queries: Tensor | None, destinations: Block, edges: EdgesBySource) -> None:
        """Merge what all sources give into the states."""
        split, item = self._split, states.element_size()
        sources = self.table if self.messages is None else self.messages
        columns = sources.table.width + split.columns_per_edge + 4 * split.state_width + 2 * split.query_width
        most = max(1, self.memory.work // 2 // (_EDGE_BYTES + item * columns))
        # The next chunk's pages are asked for before a chunk is read, and come while it is computed.
        chunks = chain(self._chunks(sources, edges), [None])
        for found, _ in pairwise(chunks):
            assert found is not None
            number, ids, place = found
            rows = sources.read(ids)
            payload = rows if self.messages is not None else split.message(rows)
            for piece in edges.pieces(number, most):
                at, block = _of_piece(piece, destinations, ids, place[piece["indices"].long() - number * len(place)])
                state = split.partial(payload, None if queries is None else queries[at], block)
                states[at] = split.merge([states[at], state])

    def _chunks(
        self, sources: OrderedTable, edges: EdgesBySource
    ) -> Iterator[tuple[int, Int64[Tensor, "n"], Int[Tensor, "c"]]]:
        """Chunks that have edges, whose rows are asked for."""
        for number in range(edges.num_chunks):
            ids, place = edges.sources(number)
            if len(ids):
                sources.ask(ids)
                yield number, ids, place


def cut(cost: Int[Tensor, "n"], budget: int) -> Iterator[tuple[int, int]]:
    """Cut items with a cumulated cost into pieces that cost at most ``budget``, of one item at least."""
    start = 0
    while start < len(cost):
        spent = int(cost[start - 1]) if start else 0
        stop = int(torch.searchsorted(cost, spent + budget, right=True))
        stop = max(stop, start + 1)
        yield start, stop
        start = stop


def _steps(count: int, budget: int, cost: int) -> Iterator[slice]:
    """Pieces of so many items, each of which costs the same."""
    step = max(1, budget // cost)
    for start in range(0, count, step):
        yield slice(start, min(count, start + step))


def _of_piece(
    piece: dict[str, Tensor], destinations: Block, ids: Int64[Tensor, "S"], indices: Int[Tensor, "E"]
) -> tuple[Int64[Tensor, "D"], Block]:
    """Numbers of the destinations of some edges of a chunk, and a block of these edges."""
    at, counts = torch.unique_consecutive(piece["dst"], return_counts=True)
    at = at.long()
    return at, Block(
        dst=destinations.dst[at],
        src=ids.to(destinations.dst.dtype),
        indptr=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        indices=indices,
        dst_original=destinations.dst_original[at],
        node_types=destinations.node_types,
        weight=piece.get("weight"),
        edge_type=piece.get("edge_type"),
        edge_attr=piece.get("edge_attr"),
    )


def _without_edges(block: Block) -> Block:
    """The destinations of a block."""
    none = block.indices[:0]
    return block.with_(
        src=block.dst, indptr=torch.zeros_like(block.indptr), indices=none, **block.of_edges(none.long())
    )


def _joined(blocks: list[Block]) -> Block:
    """The destinations of blocks without edges, as one block."""

    def column(name: str) -> Tensor | None:
        found = [getattr(block, name) for block in blocks]
        return None if found[0] is None else torch.cat(found)

    several = {name: column(name) for name in ("dst", "dst_original", "self_weight", "loop_attr")}
    indptr = torch.zeros(sum(block.num_dst for block in blocks) + 1, dtype=torch.int64)
    return blocks[0].with_(**several, src=several["dst"], indptr=indptr)


def _some(destinations: Block, piece: slice) -> Block:
    """Some destinations of a block without edges."""
    several = {name: getattr(destinations, name) for name in ("dst", "dst_original", "self_weight", "loop_attr")}
    changes = {name: None if column is None else column[piece] for name, column in several.items()}
    indptr = destinations.indptr[: piece.stop - piece.start + 1]
    return destinations.with_(**changes, src=changes["dst"], indptr=indptr)
