"""The engine: a list of placements, one per layer, sampled from the seeds down and computed from the inputs up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from jaxtyping import Float, Int
from torch import Tensor

from partita.core.keys import StepKey
from partita.core.protocols import Estimator, InputWork, Placement, Work
from partita.core.records import Counts, RowsByType
from partita.nn import ops
from partita.nn.ages import RowAges
from partita.parallel.block_worker import BlockWork, BlockWorker


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """A worker's share of a sampled mini-batch.

    Attributes:
        key: names the step.
        seeds: (B, ...) this worker's seeds.
        requests: (R) store ids of the nodes whose rows are computed for them.
        works: what each layer will compute, layer 1 (input side) first.
        inputs: which input rows will be read.
        counts: edges and rows of this worker.
        rows: the input rows, or where to read them, once they are loaded.
        places: (S) where seeds have times, which of the input rows layer 1 is given for each node at a time; ``None``:
            all of them as they are.
        ages: where the model reads how old rows are, those of the rows that layer 1 is given.
    """

    key: StepKey
    seeds: Int[Tensor, "B ..."]
    requests: Int[Tensor, "R"]
    works: tuple[Work, ...]
    inputs: InputWork
    counts: Counts
    rows: Any = None
    places: Int[Tensor, "S"] | None = None
    ages: RowAges | None = None


class Engine:
    """Chains the placements of all layers.

    Args:
        placements: one per layer, layer 1 (input side) first.
        worker: draws and computes for all of them; knows how input rows are read.
        estimators: tell what the placements will do; ``None``: they do so themselves.

    Attributes:
        placements, worker, estimators: as given.
        inputs: the input placement.
    """

    def __init__(
        self, placements: Sequence[Placement], worker: BlockWorker, estimators: Sequence[Estimator] | None = None
    ) -> None:
        self.placements = tuple(placements)
        self.estimators = cast("tuple[Estimator, ...]", tuple(placements if estimators is None else estimators))
        self.worker = worker
        self.inputs = worker.inputs

    @property
    def collective(self) -> bool:
        """Whether a batch takes all workers: to sample it, to read its rows, or to compute it."""
        draws = self.worker.topology.collective or self.worker.sampler.collective
        return draws or self.inputs.collective or any(placement.collective for placement in self.placements)

    def sample(
        self, requests: Int[Tensor, "R"], key: StepKey, *, seeds: Int[Tensor, "B ..."] | None = None
    ) -> MiniBatch:
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
        nodes, places = self.worker.input_rows(requests)
        inputs, ages = self.inputs.expand(nodes, key), self.worker.row_ages(requests, key)
        of_seeds = wanted if seeds is None else seeds
        return MiniBatch(
            key, of_seeds, wanted, tuple(works), inputs, _counts(works, inputs), places=places, ages=ages
        )  # fmt: skip

    @property
    def composes_encoder(self) -> bool:
        """Whether layer 1 is given the raw rows of all node types, and the encoder with them."""
        takes_encoded = getattr(self.placements[0], "takes_encoded", False)
        by_time = self.worker.topology.slots > 1  # rows are encoded once for a node, and then repeated
        return self.worker.model.composes_encoder and not takes_encoded and not by_time

    def announce(self, batch: MiniBatch) -> None:
        """Say that the input rows of a batch will be read, behind those of the batches announced before.

        Of so many batches as :attr:`Inputs.look_ahead` says this should be done before the first of them is prepared.
        """
        self.inputs.announce(batch.inputs)

    def prepare(self, batch: MiniBatch) -> MiniBatch:
        """See to the input rows of an announced batch before they are loaded; where they come from may change."""
        inputs = self.inputs.prepare(batch.inputs)
        return batch if inputs is batch.inputs else replace(batch, inputs=inputs, counts=_counts(batch.works, inputs))

    def load(self, batch: MiniBatch) -> MiniBatch:
        """Read the input rows of a batch, if that was not done; possibly in another thread than the one that computes.

        Where :attr:`collective`, all workers do so in the same order of steps.
        """
        return batch if batch.rows is not None else replace(batch, rows=self.inputs.forward(batch.inputs))

    def forward(self, batch: MiniBatch) -> Float[Tensor, "B C"]:
        """Compute the model's output for the seeds of a batch, in their order.

        Every worker's loss must depend on what is returned, also where that is no row: backward runs exchanges.
        """
        h: Any = self.load(batch).rows
        encoder = self.worker.model.encoder
        if encoder is not None:
            h = encoder.over(h) if self.composes_encoder else encoder(h)
        if batch.places is not None:
            h = ops.pick_rows(h, batch.places)
        if batch.ages is not None:
            assert encoder is not None
            assert encoder.ages is not None
            h = encoder.ages(h, batch.ages)
        for layer, (placement, work) in enumerate(zip(self.placements, batch.works, strict=True), start=1):
            h = placement.forward(layer, work, h)
        return h


def _counts(works: Sequence[Work], inputs: InputWork) -> Counts:
    """What a worker does for a batch."""
    return Counts(
        sampled_edges=sum(work.num_edges for work in works),
        computed_destinations=tuple(work.num_computed for work in works),
        input_rows_read=inputs.num_read,
        row_reads=inputs.num_accesses,
        rows_from=inputs.hits,
    )


class WholeModelEngine(Engine):
    """Computes a model that is no chain of layers: all blocks are drawn first, and then given to it together."""

    def forward(self, batch: MiniBatch) -> Float[Tensor, "B C"]:
        """See :meth:`Engine.forward`."""
        blocks = [cast(BlockWork, work).block for work in batch.works]
        h: Any = self.load(batch).rows
        if isinstance(h, RowsByType):
            return self.worker.model(blocks, h, batch.key)
        rows = h if isinstance(h, Tensor) else h.rows(blocks[0], batch.key)
        if batch.places is not None:
            rows = ops.pick_rows(ops.all_rows(rows), batch.places)
        return self.worker.model(blocks, ops.all_rows(rows), batch.key)
