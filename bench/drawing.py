"""What several benchmarks do: draw all layers of a step."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from partita.core.keys import StepKey
from partita.core.protocols import Topology
from partita.kernels import Relabeller
from partita.sample.blocks import sample_block


def draw(
    topology: Topology, requests: Tensor, key: StepKey, fanouts: Sequence[int], scratch: Relabeller
) -> tuple[int, int]:
    """All layers of a step, their sources numbered; returns how many edges were drawn, and sources of layer 1.

    Args:
        topology: where.
        requests: what is asked for, distinct.
        key: names the step.
        fanouts: layer 1 (input side) first.
        scratch: numbers the sources.
    """
    edges = 0
    for layer in range(len(fanouts), 0, -1):
        block = sample_block(topology, requests, key, layer, fanouts[layer - 1], relabel=scratch)
        assert block.src is not None
        requests, edges = block.src, edges + block.num_edges
    return edges, len(requests)
