"""One sampled block, with the edge coefficients that a layer wants to be known at sampling."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from partita.core.keys import Purpose, StepKey
from partita.core.protocols import Topology
from partita.core.records import Block, Coefficients
from partita.kernels import Relabeller


def sample_block(
    topology: Topology,
    requests: Int[Tensor, "D"],
    step_key: StepKey,
    layer: int,
    fanout: int,
    *,
    coefficients: Coefficients = "none",
    relabel: Relabeller | None = None,
    dtype: torch.dtype = torch.float32,
) -> Block:
    """Draw the in-edges of the requested nodes for one layer of one step.

    With ``coefficients="gcn"`` the block carries the symmetric normalisation of Kipf and Welling ("Semi-supervised
    classification with graph convolutional networks", ICLR 2017) with one self loop per node::

        weight_e   = (d_v / k_v) / sqrt(n_u * n_v)     edge u -> v; 0 for a self loop of the data
        own_weight = 1 / n_v                           the one self loop that stands for all

    where n = (in-degree without self loops) + 1, d_v is the in-degree of v (all edges) and k_v the number of its
    sampled edges, so that a uniform sample's sum has the full sum as its expectation. On full neighbourhoods it
    equals PyG's ``GCNConv``.

    Args:
        topology: where to draw.
        requests: distinct store ids.
        step_key: names the step.
        layer: 1 (input side) to K (seed side).
        fanout: neighbours per node, -1 for all.
        coefficients: ``"none"`` or ``"gcn"``.
        relabel: scratch; ``None`` leaves the sources as store ids, not de-duplicated.
        dtype: of the coefficients; they are computed in float64.

    Raises:
        ValueError: with ``relabel``, a node is requested twice.
    """
    dst = requests.to(topology.id_dtype)
    sampled = topology.sample(dst, step_key.at(Purpose.SAMPLE, layer), fanout, relabel=relabel)
    block = Block(
        dst=dst,
        src=sampled.src,
        indptr=sampled.indptr,
        indices=sampled.indices,
        dst_original=topology.original(dst),
        remote=sampled.remote,
    )
    if coefficients == "none":
        return block
    weight, own_weight = topology.gcn_coefficients(block, dtype)
    return block.with_(weight=weight, own_weight=own_weight)
