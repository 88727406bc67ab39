"""What keeps a worker's processor busy, and what only takes time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from partita.comm.group import Group

_COMPUTED_SECONDS = 0.1
_WHOLE = 0.9
"""A worker with at least this share of a processor has one of its own."""


def share_of_processor(everybody: Group) -> float:
    """What a worker has of a processor while all of them compute: below 1 where there are more workers than cores.

    All workers call this.
    """
    everybody.gather(0)
    until = time.perf_counter() + _COMPUTED_SECONDS

    def compute() -> None:
        while time.perf_counter() < until:
            pass

    took, busy = watched(compute)
    return min(1.0, statistics.fmean(everybody.gather(busy / took)))


def lasting(took: float, busy: float, share: float) -> float:
    """Seconds that work takes while all workers are at work.

    Where these have to share processors, what it took here is a matter of chance: it depends on whether the others were
    at work at that moment. How long it has kept a processor busy does not.

    Args:
        took: seconds that it took.
        busy: of a processor.
        share: see :func:`share_of_processor`.
    """
    return took if share >= _WHOLE else busy / share


def watched(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds that something takes, and those that threads of this process spend on processors meanwhile."""
    begun, before = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begun, time.process_time() - before
