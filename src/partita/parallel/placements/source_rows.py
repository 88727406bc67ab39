"""Attention by source, by rows: the owners project the sources, the asking worker attends.

A partial state of attention is wide, and needs a query first. Where a batch has few distinct sources beside its pairs
of destination and owner, shipping every projected source once is fewer bytes (APT's SNP does so for GAT always).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, UInt64
from torch import Tensor

from partita import kernels
from partita.comm.routing import Route, RowPick, first_appearance
from partita.core.estimates import SampledLayer, traffic_by_worker
from partita.core.keys import Purpose, StepKey
from partita.core.mesh import Mesh
from partita.core.records import ID_BYTES, Block, Traffic
from partita.features.rows import FeatureColumn
from partita.kernels import rank_masks
from partita.nn.layers import Layer
from partita.parallel.block_worker import BlockWork, Sending, SharedWork, without_edges


@dataclass(frozen=True, slots=True)
class RowsWork(BlockWork):
    """What this worker projects for all, and its own block: the own requests with all their edges.

    Attributes:
        read: the distinct nodes that are projected here, as a block without edges.
        repeats: which of them goes to each who asked.
        route: of the own block's sources.
    """

    read: Block
    repeats: RowPick
    route: Route


class SourceRows(SharedWork):
    """The other way of :class:`~partita.parallel.placements.source.Source`: projected rows of the sources travel."""

    @staticmethod
    def fits(layer: Layer) -> bool:
        """Whether a layer is computed from projected sources, and its states need a query."""
        split, columns = layer.split, layer.columns
        return (
            columns is not None
            and columns.sums_over_columns == "sources"
            and split is not None
            and split.query_width > 0
        )

    def draft(self, layer: int, drawn: Block) -> tuple[Traffic, Sending]:
        """Bytes to send for a drawn block whose sources are store ids, and what sends them."""
        src, place = first_appearance(torch.cat([drawn.dst, drawn.indices]))
        owner = self.axis.owner(src)
        traffic = self.traffic(layer, int((owner != self.axis.rank).sum()))
        block = drawn.with_(src=src, indices=place[drawn.num_dst :].int())
        return traffic, partial(self.expand, layer, block, owner, traffic)

    def expand(
        self, layer: int, block: Block, owner: Int64[Tensor, "S"], traffic: Traffic, key: StepKey
    ) -> tuple[RowsWork, Int[Tensor, "r"]]:
        """Ask the owners for a block's sources; returns the store ids whose rows this worker projects."""
        assert block.src is not None
        route, asked = Route.ask(self.axis.sampling, owner, block.src)
        below, place = first_appearance(asked)
        # The order of the edges by source serves the gradient of the projected rows, whatever the layer.
        block = self.worker.prepared(layer + 1, block)
        read = self.worker.prepared(layer, without_edges(block, below))  # projecting draws nothing
        return RowsWork(key, block, traffic, read, RowPick.of(place, below.shape[0]), route), below

    def forward(self, layer: int, work: RowsWork, h: Tensor | FeatureColumn) -> Float[Tensor, "D F"]:
        """Project, ship, attend."""
        stage, module = self.worker.stages[layer - 1], self.worker.columns(layer)
        x = h if isinstance(h, Tensor) else h.rows(work.read, work.key).all()
        projected = kernels.widened(module.from_columns(slice(0, stage.layer.in_width), x, x[:0], work.read))
        arrived = work.route.answer(self.axis.computing, work.repeats(projected))
        rows = module.finish_columns(arrived, work.block, work.key.at(Purpose.ATTENTION_DROPOUT, layer))
        return stage.post(rows, work.block.dst_original, work.key, layer)

    def estimated_traffic(
        self, layer: int, drawn: SampledLayer, asked: UInt64[np.ndarray, "D"], mesh: Mesh
    ) -> tuple[list[Traffic], list[Traffic]]:
        """Bytes for the requests of each worker, and what of these goes from one host to another; arguments as for
        :class:`partita.core.protocols.Estimator`."""
        ranks = self.groups(mesh)
        home = ranks.at_position(self.axis.owner(drawn.src))
        wanted = rank_masks.to_sources(drawn.indptr, drawn.indices, asked, len(drawn.src))
        all_, far = (
            traffic_by_worker(partial(self.traffic, layer), rank_masks.count(wanted & ~there, mesh.size))
            for there in (home, ranks.whole_hosts(home))
        )
        return all_, far

    def traffic(self, layer: int, remote_sources: int) -> Traffic:
        """An id, a projected row and its gradient for every distinct source that another worker owns."""
        rows = self.worker.dtype.itemsize * self.worker.columns(layer).column_width * remote_sources
        return Traffic(ids=ID_BYTES * remote_sources, forward=rows, backward=rows)
