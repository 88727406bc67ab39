"""Residual connections (He et al., "Deep residual learning for image recognition", CVPR 2016) around any layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from partita.core.keys import fold
from partita.core.records import Block
from partita.nn import initialize, ops
from partita.nn.layers.base import ColumnSplit, Layer, Split, global_key
from partita.nn.matmul import linear
from partita.nn.ops import Rows
from partita.nn.work import LayerWork, Product


class Residual(Split, ColumnSplit, Layer):
    """``layer(x)_v + R x_v``, where R is the identity if the widths are equal, else a linear map without bias.

    As ``residual=True`` of PyG's ``GATConv``. It is split as the layer is: the own term of a destination has the
    columns of ``R x_v`` after those of the layer's own term.

    Args:
        inner: the layer.

    Attributes:
        inner: the layer.
    """

    def __init__(self, inner: Layer) -> None:
        super().__init__(inner.in_width, inner.out_width)
        self.inner, self.name = inner, inner.name
        self.coefficients = inner.coefficients  # type: ignore[misc]
        self.reads_neighbors = inner.reads_neighbors  # type: ignore[misc]
        self.reads_relations, self.relations = inner.reads_relations, inner.relations
        self.edge_columns, self.edge_width = inner.edge_columns, inner.edge_width
        self.fills_loops = inner.fills_loops
        self.sums, self.starts_with_sum = inner.sums, inner.starts_with_sum
        if isinstance(inner, Split):
            self.state_width, self.message_width = inner.state_width, inner.message_width
            self.sums_messages, self.query_width = inner.sums_messages, inner.query_width
            self.state_is_trained, self.columns_per_edge = inner.state_is_trained, inner.columns_per_edge
            own = inner.state_width if inner.self_joins_state else inner.self_width
            self.self_width = own + inner.out_width
        if isinstance(inner, ColumnSplit):
            self.sums_over_columns: Literal["rows", "sources"] = "rows"
            self.column_width = inner.column_width + inner.out_width
        projects = inner.in_width != inner.out_width
        self.lin_res = initialize.linear(inner.in_width, inner.out_width, bias=False) if projects else None
        self.reset()

    @property
    def split(self) -> Split | None:
        """See :attr:`Layer.split`: as the layer is."""
        return None if self.inner.split is None else self

    @property
    def columns(self) -> ColumnSplit | None:
        """See :attr:`Layer.columns`: as the layer is, where the sum has a row per destination."""
        inner = self.inner.columns
        return None if inner is None or inner.sums_over_columns != "rows" else self

    @property
    def draws_by_call(self) -> bool:
        """See :attr:`Layer.draws_by_call`."""
        return self.inner.draws_by_call

    @property
    def draws_by_edge(self) -> bool:
        """See :attr:`Split.draws_by_edge`."""
        return self._split.draws_by_edge

    @property
    def _split(self) -> Split:
        assert isinstance(self.inner, Split)
        return self.inner

    @property
    def _columns(self) -> ColumnSplit:
        assert isinstance(self.inner, ColumnSplit)
        return self.inner

    def reset(self, key: int | None = None) -> None:
        """See :meth:`Layer.reset`; R as the layer's own linear maps."""
        self.inner.reset(key)
        if self.lin_res is not None:
            own = torch.nn.ModuleDict({"lin_res": self.lin_res})
            initialize.glorot(own, fold(key, 1) if key is not None else global_key())

    def arguments(self) -> dict[str, Any]:
        """Those of the layer's constructor, and that it is residual."""
        return {**self.inner.arguments(), "residual": True}

    def work(self) -> LayerWork | None:
        """See :meth:`Layer.work`: that of the layer, and ``R x_v`` where R is no identity."""
        found = self.inner.known_work()
        if found is None or self.lin_res is None:
            return found
        own = Product("destination", self.in_width, self.out_width)
        return replace(found, products=(*found.products, own))

    def forward(self, block: Block, h: Rows, key: int | None = None) -> Float[Tensor, "D out"]:
        """See :meth:`Layer.forward`."""
        return self.inner(block, h, key) + self._residual(ops.own_rows(block, h))

    def _residual(self, x_dst: Float[Tensor, "D in"]) -> Float[Tensor, "D out"]:
        return x_dst if self.lin_res is None else self.lin_res(x_dst)

    def divisible(self, block: Block) -> Block:
        """See :meth:`Split.divisible`."""
        return self._split.divisible(block)

    def message(self, x_src: Float[Tensor, "S in"]) -> Float[Tensor, "S payload"]:
        """See :meth:`Split.message`."""
        return self._split.message(x_src)

    def query(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D q"] | None:
        """See :meth:`Split.query`."""
        return self._split.query(x_dst, block)

    def partial(self, payload: Rows, q: Tensor | None, block: Block) -> Float[Tensor, "D state"]:
        """See :meth:`Split.partial`."""
        return self._split.partial(payload, q, block)

    def neutral(self, rows: int, like: Tensor) -> Float[Tensor, "rows state"]:
        """See :meth:`Split.neutral`."""
        return self._split.neutral(rows, like)

    def merge(self, states: Sequence[Float[Tensor, "D state"]]) -> Float[Tensor, "D state"]:
        """See :meth:`Split.merge`."""
        return self._split.merge(states)

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D own"]:
        """The layer's own term and ``R x_v`` side by side."""
        own, added = self._split.self_term(x_dst, block), self._residual(x_dst)
        return added if own is None else torch.cat([own, added.to(own.dtype)], dim=1)

    def finish(self, state: Float[Tensor, "D state"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """The layer's result plus ``R x_v``."""
        assert self_term is not None
        own, added = self_term[:, : -self.out_width], self_term[:, -self.out_width :]
        return self._split.finish(state, own if own.shape[1] else None, block) + added

    def from_columns(
        self, columns: slice, x_src: Float[Tensor, "S slice"], x_dst: Float[Tensor, "D slice"], block: Block
    ) -> Float[Tensor, "D columns"]:
        """What the layer makes of the columns, and ``R`` sliced, side by side."""
        inner = self._columns.from_columns(columns, x_src, x_dst, block)
        if self.lin_res is None:
            added = functional.pad(x_dst, (columns.start, self.out_width - columns.stop))
        else:
            added = linear(x_dst, self.lin_res.weight[:, columns])
        return torch.cat([inner, added.to(inner.dtype)], dim=1)

    def finish_columns(self, total: Float[Tensor, "D columns"], block: Block, key: int | None) -> Tensor:
        """The layer's result plus ``R x_v``."""
        inner = self._columns.column_width
        return self._columns.finish_columns(total[:, :inner], block, key) + total[:, inner:]
