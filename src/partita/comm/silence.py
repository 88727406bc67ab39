"""Which worker holds the others up: judged from signs of life that somebody looks at every second or so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.comm.pulse import Signs
from partita.core.options import HEARTBEAT_SECONDS

STOPPING_SECONDS = 5.0
"""The same once the user has asked the run to stop."""
BUSY_SHARE = 0.03
"""A worker that uses less of a processor does nothing: threads that watch something use a little."""
STEPS_LONGER, STEPS_LONGER_STOPPING = 10.0, 2.0
"""A step may also take so many times the longest one so far."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of a worker at one time.

    Attributes:
        signs: what it shows of its exchanges and steps.
        cpu_seconds: processor time that it has used.
        disk_bytes: what it has read from disks and written to them.
        stopped: the system says that it is stopped.
        ended: its work is done.
        beats: how often it has said that it is alive, where it has to; ``None`` where the system tells.
    """

    signs: Signs
    cpu_seconds: float = 0.0
    disk_bytes: int = 0
    stopped: bool = False
    ended: bool = False
    beats: int | None = None


@dataclass(frozen=True, slots=True)
class Silent:
    """Workers that hold a run up.

    Attributes:
        ranks: which.
        seconds: for how long.
        why: what they do, as the end of a sentence.
    """

    ranks: tuple[int, ...]
    seconds: float
    why: str

    def __str__(self) -> str:
        several = len(self.ranks) > 1
        ranks = [str(rank) for rank in self.ranks]
        named = f"{', '.join(ranks[:-1])} and {ranks[-1]}" if several else ranks[0]
        return f"worker{'s' * several} {named} {self.why} for {self.seconds:.0f} s"


@dataclass(slots=True)
class _Age:
    """Seconds for which nothing was seen of a worker.

    Attributes:
        gone: it is stopped, or has not said that it is alive.
        still: there was no exchange and no step; and neither computing nor reading, unless it should be making steps.
        longest: of its steps so far.
    """

    gone: float = 0.0
    still: float = 0.0
    longest: float = 0.0


class Silence:
    """Counts for how long every worker has given no sign of life.

    Time counts only while somebody looks, so a machine that sleeps, or a run that is paused as a whole, makes nobody
    silent.

    Args:
        size: number of workers.
        seconds: how long a worker may be silent; 0: for ever.
    """

    def __init__(self, size: int, seconds: float = HEARTBEAT_SECONDS) -> None:
        self._seconds = seconds
        self._ages = [_Age() for _ in range(size)]
        self._before: Sequence[Sight] | None = None

    def look(self, seen: Sequence[Sight], seconds: float, *, stopping: bool = False) -> Silent | None:
        """Compare what is seen of the workers with what was seen before.

        Args:
            seen: all workers, by rank.
            seconds: since the last look.
            stopping: the user wants the run to end.

        Returns:
            Who holds the run up, if somebody has for too long.
        """
        before, self._before = self._before, seen
        if before is None or self._seconds == 0:
            return None
        for age, then, now in zip(self._ages, before, seen, strict=True):
            if now.ended:
                age.gone = age.still = 0.0
                continue
            gone = now.stopped or (now.beats is not None and now.beats == then.beats)
            age.gone = age.gone + seconds if gone else 0.0
            moved = now.signs.moves != then.signs.moves
            busy = now.cpu_seconds - then.cpu_seconds > BUSY_SHARE * seconds or now.disk_bytes != then.disk_bytes
            # What connects workers only waits; a stranger can make the backend spin there.
            if moved or (busy and not now.signs.stepping and not now.signs.connecting):
                if now.signs.stepping and then.signs.stepping:
                    age.longest = max(age.longest, age.still + seconds)
                age.still = 0.0
            else:
                age.still += seconds
        return self._gone(stopping) or self._still(seen, stopping)

    def _gone(self, stopping: bool) -> Silent | None:
        allowed = min(self._seconds, STOPPING_SECONDS) if stopping else self._seconds
        ranks = [rank for rank, age in enumerate(self._ages) if age.gone > allowed]
        if not ranks:
            return None
        seconds = min(self._ages[rank].gone for rank in ranks)
        assert self._before is not None
        stopped = all(self._before[rank].stopped for rank in ranks)
        return Silent(tuple(ranks), seconds, "has been stopped" if stopped else "has given no sign of life")

    def _still(self, seen: Sequence[Sight], stopping: bool) -> Silent | None:
        """Who is still: those that wait for nobody; if all wait for somebody, those whose main thread does not.

        One that is not within its steps may be still as long as nobody waits for it.
        """
        signs = [sight.signs for sight in seen]
        still = [
            rank
            for rank, (age, sight) in enumerate(zip(self._ages, seen, strict=True))
            if age.still > self._allowed(age, sight, stopping)
        ]
        waited_for = any(each.waits for each in signs)
        ranks = [rank for rank in still if not signs[rank].waits and (waited_for or signs[rank].stepping)]
        why = "has made no step"
        if not ranks and waited_for and len(still) == sum(not sight.ended for sight in seen):
            # An exchange that was begun ahead waits for a worker whose main thread is elsewhere.
            ranks = [rank for rank in still if not signs[rank].main_waits]
            if not ranks:
                ranks, why = still, "have waited for each other"
                if any(signs[rank].connecting for rank in still):
                    why = "have waited to be connected (another process may have connected in place of one)"
        if not ranks:
            return None
        return Silent(tuple(ranks), min(self._ages[rank].still for rank in ranks), why)

    def _allowed(self, age: _Age, sight: Sight, stopping: bool) -> float:
        if stopping and sight.signs.stepping:
            return max(min(self._seconds, STOPPING_SECONDS), STEPS_LONGER_STOPPING * age.longest)
        return max(self._seconds, STEPS_LONGER * age.longest)
