"""The protocols of the engine on one page."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from partita.core.keys import StepKey


@runtime_checkable
class Work(Protocol):
    """What a placement remembers of one layer of one batch between sampling and computing."""

    @property
    def num_edges(self) -> int:
        """Edges that this worker drew for the layer."""
        ...

    @property
    def num_computed(self) -> int:
        """Rows that this worker computes in the layer."""
        ...


@runtime_checkable
class Placement(Protocol):
    """Who computes the output rows of one layer.

    Both methods are called once per layer and batch, by every worker and in the same order, also where a worker
    has nothing to ask for.
    """

    def expand(self, layer: int, requests: Int[Tensor, "D"], key: StepKey) -> tuple[Work, Int[Tensor, "S"]]:
        """Sample one layer.

        Args:
            layer: 1 (input side) to K (seed side).
            requests: distinct store ids whose output of ``layer`` this worker needs.
            key: names the step; the sample is a function of it.

        Returns:
            The work, and the store ids whose output of the layer below this worker needs in turn: distinct, except
            at layer 1 where the layer sums input rows by id and every access is listed.
        """
        ...

    def forward(self, layer: int, work: Any, h: Any) -> Float[Tensor, "D F"]:
        """Compute the layer.

        Args:
            layer: 1 (input side) to K (seed side).
            work: the :class:`Work` that :meth:`expand` returned.
            h: rows for the requests of the layer below: (S, F); at layer 1 the feature column itself.

        Returns:
            One row for each request, in their order.
        """
        ...
