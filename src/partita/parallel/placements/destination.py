"""``Destination``: the owner of a node computes its row, once, however many workers ask for it.

The vertex splits of GSplit (Polisetty et al.), at every layer, and APT's DNP, at layer 1. Ids travel down, rows up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt64
from torch import Tensor

from partita.comm.axis import Axis
from partita.comm.routing import Route, RowPick, first_appearance
from partita.core.estimates import LayerEstimate, SampledLayer, layer_rows
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.core.protocols import Inputs, Sampler, Topology
from partita.core.rank_masks import RankMasks
from partita.core.records import Block, LayerRows, Traffic
from partita.features.rows import FeatureColumn
from partita.kernels import rank_masks
from partita.nn.model import Model
from partita.parallel.block_worker import BlockWorker

ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class DestinationWork:
    """What the owner computes, and the way back to those who asked.

    Attributes:
        block: of the distinct nodes that were asked of this worker.
        key: names the step.
        route: of this worker's own requests.
        repeats: gives every asker its row where several asked for the same; ``None`` where nobody did.
        rows: this worker's own requests.
    """

    block: Block
    key: StepKey
    route: Route
    repeats: RowPick | None
    rows: LayerRows

    @property
    def num_edges(self) -> int:
        """Edges drawn, here, for all who asked."""
        return self.block.num_edges

    @property
    def num_computed(self) -> int:
        """Rows computed, each of them once."""
        return self.block.num_dst


class Destination:
    """The placement by destination.

    Args:
        model, topology, inputs, sampler, dtype: as :class:`~partita.parallel.block_worker.BlockWorker` has them.
        axis: the workers, and who of them owns which node.
    """

    collective = True

    def __init__(
        self,
        model: Model,
        topology: Topology,
        inputs: Inputs | FeatureColumn,
        sampler: Sampler | Sequence[int],
        dtype: torch.dtype,
        axis: Axis,
    ) -> None:
        self.worker = BlockWorker(model, topology, inputs, sampler, dtype)
        self.axis = axis

    def check(self, layer: int) -> None:
        """Any layer can be computed: every edge of a destination is at its owner."""

    def expand(self, layer: int, requests: Int[Tensor, "D"], key: StepKey) -> tuple[DestinationWork, Int[Tensor, "S"]]:
        """Send the requests to their owners and draw what is asked here; see the protocol.

        Any worker would draw the same sample for a node, so the owner draws it for all. What is asked is
        de-duplicated by first appearance: a single worker computes exactly what ``Data`` does.
        """
        axis = self.axis
        route, asked = Route.ask(axis.sampling, axis.owner(requests), requests)
        repeats = None
        if axis.size > 1:
            distinct, place = first_appearance(asked)
            if len(distinct) < len(asked):
                repeats = RowPick.of(place, len(distinct))
                asked = distinct
        block, below = self.worker.whole(layer, asked, key)
        rows = LayerRows(destinations=len(requests), remote_destinations=route.remote(axis.rank))
        rows += block.remote.rows
        return DestinationWork(block, key, route, repeats, rows), below

    def forward(self, layer: int, work: DestinationWork, h: Tensor | FeatureColumn) -> Float[Tensor, "D F"]:
        """Compute the block and answer; see the protocol."""
        rows = self.worker.compute(layer, work.block, h, work.key)
        if work.repeats is not None:
            rows = work.repeats(rows)
        return work.route.answer(self.axis.computing, rows)

    def estimate(self, layer: int, drawn: SampledLayer, asked: UInt64[np.ndarray, "D"], mesh: Mesh) -> LayerEstimate:
        """Owners do what anybody of their group asks for; see the protocol."""
        ranks = RankMasks.of(mesh, self.axis.sampling.workers)
        home = ranks.at_position(self.axis.owner(drawn.dst))
        rows = layer_rows(
            mesh.size,
            destinations=rank_masks.count(asked, mesh.size),
            remote_destinations=rank_masks.count(asked & ~home, mesh.size),
        )
        return self.worker.estimate(layer, drawn, ranks.whole_groups(asked) & home, rows)

    def traffic(self, layer: int, rows: LayerRows) -> Traffic:
        """An id, an output row and its gradient for every remote request."""
        row_bytes = self.worker.stages[layer - 1].layer.out_width * self.worker.dtype.itemsize
        sent = rows.remote_destinations
        return Traffic(ids=ID_BYTES * sent, forward=row_bytes * sent, backward=row_bytes * sent)
