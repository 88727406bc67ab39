"""Trying strategies out: what some real steps took, and what that says of strategies that were not tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from partita.core.plan import Seconds

TrialRun = Callable[[Mapping[str, Any], float], "Trial"]
"""Takes some steps with changed settings, for about so many seconds, all workers together; effects are discarded."""

PRIORS = 0.5, 0.5, 0.5, 0.02
"""How many trials an estimate's own word counts as: on what a worker does by itself, on bytes that it sends, on
messages, and on what every step takes besides. Rates and links were measured; what a step takes more than the sum of
what is done in it, as more threads than cores wait for each other, was not."""


@dataclass(frozen=True)
class Trial:
    """What some steps took, mean over the workers unless something else is said.

    Attributes:
        steps: how many were timed.
        epoch_steps: of an epoch.
        begin: seconds that an epoch takes more than its steps do, until the stages are all at work.
        step: seconds of a step.
        peak_bytes: private memory of the worker that took most, above what it held before.
        times: how often the strategy was tried out.
        first: steps of the epoch that came before those that were timed, each time.
    """

    steps: int
    epoch_steps: int
    begin: float
    step: float
    peak_bytes: int = 0
    times: int = 1
    first: int = 0

    def joined(self, other: Trial) -> Trial:
        """Both together: means, weighted by the steps."""
        steps = self.steps + other.steps
        begin, step = (
            (mine * self.steps + theirs * other.steps) / steps
            for mine, theirs in ((self.begin, other.begin), (self.step, other.step))
        )
        peak = max(self.peak_bytes, other.peak_bytes)
        return Trial(steps, self.epoch_steps, begin, step, peak, self.times + other.times, self.first)

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
        transfer: what it sends, by the bytes of it.
        latency: what it sends, by the messages, however small.
        besides: seconds of an epoch that are added.
    """

    local: float = 1.0
    transfer: float = 1.0
    latency: float = 1.0
    besides: float = 0.0

    def of(self, estimated: Seconds, latency: float) -> Seconds:
        """The estimate of an epoch, corrected, and never below 0; what is added is taken to be computing.

        ``latency``: seconds of its ``exchange`` that are for messages, however small; from a line fitted to measured
        times, so it may exceed the whole.
        """
        sent = _by_cause(estimated, latency)
        exchange = self.transfer * (sent[1] - estimated.gradients) + self.latency * sent[2]
        own = estimated.scaled(self.local)
        gradients = self.transfer * estimated.gradients
        return replace(own, exchange=exchange, gradients=gradients, compute=own.compute + self.besides)

    @classmethod
    def fitted(cls, trials: Sequence[tuple[Seconds, float, float]], least: float = 1.0) -> Correction:
        """Those with which estimates come closest to what trials took, in squares of relative errors.

        Args:
            trials: for each strategy tried: an estimate, the latency in it, and the seconds that it took.
            least: seconds of the estimate of the strategy that seems to be the fastest, tried or not: what every step
                takes besides is of that size at most, and not of that of what a slow strategy sends.
        """
        # What a trial of something that sends nothing says of computing, it does not say of sending, so estimates
        # have a word of their own, where trials have little to say.
        weights = np.sqrt(PRIORS)
        rows, wanted = [*np.diag(weights)], [*weights[:3], 0.0]
        for estimated, messages, took in trials:
            rows.append(np.array([*_by_cause(estimated, messages), least]) / took)
            wanted.append(1.0)
        local, transfer, latency, besides = np.linalg.lstsq(np.stack(rows), np.array(wanted), rcond=None)[0].tolist()
        return cls(max(local, 0.1), max(transfer, 0.1), max(latency, 0.1), max(besides, 0.0) * least)


def _by_cause(estimated: Seconds, latency: float) -> tuple[float, float, float]:
    """Seconds that a worker does something by itself, that bytes are on their way, and messages, however small."""
    local = estimated.sample + estimated.load + estimated.compute
    latency = min(max(0.0, latency), estimated.exchange)
    return local, estimated.exchange - latency + estimated.gradients, latency


def divided(estimated: Seconds, took: float) -> Seconds:
    """What was measured as a whole, divided as it was estimated."""
    return estimated.scaled(took / estimated.total)
