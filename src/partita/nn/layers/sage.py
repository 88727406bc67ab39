"""GraphSAGE (Hamilton, Ying and Leskovec, NeurIPS 2017)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

from jaxtyping import Float
from torch import Tensor, nn

from partita.core.errors import ConfigError
from partita.core.records import Block
from partita.nn import initialize
from partita.nn.layers.base import ReducedLayer
from partita.nn.layers.reductions import REDUCTIONS
from partita.nn.matmul import linear, two_products
from partita.nn.work import LayerWork, Product


class SAGE(ReducedLayer):
    """``W_l reduce(x_u) + b + W_r x_v``.

    Equals PyG's ``SAGEConv(in_width, out_width, aggr=aggregator, root_weight=True, bias=bias)``, with the same
    parameter names.

    Args:
        in_width: columns of the input.
        out_width: columns of the result.
        aggregator: ``"mean"``, ``"sum"`` or ``"max"``.
        bias: whether to add b.
        edge_weights: every neighbor's row is multiplied by the weight of its edge, before the sum or mean, as DGL's
            ``SAGEConv`` does.

    Raises:
        ConfigError: the aggregator is not known, or a maximum is to be weighted.
    """

    name = "sage"
    initial_values: ClassVar[Callable[[nn.Module, int], None]] = staticmethod(initialize.fan_in)
    options: ClassVar[frozenset[str]] = frozenset({"aggregator", "edge_weights"})

    names: ClassVar[tuple[str, str]] = ("lin_l", "lin_r")

    def __init__(
        self, in_width: int, out_width: int, *, aggregator: str = "mean", bias: bool = True, edge_weights: bool = False
    ) -> None:
        reduction = REDUCTIONS.find(aggregator)
        if edge_weights and not reduction.is_sum:
            raise ConfigError(
                f"the aggregator '{aggregator}' takes no weights", where="edge_weights", fix="Use mean or sum"
            )
        super().__init__(in_width, out_width, reduction, commutes=reduction.is_sum)
        self.aggregator = aggregator
        self.self_joins_state = self.projects_state
        self.self_width = 0 if self.self_joins_state else out_width
        self.edge_weights = edge_weights
        self.edge_columns: Sequence[str] = ("edge_weight",) if edge_weights else ()
        for name, has_bias in zip(self.names, (bias, False)):
            self.add_module(name, initialize.linear(in_width, out_width, bias=has_bias))
        self.reset()

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        bias = self._neighbors.bias is not None
        return {**super().arguments(), "aggregator": self.aggregator, "bias": bias, "edge_weights": self.edge_weights}

    def work(self) -> LayerWork:
        """See :meth:`Layer.work`: the sum, ``W_l`` of it, and ``W_r`` of the destinations."""
        return self._reducing(Product("destination", self.in_width, self.out_width))

    @property
    def _neighbors(self) -> nn.Linear:
        return cast("nn.Linear", self.get_submodule(self.names[0]))

    @property
    def _own(self) -> nn.Linear:
        return cast("nn.Linear", self.get_submodule(self.names[1]))

    def pyg_code(self) -> str | None:
        """See :meth:`Layer.pyg_code`."""
        if self.edge_weights:
            return None
        bias = "" if self._neighbors.bias is not None else ", bias=False"
        return f'SAGEConv({self.in_width}, {self.out_width}, aggr="{self.aggregator}"{bias})'

    def project(self, rows: Float[Tensor, "n in"]) -> Float[Tensor, "n out"]:
        """``W_l x``."""
        return linear(rows, self._neighbors.weight)

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D out"]:
        """``W_r x_v``."""
        return self._own(x_dst)

    def finish(self, state: Float[Tensor, "D state"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """``W_l`` where it was not yet applied, the bias, and the self term."""
        reduced = self.reduction.finish(state)
        if not self.projects_state:
            reduced = self._neighbors(reduced)
        elif self._neighbors.bias is not None:
            reduced = reduced + self._neighbors.bias
        return reduced if self_term is None else reduced + self_term

    def join(
        self, reduced: Float[Tensor, "D in"], x_dst: Float[Tensor, "D in"], block: Block
    ) -> Float[Tensor, "D out"]:
        """See :meth:`ReducedLayer.join`."""
        finished = self.reduction.finish(reduced)
        return two_products(finished, self._neighbors.weight, self._neighbors.bias, x_dst, self._own.weight)

    def from_columns(
        self, columns: slice, x_src: Float[Tensor, "S slice"], x_dst: Float[Tensor, "D slice"], block: Block
    ) -> Float[Tensor, "D out"]:
        """Every reduction acts on each column alone, so ``W_l`` and ``W_r`` are sliced; the maximum as well."""
        reduced = self.reduction.finish(self.reduction.over(block, x_src))
        neighbors = linear(reduced, self._neighbors.weight[:, columns])
        return neighbors + linear(x_dst, self._own.weight[:, columns])

    def finish_columns(self, total: Float[Tensor, "D out"], block: Block, key: int | None) -> Float[Tensor, "D out"]:
        """Add the bias."""
        return total if self._neighbors.bias is None else total + self._neighbors.bias


class GraphConv(SAGE):
    """``W_rel (sum of w_uv x_u) + b + W_root x_v`` (Morris et al., "Weisfeiler and Leman go neural", AAAI 2019).

    Equals PyG's ``GraphConv(in_width, out_width, aggr=aggregator, bias=bias)``, given ``edge_weight`` with
    ``edge_weights``, with the same parameter names. Otherwise as :class:`SAGE`.

    Args:
        in_width: columns of the input.
        out_width: columns of the result.
        aggregator: ``"sum"``, ``"mean"`` or ``"max"``.
        bias: whether to add b.
        edge_weights: every neighbor's row is multiplied by the weight of its edge.

    Raises:
        ConfigError: the aggregator is not known, or a maximum is to be weighted.
    """

    name = "graphconv"
    names: ClassVar[tuple[str, str]] = ("lin_rel", "lin_root")
    work = SAGE.work

    def __init__(
        self, in_width: int, out_width: int, *, aggregator: str = "sum", bias: bool = True, edge_weights: bool = False
    ) -> None:
        super().__init__(in_width, out_width, aggregator=aggregator, bias=bias, edge_weights=edge_weights)

    def pyg_code(self) -> str:
        """See :meth:`Layer.pyg_code`."""
        bias = "" if self._neighbors.bias is not None else ", bias=False"
        return f'GraphConv({self.in_width}, {self.out_width}, aggr="{self.aggregator}"{bias})'
