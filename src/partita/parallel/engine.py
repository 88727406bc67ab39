"""The engine: a list of placements, one per layer, sampled from the seeds down and computed from the inputs up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt64
from torch import Tensor

from partita.core.estimates import LayerEstimate, SampledLayer
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.core.protocols import Inputs, InputWork, Placement, Sampler, Topology, Work
from partita.core.records import Counts, LayerRows, Traffic
from partita.features.rows import FeatureColumn
from partita.kernels import rank_masks
from partita.parallel.inputs import Direct


@dataclass(frozen=True, slots=True)
class Batch:
    """A worker's share of a sampled mini-batch.

    Attributes:
        key: names the step.
        seeds: (B, ...) this worker's seeds.
        requests: (R) store ids of the nodes whose rows are computed for them.
        works: what each layer will compute, layer 1 (input side) first.
        inputs: which input rows will be read.
        counts: edges and rows of this worker.
        rows: the input rows, or where to read them, once they are loaded.
    """

    key: StepKey
    seeds: Int[Tensor, "B ..."]
    requests: Int[Tensor, "R"]
    works: tuple[Work, ...]
    inputs: InputWork
    counts: Counts
    rows: Any = None


@dataclass(frozen=True, slots=True)
class WorkerEstimate:
    """What a worker will do in a step.

    Attributes:
        counts: as :attr:`Batch.counts`.
        rows: as :meth:`Engine.rows` gives them.
        blocks: destinations, sources and edges that it computes with in each layer, layer 1 first; fractions of them
            where it has a fraction of their columns.
    """

    counts: Counts
    rows: list[LayerRows]
    blocks: Float[np.ndarray, "K 3"]


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """What all workers will do in a step.

    Attributes:
        shares: of each worker.
        reads: (S) who looks up each input row in its own tiers, aligned with the sources of layer 1.
    """

    shares: list[WorkerEstimate]
    reads: UInt64[np.ndarray, "S"]


class Engine:
    """Chains the placements of all layers.

    Args:
        placements: one per layer, layer 1 (input side) first.
        inputs: level 0; a feature column stands for :class:`~partita.parallel.inputs.Direct`.
        num_nodes: of the store.
        topology: where the placements draw neighbors, if that may cost anything.
        sampler: what they draw, likewise.
    """

    def __init__(
        self,
        placements: Sequence[Placement],
        inputs: Inputs | FeatureColumn,
        num_nodes: int,
        topology: Topology | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self.placements = tuple(placements)
        self.topology = topology
        self.sampler = sampler
        self.inputs: Inputs = Direct(inputs, num_nodes) if isinstance(inputs, FeatureColumn) else inputs

    @property
    def collective(self) -> bool:
        """Whether a batch takes all workers: to sample it, to read its rows, or to compute it."""
        return any(part is not None and part.collective for part in self._parts)

    @property
    def _parts(self) -> tuple[Placement | Inputs | Topology | Sampler | None, ...]:
        return (*self.placements, self.inputs, self.topology, self.sampler)

    def sample(self, requests: Int[Tensor, "R"], key: StepKey, *, seeds: Int[Tensor, "B ..."] | None = None) -> Batch:
        """Draw the batch of a step: a pure function of ``key`` and of all workers' ``requests``.

        Where placements exchange requests, all workers call this in the same order of steps, each from one thread;
        otherwise any thread may.

        Args:
            requests: nodes whose rows this worker wants, none of them twice.
            key: names the step.
            seeds: what they are requested for; by default each for itself.
        """
        wanted, works = requests, []
        for layer in range(len(self.placements), 0, -1):
            work, requests = self.placements[layer - 1].expand(layer, requests, key)
            works.append(work)
        works.reverse()
        inputs = self.inputs.expand(requests, key)
        counts = Counts(
            sampled_edges=sum(work.num_edges for work in works),
            computed_destinations=tuple(work.num_computed for work in works),
            input_rows_read=inputs.num_read,
            row_reads=inputs.num_accesses,
            rows_from=inputs.hits,
        )
        return Batch(key, wanted if seeds is None else seeds, wanted, tuple(works), inputs, counts)

    def load(self, batch: Batch) -> Batch:
        """Read the input rows of a batch, if that was not done; possibly in another thread than the one that computes.

        Where :attr:`collective`, all workers do so in the same order of steps.
        """
        return batch if batch.rows is not None else replace(batch, rows=self.inputs.forward(batch.inputs))

    def forward(self, batch: Batch) -> Float[Tensor, "B C"]:
        """Compute the model's output for the seeds of a batch, in their order.

        Every worker's loss must depend on what is returned, also where that is no row: backward runs exchanges.
        """
        h: Any = self.load(batch).rows
        for layer, (placement, work) in enumerate(zip(self.placements, batch.works, strict=True), start=1):
            h = placement.forward(layer, work, h)
        return h

    def estimate(self, drawn: Sequence[SampledLayer], seeds: UInt64[np.ndarray, "B"], mesh: Mesh) -> StepEstimate:
        """What every worker will count in a step, found out without the others.

        Args:
            drawn: what all workers together draw, layer 1 (input side) first: each layer's sources are the
                destinations of the one below, and the destinations of the last layer the seeds of the global batch.
            seeds: which worker has each of them.
            mesh: of any worker.

        Raises:
            ConfigError: it cannot be known, see :class:`~partita.core.protocols.Sampler` and
                :class:`~partita.core.protocols.FeatureTier`.
        """
        asked, layers = seeds, list[LayerEstimate]()
        for layer in range(len(self.placements), 0, -1):
            layers.append(self.placements[layer - 1].estimate(layer, drawn[layer - 1], asked, mesh))
            asked = layers[-1].below
        layers.reverse()
        reads, input_rows = self.inputs.estimate(drawn[0].src, asked, mesh)
        edges = sum(
            rank_masks.count(each.drawing, mesh.size, of.degrees) for each, of in zip(layers, drawn, strict=True)
        )
        elsewhere = [self._drawn_elsewhere(n, drawn[n - 1], each, mesh) for n, each in enumerate(layers, start=1)]
        shares = []
        for worker in range(mesh.size):
            hits = tuple(reads.hits[worker].tolist())
            num_read = sum(hits[:2])
            accesses = layers[0].accesses
            counts = Counts(
                sampled_edges=int(edges[worker]),
                computed_destinations=tuple(int(each.computed[worker]) for each in layers),
                input_rows_read=num_read,
                row_reads=num_read if accesses is None else int(accesses[worker]),
                rows_from=hits,
            )
            rows = [each.rows[worker] + others[worker] for each, others in zip(layers, elsewhere, strict=True)]
            blocks = np.stack([each.columns * each.blocks[worker] for each in layers])
            shares.append(WorkerEstimate(counts, [input_rows[worker], *rows], blocks))
        return StepEstimate(shares, reads.reads)

    def _drawn_elsewhere(self, layer: int, drawn: SampledLayer, foreseen: LayerEstimate, mesh: Mesh) -> list[LayerRows]:
        if self.topology is None or self.sampler is None:
            return [LayerRows()] * mesh.size
        always = self.sampler.estimate(layer, self.topology)
        return [always + rows for rows in self.topology.estimate(drawn, foreseen.drawing, mesh)]

    def traffic(self, rows: Sequence[LayerRows]) -> Traffic:
        """Bytes that leave one worker for another in a training step, gradients of parameters aside.

        Args:
            rows: of level 0 and of each layer, summed over the workers or of one of them.
        """
        return reduce(add, self.traffic_by_part(rows))

    def traffic_by_part(self, rows: Sequence[LayerRows]) -> list[Traffic]:
        """The same, for level 0, every layer, and what draws for every layer: each sends messages of its own."""
        parts = [self.inputs.traffic(rows[0])]
        layers = enumerate(zip(self.placements, rows[1:], strict=True), start=1)
        parts += [placement.traffic(layer, found) for layer, (placement, found) in layers]
        if self.topology is not None:
            parts += [self.topology.traffic(found) for found in rows[1:]]
        if self.sampler is not None:
            parts += [self.sampler.traffic(layer, found) for layer, found in enumerate(rows[1:], start=1)]
        return parts

    def rows(self, batch: Batch) -> list[LayerRows]:
        """This worker's rows at level 0 and at each layer, for :meth:`traffic`."""
        return [batch.inputs.rows, *(work.rows for work in batch.works)]
