"""What the works of this package's tiers know besides what the protocol asks for."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Int
from torch import Tensor

from partita.core.protocols import TierWork


@runtime_checkable
class Reading(TierWork, Protocol):
    """A tier's work that says which rows this worker reads, for itself or for others."""

    @property
    def reads(self) -> Int[Tensor, "r"]:
        """Distinct store ids that are looked up in this worker's own tiers, at the highest of them."""
        ...
