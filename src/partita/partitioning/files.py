"""Edges of a text or Parquet file as a stream, without making a store of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from partita.core.errors import InputError
from partita.core.partitioning import Edges, Rows
from partita.partitioning.edge_streams import UNWEIGHTED, not_grouped
from partita.sources.edges import EdgeTable, open_table
from partita.sources.options import ColumnName

_FEWEST_SPARSE = 1 << 20
_SPARSE = 8  # ids per edge end, beyond which nodes are taken to be numbered with gaps


class FileStream:
    """Edges between nodes that are numbered from 0, as a file lists them.

    The largest id is found by one pass. Only partitioners that need no rows work on it.

    Args:
        path: text (CSV, TSV, SNAP) or Parquet.
        source_column: name or position of the sources; ``None``: the first.
        target_column: of the targets; ``None``: the second.
        undirected: every line stands for both directions.

    Raises:
        InputError: the file cannot be read, an id is no integer or negative, or ids have so many gaps that they are
            no positions.
    """

    grouped = False
    weighted = False

    def __init__(
        self,
        path: Path,
        *,
        source_column: ColumnName | None = None,
        target_column: ColumnName | None = None,
        undirected: bool = False,
    ) -> None:
        table = open_table(path, wanted=(source_column, target_column))
        self._table = EdgeTable(table, source_column, target_column, None)
        self._undirected = undirected
        self.num_nodes = 0
        largest = count = 0
        for edges in self.edges("find nodes"):
            if len(edges.src):
                largest = max(largest, int(edges.src.max()), int(edges.dst.max()))
                count += len(edges.src)
        if count == 0:
            raise InputError("there are no edges", where=str(path))
        if largest >= max(_FEWEST_SPARSE, _SPARSE * 2 * count):
            raise InputError(
                f"nodes are numbered up to {largest:,}, but {count:,} edges name far fewer",
                where=str(path),
                fix="Make a store of it with: partita ingest SOURCE STORE, and partition the store",
            )
        self.num_nodes = largest + 1
        self.num_edges = count  # both directions of an undirected edge

    def edges(self, doing: str) -> Iterator[Edges]:
        """See :class:`~partita.core.partitioning.EdgeStream`."""
        with closing(self._table.batches("int")) as batches:
            for batch in batches:
                src, dst = batch.ints(0), batch.ints(1)
                for column, ids in enumerate((src, dst)):
                    batch.check(ids < 0, column, "the node id {} is negative", "Number nodes from 0")
                if self._undirected:
                    proper = src != dst
                    keep = np.stack([np.ones_like(proper), proper], axis=1).reshape(-1)
                    both = np.stack([src, dst], axis=1)
                    src, dst = both.reshape(-1)[keep], both[:, ::-1].reshape(-1)[keep]
                yield Edges(np.ascontiguousarray(src), np.ascontiguousarray(dst), UNWEIGHTED)

    def rows(self, doing: str) -> Iterator[Rows]:
        """Not possible.

        Raises:
            InputError: always; lines in any order have no rows.
        """
        raise not_grouped()
