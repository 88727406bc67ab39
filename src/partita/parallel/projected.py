"""Attention by source, the other way: the owners project the sources, the asking worker attends.

A partial state of attention is wide, and needs a query first. Where a batch has few distinct sources beside its pairs
of destination and owner, shipping every projected source once is fewer bytes (APT's SNP does so for GAT always).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partita import kernels
from partita.comm.axis import Axis
from partita.comm.routing import Route, RowPick, first_appearance
from partita.core.keys import Purpose, StepKey
from partita.core.records import Block, LayerRows, Traffic
from partita.features.rows import FeatureColumn
from partita.nn.layers import Layer
from partita.parallel.block_worker import BlockWorker

ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class ProjectedWork:
    """What this worker projects for all, and its own block.

    Attributes:
        key: names the step.
        block: the own requests with all their edges.
        read: the distinct nodes that are projected here, as a block without edges.
        repeats: which of them goes to each who asked.
        route: of the own block's sources.
        rows: the own requests.
    """

    key: StepKey
    block: Block
    read: Block
    repeats: RowPick
    route: Route
    rows: LayerRows

    @property
    def num_edges(self) -> int:
        """Edges drawn, by the asking worker."""
        return self.block.num_edges

    @property
    def num_computed(self) -> int:
        """Rows finished, by the asking worker."""
        return self.block.num_dst


def can_project(layer: Layer) -> bool:
    """Whether the layer is computed from projected sources, and its states need a query."""
    return layer.sums_over_columns == "sources" and layer.query_width > 0


def relabeled(block: Block) -> Block:
    """The same block with its sources de-duplicated, the destinations first."""
    src, place = first_appearance(torch.cat([block.dst, block.indices]))
    return block.with_(src=src, indices=place[block.num_dst :].int())


def remote_sources(block: Block, axis: Axis) -> int:
    """Distinct sources of a relabeled block that other workers own, destinations included."""
    assert block.src is not None
    return int((axis.owner(block.src) != axis.rank).sum())


def expand(
    worker: BlockWorker, layer: int, block: Block, axis: Axis, key: StepKey
) -> tuple[ProjectedWork, Int[Tensor, "S"]]:
    """Ask the owners of a relabeled block's sources; returns the store ids whose rows this worker projects."""
    assert block.src is not None
    route, asked = Route.ask(axis.sampling, axis.owner(block.src), block.src)
    below, place = first_appearance(asked)
    # The order of the edges by source serves the gradient of the projected rows, whatever the layer.
    block = worker.prepared(layer + 1, block)
    read = Block(
        dst=below,
        src=below,
        indptr=block.indptr.new_zeros(below.shape[0] + 1),
        indices=block.indices[:0],
        dst_original=below,  # projecting draws nothing
    )
    rows = LayerRows(
        destinations=block.num_dst, edges=block.num_edges, remote_sources=route.remote(axis.rank)
    )  # fmt: skip
    work = ProjectedWork(
        key=key,
        block=block,
        read=worker.prepared(layer, read),
        repeats=RowPick.of(place, below.shape[0]),
        route=route,
        rows=rows + block.remote.rows,
    )
    return work, below


def forward(
    worker: BlockWorker, layer: int, work: ProjectedWork, h: Tensor | FeatureColumn, axis: Axis
) -> Float[Tensor, "D F"]:
    """Project, ship, attend."""
    stage = worker.stages[layer - 1]
    module = stage.layer
    x = h if isinstance(h, Tensor) else h.rows(work.read, work.key).all()
    projected = kernels.widened(module.from_columns(slice(0, module.in_width), x, x[:0], work.read))
    arrived = work.route.answer(axis.computing, work.repeats(projected))
    rows = module.finish_columns(arrived, work.block, work.key.at(Purpose.ATTENTION_DROPOUT, layer))
    return stage.post(rows, work.block.dst_original, work.key, layer)


def traffic(layer: Layer, rows: LayerRows, item: int) -> Traffic:
    """An id, a projected row and its gradient for every remote source."""
    row_bytes = item * layer.column_width * rows.remote_sources
    return Traffic(ids=ID_BYTES * rows.remote_sources, forward=row_bytes, backward=row_bytes)
