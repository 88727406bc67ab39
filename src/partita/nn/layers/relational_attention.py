"""Attention over typed graphs: R-GAT, as MLPerf trains it, and HGT (Hu et al., WWW 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from partita import kernels
from partita.core.errors import ConfigError
from partita.core.records import Block
from partita.nn import initialize, ops
from partita.nn.encoder import EncodedRows
from partita.nn.layers import softmax
from partita.nn.layers.base import Layer, Split
from partita.nn.layers.relational import ONE_RELATION, Ends, checked_ends
from partita.nn.ops import Rows
from partita.nn.relations import Messengers, Pairs, message_linear, typed_linear


def heads_of(in_width: int, out_width: int, heads: int) -> int:
    """Columns of one of the heads that share a width.

    Raises:
        ConfigError: they cannot share it.
    """
    if heads < 1 or out_width % heads:
        raise ConfigError(
            f"the width {out_width} cannot be shared by {heads} heads",
            where="hidden, heads",
            fix=f"Make the hidden width a multiple of {heads}" if heads > 0 else "Give at least one head",
        )
    return out_width // heads


class RGAT(Split, Layer):
    """The sum over relations r of attention over the neighbors along r, plus b_t, where t is the destination's type.

    For every head, with ``h = W_r x``: ``e_uv = leaky_relu(a_r . h_u + c_r . h_v)``, and the softmax of e over the
    neighbors along r weights their ``h_u``. Equals PyG's ``HeteroConv`` of one ``GATConv(in_width, out_per_head, heads,
    concat, add_self_loops=False)`` for each relation, summed, as MLPerf Training's GNN benchmark (R-GAT) has it; the
    biases of the relations into a type are one here.

    A destination has a softmax for each relation that leads to its type, so a state is that of as many times the heads
    as there are relations into the type that has most of them.

    Args:
        in_width: columns of the input.
        out_per_head: columns of one head.
        heads: number of heads.
        concat: concatenate the heads (``out_width = heads * out_per_head``), or average them.
        num_types: T, node types.
        relations: ends of the R relations.
        negative_slope: of the leaky ReLU.

    Raises:
        ConfigError: an argument is out of range.
    """

    name = "rgat"
    reads_relations = True
    composes_encoder = True
    options: ClassVar[frozenset[str]] = frozenset({"num_types", "relations", "heads"})

    def __init__(
        self, in_width: int, out_per_head: int, heads: int = 1, *, concat: bool = True, num_types: int = 1,
        relations: Ends = ONE_RELATION, negative_slope: float = 0.2,
    ) -> None:  # fmt: skip
        if heads < 1:
            raise ConfigError(f"the layer '{self.name}' needs at least one head, not {heads}", where="heads")
        super().__init__(in_width, heads * out_per_head if concat else out_per_head)
        self.heads, self.out_per_head, self.concat, self.negative_slope = heads, out_per_head, concat, negative_slope
        self.num_types, self.relations = num_types, checked_ends(relations, num_types)
        into = [[at for at, (_, target) in enumerate(self.relations) if target == kind] for kind in range(num_types)]
        self._slots = max(map(len, into))  # of a destination: its relations
        none = len(self.relations)
        self._relation_of_slot = torch.tensor([[*of, *[none] * (self._slots - len(of))] for of in into])
        self._slot_of_relation = torch.tensor([into[target].index(at) for at, (_, target) in enumerate(self.relations)])
        self.state_width = softmax.state_width(self._slots * heads, out_per_head)
        self.query_width = self._slots * heads
        width = heads * out_per_head
        self.weight = nn.Parameter(torch.empty(len(self.relations), width, in_width))
        self.att_src = nn.Parameter(torch.empty(len(self.relations), heads, out_per_head))
        self.att_dst = nn.Parameter(torch.empty(len(self.relations), heads, out_per_head))
        self.bias = nn.Parameter(torch.empty(num_types, self.out_width))
        self.reset()

    @classmethod
    def for_model(cls, in_width: int, out_width: int, *, last: bool, **options: Any) -> RGAT:
        """Hidden layers concatenate heads of ``out_width / heads`` columns; the last layer averages its heads.

        Raises:
            ConfigError: ``heads`` does not divide a hidden layer's width.
        """
        heads = options.pop("heads", 1)
        columns = out_width if last else heads_of(in_width, out_width, heads)
        return cls(in_width, columns, heads, concat=not last, **options)

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        return {
            "in_width": self.in_width,
            "out_per_head": self.out_per_head,
            "heads": self.heads,
            "concat": self.concat,
            "num_types": self.num_types,
            "relations": [list(pair) for pair in self.relations],
            "negative_slope": self.negative_slope,
        }

    def pyg_code(self) -> str:
        """See :meth:`Layer.pyg_code`."""
        conv = (
            f"GATConv({self.in_width}, {self.out_per_head}, heads={self.heads}, concat={self.concat}, "
            f"negative_slope={self.negative_slope}, add_self_loops=False, bias=False)"
        )
        relations = f"nn.ModuleList({conv} for _ in range({len(self.relations)}))"
        return f'nn.ModuleDict({{"relations": {relations}, "bias": nn.Embedding({self.num_types}, {self.out_width})}})'

    def pyg_call(self, conv: str) -> str:
        """See :meth:`Layer.pyg_call`: a relation's convolution over its edges has rows of 0 where there are none."""
        each = f'each(x, edge_index[:, edge_type == at]) for at, each in enumerate({conv}["relations"])'
        return f'sum({each}) + {conv}["bias"](node_type)'

    def pyg_state(self) -> dict[str, Tensor]:
        """See :meth:`Layer.pyg_state`."""
        found: dict[str, Tensor] = {"bias.weight": self.bias}
        for at in range(len(self.relations)):
            of_relation = {"lin.weight": self.weight, "att_src": self.att_src, "att_dst": self.att_dst}
            for name, value in of_relation.items():
                row = value[at] if name == "lin.weight" else value[at : at + 1]
                found[f"relations.{at}.{name}"] = row
        return found

    def message(self, x_src: Float[Tensor, "S in"]) -> Float[Tensor, "S in"]:
        """The row itself."""
        return x_src

    def query(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D q"]:
        """``c_r . W_r x_v`` per relation into the destination's type, and head."""
        return typed_linear(x_dst, block.dst_types(), self._query_weight())

    def _query_weight(self) -> Float[Tensor, "T q in"]:
        scores = self._scores(self.att_dst)
        padded = torch.cat([scores, scores.new_zeros(1, *scores.shape[1:])])
        return padded[self._relation_of_slot.to(scores.device)].flatten(1, 2)  # of (T, slots, H, in)

    def partial(self, payload: Rows, q: Tensor | None, block: Block) -> Float[Tensor, "D state"]:
        """See :meth:`Split.partial`."""
        if q is None:
            raise ValueError("an R-GAT layer's partial aggregate needs the destinations' query")
        pairs, projected, logits = self._logits(*self._by_pair(ops.all_rows(payload), block), q, block)
        states = softmax.state_over(pairs.block, logits, projected)
        every = softmax.neutral(block.num_dst * self._slots, self.heads, self.out_per_head, states)
        every = every.index_copy(0, self._places(pairs, block), states)
        pieces = every.split([self.heads, self.heads, self.heads * self.out_per_head], dim=1)
        return torch.cat([piece.reshape(block.num_dst, self._slots * piece.shape[1]) for piece in pieces], dim=1)

    def neutral(self, rows: int, like: Tensor) -> Float[Tensor, "rows state"]:
        """See :meth:`Split.neutral`."""
        return softmax.neutral(rows, self._slots * self.heads, self.out_per_head, like)

    def merge(self, states: Sequence[Float[Tensor, "D state"]]) -> Float[Tensor, "D state"]:
        """See :meth:`Split.merge`."""
        return softmax.merge(states, self._slots * self.heads, self.out_per_head)

    def finish(self, state: Float[Tensor, "D state"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """Sum over the relations, join the heads, add the bias."""
        rows = softmax.finish(state, self._slots * self.heads, self.out_per_head)
        return self._joined(rows.unflatten(1, (self._slots, self.heads)).sum(1).flatten(1), block)

    def forward(self, block: Block, h: Rows, key: int | None = None) -> Float[Tensor, "D out"]:
        """See :meth:`Layer.forward`. Shares of the softmax are divided first, so rows are summed over all relations."""
        if isinstance(h, EncodedRows):
            made, q = self._by_pair(h, block), h.own_linear(self._query_weight())
        else:
            x = ops.all_rows(h)
            made, q = self._by_pair(x, block), self.query(x[: block.num_dst], block)
        pairs, projected, logits = self._logits(*made, q, block)
        shares = softmax.shares(pairs.block, logits)
        rows = ops.aggregate_heads(pairs.block, projected, shares)
        return self._joined(ops.aggregate(pairs.by_dst, rows, "sum"), block)

    def _by_pair(self, x: Tensor | EncodedRows, block: Block) -> tuple[Pairs, Tensor, Tensor]:
        """Edges by destination and relation, whose sources are those of every relation; their rows and scores."""
        messengers = Messengers.of(block, len(self.relations))
        maps = ((self.weight, None), (self._scores(self.att_src), None))
        projected, scores = message_linear(messengers, x, maps, [source for source, _ in self.relations])
        return Pairs.of(messengers.block, len(self.relations)), kernels.widened(projected), kernels.widened(scores)

    def _logits(
        self, pairs: Pairs, projected: Tensor, scores: Tensor, q: Tensor, block: Block
    ) -> tuple[Pairs, Tensor, Tensor]:
        """The pairs, the rows of what they have edges from, and the logits of their edges."""
        of_pair = ops.pick_rows(q.reshape(-1, self.heads), self._places(pairs, block))
        logits = ops.source_to_edges(pairs.block, scores) + ops.destination_to_edges(pairs.block, of_pair)
        return pairs, projected, functional.leaky_relu(logits, self.negative_slope)

    def _places(self, pairs: Pairs, block: Block) -> Tensor:
        """Where each pair is among the relations of all destinations."""
        slots = self._slot_of_relation.to(pairs.dst.device)
        sizes = torch.tensor(pairs.sizes, device=pairs.dst.device)
        return pairs.dst * self._slots + torch.repeat_interleave(slots, sizes)

    def _scores(self, attention: Float[Tensor, "R H C"]) -> Float[Tensor, "R H in"]:
        """``W_r^T a_r`` per head: with it a score is one narrow product, without a pass over projected rows."""
        weight = self.weight.unflatten(1, (self.heads, self.out_per_head))
        return (weight * attention.unsqueeze(-1)).sum(2)

    def _joined(self, rows: Float[Tensor, "D HC"], block: Block) -> Float[Tensor, "D out"]:
        out = rows if self.concat else rows.unflatten(1, (self.heads, self.out_per_head)).mean(1)
        return out + ops.pick_rows(self.bias, block.dst_types())


def _hgt_values(module: nn.Module, key: int) -> None:
    """Weights as :func:`~partita.nn.initialize.stacked_fan_in`; priors and skips 1."""
    initialize.stacked_fan_in(module, key)
    for name, parameter in module.named_parameters():
        if name in ("prior", "skip"):
            nn.init.ones_(parameter)


class HGT(Split, Layer):
    """Heterogeneous graph transformer: attention over the neighbors along all relations at once.

    For every head, with keys, queries and values mapped by node type (``K_s x_u, Q_t x_v, V_s x_u``):
    ``e_uv = (K_s x_u W^att_r) . (Q_t x_v) p_r / sqrt(C)``, the softmax of e over all in-edges of v, and the sum of
    ``V_s x_u W^msg_r`` so weighted; then ``A_t gelu(.)``, and where input and result are of one width
    ``sigmoid(s_t) A_t gelu(.) + (1 - sigmoid(s_t)) x_v`` (Hu et al., equations 3 to 5). Equals PyG's ``HGTConv``.

    Args:
        in_width: columns of the input.
        out_width: columns of the result.
        heads: number of heads.
        inner_width: columns of keys, queries and values, all heads together; ``None``: ``out_width``.
        num_types: T, node types.
        relations: ends of the R relations.

    Raises:
        ConfigError: an argument is out of range.
    """

    name = "hgt"
    initial_values: ClassVar[Callable[[nn.Module, int], None]] = staticmethod(_hgt_values)
    reads_relations = True
    composes_encoder = True
    options: ClassVar[frozenset[str]] = frozenset({"num_types", "relations", "heads"})

    def __init__(
        self, in_width: int, out_width: int, heads: int = 1, *, inner_width: int | None = None, num_types: int = 1,
        relations: Ends = ONE_RELATION,
    ) -> None:  # fmt: skip
        super().__init__(in_width, out_width)
        self.inner_width = inner = out_width if inner_width is None else inner_width
        self.heads, self.columns_per_head = heads, heads_of(in_width, inner, heads)
        self.num_types, self.relations = num_types, checked_ends(relations, num_types)
        self._source = torch.tensor([source for source, _ in self.relations])
        self.skips = in_width == out_width
        self.state_width = softmax.state_width(heads, self.columns_per_head)
        self.query_width, self.self_width = inner, out_width * self.skips
        count, columns = len(self.relations), self.columns_per_head
        self.key_weight, self.query_weight, self.value_weight = (
            nn.Parameter(torch.empty(num_types, inner, in_width)) for _ in range(3)
        )
        self.key_bias, self.query_bias, self.value_bias = (
            nn.Parameter(torch.empty(num_types, inner)) for _ in range(3)
        )
        self.attention = nn.Parameter(torch.empty(count, heads, columns, columns))
        self.messages = nn.Parameter(torch.empty(count, heads, columns, columns))
        self.prior = nn.Parameter(torch.empty(count, heads))
        self.out_weight = nn.Parameter(torch.empty(num_types, out_width, inner))
        self.out_bias = nn.Parameter(torch.empty(num_types, out_width))
        self.skip = nn.Parameter(torch.empty(num_types)) if self.skips else None
        self.reset()

    @classmethod
    def for_model(cls, in_width: int, out_width: int, *, last: bool, **options: Any) -> HGT:
        """The heads of the last layer share its input's width."""
        return cls(in_width, out_width, inner_width=in_width if last else None, **options)

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        return {
            **super().arguments(),
            "heads": self.heads,
            "inner_width": self.inner_width,
            "num_types": self.num_types,
            "relations": [list(pair) for pair in self.relations],
        }

    def message(self, x_src: Float[Tensor, "S in"]) -> Float[Tensor, "S in"]:
        """The row itself."""
        return x_src

    def query(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D q"]:
        """``Q_t x_v``."""
        return typed_linear(x_dst, block.dst_types(), self.query_weight, self.query_bias)

    def partial(self, payload: Rows, q: Tensor | None, block: Block) -> Float[Tensor, "D state"]:
        """See :meth:`Split.partial`."""
        return softmax.state_over(*self._attending(ops.all_rows(payload), q, block))

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D out"] | None:
        """``(1 - sigmoid(s_t)) x_v``; ``None`` where the widths differ."""
        if self.skip is None:
            return None
        return x_dst * ops.pick_rows(1 - self.skip.sigmoid().unsqueeze(1), block.dst_types())

    def neutral(self, rows: int, like: Tensor) -> Float[Tensor, "rows state"]:
        """See :meth:`Split.neutral`."""
        return softmax.neutral(rows, self.heads, self.columns_per_head, like)

    def merge(self, states: Sequence[Float[Tensor, "D state"]]) -> Float[Tensor, "D state"]:
        """See :meth:`Split.merge`."""
        return softmax.merge(states, self.heads, self.columns_per_head)

    def finish(self, state: Float[Tensor, "D state"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """Map what was attended to by the destination's type, and let the own row skip the layer."""
        rows = softmax.finish(state, self.heads, self.columns_per_head).flatten(1)
        return self._mapped(rows, self_term, block)

    def forward(self, block: Block, h: Rows, key: int | None = None) -> Float[Tensor, "D out"]:
        """See :meth:`Layer.forward`."""
        if isinstance(h, EncodedRows):
            by_source, logits, values = self._attending(h, h.own_linear(self.query_weight, self.query_bias), block)
            x_dst = None if self.skip is None else h.of_destinations()
        else:
            x = ops.all_rows(h)
            x_dst = x[: block.num_dst]
            by_source, logits, values = self._attending(x, self.query(x_dst, block), block)
        rows = ops.aggregate_heads(by_source, values, softmax.shares(by_source, logits))
        return self._mapped(rows, None if x_dst is None else self.self_term(x_dst, block), block)

    def _attending(self, x: Tensor | EncodedRows, q: Tensor | None, block: Block) -> tuple[Block, Tensor, Tensor]:
        """Edges whose sources are those of every relation, their logits, and what the sources send."""
        if q is None:
            raise ValueError("an HGT layer's partial aggregate needs the destinations' query")
        messengers = Messengers.of(block, len(self.relations))
        scale = self.prior / math.sqrt(self.columns_per_head)
        maps = [
            (weight.flatten(1, 2), bias.flatten(1))
            for weight, bias in (
                self._composed(self.key_weight, self.key_bias, self.attention * scale[:, :, None, None]),
                self._composed(self.value_weight, self.value_bias, self.messages),
            )
        ]
        keys, values = map(kernels.widened, message_linear(messengers, x, maps, self._source.tolist()))
        return messengers.block, ops.edge_products(messengers.block, keys, kernels.widened(q), self.heads), values

    def _composed(
        self, weight: Float[Tensor, "T inner in"], bias: Float[Tensor, "T inner"], of_relation: Float[Tensor, "R H C C"]
    ) -> tuple[Float[Tensor, "R H C in"], Float[Tensor, "R H C"]]:
        """The map of a relation's source type followed by that of the relation: one product for both."""
        source, heads = self._source.to(weight.device), (self.heads, self.columns_per_head)
        mapped = of_relation.transpose(2, 3)
        bias = (mapped @ bias.unflatten(1, heads).index_select(0, source).unsqueeze(-1)).squeeze(-1)
        return mapped @ weight.unflatten(1, heads).index_select(0, source), bias

    def _mapped(self, rows: Tensor, self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        kinds = block.dst_types()
        out = typed_linear(functional.gelu(rows), kinds, self.out_weight, self.out_bias)
        if self.skip is None or self_term is None:
            return out
        return out * ops.pick_rows(self.skip.sigmoid().unsqueeze(1), kinds) + self_term
