"""A placement of one's own: the next worker in the row computes what a worker wants. It has no ``estimate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from partita.comm.axis import Axis
from partita.comm.routing import Route
from partita.core.keys import StepKey
from partita.core.records import ID_BYTES, Traffic
from partita.parallel.block_worker import BlockWork, BlockWorker
from partita.parallel.placements.kinds import PlacementKind


@dataclass(frozen=True, slots=True)
class NextWork(BlockWork):
    """The block that was drawn for another worker, and the way of the own requests."""

    route: Route


@dataclass(frozen=True)
class NextWorker:
    worker: BlockWorker
    axis: Axis
    collective = True

    def check(self, layer: int) -> None:
        """Any layer can be computed."""

    def expand(self, layer: int, requests: Tensor, key: StepKey) -> tuple[NextWork, Tensor]:
        to = torch.full(requests.shape, (self.axis.rank + 1) % self.axis.size)
        route, asked = Route.ask(self.axis.sampling, to, requests)
        block, below = self.worker.whole(layer, asked, key)
        remote = route.remote(self.axis.rank)
        rows = self.worker.layer(layer).out_width * self.worker.dtype.itemsize * remote
        return NextWork(key, block, Traffic(ids=ID_BYTES * remote, forward=rows, backward=rows), route), below

    def forward(self, layer: int, work: NextWork, h: Any) -> Tensor:
        return work.route.answer(self.axis.computing, self.worker.compute(layer, work.block, h, work.key))


KIND = PlacementKind(
    make=lambda worker, axis, columns: NextWorker(worker, axis),
    sentence="the next worker computes the rows that a worker needs",
)
