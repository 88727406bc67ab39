"""Rows of one layer as a host has them: of a range of nodes, and of others that were fetched."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from partita import kernels
from partita.core.records import Block, LazyRows, Reduce
from partita.features.rows import BlockRows, FeatureColumn


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows by store id: input rows, hidden rows, or messages.

    Attributes:
        home: rows of the nodes ``first``, ``first + 1``, ... in order of their ids.
        num_nodes: N.
        first: store id of the first row of ``home``.
        extra_ids: sorted store ids of other nodes whose rows are there too.
        extra: their rows.
    """

    home: FeatureColumn
    num_nodes: int
    first: int = 0
    extra_ids: Int[Tensor, "M"] | None = None
    extra: FeatureColumn | None = None

    @property
    def width(self) -> int:
        """F, the number of columns."""
        return self.home.width

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows, as they are read."""
        return self.home.dtype

    @property
    def whole(self) -> bool:
        """Whether the rows of all nodes lie in one array by store id."""
        return self.home.x.shape[0] == self.num_nodes

    @property
    def sums_by_id(self) -> bool:
        """Whether sums over neighbors may be taken straight from the rows, by store id."""
        return self.whole and self.home.sums_by_id(training=False)

    def places(self, ids: Int[Tensor, "n"]) -> tuple[Int64[Tensor, "_"], Int64[Tensor, "_"]]:
        """Where rows of store ids are in ``home``, and those of the others in ``extra``; each in the order of ids.

        That of an id whose row is nowhere is one of ``extra``, if there are any.
        """
        at = ids.long() - self.first
        here = (at >= 0) & (at < self.home.x.shape[0])
        if self.extra_ids is None or not len(self.extra_ids):
            return at[here], at[:0]
        others = torch.searchsorted(self.extra_ids, ids[~here].to(self.extra_ids.dtype))
        return at[here], others.clamp_(max=len(self.extra_ids) - 1)

    def rows(self, block: Block) -> LazyRows:
        """The rows of a block's sources; these must be de-duplicated unless the table :attr:`sums_by_id`."""
        return WholeRows(self.home, block, None) if self.whole else TableRows(self, block)

    def read(self, ids: Int[Tensor, "n"]) -> Float[Tensor, "n F"]:
        """Rows of store ids, as evaluation sees them; not to be written to: they may lie in the table.

        Raises:
            IndexError: the table does not hold one of them.
        """
        if self.whole:
            return read_rows(self.home, ids)
        at = ids.long() - self.first
        here = (at >= 0) & (at < self.home.x.shape[0])
        if bool(here.all()):
            return read_rows(self.home, at)
        rows = torch.empty((ids.shape[0], self.width), dtype=self.home.dtype)
        rows[here] = self.home.read(at[here])
        if self.extra_ids is not None and self.extra is not None and len(self.extra_ids):
            wanted = ids[~here].to(self.extra_ids.dtype)
            at = torch.searchsorted(self.extra_ids, wanted).clamp_(max=len(self.extra_ids) - 1)
            if torch.equal(self.extra_ids[at], wanted):
                rows[~here] = self.extra.read(at)
                return rows
        raise IndexError("this host does not hold all requested rows")


def read_rows(column: FeatureColumn, at: Int[Tensor, "n"]) -> Float[Tensor, "n F"]:
    """Rows of a column, without a copy where they follow one another in it as they are wanted."""
    count = at.shape[0]
    if count and column.levels is None and column.scale is None and column.x.dtype == column.dtype:
        first = int(at[0])
        if torch.equal(at, torch.arange(first, first + count, dtype=at.dtype)):
            return column.x[first : first + count]
    return column.read(at)


@dataclass(frozen=True, slots=True)
class WholeRows(BlockRows):
    """Rows of one block, from a table of all nodes."""

    def of_destinations(self) -> Float[Tensor, "D F"]:
        """Rows of the destinations, which in inference often follow one another."""
        return read_rows(self.column, self.block.dst)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of one block, from a table that is not whole; a :class:`~partita.core.records.LazyRows`."""

    table: RowTable
    block: Block

    @property
    def width(self) -> int:
        """F, the number of columns."""
        return self.table.width

    def all(self) -> Float[Tensor, "S F"]:
        """Rows of every source, the destinations' first."""
        if self.block.src is None:
            raise ValueError("all rows are only known for a block whose sources were de-duplicated")
        return self.table.read(self.block.src)

    def of_destinations(self) -> Float[Tensor, "D F"]:
        """Rows of the destinations."""
        return self.table.read(self.block.dst)

    def aggregate(self, reduce: Reduce) -> Float[Tensor, "D F"]:
        """Sum or mean over the block's edges."""
        block = self.block
        return kernels.aggregate(
            self.all(), block.indptr, block.indices, block.weight, reduce=reduce, dtype=self.table.home.dtype
        )
