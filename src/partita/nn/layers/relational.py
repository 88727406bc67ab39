"""Layers of typed graphs that sum over relations: R-GCN (Schlichtkrull et al., ESWC 2018), heterogeneous GraphSAGE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partita.core.errors import ConfigError
from partita.core.records import Block, Reduce
from partita.nn import initialize, ops
from partita.nn.encoder import EncodedRows
from partita.nn.layers.base import Layer, Split
from partita.nn.matmul import linear
from partita.nn.ops import Rows
from partita.nn.relations import Pairs, sum_by_relation, typed_linear

Ends = Sequence[Sequence[int]]
"""Of each relation the numbers of the node types that it comes from and leads to."""
ONE_RELATION: Ends = ((0, 0),)
"""Of untyped graphs."""


def checked_ends(relations: Ends, num_types: int) -> tuple[tuple[int, int], ...]:
    """Ends of relations as pairs.

    Raises:
        ConfigError: there is no relation, or one leads to or from a type that there is not.
    """
    pairs = tuple((int(source), int(target)) for source, target in relations)
    if not pairs or not all(0 <= end < num_types for pair in pairs for end in pair):
        raise ConfigError(
            f"relations {[list(pair) for pair in pairs[:5]]} of {num_types} node types",
            where="relations",
            fix="Name for each relation the numbers of the types that it comes from and leads to, counted from 0",
        )
    return pairs


class RelationSum(Split, Layer):
    """A sum over relations, each of a linear map of the neighbors' mean or sum, and an own term.

    The state is the sum over relations, already mapped: a row of ``out_width`` columns, whatever the number of
    relations ("relation aggregation first" of Heta, Zhong et al., PVLDB 18(9), 2025).

    Args:
        in_width: columns of the input.
        out_width: columns of the result.
        num_types: T, node types.
        relations: ends of the R relations.
        reduce: whether neighbors of a relation are averaged or summed.
    """

    reads_relations = True
    composes_encoder = True

    def __init__(self, in_width: int, out_width: int, num_types: int, relations: Ends, reduce: Reduce = "mean") -> None:
        super().__init__(in_width, out_width)
        self.sums = reduce
        self.num_types, self.relations = num_types, checked_ends(relations, num_types)
        self.state_width = out_width
        self.self_joins_state = True

    def relation_weights(self) -> Float[Tensor, "R out in"]:
        """The map of each relation."""
        raise NotImplementedError

    def own_weights(self) -> tuple[Float[Tensor, "T out in"], Float[Tensor, "T out"] | None]:
        """The map of the own row of a node of each type, and its bias."""
        raise NotImplementedError

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        relations = [list(pair) for pair in self.relations]
        return {**super().arguments(), "num_types": self.num_types, "relations": relations}

    def divisible(self, block: Block) -> Block:
        """See :meth:`Split.divisible`: a mean over the k edges of a relation becomes a sum with weights 1/k."""
        if self.sums == "sum" or block.weight is not None:
            return block
        pairs = Pairs.of(block, len(self.relations))
        counts = pairs.block.indptr.diff()
        weight = torch.empty(block.num_edges, dtype=next(self.parameters()).dtype, device=counts.device)
        weight[pairs.edges] = torch.repeat_interleave(counts.to(weight.dtype).reciprocal(), counts)
        return block.with_(weight=weight)

    def message(self, x_src: Float[Tensor, "S in"]) -> Float[Tensor, "S in"]:
        """The row itself."""
        return x_src

    def partial(self, payload: Rows, q: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """See :meth:`Split.partial`."""
        return self._sums(block, ops.all_rows(payload))

    def merge(self, states: Sequence[Float[Tensor, "D out"]]) -> Float[Tensor, "D out"]:
        """See :meth:`Split.merge`."""
        return states[0] if len(states) == 1 else torch.stack(list(states)).sum(0)

    def finish(self, state: Float[Tensor, "D out"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """Add the own term."""
        return state if self_term is None else state + self_term

    def forward(self, block: Block, h: Rows, key: int | None = None) -> Float[Tensor, "D out"]:
        """See :meth:`Layer.forward`."""
        if not isinstance(h, EncodedRows):
            x = ops.all_rows(h)
            return self._sums(block, x) + self.self_term(x[: block.num_dst], block)
        return self._sums(block, h) + h.own_linear(*self.own_weights())

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D out"]:
        """See :meth:`Split.self_term`."""
        return typed_linear(x_dst, block.dst_types(), *self.own_weights())

    def _sums(self, block: Block, h: Float[Tensor, "S in"] | EncodedRows) -> Float[Tensor, "D out"]:
        sources = [source for source, _ in self.relations]
        return sum_by_relation(block, h, self.relation_weights(), sources, mean=self.sums == "mean")


class RGCN(RelationSum):
    """``W_0 x_v + b + sum_r W_r mean_{u in N_r(v)} x_u`` (Schlichtkrull et al., equation 2, with the mean as c_vr).

    With ``bases`` B > 0, ``W_r = sum_b a_rb V_b`` (equation 3). Equals PyG's ``RGCNConv(in_width, out_width, R,
    num_bases=bases or None)``, with parameters of the same names and shapes.

    Args:
        in_width: columns of the input.
        out_width: columns of the result.
        num_types: T, node types.
        relations: ends of the R relations.
        bases: number of bases; 0 for a weight for each relation.
        bias: whether to add b.

    Raises:
        ConfigError: an argument is out of range.
    """

    name = "rgcn"
    options: ClassVar[frozenset[str]] = frozenset({"num_types", "relations", "bases"})

    def __init__(
        self, in_width: int, out_width: int, *, num_types: int = 1, relations: Ends = ONE_RELATION, bases: int = 0,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(in_width, out_width, num_types, relations)
        if bases < 0:
            raise ConfigError(f"{bases} bases", where="bases", fix="Give their number, or 0 for none")
        self.bases = bases
        matrices = bases or len(self.relations)
        self.weight = nn.Parameter(torch.empty(matrices, in_width, out_width))
        self.comp = nn.Parameter(torch.empty(len(self.relations), bases)) if bases else None
        self.root = nn.Parameter(torch.empty(in_width, out_width))
        self.bias = nn.Parameter(torch.empty(out_width)) if bias else None
        self.reset()

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        return {**super().arguments(), "bases": self.bases, "bias": self.bias is not None}

    def pyg_code(self) -> str:
        """See :meth:`Layer.pyg_code`."""
        more = f", num_bases={self.bases}" if self.bases else ""
        more += "" if self.bias is not None else ", bias=False"
        return f"RGCNConv({self.in_width}, {self.out_width}, {len(self.relations)}{more})"

    def pyg_call(self, conv: str) -> str:
        """See :meth:`Layer.pyg_call`."""
        return f"{conv}(x, edge_index, edge_type)"

    def relation_weights(self) -> Float[Tensor, "R out in"]:
        """``W_r``, transposed."""
        weight = self.weight
        if self.comp is not None:
            weight = (self.comp @ weight.flatten(1)).unflatten(1, weight.shape[1:])
        return weight.transpose(1, 2)

    def own_weights(self) -> tuple[Float[Tensor, "T out in"], Float[Tensor, "T out"] | None]:
        """``W_0`` and b, of every type."""
        bias = None if self.bias is None else self.bias.expand(self.num_types, -1)
        return self.root.t().expand(self.num_types, -1, -1), bias

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D out"]:
        """``W_0 x_v + b``."""
        return linear(x_dst, self.root.t(), self.bias)


class HeteroSAGE(RelationSum):
    """``W_t x_v + b_t + sum_r W_r reduce_{u in N_r(v)} x_u``, where t is the type of v.

    What PyG's ``HeteroConv`` of one ``SAGEConv`` for each relation, summed, computes: there every relation has an own
    map and a bias for its destinations, and only their sums over the relations into a type matter, which are ``W_t``
    and ``b_t`` here.

    Args:
        in_width: columns of the input.
        out_width: columns of the result.
        num_types: T, node types.
        relations: ends of the R relations.
        aggregator: ``"mean"`` or ``"sum"``.

    Raises:
        ConfigError: an argument is out of range.
    """

    name = "hetero-sage"
    initial_values: ClassVar[Callable[[nn.Module, int], None]] = staticmethod(initialize.stacked_fan_in)
    options: ClassVar[frozenset[str]] = frozenset({"num_types", "relations", "aggregator"})

    def __init__(
        self, in_width: int, out_width: int, *, num_types: int = 1, relations: Ends = ONE_RELATION,
        aggregator: str = "mean",
    ) -> None:  # fmt: skip
        super().__init__(in_width, out_width, num_types, relations, "sum" if aggregator == "sum" else "mean")
        if aggregator not in ("mean", "sum"):
            raise ConfigError(
                f"the layer '{self.name}' adds up its relations, of which each is a mean or a sum, not '{aggregator}'",
                where="aggregator",
                fix="Use the aggregator mean or sum",
            )
        self.aggregator = aggregator
        self.weight = nn.Parameter(torch.empty(len(self.relations), out_width, in_width))
        self.root = nn.Parameter(torch.empty(num_types, out_width, in_width))
        self.bias = nn.Parameter(torch.empty(num_types, out_width))
        self.reset()

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        return {**super().arguments(), "aggregator": self.aggregator}

    def pyg_code(self) -> str:
        """See :meth:`Layer.pyg_code`."""
        widths = f"{self.in_width}, {self.out_width}"
        neighbors = (
            f'RGCNConv({widths}, {len(self.relations)}, aggr="{self.aggregator}", root_weight=False, bias=False)'
        )
        return f'nn.ModuleDict({{"neighbors": {neighbors}, "own": HeteroLinear({widths}, {self.num_types})}})'

    def pyg_call(self, conv: str) -> str:
        """See :meth:`Layer.pyg_call`."""
        return f'{conv}["neighbors"](x, edge_index, edge_type) + {conv}["own"](x, node_type)'

    def pyg_state(self) -> dict[str, Tensor]:
        """See :meth:`Layer.pyg_state`."""
        neighbors, own = self.weight.transpose(1, 2), self.root.transpose(1, 2)
        return {"neighbors.weight": neighbors, "own.weight": own, "own.bias": self.bias}

    def relation_weights(self) -> Float[Tensor, "R out in"]:
        """``W_r``."""
        return self.weight

    def own_weights(self) -> tuple[Float[Tensor, "T out in"], Float[Tensor, "T out"] | None]:
        """``W_t`` and ``b_t``."""
        return self.root, self.bias
