"""Finding the workers that a process has started."""

from __future__ import annotations

import psutil


def workers_of(pid: int | None = None) -> dict[int, psutil.Process]:
    """The workers that run, by rank: processes below this one, or below ``pid``."""
    found = {}
    try:
        for child in psutil.Process(pid).children(recursive=True):
            name, line = child.name(), child.cmdline()
            if name.startswith("partita-"):  # forked
                found[int(name.removeprefix("partita-"))] = child
            elif "partita.comm.worker" in line and "--fork" not in line:
                found[int(line[-1])] = child
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        pass
    return found
