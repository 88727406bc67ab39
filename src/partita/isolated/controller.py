"""Decides when a round ends early: when too much of the neighborhoods is out of sight."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from partita.core.errors import ConfigError
from partita.isolated.schedules import Round, Schedule


@dataclass(frozen=True, slots=True)
class Switch:
    """A round that was ended early.

    Attributes:
        epoch: the first epoch of the next round.
        round: number of the round that was ended, counted over all sweeps.
        deficit: mean coverage deficit that led to it.
    """

    epoch: int
    round: int
    deficit: float


class Controller:
    """Ends a round when the coverage deficit stays high (Grappa, section 3.5; the paper gives no numbers).

    A round ends early where the mean deficit of its last ``window`` steps is above ``threshold``, at least half of its
    planned epochs are done, and the sweep has a pairing that was not yet seen. All workers feed the same numbers, which
    they have summed over all of them, so all decide alike. What was decided is data: a run that is resumed with
    :meth:`to_json` of its checkpoint goes on as it would have.

    Args:
        schedule: one that has rounds.
        threshold: in [0, 1].
        window: steps, at least 1.

    Attributes:
        decisions: so far.

    Raises:
        ConfigError: a setting is out of range.
    """

    def __init__(self, schedule: Schedule, threshold: float = 0.5, window: int = 20) -> None:
        if not 0 <= threshold <= 1 or window < 1:
            raise ConfigError(
                f"a threshold of {threshold} over {window} steps never decides anything",
                where="controller",
                fix="Give a threshold from 0 to 1 and a window of at least 1 step",
            )
        self.decisions: list[Switch] = []
        self._schedule, self._threshold = schedule, threshold
        self._recent: deque[float] = deque(maxlen=window)
        self._round = 0

    @property
    def switches(self) -> tuple[int, ...]:
        """Epochs before which a round was ended, for :meth:`~partita.isolated.schedules.Schedule.assignment`."""
        return tuple(switch.epoch for switch in self.decisions)

    def record(self, epoch: int, deficit: float) -> None:
        """Take the deficit of a step.

        Args:
            epoch: that the step belongs to.
            deficit: mean over the seeds of all workers of 1 - d_local / d_global; the same number on all workers.
        """
        number = self._round_at(epoch).number
        if number != self._round:
            self._recent.clear()
            self._round = number
        self._recent.append(deficit)

    def decide(self, epoch: int) -> Switch | None:
        """After the last step of an epoch: whether the next epoch begins another round, before its time.

        Returns:
            The decision, which is noted; ``None`` where the round goes on, or ends anyway.
        """
        now = self._round_at(epoch)
        if now.number != self._round or len(self._recent) < (self._recent.maxlen or 0):
            return None
        deficit = sum(self._recent) / len(self._recent)
        half_done = 2 * (epoch + 1 - now.start) >= now.planned
        unseen = now.pairing + 1 < self._schedule.num_rounds
        if epoch + 1 >= now.stop or not (half_done and unseen and deficit > self._threshold):
            return None
        switch = Switch(epoch + 1, now.number, deficit)
        self.decisions.append(switch)
        return switch

    def _round_at(self, epoch: int) -> Round:
        found = self._schedule.round_at(epoch, self.switches)
        assert found is not None, "only schedules with rounds have a controller"
        return found

    def to_json(self) -> dict[str, Any]:
        """Decisions, and the steps that the next one looks at, as values that JSON can hold."""
        return {
            "decisions": [asdict(switch) for switch in self.decisions],
            "round": self._round,
            "recent": list(self._recent),
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Go on from what :meth:`to_json` gave."""
        self.decisions = [Switch(**switch) for switch in values["decisions"]]
        self._round = values["round"]
        self._recent.clear()
        self._recent.extend(values["recent"])
