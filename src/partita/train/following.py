"""A run that follows a plan: what was estimated, beside what its epochs then take."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from partita.core.plan import STAGES, Plan, Seconds
from partita.plan.explain import show_seconds, why

EXCHANGED = ("ids", "features", "forward", "backward")
"""What is sent in exchanges; gradients and the rest are sent in sums."""


def stage_seconds(
    spans: Mapping[str, Mapping[str, float]], trainer: Mapping[str, float], sent: Mapping[str, float]
) -> Seconds:
    """What a worker's threads have done so far, by what a planner estimates.

    Args:
        spans: seconds of the stages before the trainer, as :meth:`partita.train.spans.Spans.summary` gives them.
        trainer: seconds of the trainer's own, as ``stage_seconds`` of ``run.json``.
        sent: seconds in exchanges by kind, as :meth:`partita.comm.meter.Meter.seconds` gives them.
    """
    of = {name: spans.get(name, {}).get("seconds", 0.0) for name in ("sample", "load")}
    computing = sum(trainer.get(name, 0.0) for name in ("forward", "backward", "optimizer"))
    # Rows are asked for where they are sampled, input rows are sent where they are loaded, if that is done apart.
    loads = "load" in spans
    return Seconds(
        sample=of["sample"] - sent["ids"] - (0.0 if loads else sent["features"]),
        exchange=sum(sent[kind] for kind in EXCHANGED),
        load=of["load"] - sent["features"] if loads else 0.0,
        compute=computing - sent["forward"] - sent["backward"],
        gradients=trainer.get("sum_gradients", 0.0) + trainer.get("settle", 0.0),
    )


class Following:
    """Keeps what was estimated of a run beside what its epochs take.

    Args:
        plan: of the run.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._epochs: list[float] = []
        self._stages: list[Seconds] = []
        self._before = Seconds()

    @property
    def text(self) -> str:
        """What to say before training."""
        best = self.plan.best
        return f"strategy {best.name}, about {show_seconds(best.epoch.total)} an epoch: {why(self.plan)}"

    def begin(self, sofar: Seconds) -> None:
        """An epoch begins; ``sofar`` as :func:`stage_seconds` gives it."""
        self._before = sofar

    def note(self, seconds: float, sofar: Seconds) -> None:
        """An epoch has taken so long."""
        self._epochs.append(seconds)
        self._stages.append(sofar + self._before.scaled(-1.0))

    def record(self) -> dict[str, Any]:
        """For ``run.json``: medians over the epochs."""
        best = self.plan.best
        estimated = {**best.epoch.to_json(), "total": best.epoch.total}
        found: dict[str, Any] = {"strategy": best.name, "estimated_epoch_seconds": estimated}
        if self._epochs:
            stages = {name: statistics.median(each.to_json()[name] for each in self._stages) for name in STAGES}
            found["measured_epoch_seconds"] = {**stages, "total": statistics.median(self._epochs)}
        return found
