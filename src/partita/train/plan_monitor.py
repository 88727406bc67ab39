"""A run that follows a plan: what was estimated, beside what its epochs then take."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from partita.core.plan import STAGES, Candidate, Plan, Seconds
from partita.plan.estimates import CLEARLY
from partita.plan.explain import show_seconds, why

SURPRISE = 0.25
"""What is off by more than this part of its estimate is told, and plans are made again."""
CHANGE_SECONDS = 1.0
"""To change takes about what it took to begin: so long, or an epoch where that takes longer."""
WORTH_SECONDS, LONG_SECONDS = 30.0, 2.0
"""Less than so many seconds of a run are not worth a word; an epoch of so many is not mainly warming up."""
_NOTICED, _MOST = 0.05, 10.0
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


class PlanMonitor:
    """Keeps what was estimated of a run beside what its epochs take, and says when another strategy is ahead.

    Args:
        plan: of the run.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._current = plan.best
        self._estimated = plan.best.epoch
        self._epochs: list[float] = []
        self._stages: list[Seconds] = []
        self._switches: list[dict[str, Any]] = []
        self._before = Seconds()
        self._candidates = [_brief(each) for each in plan.candidates if each.is_named or each is plan.best]

    @property
    def text(self) -> str:
        """What to say before training."""
        best = self.plan.best
        return f"strategy {best.name}, about {show_seconds(best.epoch.total)} per epoch: {why(self.plan)}"

    def begin(self, sofar: Seconds) -> None:
        """An epoch begins; ``sofar`` as :func:`stage_seconds` gives it."""
        self._before = sofar

    def note(self, seconds: float, sofar: Seconds) -> None:
        """An epoch has taken so long."""
        self._epochs.append(seconds)
        self._stages.append(sofar + self._before.scaled(-1.0))

    def judge(self, epochs: int) -> dict[str, str | None]:
        """What the last epoch says of the plan.

        Args:
            epochs: that are left.

        Returns:
            ``text``: what to say; ``None`` if the epoch went as planned, or nothing new is to be said.
            ``strategy``: to go on with; ``None``: the same.
        """
        text = self._surprise() if self._knows_enough(epochs) else None
        if text is None:
            return {"text": None, "strategy": None}
        self._revise()
        best, now = self.plan.best.epoch.total, self._current.epoch.total
        ahead = now - best > CLEARLY * now and (now - best) * epochs > max(now, CHANGE_SECONDS)
        return {"text": text, "strategy": self.plan.best.name if ahead else None}

    def _knows_enough(self, epochs: int) -> bool:
        """Whether there is a plan to compare with, time to gain, and an epoch that was not spent on warming up."""
        if not (self._epochs and self.plan.sampled_steps and self._current.exact):
            return False
        last = self._epochs[-1]
        return epochs * last >= WORTH_SECONDS and (len(self._epochs) > 1 or last >= LONG_SECONDS)

    def _surprise(self) -> str | None:
        """What the last epoch took, if that is far from what was expected of it."""
        expected, measured = self._current.epoch, self._measured
        told = []
        for name, stage in STAGES.items():
            thought, took = expected.to_json()[name], measured.to_json()[name]
            if abs(took - thought) > max(SURPRISE * thought, _NOTICED * expected.total):
                told.append(f"{show_seconds(abs(took - thought))} {'more' if took > thought else 'less'} on {stage}")
        if not told and abs(measured.total - expected.total) <= SURPRISE * expected.total:
            return None
        text = f"an epoch took {show_seconds(measured.total)} instead of {show_seconds(expected.total)}"
        return text + (f": {', '.join(told)}" if told else "")

    def _revise(self) -> None:
        """Correct every stage of all strategies as the last epoch corrects that of the current one."""
        expected, measured = self._current.epoch, self._measured
        pairs = zip(STAGES, expected.values(), measured.values(), strict=True)
        factors = {name: min(_MOST, max(1 / _MOST, took / thought)) for name, thought, took in pairs if thought > 0}
        self._current = replace(self._current, epoch=measured)
        others = [each for each in self.plan.candidates if each.exact and each.name != self._current.name]
        revised = [self._current, *(replace(each, epoch=each.epoch.times(factors)) for each in others)]
        self.plan = replace(self.plan, candidates=tuple(sorted(revised, key=lambda each: each.epoch.total)))

    def switch(self, epoch: int, seconds: float) -> dict[str, Any]:
        """Note that the run goes on with the best strategy; the event to log.

        Args:
            epoch: the next one, 0-based.
            seconds: that the change took.
        """
        to = self.plan.best
        change = {"from": self._current.name, "to": to.name, "seconds": seconds}
        self._switches.append({"epoch": epoch, **change})
        self._current, self._estimated, self._epochs, self._stages = to, to.epoch, [], []
        text = f"switching to strategy {to.name}, about {show_seconds(to.epoch.total)} per epoch"
        return {"event": "strategy", "text": text, **change}

    @property
    def _measured(self) -> Seconds:
        """The faster of the last two epochs, as a machine may be busy with something else for a moment, by stages;
        these work at the same time, and are so divided that they add up to the whole."""
        took, spent = min(zip(self._epochs[-2:], self._stages[-2:], strict=True), key=lambda epoch: epoch[0])
        stages = Seconds(*(max(0.0, each) for each in spent.values()))
        return stages.scaled(took / stages.total) if stages.total else Seconds(compute=took)

    def record(self) -> dict[str, Any]:
        """For ``run.json``: medians over the epochs since the last change."""
        # Of a short run nothing is known but how long an epoch takes.
        stages_known = self.plan.sampled_steps and self._current.exact
        estimated = {**(self._estimated.to_json() if stages_known else {}), "total": self._estimated.total}
        found: dict[str, Any] = {
            "strategy": self._current.name,
            "estimated_epoch_seconds": estimated,
            "candidates": self._candidates,
        }
        if self._epochs:
            stages = {name: statistics.median(each.to_json()[name] for each in self._stages) for name in STAGES}
            found["measured_epoch_seconds"] = {**stages, "total": statistics.median(self._epochs)}
        return {**found, "switches": self._switches} if self._switches else found


def _brief(candidate: Candidate) -> dict[str, Any]:
    """What a run keeps of a strategy that its plan has weighed."""
    return {
        "name": candidate.name,
        "epoch": {**candidate.epoch.to_json(), "total": candidate.epoch.total},
        "sent_bytes": sum(candidate.epoch_bytes.values()),
        "memory_bytes": candidate.memory_bytes,
        "tried_steps": candidate.tried_steps,
    }
