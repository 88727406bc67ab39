"""Finding the workers that a process has started."""

from __future__ import annotations

from contextlib import suppress

import psutil

# All workers end within seconds of a failure: about 3 where the machine is free, and ten times that where other tests
# use its processors. What this tells apart from is a wait that only a time-out ends, which takes minutes.
SECONDS_TO_END = 30


def workers_of(pid: int | None = None) -> dict[int, psutil.Process]:
    """The workers that run, by rank: processes below this one, or below ``pid``."""
    found = {}
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # one that has ended is none; the others are
                name, line = child.name(), child.cmdline()
                if name.startswith("partita-"):  # forked
                    found[int(name.removeprefix("partita-"))] = child
                elif "partita.comm.worker" in line and "--fork" not in line:
                    found[int(line[-1])] = child
    return found
