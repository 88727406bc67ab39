"""What rows of small integers stand for, for the kernels that expand them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from partita import kernels

if TYPE_CHECKING:
    from partita.graph.small import Levels as StoredLevels


@dataclass(frozen=True, slots=True)
class Levels:
    """A value of column c is ``q * scale[c] + offset[c]``; see :mod:`partita.graph.small`.

    Attributes:
        scale, offset: float32 (F).
        bits: of a value, 8 or 4.
    """

    scale: Float[Tensor, "F"]
    offset: Float[Tensor, "F"]
    bits: int

    @staticmethod
    def of(levels: StoredLevels | None) -> Levels | None:
        """Those of a store."""
        if levels is None:
            return None
        return Levels(torch.tensor(levels.scale), torch.tensor(levels.offset), 8 if levels.dtype == "int8" else 4)

    @property
    def width(self) -> int:
        """F, columns that rows stand for."""
        return self.scale.shape[0]

    def stored(self, columns: slice) -> slice:
        """The columns of stored rows that hold some columns; the first and the last byte may hold one more."""
        if self.bits == 8 or columns.start == columns.stop:
            return columns if self.bits == 8 else slice(columns.start // 2, columns.start // 2)
        return slice(columns.start // 2, -(-columns.stop // 2))

    def expand(
        self,
        x: Integer[Tensor, "N B"],
        ids: Int[Tensor, "n"],
        columns: slice,
        begin: int,
        scale: Float[Tensor, "N"] | None,
        dtype: torch.dtype,
    ) -> Float[Tensor, "n f"]:
        """Some columns of some rows.

        Args:
            x: rows that begin with a column of stored rows.
            ids: which of them.
            columns: of the values.
            begin: number of that column.
            scale: factor of each row of ``x``.
            dtype: of the result.
        """
        first = columns.start - begin * (8 // self.bits)
        step, offset = self.scale[columns], self.offset[columns]
        return kernels.expand_rows(x, ids, step, offset, first=first, scale=scale, dtype=dtype)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Levels:
        """The same, with a change made to the columns."""
        return Levels(change(self.scale), change(self.offset), self.bits)
