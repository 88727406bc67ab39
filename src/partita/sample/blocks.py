"""One sampled block, with the edge coefficients that a layer wants to be known at sampling."""

from __future__ import annotations

import torch
from jaxtyping import Int, Int64, Num
from torch import Tensor

from partita import kernels
from partita.core.keys import Purpose, StepKey
from partita.core.protocols import EdgeCoefficients, Sampler, Topology
from partita.core.records import Block, Reduce
from partita.kernels import Relabeller
from partita.sample.samplers import Fanout


def sample_block(
    topology: Topology,
    requests: Int[Tensor, "D"],
    step_key: StepKey,
    layer: int,
    sampler: Sampler | int,
    *,
    coefficients: EdgeCoefficients | None = None,
    reduce: Reduce | None = None,
    relabel: Relabeller | None = None,
    dtype: torch.dtype = torch.float32,
) -> Block:
    """Draw the in-edges of the requested nodes for one layer of one step.

    Where the sampler gives importances i_e, they take the place of the d_v / k_v of
    :class:`~partita.core.protocols.EdgeCoefficients`; for layers without coefficients ::

        weight_e = i_e            of a sum over the neighbors
        weight_e = i_e / d_v      of their mean

    Where the sampler gives shares, they are the weights, of a sum as of a mean.

    Layers that are no weighted sum (a maximum, attention, convolutions of others) work on the drawn edges as they
    are, without weights.

    Args:
        topology: where to draw.
        requests: distinct store ids.
        step_key: names the step.
        layer: 1 (input side) to K (seed side).
        sampler: what is drawn; a number stands for a fanout of neighbors per node, -1 for all.
        coefficients: what the layer wants on its edges; ``None`` for nothing.
        reduce: how the layer joins its neighbors, see :attr:`partita.nn.layers.base.Layer.sums`.
        relabel: scratch; ``None`` leaves the sources as store ids, not de-duplicated.
        dtype: of the coefficients; they are computed in float64.

    Raises:
        ValueError: with ``relabel``, a node is requested twice; or what is drawn can have no ``coefficients``.
    """
    dst = requests.to(topology.id_dtype)
    key = step_key.at(Purpose.SAMPLE, layer)
    if isinstance(sampler, int):
        sampled = topology.at_owners(dst, Fanout(key, sampler))
    else:
        sampled = sampler.draw(topology, dst, key, layer)
    src, indices = (None, sampled.indices) if relabel is None else kernels.relabel(dst, sampled.indices, relabel)
    block = Block(
        dst=dst,
        src=src,
        indptr=sampled.indptr,
        indices=indices,
        dst_original=topology.original(dst),
        remote=sampled.remote,
        edge_type=sampled.edge_type,
        node_types=topology.node_types,
    )
    if sampled.visit_weight is not None:
        if coefficients is not None:
            raise ValueError("the sampled neighbors are not edges of the graph, so they have no coefficients")
        return block if reduce is None else block.with_(weight=sampled.visit_weight.to(dtype))
    importance = sampled.importance
    if coefficients is not None:
        weight, self_weight = coefficients(topology, block, dtype if importance is None else torch.float64)
        if importance is not None:
            drawn = block.indptr.diff()
            weight = weight * importance * _to_edges(drawn / topology.degrees(dst), drawn)
        return block.with_(weight=weight.to(dtype), self_weight=None if self_weight is None else self_weight.to(dtype))
    if importance is None or reduce is None:
        return block
    if reduce == "mean":
        importance = importance / _to_edges(topology.degrees(dst), block.indptr.diff())
    return block.with_(weight=importance.to(dtype))


def _to_edges(values: Num[Tensor, "D"], counts: Int64[Tensor, "D"]) -> Num[Tensor, "E"]:
    """Give every edge its destination's value."""
    return torch.repeat_interleave(values.double(), counts)
