"""Graph isomorphism network (Xu, Hu, Leskovec and Jegelka, ICLR 2019)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partita import kernels
from partita.core.records import Block
from partita.nn import initialize, ops
from partita.nn.layers.base import ReducedLayer
from partita.nn.layers.reductions import REDUCTIONS
from partita.nn.matmul import linear
from partita.nn.ops import Rows
from partita.nn.work import LayerWork, Product


class GIN(ReducedLayer):
    """``mlp((1 + eps) x_v + sum of x_u)`` with ``mlp = linear, relu, linear``.

    Equals PyG's ``GINConv(Sequential(Linear, ReLU, Linear), eps=eps, train_eps=True)``, with the same parameter
    names. The mlp is not linear and is not pushed through the sum: a state is as wide as the input.

    Args:
        in_width: columns of the input.
        out_width: columns of the result.
        hidden: columns inside the mlp; default as the result. The last layer of a model takes as many as its input
            has: a handful of rectified columns, one per class, die together at the first large sum.
        eps: first value of the trained eps.
    """

    name = "gin"
    initial_values: ClassVar[Callable[[nn.Module, int], None]] = staticmethod(initialize.fan_in)

    def __init__(self, in_width: int, out_width: int, *, hidden: int | None = None, eps: float = 0.0) -> None:
        super().__init__(in_width, out_width, REDUCTIONS.find("sum"), commutes=False)
        self.self_joins_state = True
        self.state_is_trained = True  # by eps
        self.hidden = out_width if hidden is None else hidden
        self.column_width = self.hidden
        self.initial_eps = eps
        self.eps = nn.Parameter(torch.empty(1))
        self.nn = nn.Sequential(
            initialize.linear(in_width, self.hidden, bias=True),
            nn.ReLU(),
            initialize.linear(self.hidden, out_width, bias=True),
        )
        self.reset()

    @classmethod
    def for_model(cls, in_width: int, out_width: int, *, last: bool, **options: Any) -> GIN:
        """See :meth:`Layer.for_model`."""
        return cls(in_width, out_width, hidden=in_width if last else out_width, **options)

    def reset(self, key: int | None = None) -> None:
        """See :meth:`Layer.reset`; eps gets its first value."""
        super().reset(key)
        nn.init.constant_(self.eps, self.initial_eps)

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        return {**super().arguments(), "hidden": self.hidden, "eps": self.initial_eps}

    def work(self) -> LayerWork | None:
        """See :meth:`Layer.work`: the sum, and the two products of the mlp."""
        first = Product("destination", self.in_width, self.hidden)
        return LayerWork((first, Product("destination", self.hidden, self.out_width, first=False)), self.in_width)

    def pyg_code(self) -> str | None:
        """See :meth:`Layer.pyg_code`."""
        first, second = f"nn.Linear({self.in_width}, {self.hidden})", f"nn.Linear({self.hidden}, {self.out_width})"
        return f"GINConv(nn.Sequential({first}, nn.ReLU(), {second}), train_eps=True)"

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D in"]:
        """``(1 + eps) x_v``."""
        return (1.0 + self.eps) * x_dst

    def finish(self, state: Float[Tensor, "D in"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """The mlp of the sum."""
        return self.nn(state if self_term is None else state + self_term)

    def from_columns(
        self, columns: slice, x_src: Float[Tensor, "S slice"], x_dst: Float[Tensor, "D slice"], block: Block
    ) -> Float[Tensor, "D hidden"]:
        """The mlp's first linear map, sliced, of the sum with the self term."""
        total = self.reduction.over(block, x_src) + (1.0 + self.eps) * x_dst
        return linear(total, self._first.weight[:, columns])

    def finish_columns(self, total: Float[Tensor, "D hidden"], block: Block, key: int | None) -> Float[Tensor, "D out"]:
        """The first bias, and the rest of the mlp."""
        return self.nn[1:](total + self._first.bias)

    @property
    def _first(self) -> nn.Linear:
        return cast("nn.Linear", self.nn[0])


