"""Attention that looks at the features of edges: GATv2 and the graph transformer's convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from partita import kernels
from partita.core.errors import ConfigError
from partita.core.records import Block
from partita.nn import initialize, ops
from partita.nn.layers import softmax
from partita.nn.layers.base import ColumnSplit, Layer, Split
from partita.nn.layers.gat import loops_of, shared_by_heads
from partita.nn.matmul import linear
from partita.nn.ops import Rows


class EdgeAttention(Split, ColumnSplit, Layer):
    """Base: linear maps of the sources and of the destinations, and attention between them and the edges' features.

    The state is that of :mod:`~partita.nn.layers.softmax`.

    Attributes:
        of_sources: names of the linear maps of a source's row, whose results are its message, side by side.
        of_destinations: of those of a destination's row that attention needs, whose results are its query.
        heads, out_per_head, concat: as of :class:`~partita.nn.layers.gat.GAT`.
        lin_edge: maps the features of edges; ``None`` where the layer reads none.
    """

    options: ClassVar[frozenset[str]] = frozenset({"heads", "edge_width"})
    of_sources: ClassVar[tuple[str, ...]]
    of_destinations: ClassVar[tuple[str, ...]]

    def __init__(self, in_width: int, out_per_head: int, heads: int, concat: bool, edge_width: int) -> None:
        if heads < 1:
            raise ConfigError(f"a layer with attention needs at least one head, not {heads}", where="heads")
        super().__init__(in_width, heads * out_per_head if concat else out_per_head)
        self.heads, self.out_per_head, self.concat, self.edge_width = heads, out_per_head, concat, edge_width
        self.edge_columns: Sequence[str] = ("edge_attr",) if edge_width else ()
        inner = heads * out_per_head
        self.state_width = softmax.state_width(heads, out_per_head)
        self.message_width = len(self.of_sources) * inner
        self.query_width = len(self.of_destinations) * inner
        self.columns_per_edge = edge_width + 6 * inner
        self.sums_over_columns: Literal["rows", "sources"] = "sources"
        for name in (*self.of_sources, *self.of_destinations):
            self.add_module(name, initialize.linear(in_width, inner, bias=True))
        self.lin_edge = initialize.linear(edge_width, inner, bias=False) if edge_width else None

    @classmethod
    def for_model(cls, in_width: int, out_width: int, *, last: bool, **options: Any) -> EdgeAttention:
        """Hidden layers concatenate heads of ``out_width / heads`` columns; the last layer averages its heads.

        Raises:
            ConfigError: ``heads`` does not divide a hidden layer's width.
        """
        heads = options.pop("heads", 1)
        return cls(in_width, shared_by_heads(out_width, heads, last=last), heads, concat=not last, **options)

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        return {
            "in_width": self.in_width,
            "out_per_head": self.out_per_head,
            "heads": self.heads,
            "concat": self.concat,
            "edge_width": self.edge_width,
        }

    def _pyg(self, conv: str, more: str = "") -> str:
        edges = f", edge_dim={self.edge_width}" if self.edge_width else ""
        heads = f"heads={self.heads}, concat={self.concat}"
        return f"{conv}({self.in_width}, {self.out_per_head}, {heads}{more}{edges})"

    def message(self, x_src: Float[Tensor, "S in"]) -> Float[Tensor, "S payload"]:
        """The maps of a source, side by side."""
        return self._mapped(x_src, self.of_sources)

    def query(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D q"]:
        """The maps of a destination, side by side."""
        return self._mapped(x_dst, self.of_destinations)

    def neutral(self, rows: int, like: Tensor) -> Float[Tensor, "rows state"]:
        """See :meth:`Split.neutral`."""
        return softmax.neutral(rows, self.heads, self.out_per_head, like)

    def merge(self, states: Sequence[Float[Tensor, "D state"]]) -> Float[Tensor, "D state"]:
        """See :meth:`Split.merge`."""
        return softmax.merge(states, self.heads, self.out_per_head)

    def forward(self, block: Block, h: Rows, key: int | None = None) -> Float[Tensor, "D out"]:
        """See :meth:`Layer.forward`."""
        x = ops.all_rows(h)
        x_dst = x[: block.num_dst]
        state = self.partial(self.message(x), self.query(x_dst, block), block)
        return self.finish(state, self.self_term(x_dst, block), block)

    def _mapped(self, x: Tensor, names: tuple[str, ...]) -> Tensor:
        return torch.cat([self.get_submodule(name)(x) for name in names], dim=1)

    def _edge_rows(self, block: Block, features: Tensor | None) -> Float[Tensor, "n HC"] | None:
        """Features of edges, mapped; ``None`` where the layer reads none."""
        if self.lin_edge is None:
            return None
        if features is None:
            raise ValueError("the layer reads the features of edges, and the block has none")
        return kernels.widened(self.lin_edge(features.to(self.lin_edge.weight.dtype)))

    def _by_head(self, rows: Float[Tensor, "n HC"]) -> Float[Tensor, "n H C"]:
        return rows.unflatten(1, (self.heads, self.out_per_head))

    def _joined(self, state: Float[Tensor, "D state"]) -> Float[Tensor, "D out"]:
        rows = softmax.finish(state, self.heads, self.out_per_head)
        return rows.flatten(1) if self.concat else rows.mean(1)


class GATv2(EdgeAttention):
    """Attention whose weights depend on the destination and the edge, too (Brody, Alon and Yahav, ICLR 2022).

    For every head: ``e_uv = a . leaky_relu(W_l x_u + W_r x_v + W_e x_uv)`` with biases in ``W_l`` and ``W_r``, the
    softmax of ``e`` over the neighbors u of v, and the sum of ``W_l x_u`` so weighted; then the heads are concatenated
    or averaged, plus b.

    Equals PyG's ``GATv2Conv(in_width, out_per_head, heads, concat, negative_slope, add_self_loops=add_self_loops,
    edge_dim=edge_width)``, with the same parameter names: existing loops are removed and every destination gets one,
    whose features are the mean of those of its sampled edges.

    Args:
        in_width: columns of the input.
        out_per_head: columns of one head.
        heads: number of heads.
        concat: concatenate the heads, or average them.
        edge_width: columns of the edges' features; 0: they are not read.
        negative_slope: of the leaky ReLU.
        add_self_loops: whether the destination is its own neighbor, once.

    Raises:
        ConfigError: an argument is out of range.
    """

    name = "gatv2"
    of_sources = ("lin_l",)
    of_destinations = ("lin_r",)

    def __init__(
        self, in_width: int, out_per_head: int, heads: int = 1, *, concat: bool = True, edge_width: int = 0,
        negative_slope: float = 0.2, add_self_loops: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(in_width, out_per_head, heads, concat, edge_width)
        self.negative_slope, self.add_self_loops = negative_slope, add_self_loops
        self.fills_loops = edge_width > 0 and add_self_loops
        self.self_joins_state = True
        self.column_width = 2 * heads * out_per_head
        self.att = nn.Parameter(torch.empty(1, heads, out_per_head))
        self.bias = nn.Parameter(torch.empty(self.out_width))
        self.reset()

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        own = {"negative_slope": self.negative_slope, "add_self_loops": self.add_self_loops}
        return {**super().arguments(), **own}

    def pyg_code(self) -> str:
        """See :meth:`Layer.pyg_code`."""
        more = f", negative_slope={self.negative_slope}, add_self_loops={self.add_self_loops}"
        return self._pyg("GATv2Conv", more)

    def partial(self, payload: Rows, q: Tensor | None, block: Block) -> Float[Tensor, "D state"]:
        """See :meth:`Split.partial`."""
        if q is None:
            raise ValueError("a GATv2 layer's partial aggregate needs the destinations' query")
        rows = kernels.widened(ops.all_rows(payload))
        ends = ops.source_to_edges(block, rows) + ops.destination_to_edges(block, q)
        logits = self._logits(ends, self._edge_rows(block, block.edge_attr))
        if self.add_self_loops:
            logits = logits.masked_fill(loops_of(block).unsqueeze(1), -torch.inf)
        return softmax.state_over(block, logits, rows)

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D state"] | None:
        """The state over the destination's own loop alone; ``None`` without ``add_self_loops``."""
        if not self.add_self_loops:
            return None
        rows = kernels.widened(self.message(x_dst))
        ends = rows + kernels.widened(self.query(x_dst, block))
        return softmax.state_of_one(self._logits(ends, self._edge_rows(block, block.loop_attr)), rows)

    def finish(self, state: Float[Tensor, "D state"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """Divide by the sum of exponentials (0 for a destination without neighbors), join the heads, add the bias."""
        return self._joined(state if self_term is None else self.merge([state, self_term])) + self.bias

    def from_columns(
        self, columns: slice, x_src: Float[Tensor, "S slice"], x_dst: Float[Tensor, "D slice"], block: Block
    ) -> Float[Tensor, "S columns"]:
        """``W_l`` and ``W_r`` sliced, of the sources."""
        weight = torch.cat([self.get_parameter(f"{name}.weight") for name in ("lin_l", "lin_r")])
        return linear(x_src, weight[:, columns])

    def finish_columns(
        self, total: Float[Tensor, "S columns"], block: Block, key: int | None
    ) -> Float[Tensor, "D out"]:
        """Attention over the mapped sources."""
        left, right = kernels.widened(total).chunk(2, dim=1)
        left = left + self.get_parameter("lin_l.bias")
        right = right[: block.num_dst] + self.get_parameter("lin_r.bias")
        state = self.partial(left, right, block)
        if not self.add_self_loops:
            return self.finish(state, None, block)
        own = left[: block.num_dst]
        logits = self._logits(own + right, self._edge_rows(block, block.loop_attr))
        return self.finish(state, softmax.state_of_one(logits, own), block)

    def _logits(self, ends: Float[Tensor, "n HC"], edges: Tensor | None) -> Float[Tensor, "n H"]:
        total = ends if edges is None else ends + edges
        return (self._by_head(functional.leaky_relu(total, self.negative_slope)) * self.att).sum(-1)


class Transformer(EdgeAttention):
    """The graph transformer's convolution (Shi et al., "Masked label prediction", IJCAI 2021, equations 3 to 5).

    For every head: ``e_uv = (Q x_v) . (K x_u + W_e x_uv) / sqrt(C)``, the softmax of e over the neighbors u of v, and
    the sum of ``V x_u + W_e x_uv`` so weighted; then the heads are concatenated or averaged, plus ``S x_v``.

    Equals PyG's ``TransformerConv(in_width, out_per_head, heads, concat, edge_dim=edge_width)``, with the same
    parameter names.

    Args:
        in_width: columns of the input.
        out_per_head: columns of one head.
        heads: number of heads.
        concat: concatenate the heads, or average them.
        edge_width: columns of the edges' features; 0: they are not read.

    Raises:
        ConfigError: an argument is out of range.
    """

    name = "transformer"
    of_sources = ("lin_key", "lin_value")
    of_destinations = ("lin_query",)

    def __init__(
        self, in_width: int, out_per_head: int, heads: int = 1, *, concat: bool = True, edge_width: int = 0
    ) -> None:
        super().__init__(in_width, out_per_head, heads, concat, edge_width)
        self.self_width = self.out_width
        self.lin_skip = initialize.linear(in_width, self.out_width, bias=True)
        self.column_width = 3 * heads * out_per_head + self.out_width
        self.reset()

    def pyg_code(self) -> str:
        """See :meth:`Layer.pyg_code`."""
        return self._pyg("TransformerConv")

    def partial(self, payload: Rows, q: Tensor | None, block: Block) -> Float[Tensor, "D state"]:
        """See :meth:`Split.partial`."""
        if q is None:
            raise ValueError("a Transformer layer's partial aggregate needs the destinations' query")
        keys, values = kernels.widened(ops.all_rows(payload)).chunk(2, dim=1)
        q = kernels.widened(q) / math.sqrt(self.out_per_head)
        logits = ops.edge_products(block, keys.contiguous(), q, self.heads)
        edges = self._edge_rows(block, block.edge_attr)
        if edges is not None:
            logits = logits + (self._by_head(edges) * self._by_head(ops.destination_to_edges(block, q))).sum(-1)
        return softmax.state_over(block, logits, values.contiguous(), edge_rows=edges)

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D out"]:
        """``S x_v``."""
        return self.lin_skip(x_dst)

    def finish(self, state: Float[Tensor, "D state"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """Divide by the sum of exponentials (0 without neighbors), join the heads, add the own term."""
        rows = self._joined(state)
        return rows if self_term is None else rows + self_term

    def from_columns(
        self, columns: slice, x_src: Float[Tensor, "S slice"], x_dst: Float[Tensor, "D slice"], block: Block
    ) -> Float[Tensor, "S columns"]:
        """All maps sliced, of the sources."""
        weight = torch.cat([self.get_parameter(f"{name}.weight") for name in self._maps])
        return linear(x_src, weight[:, columns])

    def finish_columns(
        self, total: Float[Tensor, "S columns"], block: Block, key: int | None
    ) -> Float[Tensor, "D out"]:
        """Attention over the mapped sources."""
        inner = self.heads * self.out_per_head
        bias = torch.cat([self.get_parameter(f"{name}.bias") for name in self._maps])
        payload, q, own = (kernels.widened(total) + bias).split([2 * inner, inner, self.out_width], dim=1)
        state = self.partial(payload, q[: block.num_dst], block)
        return self.finish(state, own[: block.num_dst], block)

    @property
    def _maps(self) -> tuple[str, ...]:
        return (*self.of_sources, *self.of_destinations, "lin_skip")
