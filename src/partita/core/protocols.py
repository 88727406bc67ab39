"""The protocols of the engine on one page."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from partita.core.keys import StepKey
from partita.core.records import LayerRows, Traffic


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

    @property
    def rows(self) -> LayerRows:
        """This worker's requests of the layer, as far as the placement's traffic follows from them."""
        ...


@runtime_checkable
class Placement(Protocol):
    """Who computes the output rows of one layer.

    ``expand`` and ``forward`` are called once per layer and batch, by every worker and in the same order, also where
    a worker has nothing to ask for.
    """

    def check(self, layer: int) -> None:
        """Refuse a layer that cannot be placed so.

        Raises:
            ConfigError: says which layer, why, and what would work.
        """
        ...

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
            h: rows for the requests of the layer below: (S, F); at layer 1 what :class:`Inputs` hands out.

        Returns:
            One row for each request, in their order.
        """
        ...

    def traffic(self, layer: int, rows: LayerRows) -> Traffic:
        """Bytes that leave one worker for another in a training step with so many rows."""
        ...


@runtime_checkable
class InputWork(Protocol):
    """What level 0 remembers of one batch between sampling and computing."""

    @property
    def num_read(self) -> int:
        """Distinct input rows that this worker reads."""
        ...

    @property
    def num_accesses(self) -> int:
        """Accesses of this worker to input rows."""
        ...

    @property
    def rows(self) -> LayerRows:
        """This worker's requests of input rows."""
        ...


@runtime_checkable
class Inputs(Protocol):
    """Level 0: who reads the input rows. Called like a :class:`Placement`, before layer 1 computes.

    Attributes:
        dropout: probability of input dropout that is still to be applied by the layer that reads rows.
    """

    dropout: float

    def sums_by_id(self, training: bool) -> bool:
        """Whether layer 1 may sum rows by store id, so that its sources need not be de-duplicated."""
        ...

    def expand(self, requests: Int[Tensor, "S"], key: StepKey) -> InputWork:
        """Say which rows this worker needs."""
        ...

    def forward(self, work: Any) -> Any:
        """The rows (S, F) in the order of the requests, or the feature column to read them from."""
        ...

    def traffic(self, rows: LayerRows) -> Traffic:
        """Bytes that leave one worker for another in a training step with so many rows."""
        ...
