"""Streams of edges that lie in arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Integer

from partita.core import progress
from partita.core.errors import InputError
from partita.core.partitioning import Edges, Rows
from partita.partitioning import edge_streams


class ArrayStream:
    """Edges in arrays, in any order.

    Args:
        src: (E) node ids.
        dst: (E) node ids.
        num_nodes: N; ``None``: one more than the largest id.
        weight: (E) integers >= 0; ``None``: unweighted.

    Raises:
        InputError: an id is negative or not below ``num_nodes``.
    """

    grouped = False

    def __init__(
        self,
        src: Integer[np.ndarray, "E"],
        dst: Integer[np.ndarray, "E"],
        num_nodes: int | None = None,
        weight: Integer[np.ndarray, "E"] | None = None,
    ) -> None:
        largest = int(max(src.max(), dst.max())) if len(src) else -1
        self.num_nodes = largest + 1 if num_nodes is None else num_nodes
        if len(src) and (min(src.min(), dst.min()) < 0 or largest >= self.num_nodes):
            raise InputError(
                f"an edge names a node outside [0, {self.num_nodes:,})", fix="Give the right number of nodes"
            )
        self.weighted = weight is not None
        self.num_edges = len(src)
        self._src, self._dst = src, dst.astype(src.dtype, copy=False)
        self._weight = edge_streams.UNWEIGHTED if weight is None else weight

    def edges(self, doing: str) -> Iterator[Edges]:
        """See :class:`~partita.core.partitioning.EdgeStream`."""
        with progress.task(doing, total=self.num_edges, unit="edges") as task:
            at_once = edge_streams.EDGES_AT_ONCE
            for start in range(0, len(self._src), at_once):
                part = slice(start, start + at_once)
                yield Edges(self._src[part], self._dst[part], self._weight[part] if self.weighted else self._weight)
                task.advance(len(self._src[part]))

    def rows(self, doing: str) -> Iterator[Rows]:
        """Not possible.

        Raises:
            InputError: always; edges in any order have no rows.
        """
        raise edge_streams.not_grouped()
