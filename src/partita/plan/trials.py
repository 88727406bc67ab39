"""Trying strategies out: what some real steps took, and what that says of strategies that were not tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from partita.core.plan import Seconds

Rehearse = Callable[[Mapping[str, Any]], "Trial"]
"""Takes some steps with changed settings, all workers together, of which nothing is left, and says what they took."""

PRIOR = 0.005
"""How many trials an estimate's own word counts as."""


@dataclass(frozen=True)
class Trial:
    """What some steps took, mean over the workers unless something else is said.

    Attributes:
        steps: how many were timed.
        epoch_steps: of an epoch.
        begin: seconds that an epoch takes more than its steps do, until the stages are all at work.
        step: seconds of a step.
        peak_bytes: private memory of the worker that took most, above what it held before.
    """

    steps: int
    epoch_steps: int
    begin: float
    step: float
    peak_bytes: int = 0

    @property
    def epoch(self) -> float:
        """Seconds of an epoch."""
        return self.begin + self.epoch_steps * self.step

    def to_json(self) -> dict[str, Any]:
        """Values by name."""
        return asdict(self)


@dataclass(frozen=True)
class Correction:
    """What estimates are to be multiplied by, as trials have shown.

    Attributes:
        local: what a worker does by itself.
        exchange: what it sends.
    """

    local: float = 1.0
    exchange: float = 1.0

    def of(self, estimated: Seconds) -> Seconds:
        """The estimate, corrected."""
        factors = dict.fromkeys(estimated.to_json(), self.local)
        return estimated.times({**factors, "exchange": self.exchange})

    @classmethod
    def fitted(cls, trials: Mapping[Any, tuple[Seconds, float]]) -> Correction:
        """Those with which estimates come closest to what trials took, in squares of relative errors.

        Args:
            trials: for each strategy tried: an estimate, and the seconds that it took.
        """
        rows, wanted = [], []
        for estimated, took in trials.values():
            rows.append([(estimated.total - estimated.exchange) / took, estimated.exchange / took])
            wanted.append(1.0)
        if not rows:
            return cls()
        # What a trial of something that sends nothing says of computing, it does not say of sending, so estimates
        # have a word of their own, where trials have little to say.
        weight = PRIOR**0.5
        a = np.array([*rows, [weight, 0.0], [0.0, weight]])
        b = np.array([*wanted, weight, weight])
        local, exchange = np.linalg.lstsq(a, b, rcond=None)[0]
        return cls(max(float(local), 0.1), max(float(exchange), 0.1))


def divided(estimated: Seconds, took: float) -> Seconds:
    """What was measured as a whole, divided as it was estimated."""
    return estimated.scaled(took / estimated.total)
