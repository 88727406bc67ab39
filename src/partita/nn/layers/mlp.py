"""A layer of a multi-layer perceptron: a linear map of every node's own row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor, nn

from partita.core.records import Block
from partita.nn import initialize, ops
from partita.nn.layers.base import ColumnSplit, Layer, Split
from partita.nn.matmul import linear
from partita.nn.ops import Rows
from partita.nn.work import LayerWork, Product


class MLP(Split, ColumnSplit, Layer):
    """``W x_v + b``: a baseline that uses no neighbors, to compare graph layers with.

    Equals ``torch.nn.Linear(in_width, out_width)``. What parts of a destination's edges come to is a column of zeros.

    Args:
        in_width: columns of the input.
        out_width: columns of the result.
    """

    name = "mlp"
    reads_neighbors = False
    initial_values: ClassVar[Callable[[nn.Module, int], None]] = staticmethod(initialize.fan_in)

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__(in_width, out_width)
        self.state_width = 1
        self.self_width = self.column_width = out_width
        self.sums_messages = True
        self.starts_with_sum = True
        self.state_is_trained = False
        self.sums_over_columns: Literal["rows", "sources"] = "rows"
        self.lin = initialize.linear(in_width, out_width, bias=True)
        self.reset()

    def work(self) -> LayerWork:
        """See :meth:`Layer.work`: one product."""
        return LayerWork((Product("destination", self.in_width, self.out_width),))

    def forward(self, block: Block, h: Rows, key: int | None = None) -> Float[Tensor, "D out"]:
        """See :meth:`Layer.forward`."""
        return self.lin(ops.own_rows(block, h))

    def message(self, x_src: Float[Tensor, "S in"]) -> Float[Tensor, "S in"]:
        """The row itself."""
        return x_src

    def partial(self, payload: Rows, q: Tensor | None, block: Block) -> Float[Tensor, "D 1"]:
        """Zeros."""
        zeros = self.lin.weight.new_zeros(block.num_dst, 1)
        # A sum of no rows, so that rows have a gradient (of zeros) as from any other layer.
        return zeros + payload[:0].sum() if isinstance(payload, Tensor) else zeros

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D out"]:
        """``W x_v``."""
        return linear(x_dst, self.lin.weight)

    def merge(self, states: Sequence[Float[Tensor, "D 1"]]) -> Float[Tensor, "D 1"]:
        """Their sum."""
        return states[0] if len(states) == 1 else sum(states[1:], start=states[0])

    def finish(self, state: Float[Tensor, "D 1"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """Add the bias."""
        return self.lin.bias + state if self_term is None else self_term + self.lin.bias + state

    def from_columns(
        self, columns: slice, x_src: Float[Tensor, "S slice"], x_dst: Float[Tensor, "D slice"], block: Block
    ) -> Float[Tensor, "D out"]:
        """``W`` sliced."""
        return linear(x_dst, self.lin.weight[:, columns])

    def finish_columns(self, total: Float[Tensor, "D out"], block: Block, key: int | None) -> Float[Tensor, "D out"]:
        """Add the bias."""
        return total + self.lin.bias
