"""One sampled block, with the edge coefficients that a layer wants to be known at sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Int64, Num
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
    edge_columns: Sequence[str] = (),
    fills_loops: bool = False,
    relabel: Relabeller | None = None,
    dtype: torch.dtype = torch.float32,
) -> Block:
    """Draw the in-edges of the requested nodes for one layer of one step.

    Where the sampler gives importances i_e, they take the place of the d_v / k_v of
    :class:`~partita.core.protocols.EdgeCoefficients`; for layers without coefficients ::

        weight_e = i_e            of a sum over the neighbors
        weight_e = i_e / d_v      of their mean

    where d_v is the number of in-edges of v; of a layer that joins the relations of a typed graph one by one, of those
    along the relation of e.

    Where the sampler gives shares, they are the weights, of a sum as of a mean.

    Where the layer reads the weights w_e of the edges, they multiply its neighbors' rows: the weights above, or 1 in a
    sum over k sampled edges and 1 / k in their mean, are multiplied by w_e.

    Layers that are no weighted sum (a maximum, attention, convolutions of others) work on the drawn edges as they
    are, without weights.

    Args:
        topology: where to draw.
        requests: distinct store ids.
        step_key: names the step, and the edges that carry no messages in it: draws, degrees and coefficients are those
            of the graph without them.
        layer: 1 (input side) to K (seed side).
        sampler: what is drawn; a number stands for a fanout of neighbors per node, -1 for all.
        coefficients: what the layer wants on its edges; ``None`` for nothing.
        edge_columns: what of its edges the layer reads, see :attr:`partita.nn.layers.base.Layer.edge_columns`; and
            :data:`~partita.sample.topology.RELATION_DEGREE`, where it takes a mean for each relation of edges that have
            importances.
        fills_loops: the loops that the layer adds have features, see there.
        reduce: how the layer joins its neighbors, see :attr:`partita.nn.layers.base.Layer.sums`.
        relabel: scratch; ``None`` leaves the sources as store ids, not de-duplicated.
        dtype: of the coefficients; they are computed in float64.

    Raises:
        ValueError: with ``relabel``, a node is requested twice; or what is drawn can have no ``coefficients``.
    """
    dst = requests.to(topology.id_dtype)
    key = step_key.at(Purpose.SAMPLE, layer)
    if step_key.times is not None:
        topology = topology.at_times(step_key.times)
    if step_key.excluded is not None:
        topology = topology.without(step_key.excluded)
    if edge_columns:
        topology = topology.drawing(edge_columns)
    if isinstance(sampler, int):
        sampled = topology.at_owners(dst, Fanout(key, sampler))
    else:
        sampled = sampler.at_step(step_key).draw(topology, dst, key, layer)
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
        weight=None if sampled.edge_weight is None else sampled.edge_weight.to(dtype),
        edge_attr=None if sampled.edge_attr is None else sampled.edge_attr.to(dtype),
    )
    if fills_loops:
        block = block.with_(loop_attr=_loop_attr(block))
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
    if reduce is None or (importance is None and block.weight is None):
        return block
    if reduce == "mean":
        drawn = block.indptr.diff()
        if sampled.relation_degree is not None:
            share = sampled.relation_degree.double().reciprocal()
        else:
            share = _to_edges((drawn if importance is None else topology.degrees(dst)).double().reciprocal(), drawn)
        importance = share if importance is None else importance * share
    if block.weight is not None:
        weight = block.weight.double() if importance is None else importance * block.weight.double()
        return block.with_(weight=weight.to(dtype))
    return block if importance is None else block.with_(weight=importance.to(dtype))


def _loop_attr(block: Block) -> Float[Tensor, "D A"]:
    """The mean of the features of each destination's edges, loops left out; summed in their order."""
    assert block.edge_attr is not None
    src = block.indices if block.src is None else block.src[block.indices.long()]
    kept = (src != block.dst[block.edge_dst()]).to(block.edge_attr.dtype)
    positions = torch.arange(block.num_edges, device=kept.device)
    sums = kernels.aggregate(block.edge_attr.contiguous(), block.indptr, positions, kept, reduce="sum")
    counts = kernels.aggregate(kept.unsqueeze(1), block.indptr, positions, reduce="sum")
    return sums / counts.clamp(min=1)


def _to_edges(values: Num[Tensor, "D"], counts: Int64[Tensor, "D"]) -> Num[Tensor, "E"]:
    """Give every edge its destination's value."""
    return torch.repeat_interleave(values.double(), counts)