class GINE(GIN):
    """``mlp((1 + eps) x_v + sum of relu(x_u + W_e x_uv + b_e))`` (Hu et al., "Strategies for pre-training graph neural
    networks", ICLR 2020).

    Equals PyG's ``GINEConv(Sequential(Linear, ReLU, Linear), eps=eps, train_eps=True, edge_dim=edge_width)``, with the
    same parameter names.

    Args:
        in_width, out_width, hidden, eps: see :class:`GIN`.
        edge_width: columns of the edges' features; 0: there are none, and nothing is added to ``x_u``.
    """

    name = "gine"
    options: ClassVar[frozenset[str]] = frozenset({"edge_width"})
    needs_edge_features = True

    def __init__(
        self, in_width: int, out_width: int, *, edge_width: int = 0, hidden: int | None = None, eps: float = 0.0
    ) -> None:
        super().__init__(in_width, out_width, hidden=hidden, eps=eps)
        self.starts_with_sum, self.sums_messages = False, False
        self.edge_width, self.columns_per_edge = edge_width, edge_width + 4 * in_width
        self.edge_columns: Sequence[str] = ("edge_attr",) if edge_width else ()
        self.lin = initialize.linear(edge_width, in_width, bias=True) if edge_width else None
        self.reset()

    @classmethod
    def for_model(cls, in_width: int, out_width: int, *, last: bool, **options: Any) -> GINE:
        """See :meth:`Layer.for_model`."""
        return cls(in_width, out_width, hidden=in_width if last else out_width, **options)

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        return {**super().arguments(), "edge_width": self.edge_width}

    def work(self) -> None:
        """See :meth:`Layer.work`: what is computed for every edge is not told."""
        return None

    def pyg_code(self) -> str | None:
        """See :meth:`Layer.pyg_code`; ``None`` without features of edges, which PyG's ``GINEConv`` must have."""
        if not self.edge_width:
            return None
        first, second = f"nn.Linear({self.in_width}, {self.hidden})", f"nn.Linear({self.hidden}, {self.out_width})"
        edges = f"edge_dim={self.edge_width}"
        return f"GINEConv(nn.Sequential({first}, nn.ReLU(), {second}), train_eps=True, {edges})"

    def partial(self, payload: Rows, q: Tensor | None, block: Block) -> Float[Tensor, "D in"]:
        """See :meth:`Split.partial`."""
        return self._sum(block, ops.all_rows(payload), slice(None))

    def forward(self, block: Block, h: Rows, key: int | None = None) -> Float[Tensor, "D out"]:
        """See :meth:`Layer.forward`."""
        x = ops.all_rows(h)
        return self.finish(self.partial(x, None, block), self.self_term(x[: block.num_dst], block), block)

    def from_columns(
        self, columns: slice, x_src: Float[Tensor, "S slice"], x_dst: Float[Tensor, "D slice"], block: Block
    ) -> Float[Tensor, "D hidden"]:
        """As :meth:`GIN.from_columns`; every column of an edge's row is its own."""
        total = self._sum(block, x_src, columns) + (1.0 + self.eps) * x_dst
        return linear(total, self._first.weight[:, columns])

    def _sum(self, block: Block, x: Float[Tensor, "S slice"], columns: slice) -> Float[Tensor, "D slice"]:
        rows = ops.source_to_edges(block, x)
        if self.lin is not None:
            if block.edge_attr is None:
                raise ValueError("a GINE layer reads the features of edges, and the block has none")
            features = block.edge_attr.to(self.lin.weight.dtype)
            rows = rows + kernels.widened(linear(features, self.lin.weight[columns], self.lin.bias[columns]))
        rows = torch.relu(rows)
        if block.weight is not None:
            rows = rows * block.weight.to(rows.dtype).unsqueeze(1)
        return ops.edges_to_destination(block, rows)
