"""``Data``: every worker computes what it needs itself, from its own sampled block. Nothing travels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt64
from torch import Tensor

from partita.core.estimates import LayerEstimate, SampledLayer
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.core.records import Traffic
from partita.features.rows import FeatureColumn
from partita.nn.encoder import Encoding
from partita.parallel.block_worker import BlockWork, BlockWorker
from partita.parallel.placements.kinds import PlacementKind


@dataclass(frozen=True)
class Data:
    """The data-parallel placement.

    Attributes:
        worker: draws and computes.
    """

    worker: BlockWorker
    collective = False

    def check(self, layer: int) -> None:
        """Any layer can be computed."""

    def expand(self, layer: int, requests: Int[Tensor, "D"], key: StepKey) -> tuple[BlockWork, Int[Tensor, "S"]]:
        """Draw one block; see :class:`partita.core.protocols.Placement`."""
        block, below = self.worker.whole(layer, requests, key)
        return BlockWork(key, block, Traffic()), below

    def forward(self, layer: int, work: BlockWork, h: Tensor | FeatureColumn | Encoding) -> Float[Tensor, "D F"]:
        """Compute the block; see :class:`partita.core.protocols.Placement`."""
        return self.worker.compute(layer, work.block, h, work.key)

    def estimate(self, layer: int, drawn: SampledLayer, asked: UInt64[np.ndarray, "D"], mesh: Mesh) -> LayerEstimate:
        """Everybody does what it asks for; see :class:`partita.core.protocols.Estimator`."""
        nothing = [Traffic()] * mesh.size
        return self.worker.estimate(layer, drawn, asked, nothing, nothing)


KIND = PlacementKind(
    make=lambda worker, axis, columns: Data(worker),
    sentence="every worker computes the rows that it needs itself",
    collective=False,
)
