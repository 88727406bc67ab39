"""Drawing and computing blocks: what every placement does on the worker that it gives a row to."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partita.comm.routing import tie
from partita.core.keys import StepKey
from partita.core.protocols import Inputs, Topology
from partita.core.records import Block
from partita.features.rows import FeatureColumn
from partita.kernels import Relabeller, transpose
from partita.nn.model import Model
from partita.nn.stage import Stage
from partita.sample.blocks import sample_block


class BlockWorker:
    """Draws blocks and computes them.

    Args:
        model: computes; says for each layer what the sampler must put on a block.
        topology: where neighbours are drawn.
        inputs: level 0, or the feature column where every worker reads its own rows; decides whether layer 1 may
            sum rows by id.
        fanouts: neighbours per layer, layer 1 (input side) first; -1 for all.
        dtype: of edge coefficients.
    """

    def __init__(
        self,
        model: Model,
        topology: Topology,
        inputs: Inputs | FeatureColumn,
        fanouts: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.stages = cast("list[Stage]", list(model.stages))
        self.topology = topology
        self.inputs = inputs
        self.fanouts = tuple(fanouts)
        self.dtype = dtype
        # Several threads may sample different steps at once; each has a scratch of its own.
        self._local = threading.local()

    def by_id(self, layer: int) -> bool:
        """Whether the layer sums input rows straight by store id."""
        return layer == 1 and self.stages[0].layer.starts_with_sum and self.inputs.sums_by_id(training=True)

    def draw(self, layer: int, requests: Int[Tensor, "D"], key: StepKey, *, relabel: bool) -> Block:
        """Draw one block; with ``relabel`` its sources are de-duplicated."""
        return sample_block(
            self.topology,
            requests,
            key,
            layer,
            self.fanouts[layer - 1],
            coefficients=self.stages[layer - 1].layer.coefficients,
            relabel=self._scratch() if relabel else None,
            dtype=self.dtype,
        )

    def whole(
        self, layer: int, requests: Int[Tensor, "D"], key: StepKey, *, relabel: bool = False
    ) -> tuple[Block, Int[Tensor, "S"]]:
        """Draw a block to compute at one place, its sources de-duplicated unless they are summed by id.

        Args:
            layer: 1 (input side) to K.
            requests: distinct store ids.
            key: names the step.
            relabel: de-duplicate in any case.

        Returns:
            The block, and the store ids whose rows of the layer below it needs.
        """
        block = self.draw(layer, requests, key, relabel=relabel or not self.by_id(layer))
        if block.src is None:
            return block, torch.cat([block.dst, block.indices])
        return self.prepared(layer, block), block.src

    def prepared(self, layer: int, block: Block) -> Block:
        """The block with what computing it will want, worked out here to keep it off the training thread."""
        if layer > 1:
            # The backward pass wants the edges by source.
            return block.with_(transposed=transpose(block.indptr, block.indices, block.num_src))
        if self.inputs.dropout > 0 and block.src is not None:
            return block.with_(src_original=self.topology.original(block.src))
        return block

    def compute(self, layer: int, block: Block, h: Tensor | FeatureColumn, key: StepKey) -> Float[Tensor, "D F"]:
        """Rows of the block's destinations, from rows of its sources."""
        rows: Any = h if isinstance(h, Tensor) else h.rows(block, key)
        out = self.stages[layer - 1](block, rows, key, layer)
        # A layer of others may skip its input where there is nothing to do, but the workers below wait for gradients.
        return tie(out, h) if isinstance(h, Tensor) else out

    def _scratch(self) -> Relabeller:
        if not hasattr(self._local, "relabeller"):
            self._local.relabeller = Relabeller(self.topology.num_nodes)
        return self._local.relabeller
