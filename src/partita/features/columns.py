"""Some columns of the input rows: what a worker reads where layer 1 is placed by feature."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from partita import kernels
from partita.features.rows import FeatureColumn


@dataclass(frozen=True, slots=True)
class ColumnSlice:
    """A range of columns of a feature column; other columns are not read.

    Attributes:
        column: all columns.
        start, stop: the range, possibly empty.
    """

    column: FeatureColumn
    start: int
    stop: int

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.stop - self.start

    def read(self, ids: Int[Tensor, "n"]) -> Float[Tensor, "n F"]:
        """The slice of the rows of store ids, as :meth:`FeatureColumn.read` gives the rows."""
        column = self.column
        rows = column.x[:, self.start : self.stop].index_select(0, ids.long()).to(column.dtype)
        return rows if column.scale is None else rows * column.scale[ids.long()].to(column.dtype).unsqueeze(1)

    def read_dropped(self, ids: Int[Tensor, "n"], original: Int[Tensor, "n"], key: int) -> Float[Tensor, "n F"]:
        """The slice of the rows after input dropout, whose mask is keyed by the column in the whole row."""
        rows = self.read(ids)
        whole = rows.new_ones(rows.shape[0], self.column.width)
        return rows * kernels.dropout(whole, original, key, self.column.dropout)[:, self.start : self.stop]
