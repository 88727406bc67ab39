"""Graph convolutional network (Kipf and Welling, ICLR 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from partita import kernels
from partita.core.errors import ConfigError
from partita.core.protocols import EdgeCoefficients, Topology
from partita.core.records import Block, Removed
from partita.nn import initialize
from partita.nn.layers.base import ReducedLayer
from partita.nn.layers.reductions import REDUCTIONS
from partita.nn.matmul import linear
from partita.nn.work import LayerWork


class SymmetricNorm:
    """The symmetric normalization of Kipf and Welling ("Semi-supervised classification with graph convolutional
    networks", ICLR 2017) with one self loop per node::

        weight_e    = (d_v / k_v) / sqrt(n_u * n_v)     edge u -> v; 0 for a self loop of the data
        self_weight = 1 / n_v                            the one self loop that stands for all

    where n = (in-degree without self loops) + 1, d_v is the in-degree of v (all edges) and k_v the number of its
    sampled edges, so that a uniform sample's sum has the full sum as its expectation.
    """

    has_self_weight = True

    def __call__(
        self, topology: Topology, block: Block, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "E"], Float[Tensor, "D"]]:
        """See :class:`partita.core.protocols.EdgeCoefficients`."""
        removed = topology.removed()
        weight, self_weight = kernels.gcn_coefficients(
            topology.degree_offsets, topology.self_loops, block.dst, block.src, block.indptr, block.indices,
            dtype if removed is None else torch.float64,
        )  # fmt: skip
        if removed is None:
            return weight, self_weight
        of_dst, share = _ratios(topology, removed, block.dst)
        src = block.indices if block.src is None else block.src
        of_src, _ = _ratios(topology, removed, src)
        of_edges = of_src if block.src is None else of_src[block.indices.long()]
        at = block.edge_dst()
        return (weight * (share * of_dst.sqrt())[at] * of_edges.sqrt()).to(dtype), (self_weight * of_dst).to(dtype)


class WeightedNorm:
    """The symmetric normalization with the weights w_e of the edges, and their sums over the whole graph as degrees::

        weight_e    = (d_v / k_v) w_e / sqrt(n_u * n_v)   edge u -> v; 0 for a self loop of the data
        self_weight = w_vv / n_v                          w_vv: weight of the last self loop of v, 1 where there is none

    where n_v = w_vv + the sum of the weights of v's other in-edges; 0 where a sum n is not positive. On full
    neighborhoods these are the coefficients of PyG's ``GCNConv`` given ``edge_weight``, which on a sample takes the
    sums of the sample for n.
    """

    has_self_weight = True

    def __call__(
        self, topology: Topology, block: Block, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "E"], Float[Tensor, "D"]]:
        """See :class:`partita.core.protocols.EdgeCoefficients`.

        Raises:
            ConfigError: the store does not know the sums of the weights.
        """
        sums, loops, removed = topology.weight_sums, topology.loop_weights, topology.removed()
        if sums is None or loops is None or block.weight is None:
            raise ConfigError(
                "the sums of the edge weights are not in the store, as an earlier version made it",
                where="edge_weights",
                fix="Ingest the graph again, or partition it from a store that is ingested again",
            )
        drawn, dst_ids = block.indptr.diff(), block.dst.long()
        src = block.indices if block.src is None else block.src[block.indices.long()]
        own, n_src = loops[dst_ids], sums[src.long()] + loops[src.long()]
        n_dst = sums[dst_ids] + own
        if removed is not None:
            weights, lost = removed.of(dst_ids, "weights", "loops")
            own = own.masked_fill(lost > 0, 1.0)
            n_dst = sums[dst_ids] - weights + own
            weights, lost = removed.of(src, "weights", "loops")
            n_src = sums[src.long()] - weights + loops[src.long()].masked_fill(lost > 0, 1.0)
        scale = topology.degrees(block.dst) / drawn.clamp(min=1) * _positive(n_dst).rsqrt()
        at = block.edge_dst()
        weight = scale[at] * block.weight.double() * _positive(n_src).rsqrt()
        weight = weight.masked_fill(src == block.dst[at], 0.0)
        return torch.where(torch.isfinite(weight), weight, 0.0).to(dtype), (own / _positive(n_dst)).to(dtype)


def _ratios(
    topology: Topology, removed: Removed, ids: Int[Tensor, "n"]
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """By what nodes' own weights, and the d_v of their neighbors' weights, change without the removed edges."""
    edges, loops = removed.of(ids, "edges", "loops")
    left = topology.degrees(ids)
    norm = left + edges + 1
    if topology.self_loops is not None:
        norm = norm - topology.self_loops[ids.long()]
    return norm.double() / (norm - edges + loops), left.double() / (left + edges).clamp(min=1)


def _positive(sums: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Infinite where a sum is not positive, so that its reciprocal is 0."""
    return sums.masked_fill(sums <= 0, torch.inf)


class GCN(ReducedLayer):
    """``W (sum of w_uv x_u + w_v x_v) + b``, with ``w_uv = block.weight`` and ``w_v = block.self_weight``.

    The coefficients are those of :class:`SymmetricNorm`. On full neighborhoods this equals PyG's ``GCNConv(in_width,
    out_width, bias=bias)``, which replaces existing loops by one of its own; the parameter names are the same.

    Args:
        in_width: columns of the input.
        out_width: columns of the result.
        bias: whether to add b.
        edge_weights: the coefficients are those of :class:`WeightedNorm`.
    """

    name = "gcn"
    options: ClassVar[frozenset[str]] = frozenset({"edge_weights"})
    coefficients: ClassVar[EdgeCoefficients | None] = SymmetricNorm()

    def __init__(self, in_width: int, out_width: int, *, bias: bool = True, edge_weights: bool = False) -> None:
        super().__init__(in_width, out_width, REDUCTIONS.find("sum"), commutes=True)
        self.edge_weights = edge_weights
        if edge_weights:
            self.edge_columns: Sequence[str] = ("edge_weight",)
            self.coefficients = WeightedNorm()  # type: ignore[misc]
        self.self_joins_state = True
        self.lin = initialize.linear(in_width, out_width, bias=False)
        self.bias = nn.Parameter(torch.empty(out_width)) if bias else None
        self.reset()

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        return {**super().arguments(), "bias": self.bias is not None, "edge_weights": self.edge_weights}

    def work(self) -> LayerWork:
        """See :meth:`Layer.work`: the sum, and ``W`` of it."""
        return self._reducing()

    def pyg_code(self) -> str:
        """See :meth:`Layer.pyg_code`."""
        bias = "" if self.bias is not None else ", bias=False"
        return f"GCNConv({self.in_width}, {self.out_width}{bias})"

    def project(self, rows: Float[Tensor, "n in"]) -> Float[Tensor, "n out"]:
        """``W x``."""
        return self.lin(rows)

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D state"]:
        """``w_v x_v``, projected as the state is.

        Raises:
            ValueError: the sampler put no coefficients on the block.
        """
        weighted = x_dst * _own_weight(block, x_dst)
        return self.project(weighted) if self.projects_state else weighted

    def finish(self, state: Float[Tensor, "D state"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """Add the self term, apply W where it was not yet applied, and add the bias."""
        total = state if self_term is None else state + self_term
        if not self.projects_state:
            return linear(total, self.lin.weight, self.bias)
        return total if self.bias is None else total + self.bias

    def join(
        self, reduced: Float[Tensor, "D in"], x_dst: Float[Tensor, "D in"], block: Block
    ) -> Float[Tensor, "D out"]:
        """See :meth:`ReducedLayer.join`."""
        total = torch.addcmul(reduced, x_dst.to(reduced.dtype), _own_weight(block, reduced))
        return linear(total, self.lin.weight, self.bias)

    def from_columns(
        self, columns: slice, x_src: Float[Tensor, "S slice"], x_dst: Float[Tensor, "D slice"], block: Block
    ) -> Float[Tensor, "D out"]:
        """``W`` sliced, of the weighted sum with the own row.

        Raises:
            ValueError: the sampler put no coefficients on the block.
        """
        total = self.reduction.over(block, x_src) + x_dst * _own_weight(block, x_dst)
        return linear(total, self.lin.weight[:, columns])

    def finish_columns(self, total: Float[Tensor, "D out"], block: Block, key: int | None) -> Float[Tensor, "D out"]:
        """Add the bias."""
        return total if self.bias is None else total + self.bias


def _own_weight(block: Block, like: Tensor) -> Float[Tensor, "D 1"]:
    """The coefficients of the destinations' own rows."""
    if block.weight is None or block.self_weight is None:
        raise ValueError("a GCN layer needs block.weight and block.self_weight; its `coefficients` say so")
    return block.self_weight.to(like.dtype).unsqueeze(1)
