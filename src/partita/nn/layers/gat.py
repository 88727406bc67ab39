"""Graph attention network (Velickovic et al., ICLR 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from partita import kernels
from partita.core.errors import ConfigError
from partita.core.keys import fold
from partita.core.records import Block, LazyRows
from partita.nn import initialize, ops
from partita.nn.layers import softmax
from partita.nn.layers.base import ColumnSplit, Layer, Split
from partita.nn.matmul import linear
from partita.nn.ops import Rows
from partita.nn.work import LayerWork, Product

_COLUMNS_PER_HEAD = 6
"""Of an edge: the scores of its two ends, their sum, its leaky ReLU, the exponential, and the share."""

OWN_LOOP = 2**32 - 1
"""Folded into the key of attention dropout for the loop that the layer adds; no edge of a block uses that key."""


class GAT(Split, ColumnSplit, Layer):
    """Attention over the neighbors and, with ``add_self_loops``, the destination itself.

    For every head, with ``h = W x``: ``e_uv = leaky_relu(a_src . h_u + a_dst . h_v)``, the softmax of ``e`` over the
    neighbors u of v, and the sum of ``h_u`` so weighted; then the heads are concatenated or averaged, plus b.

    Equals PyG's ``GATConv(in_width, out_per_head, heads, concat, negative_slope, attn_dropout, add_self_loops,
    bias=bias)`` called with ``((x_src, x_dst), edge_index)``: as ``in_channels`` is one integer, sources and
    destinations share W (``lin``), existing loops are removed and every destination gets one. The parameter names
    are the same. Dropout of the attention coefficients is keyed, so its mask differs from PyG's.

    The state is that of :mod:`~partita.nn.layers.softmax`.

    Args:
        in_width: columns of the input.
        out_per_head: columns of one head.
        heads: number of heads.
        concat: concatenate the heads (``out_width = heads * out_per_head``), or average them.
        negative_slope: of the leaky ReLU.
        attn_dropout: probability with which an attention coefficient is set to 0 in training; the positions of a
            destination's edges within the whole row are its keys, so it is applied in :meth:`forward` only.
        bias: whether to add b.
        add_self_loops: whether the destination is its own neighbor, once.

    Raises:
        ConfigError: an argument is out of range.
    """

    name = "gat"
    options: ClassVar[frozenset[str]] = frozenset({"heads", "attn_dropout"})

    def __init__(
        self,
        in_width: int,
        out_per_head: int,
        heads: int = 1,
        *,
        concat: bool = True,
        negative_slope: float = 0.2,
        attn_dropout: float = 0.0,
        bias: bool = True,
        add_self_loops: bool = True,
    ) -> None:
        if heads < 1:
            raise ConfigError(f"a GAT layer needs at least one head, not {heads}", where="heads")
        if not 0.0 <= attn_dropout < 1.0:
            raise ConfigError(f"a probability in [0, 1) is needed, not {attn_dropout}", where="attn_dropout")
        super().__init__(in_width, heads * out_per_head if concat else out_per_head)
        self.heads = heads
        self.out_per_head = out_per_head
        self.concat = concat
        self.negative_slope = negative_slope
        self.attn_dropout = attn_dropout
        self.add_self_loops = add_self_loops
        self.state_width = softmax.state_width(heads, out_per_head)
        self.message_width = heads * (out_per_head + 1)
        self.self_joins_state = True
        self.query_width = heads
        self.sums_over_columns: Literal["rows", "sources"] = "sources"
        self.column_width = heads * out_per_head
        self.lin = initialize.linear(in_width, heads * out_per_head, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_per_head))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_per_head))
        self.bias = nn.Parameter(torch.empty(self.out_width)) if bias else None
        self.reset()

    @classmethod
    def for_model(cls, in_width: int, out_width: int, *, last: bool, **options: Any) -> GAT:
        """Hidden layers concatenate heads of ``out_width / heads`` columns; the last layer averages its heads.

        Raises:
            ConfigError: ``heads`` does not divide a hidden layer's width.
        """
        heads = options.pop("heads", 1)
        return cls(in_width, shared_by_heads(out_width, heads, last=last), heads, concat=not last, **options)

    @property
    def draws_by_edge(self) -> bool:
        """With attention dropout; see :attr:`Split.draws_by_edge`."""
        return self.attn_dropout > 0

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        return {
            "in_width": self.in_width,
            "out_per_head": self.out_per_head,
            "heads": self.heads,
            "concat": self.concat,
            "negative_slope": self.negative_slope,
            "attn_dropout": self.attn_dropout,
            "bias": self.bias is not None,
            "add_self_loops": self.add_self_loops,
        }

    def work(self) -> LayerWork:
        """See :meth:`Layer.work`: the projected sources with their scores, and the weighted sum of them."""
        projected = self.heads * self.out_per_head
        product = Product("source", self.in_width, projected + 2 * self.heads)
        return LayerWork((product,), projected, projected=True, per_edge=_COLUMNS_PER_HEAD * self.heads)

    def pyg_code(self) -> str:
        """See :meth:`Layer.pyg_code`."""
        return (
            f"GATConv({self.in_width}, {self.out_per_head}, heads={self.heads}, concat={self.concat}, "
            f"negative_slope={self.negative_slope}, dropout={self.attn_dropout}, "
            f"add_self_loops={self.add_self_loops}, bias={self.bias is not None})"
        )

    def message(self, x_src: Float[Tensor, "S in"]) -> Float[Tensor, "S HC_H"]:
        """``W x_u``, then ``a_src . W x_u`` per head: ``heads * (out_per_head + 1)`` columns."""
        return torch.cat([self.lin(x_src), self._score(x_src, self.att_src)], dim=1)

    def query(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D H"]:
        """``a_dst . W x_v`` per head."""
        return self._score(x_dst, self.att_dst)

    def partial(
        self, payload: Float[Tensor, "S HC_H"] | LazyRows, q: Tensor | None, block: Block
    ) -> Float[Tensor, "D state"]:
        """See :meth:`Split.partial`."""
        if q is None:
            raise ValueError("a GAT layer's partial aggregate needs the destinations' query")
        projected, score = ops.all_rows(payload).split([self.heads * self.out_per_head, self.heads], dim=1)
        return softmax.state_over(block, self._logits(score, q, block), projected)

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D state"] | None:
        """The state over the destination's own loop alone; ``None`` without ``add_self_loops``."""
        if not self.add_self_loops:
            return None
        logits = self._score(x_dst, self.att_src) + self.query(x_dst, block)
        logits = functional.leaky_relu(kernels.widened(logits), self.negative_slope)
        return softmax.state_of_one(logits, self.lin(x_dst))

    def neutral(self, rows: int, like: Tensor) -> Float[Tensor, "rows state"]:
        """See :meth:`Split.neutral`."""
        return softmax.neutral(rows, self.heads, self.out_per_head, like)

    def merge(self, states: Sequence[Float[Tensor, "D state"]]) -> Float[Tensor, "D state"]:
        """See :meth:`Split.merge`."""
        return softmax.merge(states, self.heads, self.out_per_head)

    def finish(self, state: Float[Tensor, "D state"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """Divide by the sum of exponentials (0 for a destination without neighbors), join the heads, add the bias."""
        if self_term is not None:
            state = self.merge([state, self_term])
        rows = softmax.finish(state, self.heads, self.out_per_head)
        out = rows.flatten(1) if self.concat else rows.mean(1)
        return out if self.bias is None else out + self.bias

    def forward(self, block: Block, h: Rows, key: int | None = None) -> Float[Tensor, "D out"]:
        """See :meth:`Layer.forward`. The destinations are projected once, with the other sources."""
        x = ops.all_rows(h)
        projected, score, q = self.lin(x), self._score(x, self.att_src), self.query(x[: block.num_dst], block)
        return self._whole(projected, score, q, block, key)

    def from_columns(
        self, columns: slice, x_src: Float[Tensor, "S slice"], x_dst: Float[Tensor, "D slice"], block: Block
    ) -> Float[Tensor, "S HC"]:
        """``W`` sliced, of the sources: attention is no sum over columns, but what it is computed from is."""
        return linear(x_src, self.lin.weight[:, columns])

    def finish_columns(self, total: Float[Tensor, "S HC"], block: Block, key: int | None) -> Float[Tensor, "D out"]:
        """Attention over the projected sources."""
        heads = kernels.widened(total).unflatten(1, (self.heads, self.out_per_head))
        score, q = ((heads * attention).sum(-1) for attention in (self.att_src, self.att_dst))
        return self._whole(heads.flatten(1), score, q[: block.num_dst], block, key)

    def _whole(self, projected: Tensor, score: Tensor, q: Tensor, block: Block, key: int | None) -> Tensor:
        """The layer's result (D, out) where the destinations are the first of the projected sources.

        It is what :meth:`finish` makes of the states, but all edges of a destination are here: shares of the softmax
        can be divided before rows are summed, and every pass over rows that this saves is one of the slow ones.
        """
        key, num_dst = key if self.attn_dropout else None, block.num_dst
        logits = self._logits(score, q, block)
        largest, own = ops.edges_max(block, logits), None
        if self.add_self_loops:
            own = functional.leaky_relu(kernels.widened(score[:num_dst] + q), self.negative_slope)
            largest = torch.maximum(largest, own.detach())
        largest = softmax.finite(largest)
        weights = torch.exp(logits - ops.destination_to_edges(block, largest))
        sums = ops.edges_to_destination(block, weights)
        if own is not None:
            own = torch.exp(own - largest)
            sums = sums + own
        factor = sums.masked_fill(sums == 0, 1.0).reciprocal()
        shares = weights * ops.destination_to_edges(block, factor)
        own = None if own is None else own * factor
        if key is not None:
            shares = shares * self._edge_mask(block, key, shares.dtype)
            own = None if own is None else own * self._loop_mask(block, key, own.dtype)
        rows = ops.aggregate_heads(block, projected, shares, own)
        out = rows if self.concat else rows.unflatten(1, (self.heads, self.out_per_head)).mean(1)
        return out if self.bias is None else out.add_(self.bias)

    def _score(self, x: Float[Tensor, "n in"], attention: Float[Tensor, "1 H C"]) -> Float[Tensor, "n H"]:
        """``a . W x`` per head as ``(W^T a) . x``: one narrow product, without a pass over the projected rows."""
        weight = self.lin.weight.view(self.heads, self.out_per_head, self.in_width)
        return linear(x, (weight * attention.view(self.heads, self.out_per_head, 1)).sum(1))

    def _logits(self, score: Tensor, q: Tensor, block: Block) -> Float[Tensor, "E H"]:
        """``e_uv`` of the block's edges; -inf of loops where the layer adds its own."""
        from_source = ops.source_to_edges(block, score)
        logits = functional.leaky_relu(from_source + ops.destination_to_edges(block, q), self.negative_slope)
        return logits.masked_fill(loops_of(block).unsqueeze(1), -torch.inf) if self.add_self_loops else logits

    def _edge_mask(self, block: Block, key: int, dtype: torch.dtype) -> Float[Tensor, "E H"]:
        return kernels.edge_dropout(block.indptr, block.dst_original, key, self.attn_dropout, self.heads, dtype)

    def _loop_mask(self, block: Block, key: int, dtype: torch.dtype) -> Float[Tensor, "D H"]:
        one_each = torch.arange(block.num_dst + 1, device=block.indptr.device)
        own_key = fold(key, OWN_LOOP)
        return kernels.edge_dropout(one_each, block.dst_original, own_key, self.attn_dropout, self.heads, dtype)


def shared_by_heads(out_width: int, heads: int, *, last: bool) -> int:
    """Columns of one head of a model's layer: heads share the width, but those of the last layer, which are averaged.

    Raises:
        ConfigError: they cannot share it.
    """
    if last:
        return out_width
    if heads < 1 or out_width % heads:
        raise ConfigError(
            f"the hidden width {out_width} cannot be shared by {heads} heads",
            where="hidden, heads",
            fix=f"Make the hidden width a multiple of {heads}" if heads > 0 else "Give at least one head",
        )
    return out_width // heads


def loops_of(block: Block) -> Tensor:
    """Which edges are loops, bool (E); by id, as the destinations need not be among a part's sources."""
    if block.src is None:
        raise ValueError("attention needs a block with de-duplicated sources")
    return block.src[block.indices] == block.dst[block.edge_dst()]
