"""The engine: a list of placements, one per layer, sampled from the seeds down and computed from the inputs up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from partita.core.keys import StepKey
from partita.core.protocols import Placement, Work
from partita.core.records import Counts
from partita.features.rows import FeatureColumn
from partita.kernels import count_distinct


@dataclass(frozen=True, slots=True)
class Batch:
    """A sampled mini-batch.

    Attributes:
        key: names the step.
        seeds: (B) store ids.
        works: what each layer will compute, layer 1 (input side) first.
        counts: edges and rows of this batch.
    """

    key: StepKey
    seeds: Int[Tensor, "B"]
    works: tuple[Work, ...]
    counts: Counts


class Engine:
    """Chains the placements of all layers.

    Args:
        placements: one per layer, layer 1 (input side) first.
        column: the input rows.
        num_nodes: of the store.
    """

    def __init__(self, placements: Sequence[Placement], column: FeatureColumn, num_nodes: int) -> None:
        self.placements = tuple(placements)
        self.column = column
        self.num_nodes = num_nodes

    def sample(self, seeds: Int[Tensor, "B"], key: StepKey) -> Batch:
        """Draw the batch of a step: a pure function of ``seeds`` and ``key``, so it may run in any thread."""
        requests, works = seeds, []
        for layer in range(len(self.placements), 0, -1):
            work, requests = self.placements[layer - 1].expand(layer, requests, key)
            works.append(work)
        works.reverse()
        counts = Counts(
            sampled_edges=sum(work.num_edges for work in works),
            computed_destinations=tuple(work.num_computed for work in works),
            input_rows_read=count_distinct(requests, self.num_nodes),
            row_reads=requests.shape[0],
        )
        return Batch(key, seeds, tuple(works), counts)

    def forward(self, batch: Batch) -> Float[Tensor, "B C"]:
        """Compute the model's output for the seeds of a batch, in their order."""
        h: Tensor | FeatureColumn = self.column
        for layer, (placement, work) in enumerate(zip(self.placements, batch.works, strict=True), start=1):
            h = placement.forward(layer, work, h)
        assert isinstance(h, Tensor)
        return h
