"""Streams of edges: of a graph store, of the first rows of another stream."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64, Integer

from partita.core import progress
from partita.core.errors import InputError
from partita.core.partitioning import Edges, EdgeStream, Rows
from partita.graph.store import GraphStore
from partita.kernels.compile import compiled

EDGES_AT_ONCE = 1 << 18
"""Edges in a batch: 2 MiB of 4-byte ids, so that a batch stays in the processor's cache from pass to pass over it."""

UNWEIGHTED = np.empty(0, dtype=np.int64)
"""The weights of edges or nodes that all weigh 1."""


@compiled
def expand_rows(indptr, first_edge, row, dst):
    """Write the destination of the edges from ``first_edge`` on to ``dst`` (n); ``row`` is that of the first one.

    Returns:
        The row of the last edge.
    """
    for e in range(len(dst)):
        while indptr[row + 1] <= first_edge + e:
            row += 1
        dst[e] = row
    return row


class RowStream:
    """Edges that lie grouped by destination, as in a graph store; nothing is copied but the batch at hand.

    Args:
        indptr: int64 (N+1).
        src: (E) sources, int32 or int64.
        weight: (E) integers >= 0; ``None``: unweighted.
    """

    grouped = True

    def __init__(
        self,
        indptr: Int64[np.ndarray, "N_1"],
        src: Integer[np.ndarray, "E"],
        weight: Integer[np.ndarray, "E"] | None = None,
    ) -> None:
        self.num_nodes, self.num_edges = len(indptr) - 1, len(src)
        self.weighted = weight is not None
        self._indptr, self._src = indptr, src
        self._weight = UNWEIGHTED if weight is None else weight

    def edges(self, doing: str) -> Iterator[Edges]:
        """See :class:`~partita.core.partitioning.EdgeStream`."""
        dst = np.empty(min(EDGES_AT_ONCE, len(self._src)), dtype=self._src.dtype)
        row = 0
        with progress.task(doing, total=self.num_edges, unit="edges") as task:
            for start in range(0, len(self._src), EDGES_AT_ONCE):
                src = self._src[start : start + EDGES_AT_ONCE]
                row = expand_rows(self._indptr, start, row, dst[: len(src)])
                yield Edges(src, dst[: len(src)], self._weight[start : start + len(src)])
                task.advance(len(src))

    def rows(self, doing: str) -> Iterator[Rows]:
        """See :class:`~partita.core.partitioning.EdgeStream`."""
        with progress.task(doing, total=self.num_edges, unit="edges") as task:
            first = 0
            while first < self.num_nodes:
                begin = self._indptr[first]
                last = int(np.searchsorted(self._indptr, begin + EDGES_AT_ONCE, side="right")) - 1
                last = min(max(last, first + 1), first + EDGES_AT_ONCE, self.num_nodes)
                end = self._indptr[last]
                yield Rows(
                    first, self._indptr[first : last + 1], self._src[begin:end],
                    self._weight[begin:end] if self.weighted else self._weight,
                )  # fmt: skip
                task.advance(int(end - begin))
                first = last

    def prefix(self, num_edges: int) -> RowStream:
        """The first rows, about ``num_edges`` edges, over the same node ids; for trial runs."""
        last = int(np.searchsorted(self._indptr, num_edges, side="left"))
        last = min(max(last, 1), self.num_nodes)
        end = int(self._indptr[last])
        indptr = np.minimum(self._indptr, end)
        return RowStream(indptr, self._src[:end], self._weight[:end] if self.weighted else None)


class StoreStream(RowStream):
    """The edges of a graph store, straight from its memory map.

    Args:
        store: the graph.
        weight: (E) integer weight of every edge, for instance presampled counts; ``None``: unweighted.
    """

    def __init__(self, store: GraphStore, weight: Integer[np.ndarray, "E"] | None = None) -> None:
        store.require_edges()
        super().__init__(store.indptr, store.indices, weight)


def not_grouped() -> InputError:
    """What to say where an algorithm needs rows and the stream has none."""
    return InputError(
        "this needs edges grouped by destination, and a raw edge list is not",
        fix="Make a store of it with: partita ingest SOURCE STORE, and partition the store",
    )


class Watched:
    """A stream that notices when it is not the same in every pass.

    Args:
        stream: to be watched.

    Raises:
        InputError: (from the end of a pass) another number of edges or another checksum than in the first pass.
    """

    def __init__(self, stream: EdgeStream) -> None:
        self._stream = stream
        self.num_nodes, self.grouped, self.weighted = stream.num_nodes, stream.grouped, stream.weighted
        self._first: tuple[int, int] | None = None

    @property
    def num_edges(self) -> int | None:
        """E; known after the first pass at the latest."""
        return self._first[0] if self._first else self._stream.num_edges

    @property
    def checksum(self) -> int:
        """Of all edges in their order, once a whole pass was made; 0 before."""
        return self._first[1] if self._first else 0

    def edges(self, doing: str) -> Iterator[Edges]:
        """See :class:`~partita.core.partitioning.EdgeStream`."""
        count, checksum = 0, np.zeros(1, dtype=np.uint64)
        for batch in self._stream.edges(doing):
            _add_to_checksum(batch.src, batch.dst, np.int64(count), checksum)
            count += len(batch.src)
            yield batch
        found = (count, int(checksum[0]))
        if self._first is None:
            self._first = found
        elif found != self._first:
            raise InputError(
                f"the edges changed between two passes: {self._first[0]:,} edges before, {count:,} now"
                + ("" if count != self._first[0] else ", with other ends"),
                fix="Let nothing write to the graph while it is partitioned, and run this again",
            )

    def rows(self, doing: str) -> Iterator[Rows]:
        """See :class:`~partita.core.partitioning.EdgeStream`; row passes are not watched."""
        return self._stream.rows(doing)


@compiled
def _add_to_checksum(src, dst, first, checksum):
    """Sum of products of the two ends, each shifted by its place: cheap, and no swap of ends or edges keeps it."""
    total = checksum[0]
    for e in range(len(src)):
        place = np.uint64(first + e) * np.uint64(0x9E3779B97F4A7C15)
        total += (np.uint64(src[e]) + place) * (np.uint64(dst[e]) + (place ^ np.uint64(0xBF58476D1CE4E5B9)))
    checksum[0] = total
