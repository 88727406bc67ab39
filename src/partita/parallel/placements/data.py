"""``Data``: every worker computes what it needs itself, from its own sampled block. Nothing travels."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partita.core.keys import StepKey
from partita.core.records import Block
from partita.features.rows import FeatureColumn
from partita.kernels import Relabeller, transpose
from partita.nn.model import Model
from partita.nn.stage import Stage
from partita.sample.blocks import sample_block
from partita.sample.topology import LocalTopology


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


class Data:
    """The data-parallel placement.

    Args:
        model: gives for each layer what the sampler must put on a block.
        topology: where neighbours are drawn.
        column: the input rows; decides whether layer 1 may sum them by id.
        fanouts: neighbours per layer, layer 1 (input side) first; -1 for all.
        dtype: of edge coefficients.
    """

    def __init__(
        self,
        model: Model,
        topology: LocalTopology,
        column: FeatureColumn,
        fanouts: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.stages = cast("list[Stage]", list(model.stages))
        self.topology = topology
        self.column = column
        self.fanouts = tuple(fanouts)
        self.dtype = dtype
        # Several threads may sample different steps at once; each has a scratch of its own.
        self._local = threading.local()

    def expand(self, layer: int, requests: Int[Tensor, "D"], key: StepKey) -> tuple[DataWork, Int[Tensor, "S"]]:
        """Draw one block; see :class:`partita.core.protocols.Placement`."""
        stage = self.stages[layer - 1]
        by_id = layer == 1 and stage.layer.starts_with_sum and self.column.sums_by_id(training=True)
        block = sample_block(
            self.topology,
            requests,
            key,
            layer,
            self.fanouts[layer - 1],
            coefficients=stage.layer.coefficients,
            relabel=None if by_id else self._scratch(),
            dtype=self.dtype,
        )
        if block.src is None:
            return DataWork(block, key), torch.cat([block.dst, block.indices])
        sources = block.src
        if layer > 1:
            # The backward pass wants the edges by source; sorting them here keeps it off the training thread.
            block = block.with_(transposed=transpose(block.indptr, block.indices, block.num_src))
        elif self.column.dropout > 0:
            block = block.with_(src_original=self.topology.original(sources))
        return DataWork(block, key), sources

    def forward(self, layer: int, work: DataWork, h: Tensor | FeatureColumn) -> Float[Tensor, "D F"]:
        """Compute the block; see :class:`partita.core.protocols.Placement`."""
        rows = h if isinstance(h, Tensor) else h.rows(work.block, work.key)
        return self.stages[layer - 1](work.block, rows, work.key, layer)

    def _scratch(self) -> Relabeller:
        if not hasattr(self._local, "relabeller"):
            self._local.relabeller = Relabeller(self.topology.num_nodes)
        return self._local.relabeller
