"""Full-graph inference, one layer after the other, all neighbours, in node blocks within a memory budget.

Layer by layer every row is computed once, where sampling backwards from the seeds would compute most rows of a
small graph many times. Hidden layers that do not fit into the budget are spilled to disk and mapped back.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from partita.core import progress
from partita.core.errors import ResourceError, is_disk_full
from partita.core.keys import StepKey
from partita.core.memory import available_bytes
from partita.features.rows import FeatureColumn
from partita.kernels import Relabeller
from partita.nn.layers import Layer
from partita.nn.model import Model, Stage
from partita.sample.blocks import sample_block
from partita.sample.topology import LocalTopology

_ALL_NEIGHBOURS = -1
# With all neighbours nothing is drawn, so any key will do.
_NO_KEY = StepKey(seed=0, epoch=0, step=0)
# Larger blocks are slower: their temporaries leave the cache and are mapped afresh each time.
_BLOCK_BYTES = 64 * 2**20


def default_memory_limit() -> int:
    """A quarter of the memory that is available now, in bytes."""
    return max(available_bytes() // 4, 64 * 2**20)


@dataclass(frozen=True, slots=True)
class OutputRows:
    """Rows of the last layer for some nodes.

    Attributes:
        ids: (R) store ids.
        output: (R, C) what the model says.
        embedding: (R, F) the rows of these nodes that went into the last layer.
    """

    ids: Int[Tensor, "R"]
    output: Float[Tensor, "R C"]
    embedding: Float[Tensor, "R F"]


class LayerwiseInference:
    """Computes a model's output for any nodes of a store, exactly.

    Args:
        model: in any mode; it is evaluated without dropout.
        topology: must hold all in-neighbours of all nodes.
        column: the input rows.
        memory_limit: bytes of private memory for hidden layers and node blocks together.
        scratch: directory for spilled layers; default the system's.
    """

    def __init__(
        self,
        model: Model,
        topology: LocalTopology,
        column: FeatureColumn,
        *,
        memory_limit: int | None = None,
        scratch: Path | None = None,
    ) -> None:
        self.model = model
        self.topology = topology
        self.column = column
        self.memory_limit = memory_limit or default_memory_limit()
        self._scratch = scratch
        self._relabeller = Relabeller(topology.num_nodes)

    def run(self, ids: Int[Tensor, "R"] | None = None) -> Iterator[OutputRows]:
        """Yield the output of the given nodes (default: all), block by block, in the order given.

        Raises:
            ResourceError: no disk space for a layer that has to be spilled.
        """
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                yield from self._run(ids)
        finally:
            self.model.train(training)

    def _run(self, ids: Tensor | None) -> Iterator[OutputRows]:
        num_nodes, stages = self.topology.num_nodes, cast("list[Stage]", list(self.model.stages))
        everyone = torch.arange(num_nodes, dtype=self.topology.id_dtype)
        column = self.column
        wanted = everyone if ids is None else ids.to(self.topology.id_dtype)
        with progress.task("infer", total=num_nodes * (len(stages) - 1) + len(wanted), unit="nodes") as task:
            for number, stage in enumerate(stages[:-1], start=1):
                hidden = self._allocate(f"hidden layer {number}", num_nodes, stage.layer.out_width)
                for start, rows in self._layer(stage, number, column, everyone):
                    hidden[start : start + len(rows)] = rows
                    task.advance(len(rows))
                column = FeatureColumn(hidden, dtype=self.column.dtype)
            for start, rows in self._layer(stages[-1], len(stages), column, wanted):
                part = wanted[start : start + len(rows)]
                task.advance(len(rows))
                yield OutputRows(part, rows, column.x[part.long()])

    def _layer(self, stage: Stage, number: int, column: FeatureColumn, ids: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Compute one layer for ``ids``; yields (position in ids, rows)."""
        layer = stage.layer
        messages = self._messages(layer, number, column)
        by_id = layer.starts_with_sum if messages is None else layer.sums_messages
        for start, stop in self._node_blocks(layer, column.width, ids, by_id):
            block = sample_block(
                self.topology,
                ids[start:stop],
                _NO_KEY,
                number,
                _ALL_NEIGHBOURS,
                coefficients=layer.coefficients,
                relabel=None if by_id else self._relabeller,
                dtype=column.dtype,
            )
            rows = column.rows(block, None)
            if messages is None:
                yield start, stage(block, rows, None, number)
                continue
            x_dst, payload = rows.own(), messages.rows(block, None)
            state = layer.partial(payload if by_id else payload.all(), layer.query(x_dst), block)
            yield start, stage.post(layer.finish(state, layer.own(x_dst, block)), block.dst_original, None, number)

    def _messages(self, layer: Layer, number: int, column: FeatureColumn) -> FeatureColumn | None:
        """What every node sends along its edges, where that is not simply its row: computed once per node."""
        if layer.message_width is None:
            return None
        num_nodes = self.topology.num_nodes
        messages = self._allocate(f"messages of layer {number}", num_nodes, layer.message_width)
        row_bytes = column.dtype.itemsize * (column.width + 2 * layer.message_width)
        step = max(1, min(self.memory_limit // 4, _BLOCK_BYTES) // row_bytes)
        for start in range(0, num_nodes, step):
            ids = torch.arange(start, min(start + step, num_nodes), dtype=self.topology.id_dtype)
            messages[start : start + step] = layer.message(column.read(ids))
        return FeatureColumn(messages, dtype=column.dtype)

    def _node_blocks(self, layer: Layer, width: int, ids: Tensor, by_id: bool) -> Iterator[tuple[int, int]]:
        """Cut ``ids`` so that what one block needs stays within a quarter of the budget (hidden layers get half)."""
        item = self.column.dtype.itemsize
        # Own row, sum and their sum; then a handful of copies on the way through linear maps, norm and activation.
        row_bytes = item * (3 * width + 6 * layer.out_width)
        edge_bytes = 24 if by_id else 24 + item * ((layer.message_width or width) + 2 * layer.state_width)
        budget = self.memory_limit // 4
        if by_id:
            budget = min(budget, _BLOCK_BYTES)  # others share more sources, and copy less, the larger a block is
        cost = torch.cumsum(self.topology.degrees(ids).long() * edge_bytes + row_bytes, dim=0)
        start = 0
        while start < len(ids):
            spent = int(cost[start - 1]) if start else 0
            stop = int(torch.searchsorted(cost, spent + budget, right=True))
            stop = max(stop, start + 1)
            yield start, stop
            start = stop

    def _allocate(self, what: str, rows: int, width: int) -> Tensor:
        """Room for rows of all nodes: memory while three such arrays fit into half of the budget, else disk."""
        dtype = self.column.dtype
        size = rows * width * dtype.itemsize
        if 6 * size <= self.memory_limit:
            return torch.empty((rows, width), dtype=dtype)
        numpy_dtype = np.float64 if dtype == torch.float64 else np.float32
        try:
            with tempfile.TemporaryFile(prefix="partita-infer-", dir=self._scratch) as file:
                if hasattr(os, "posix_fallocate"):
                    # A full disk is an error here; on a hole in the file it would be a crash later.
                    os.posix_fallocate(file.fileno(), 0, max(size, 1))
                else:
                    file.truncate(max(size, 1))
                # The file has no name any more: it goes with the map, also when the process is killed.
                return torch.from_numpy(np.memmap(file, dtype=numpy_dtype, mode="r+", shape=(rows, width)))
        except OSError as error:
            if is_disk_full(error):
                raise ResourceError(
                    f"{what}: {size:,} bytes of disk are needed and there is no space for them",
                    where=str(self._scratch or tempfile.gettempdir()),
                    fix="Free space there, set TMPDIR to another disk, or raise --memory-limit",
                ) from None
            raise
