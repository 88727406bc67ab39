"""A decoder that learns how the rows of both ends belong together."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from partita.nn import initialize
from partita.nn.decoders.base import Decoder, Side, in_blocks
from partita.nn.matmul import linear


class MLPDecoder(Decoder):
    """``w^T relu(A h + B t + b) + c``: a perceptron of the row of the head beside that of the tail, for all relations.

    Args:
        width: d.
        num_relations: R.
        inner_width: of the hidden layer; ``None``: d.
    """

    name = "mlp"
    options: ClassVar[frozenset[str]] = frozenset({"inner_width"})
    reads_relations = False

    def __init__(self, width: int, num_relations: int = 1, *, inner_width: int | None = None) -> None:
        super().__init__(width, num_relations)
        self.inner_width = width if inner_width is None else inner_width
        self.head = initialize.linear(width, self.inner_width, bias=True)
        self.tail = initialize.linear(width, self.inner_width, bias=False)
        self.out = initialize.linear(self.inner_width, 1, bias=True)
        self.reset()

    def initialize(self, key: int) -> None:
        """See :func:`partita.nn.initialize.fan_in`."""
        initialize.fan_in(self, key)

    def forward(
        self, heads: Float[Tensor, "B d"], tails: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]
    ) -> Float[Tensor, "B"]:
        """See :meth:`Decoder.forward`."""
        return self.out(functional.relu(self.head(heads) + self.tail(tails))).squeeze(1)

    def against(
        self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"], candidates: Float[Tensor, "... d"]
    ) -> Float[Tensor, "B K"]:
        """See :meth:`Decoder.against`. Both ends are mapped once; what is done for each pair is a sum."""
        own, other = (self.head, self.tail) if side == "tail" else (self.tail, self.head)
        mapped = other(candidates.flatten(0, -2)).unflatten(0, candidates.shape[:-1])
        return in_blocks(_second_layer, own(given), mapped, self.out.weight, self.out.bias)


def _second_layer(
    rows: Float[Tensor, "B m"],
    candidates: Float[Tensor, "... m"],
    weight: Float[Tensor, "1 m"],
    bias: Float[Tensor, "1"],
) -> Float[Tensor, "B K"]:
    inner = functional.relu(rows.unsqueeze(1) + candidates)
    return linear(inner.flatten(0, 1), weight, bias).unflatten(0, inner.shape[:2]).squeeze(2)
