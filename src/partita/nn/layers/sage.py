"""GraphSAGE (Hamilton, Ying and Leskovec, NeurIPS 2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from partita.core.records import Block
from partita.nn import initialize
from partita.nn.layers.base import ReducedLayer
from partita.nn.layers.reductions import REDUCTIONS
from partita.nn.matmul import linear, two_products


class SAGE(ReducedLayer):
    """``W_l reduce(x_u) + b + W_r x_v``.

    Equals PyG's ``SAGEConv(in_width, out_width, aggr=aggregator, root_weight=True, bias=bias)``, with the same
    parameter names.

    Args:
        in_width: columns of the input.
        out_width: columns of the result.
        aggregator: ``"mean"``, ``"sum"`` or ``"max"``.
        bias: whether to add b.

    Raises:
        ConfigError: the aggregator is not known.
    """

    name = "sage"
    initial_values: ClassVar[Callable[[nn.Module, int], None]] = staticmethod(initialize.fan_in)
    options: ClassVar[frozenset[str]] = frozenset({"aggregator"})

    def __init__(self, in_width: int, out_width: int, *, aggregator: str = "mean", bias: bool = True) -> None:
        reduction = REDUCTIONS.find(aggregator)
        super().__init__(in_width, out_width, reduction, commutes=reduction.is_sum)
        self.aggregator = aggregator
        self.self_joins_state = self.projects_state
        self.self_width = 0 if self.self_joins_state else out_width
        self.lin_l = initialize.linear(in_width, out_width, bias=bias)
        self.lin_r = initialize.linear(in_width, out_width, bias=False)
        self.reset()

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        return {**super().arguments(), "aggregator": self.aggregator, "bias": self.lin_l.bias is not None}

    def pyg_code(self) -> str:
        """See :meth:`Layer.pyg_code`."""
        bias = "" if self.lin_l.bias is not None else ", bias=False"
        return f'SAGEConv({self.in_width}, {self.out_width}, aggr="{self.aggregator}"{bias})'

    def project(self, rows: Float[Tensor, "n in"]) -> Float[Tensor, "n out"]:
        """``W_l x``."""
        return linear(rows, self.lin_l.weight)

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D out"]:
        """``W_r x_v``."""
        return self.lin_r(x_dst)

    def finish(self, state: Float[Tensor, "D state"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """``W_l`` where it was not yet applied, the bias, and the self term."""
        reduced = self.reduction.finish(state)
        if not self.projects_state:
            reduced = self.lin_l(reduced)
        elif self.lin_l.bias is not None:
            reduced = reduced + self.lin_l.bias
        return reduced if self_term is None else reduced + self_term

    def join(
        self, reduced: Float[Tensor, "D in"], x_dst: Float[Tensor, "D in"], block: Block
    ) -> Float[Tensor, "D out"]:
        """See :meth:`ReducedLayer.join`."""
        finished = self.reduction.finish(reduced)
        return two_products(finished, self.lin_l.weight, self.lin_l.bias, x_dst, self.lin_r.weight)

    def from_columns(
        self, columns: slice, x_src: Float[Tensor, "S slice"], x_dst: Float[Tensor, "D slice"], block: Block
    ) -> Float[Tensor, "D out"]:
        """Every reduction acts on each column alone, so ``W_l`` and ``W_r`` are sliced; the maximum as well."""
        reduced = self.reduction.finish(self.reduction.over(block, x_src))
        neighbors = linear(reduced, self.lin_l.weight[:, columns])
        return neighbors + linear(x_dst, self.lin_r.weight[:, columns])

    def finish_columns(self, total: Float[Tensor, "D out"], block: Block, key: int | None) -> Float[Tensor, "D out"]:
        """Add the bias."""
        return total if self.lin_l.bias is None else total + self.lin_l.bias
