"""``Destination``: the owner of a node computes its row, once, however many workers ask for it.

The vertex splits of GSplit (Polisetty et al.), at every layer, and APT's DNP, at layer 1. Ids travel down, rows up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, Int, UInt64
from torch import Tensor

from partita.comm.routing import Route, RowPick, first_appearance
from partita.core.estimates import LayerEstimate, SampledLayer, traffic_by_worker
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.core.records import ID_BYTES, Traffic
from partita.features.rows import FeatureColumn
from partita.kernels import rank_masks
from partita.nn.encoder import Encoding
from partita.parallel.block_worker import BlockWork, SharedWork
from partita.parallel.placements.kinds import CacheRule, PlacementKind


@dataclass(frozen=True, slots=True)
class DestinationWork(BlockWork):
    """What the owner computes, and the way back to those who asked.

    Its block is of the distinct nodes that were asked of this worker; its traffic, for this worker's own requests.

    Attributes:
        route: of this worker's own requests.
        repeats: gives every asker its row where several asked for the same; ``None`` where nobody did.
    """

    route: Route
    repeats: RowPick | None


class Destination(SharedWork):
    """The placement by destination."""

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
        return DestinationWork(key, block, self.traffic(layer, route.remote(axis.rank)), route, repeats), below

    def forward(self, layer: int, work: DestinationWork, h: Tensor | FeatureColumn | Encoding) -> Float[Tensor, "D F"]:
        """Compute the block and answer; see the protocol."""
        rows = self.worker.compute(layer, work.block, h, work.key)
        if work.repeats is not None:
            rows = work.repeats(rows)
        return work.route.answer(self.axis.computing, rows)

    def estimate(self, layer: int, drawn: SampledLayer, asked: UInt64[np.ndarray, "D"], mesh: Mesh) -> LayerEstimate:
        """Owners do what anybody of their group asks for; see :class:`partita.core.protocols.Estimator`."""
        ranks = self.groups(mesh)
        home = ranks.at_position(self.axis.owner(drawn.dst))
        traffic, far = (
            traffic_by_worker(partial(self.traffic, layer), rank_masks.count(asked & ~there, mesh.size))
            for there in (home, ranks.whole_hosts(home))
        )
        return self.worker.estimate(layer, drawn, ranks.whole_groups(asked) & home, traffic, far)

    def traffic(self, layer: int, remote_destinations: int) -> Traffic:
        """An id, an output row and its gradient for every request to another worker than the asking one."""
        rows = self.worker.layer(layer).out_width * self.worker.dtype.itemsize * remote_destinations
        return Traffic(ids=ID_BYTES * remote_destinations, forward=rows, backward=rows)


KIND = PlacementKind(
    make=lambda worker, axis, columns: Destination(worker, axis),
    sentence="rows are computed by the worker that owns the node, once, and sent to those who need them",
    needs_owners=True,
    cache_rule=CacheRule(counts="own"),
)
