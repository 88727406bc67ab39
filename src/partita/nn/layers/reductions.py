"""The monoids with which a layer reduces the rows of its neighbors, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from partita.core.records import Block, Reduce
from partita.core.registry import Registry
from partita.nn import ops
from partita.nn.ops import Rows


@runtime_checkable
class Reduction(Protocol):
    """A commutative monoid over the rows of a destination's neighbors.

    Attributes:
        is_sum: a weighted sum: it commutes with linear maps, and rows may be read on demand.
        sums: which, by :data:`~partita.core.records.Reduce`; ``None`` where it is none.
        neutral: the entry of a state without edges.
    """

    is_sum: bool
    sums: Reduce | None
    neutral: float

    def divisible(self, block: Block, dtype: torch.dtype) -> Block:
        """The block with the coefficients that its edges need once they are dealt out to parts."""
        return block

    def over(self, block: Block, rows: Rows) -> Float[Tensor, "D F"]:
        """The state over the block's edges."""
        ...

    def merge(self, states: Sequence[Float[Tensor, "D F"]]) -> Float[Tensor, "D F"]:
        """Merge states of the same destinations."""
        ...

    def finish(self, state: Float[Tensor, "D F"]) -> Float[Tensor, "D F"]:
        """The aggregate; 0 for a destination without edges."""
        return state


class Sum(Reduction):
    """Sum over the edges, with ``block.weight`` where present."""

    is_sum = True
    sums: Reduce = "sum"
    neutral = 0.0

    def over(self, block: Block, rows: Rows) -> Float[Tensor, "D F"]:
        """See :meth:`Reduction.over`."""
        return ops.aggregate(block, rows, self.sums)

    def merge(self, states: Sequence[Float[Tensor, "D F"]]) -> Float[Tensor, "D F"]:
        """See :meth:`Reduction.merge`."""
        return states[0] if len(states) == 1 else torch.stack(list(states)).sum(0)


class Mean(Sum):
    """Mean over the edges; a sum with ``block.weight`` where present (1/k, k the destination's edges in all parts)."""

    sums: Reduce = "mean"

    def divisible(self, block: Block, dtype: torch.dtype) -> Block:
        """See :meth:`Reduction.divisible`."""
        if block.weight is not None:
            return block
        counts = block.indptr.diff()
        return block.with_(weight=torch.repeat_interleave(counts.to(dtype).reciprocal(), counts))


class Max(Reduction):
    """Largest entry per column; ``block.weight`` is ignored.

    Parts that tie share the gradient evenly; within a part it goes to the first edge.
    """

    is_sum = False
    sums = None
    neutral = -torch.inf

    def over(self, block: Block, rows: Rows) -> Float[Tensor, "D F"]:
        """See :meth:`Reduction.over`."""
        return ops.segment_max(block, ops.all_rows(rows), empty=self.neutral)

    def merge(self, states: Sequence[Float[Tensor, "D F"]]) -> Float[Tensor, "D F"]:
        """See :meth:`Reduction.merge`."""
        return torch.stack(list(states)).amax(0)

    def finish(self, state: Float[Tensor, "D F"]) -> Float[Tensor, "D F"]:
        """See :meth:`Reduction.finish`."""
        return state.masked_fill(state == self.neutral, 0.0)


REDUCTIONS: Registry[Reduction] = Registry("aggregator", {"mean": Mean(), "sum": Sum(), "max": Max()})
"""By name."""
