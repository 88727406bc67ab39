"""``Data``: every worker computes what it needs itself, from its own sampled block. Nothing travels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt64
from torch import Tensor

from partita.core.estimates import LayerEstimate, SampledLayer, layer_rows
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.core.protocols import Inputs, Sampler, Topology
from partita.core.records import Block, LayerRows, Traffic
from partita.features.rows import FeatureColumn
from partita.kernels import rank_masks
from partita.nn.model import Model
from partita.parallel.block_worker import BlockWorker


@dataclass(frozen=True, slots=True)
class DataWork:
    """One sampled block and the step it belongs to."""

    block: Block
    key: StepKey

    @property
    def num_edges(self) -> int:
        """Edges drawn."""
        return self.block.num_edges

    @property
    def num_computed(self) -> int:
        """Rows computed."""
        return self.block.num_dst

    @property
    def rows(self) -> LayerRows:
        """Requests and edges; none of them travels."""
        return LayerRows(destinations=self.block.num_dst, edges=self.block.num_edges) + self.block.remote.rows


class Data:
    """The data-parallel placement. Arguments as :class:`~partita.parallel.block_worker.BlockWorker` has them."""

    collective = False

    def __init__(
        self,
        model: Model,
        topology: Topology,
        inputs: Inputs | FeatureColumn,
        sampler: Sampler | Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.worker = BlockWorker(model, topology, inputs, sampler, dtype)

    def check(self, layer: int) -> None:
        """Any layer can be computed."""

    def expand(self, layer: int, requests: Int[Tensor, "D"], key: StepKey) -> tuple[DataWork, Int[Tensor, "S"]]:
        """Draw one block; see :class:`partita.core.protocols.Placement`."""
        block, below = self.worker.whole(layer, requests, key)
        return DataWork(block, key), below

    def forward(self, layer: int, work: DataWork, h: Tensor | FeatureColumn) -> Float[Tensor, "D F"]:
        """Compute the block; see :class:`partita.core.protocols.Placement`."""
        return self.worker.compute(layer, work.block, h, work.key)

    def estimate(self, layer: int, drawn: SampledLayer, asked: UInt64[np.ndarray, "D"], mesh: Mesh) -> LayerEstimate:
        """Everybody does what it asks for; see :class:`partita.core.protocols.Placement`."""
        destinations, edges = rank_masks.count(asked, mesh.size), rank_masks.count(asked, mesh.size, drawn.degrees)
        return self.worker.estimate(layer, drawn, asked, layer_rows(mesh.size, destinations=destinations, edges=edges))

    def traffic(self, layer: int, rows: LayerRows) -> Traffic:
        """Nothing travels."""
        return Traffic()
