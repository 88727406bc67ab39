"""Workers that a launcher has started see by themselves whether all others are alive.

Launchers such as torchrun notice a process that ends, not one that is stopped, hangs, or is on a host that has been cut
off. So a thread of every worker writes its signs of life to the store through which the workers have found each other,
reads those of the others, and ends the process when a worker has been silent for too long: the launcher then ends the
rest, and starts them again where it was told to.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import NoReturn

import torch.distributed as dist

from partita.comm.pulse import Pulse, Signs
from partita.comm.silence import Sight, Silence, Silent

BEAT_SECONDS = 5.0
"""At least so often a worker says that it is alive."""
BEATS = 6
"""How many times it may say so before it counts as silent."""
EXIT_CODE = 2
LEAVE_SECONDS = 1.0
"""How long the first worker waits at its end for the others to end."""

_ENDED = "ended"


class Heartbeat:
    """What the thread does; :meth:`beat` starts and ends it.

    Args:
        store: where the workers write, not used by anything else.
        rank: of this worker.
        size: number of workers.
        pulse: what this worker does.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, pulse: Pulse) -> None:
        self._store, self._rank, self._size, self._pulse = store, rank, size, pulse
        self._seconds = 0.0
        self._over = threading.Event()
        self._beats = 0
        self._thread: threading.Thread | None = None

    def beat(self, seconds: float) -> None:
        """Count a worker as lost that has been silent for so many seconds; 0: say that nobody needs to wait for this
        worker any more. All workers call this.
        """
        if self._thread is not None:
            self._over.set()
            self._thread.join(BEAT_SECONDS)
            self._thread = None
        if seconds > 0:
            self._seconds, self._silence = seconds, Silence(self._size, seconds)
            self._store.set_timeout(timedelta(seconds=seconds))
            self._over.clear()
            self._thread = threading.Thread(target=self._run, name="partita-heartbeat", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pause = min(BEAT_SECONDS, self._seconds / BEATS)
        looked, unreachable = time.monotonic(), 0.0
        while True:
            ends = self._over.wait(pause)
            before, looked = looked, time.monotonic()
            # More where the machine was asleep. What the store makes wait counts as well.
            seconds = min(looked - before, self._seconds / 2)
            try:
                if ends:
                    self._leave()
                    return
                self._say()
                silent = self._silence.look([self._sight(rank) for rank in range(self._size)], seconds)
                unreachable = 0.0
            except dist.DistNetworkError:  # the process that keeps the store has ended, which its launcher has noticed
                return
            except RuntimeError:  # of torch: there is no answer
                if ends:
                    return
                unreachable += seconds
                silent = None
                if unreachable > self._seconds:
                    silent = Silent((0,), unreachable, "could not be reached")
            if silent is not None:
                self._end(silent)

    def _leave(self) -> None:
        """Say that this worker waits for nobody any more. The first one, which may keep the store, hears all others."""
        self._store.set(str(self._rank), _ENDED)
        deadline = time.monotonic() + LEAVE_SECONDS
        while self._rank == 0 and time.monotonic() < deadline:
            if all(self._sight(rank).ended for rank in range(self._size)):
                return
            time.sleep(0.02)

    def _say(self) -> None:
        self._beats += 1
        said = [self._beats, round(time.process_time(), 3), *self._pulse.signs]
        self._store.set(str(self._rank), json.dumps(said))

    def _sight(self, rank: int) -> Sight:
        """What another worker has said last."""
        if not self._store.check([str(rank)]):
            return Sight(Signs(), beats=0)
        said = self._store.get(str(rank)).decode()
        if said == _ENDED:
            return Sight(Signs(), ended=True)
        try:
            beats, cpu_seconds, *signs = json.loads(said)
            return Sight(Signs(*map(int, signs)), float(cpu_seconds), beats=int(beats))
        except (ValueError, TypeError):  # somebody else has written it
            return Sight(Signs(), beats=0)

    def _end(self, silent: Silent) -> NoReturn:
        """End this process, as its main thread may wait in the backend for ever; one that is left says why."""
        blamed = self._rank in silent.ranks
        if blamed or self._rank == min(set(range(self._size)) - set(silent.ranks), default=0):
            sys.stderr.write(
                f"partita: error: {silent}. Worker {self._rank} ends; a larger heartbeat allows for longer pauses\n"
            )
            if blamed:
                faulthandler.dump_traceback(all_threads=True)
        # All have seen it, and said it, before the first one is gone; then those go that wait for the silent one.
        time.sleep(min(BEAT_SECONDS, self._seconds / 2) * (2 if blamed else 1))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_CODE)
