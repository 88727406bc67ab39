"""Inference with a model that is computed as a whole: from all neighbors of nodes, of their neighbors, and so on."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from partita.core import progress
from partita.core.records import Block
from partita.infer.layerwise import LayerwiseInference, OutputRows
from partita.nn.stage import Stage

_MOST_NODES = 4096


class WholeInference(LayerwiseInference):
    """Computes the output of nodes group by group, each from all of its neighborhood of K hops.

    A row is computed again for every group whose neighborhood it is in: what takes one pass layer by layer takes here
    as much more as neighborhoods overlap. A group is made smaller where its neighborhood does not fit the memory limit.
    """

    def _run(self, ids: Tensor | None) -> Iterator[OutputRows]:
        wanted, at, size = self._own(ids), 0, _MOST_NODES
        with progress.task("infer", total=len(wanted), unit="nodes") as task:
            while at < len(wanted):
                group = wanted[at : at + size]
                blocks = self._blocks(group, can_be_cut=len(group) > 1)
                if blocks is None:
                    size = max(1, len(group) // 4)
                    continue
                sources = blocks[0].src
                assert sources is not None
                rows = self.model(blocks, self.inputs.read(sources))
                yield OutputRows(group, rows, rows[:, :0])
                task.advance(len(group))
                at += len(group)

    def _blocks(self, group: Tensor, *, can_be_cut: bool) -> list[Block] | None:
        """All neighbors of the nodes, hop by hop; ``None`` where they are too many and there may be fewer nodes."""
        blocks: list[Block] = []
        width, ids = max(self.model.widths), group
        spent = 0
        for number in range(len(self.model.stages), 0, -1):
            stage = self.model.stages[number - 1]
            assert isinstance(stage, Stage)
            edges = int(self.neighbors.most(ids).sum())
            spent += edges * (24 + self.dtype.itemsize * width) + len(ids) * 4 * self.dtype.itemsize * width
            if can_be_cut and spent > self.memory_limit // 2:
                return None
            blocks.insert(0, self.neighbors.block(ids, stage.layer, number, self._relabeller, self.dtype))
            found = blocks[0].src
            assert found is not None
            ids = found
        return blocks
