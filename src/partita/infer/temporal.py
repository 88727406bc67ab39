"""Inference at the times of nodes: each from a sample of what was known then, as in training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from partita.core import progress
from partita.core.keys import StepKey
from partita.core.protocols import Sampler
from partita.core.records import Block
from partita.features.typed import TypedColumns
from partita.infer.layerwise import LayerwiseInference, OutputRows
from partita.kernels import Relabeller, relabel
from partita.nn.stage import Stage
from partita.sample.blocks import sample_block
from partita.sample.temporal import SeedTimes, TemporalTopology

_ROWS_AT_ONCE = 1024
"""Of nodes at times, at most, where a batch has room for more."""

_KEY = StepKey(seed=0, epoch=2**62, step=0)
"""Of all draws: what is said of a node depends on nothing but the node, its time, and the model. No epoch has it."""


class TemporalInference(LayerwiseInference):
    """Computes the output of nodes at their times, in groups, from samples of their neighborhoods.

    Layer by layer there is a row for each node and time, not for each node, so that nothing is gained by computing all
    of them; and all neighbors of all hops are too many. So neighbors are sampled with the fanouts of the run (as PyG
    and RelBench evaluate such models), by draws that are the same in every evaluation.

    Args:
        *given, **options: as of :class:`LayerwiseInference`, over all edges whenever they were there.
        temporal: the same edges at times.
        times: of nodes.
        draws: the sampler of the run.
    """

    def __init__(
        self, *given: Any, temporal: TemporalTopology, times: SeedTimes, draws: Sampler, **options: Any
    ) -> None:
        super().__init__(*given, **options)
        self._temporal, self._times, self._draws = temporal, times, draws
        self._of_requests = Relabeller(temporal.num_nodes, "hash")

    def _run(self, ids: Tensor | None) -> Iterator[OutputRows]:
        wanted, size = self._own(ids), self._times.slots
        # Workers who hold learnt rows are asked for them by all in turn.
        rounds = max(self.context.group("all").gather(-(-len(wanted) // size)))
        with progress.task("infer", total=len(wanted), unit="nodes") as task:
            for at in range(0, rounds * size, size):
                group = wanted[at : at + size]
                rows, embedding = self._computed(group, self._times.of_nodes[group.long()])
                if len(group) == 0:
                    continue
                if self.tap is not None:
                    self.tap(group, embedding)
                yield OutputRows(group, rows, embedding)
                task.advance(len(group))

    def times_of(self, nodes: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """When nodes are asked about."""
        return self._times.of_nodes.numpy()[nodes]

    def rows_at(
        self, nodes: Int64[Tensor, "n"], times: Int64[Tensor, "n"]
    ) -> Iterator[tuple[Int64[Tensor, "k"], Float[Tensor, "k C"]]]:
        """Output of distinct pairs of a node and a time, piece by piece, in any order.

        All workers call this, each with pairs of its own, and take everything that it yields.

        Args:
            nodes: store ids.
            times: of each.

        Yields:
            places among the pairs, and what the model says of these.
        """
        order = torch.argsort(times, stable=True)
        distinct = torch.unique_consecutive(times[order], return_inverse=True)[1]
        pieces, begin, most = list[Tensor](), 0, max(2, min(self._times.slots, _ROWS_AT_ONCE))
        while begin < len(order):
            end = int(torch.searchsorted(distinct, distinct[begin] + self._times.slots))
            pieces.append(order[begin : min(begin + most, end)])
            begin += len(pieces[-1])
        with self._evaluating():
            # Workers who hold learnt rows are asked for them by all in turn.
            for at in range(max(self.context.group("all").gather(len(pieces)))):
                places = pieces[at] if at < len(pieces) else order[:0]
                rows, _ = self._computed(nodes[places], times[places])
                if len(places):
                    yield places, rows

    def _computed(self, nodes: Int[Tensor, "R"], asked: Int64[Tensor, "R"]) -> tuple[Tensor, Tensor]:
        """Output of nodes at times, and the rows that went into the last layer."""
        times = asked.unique()
        key, stages = replace(_KEY, times=times), cast("list[Stage]", list(self.model.stages))
        requests: Int64[Tensor, "S"] = self._times.requests_at(nodes, asked, times)
        blocks = list[Block]()
        for number in range(len(stages), 0, -1):
            blocks.insert(0, self._block(stages[number - 1], number, requests, key))
            found = blocks[0].src
            assert found is not None
            requests = found
        encoder = self.model.encoder
        of_nodes = requests // self._times.slots
        distinct, places = relabel(of_nodes[:0], of_nodes, self._of_requests)
        rows: Any = self.inputs.read(distinct)
        if isinstance(self.inputs, TypedColumns):
            assert encoder is not None
            rows = encoder(rows)
        rows = rows.to(self.dtype).index_select(0, places)
        if encoder is not None and encoder.ages is not None:
            rows = encoder.ages(rows, encoder.ages.of(requests, times, self._times.slots))
        if self.model.whole:
            out = self.model(blocks, rows)
            return out, out[:, :0]
        for number, (stage, block) in enumerate(zip(stages, blocks, strict=True), start=1):
            below, rows = rows, stage(block, rows, None, number)
        return rows, below[: len(nodes)]

    def _block(self, stage: Stage, number: int, requests: Tensor, key: StepKey) -> Block:
        layer = stage.layer
        block = sample_block(
            self._temporal, requests, key, number, self._draws, reduce=layer.sums, edge_columns=layer.edge_columns,
            fills_loops=layer.fills_loops, relabel=self._of_requests, dtype=self.dtype,
        )  # fmt: skip
        return block if layer.reads_relations else block.with_(edge_type=None)
