"""The layer that is none: every node's own row, as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from partita.core.records import Block
from partita.nn import ops
from partita.nn.layers.base import ColumnSplit, Layer, Split
from partita.nn.ops import Rows


class Nothing(Split, ColumnSplit, Layer):
    """``x_v``: for what is computed of the input rows themselves, such as the scores of a knowledge graph's edges.

    Args:
        in_width: columns of the input.
        out_width: columns of the result: the first ones of the input, and zeros where it has fewer.
    """

    name = "none"
    reads_neighbors = False

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__(in_width, out_width)
        self.state_width = 1
        self.self_width = self.column_width = out_width
        self.sums_messages = True
        self.starts_with_sum = True
        self.state_is_trained = False
        self.sums_over_columns: Literal["rows", "sources"] = "rows"

    def forward(self, block: Block, h: Rows, key: int | None = None) -> Float[Tensor, "D out"]:
        """See :meth:`Layer.forward`."""
        return self._fitted(ops.own_rows(block, h))

    def message(self, x_src: Float[Tensor, "S in"]) -> Float[Tensor, "S in"]:
        """The row itself."""
        return x_src

    def partial(self, payload: Rows, q: Tensor | None, block: Block) -> Float[Tensor, "D 1"]:
        """Zeros."""
        if isinstance(payload, Tensor):  # a sum of no rows, so that rows have a gradient (of zeros)
            return payload.new_zeros(block.num_dst, 1) + payload[:0].sum()
        return payload.of_destinations().new_zeros(block.num_dst, 1)

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D out"]:
        """The row itself."""
        return self._fitted(x_dst)

    def merge(self, states: Sequence[Float[Tensor, "D 1"]]) -> Float[Tensor, "D 1"]:
        """Their sum."""
        return states[0] if len(states) == 1 else sum(states[1:], start=states[0])

    def finish(self, state: Float[Tensor, "D 1"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """The row, and nothing else."""
        return state.expand(-1, self.out_width) if self_term is None else self_term + state

    def from_columns(
        self, columns: slice, x_src: Float[Tensor, "S slice"], x_dst: Float[Tensor, "D slice"], block: Block
    ) -> Float[Tensor, "D out"]:
        """The columns at their places, zeros elsewhere."""
        start, stop, _ = columns.indices(self.in_width)
        return self._fitted(functional.pad(x_dst, (start, self.in_width - stop)))

    def finish_columns(self, total: Float[Tensor, "D out"], block: Block, key: int | None) -> Float[Tensor, "D out"]:
        """Nothing more."""
        return total

    def _fitted(self, rows: Float[Tensor, "D in"]) -> Float[Tensor, "D out"]:
        missing = self.out_width - self.in_width
        return rows if not missing else functional.pad(rows, (0, missing))
