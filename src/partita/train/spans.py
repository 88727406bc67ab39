"""What the threads of a worker were doing when: totals for the record, and a trace to look at."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

TRAINER = "trainer"
"""The lane of the thread that trains."""

MOST_EVENTS = 50_000
"""So many events of a worker are kept for a trace; then it ends."""


class Spans:
    """Times of stages. Threads may add to it at once.

    Args:
        traced: keep every span, for :meth:`events`.

    Attributes:
        traced: as given.
    """

    def __init__(self, traced: bool = False) -> None:
        self.traced = traced
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._items: dict[str, int] = {}
        self._waiting: list[int] = []
        self._takes = 0
        self._events: list[tuple[str, str, int | None, int, Any]] = []
        self._epoch = time.time_ns() - time.perf_counter_ns()  # clocks of several workers must be comparable

    def add(self, name: str, step: int | None, begun: int, ended: int, *, lane: str | None = None) -> None:
        """Note that something was done.

        Args:
            name: what.
            step: of the epoch or phase; ``None`` where it belongs to none.
            begun, ended: readings of :func:`time.perf_counter_ns`.
            lane: the thread that did it; by default one that does nothing else. Only such count in :meth:`summary`.
        """
        with self._lock:
            if lane is None:
                self._seconds[name] = self._seconds.get(name, 0.0) + (ended - begun) / 1e9
                self._items[name] = self._items.get(name, 0) + 1
            if self.traced and len(self._events) < MOST_EVENTS:
                self._events.append((name, lane or name, step, begun, ended - begun))

    def waiting(self, step: int, counts: Sequence[int]) -> None:
        """Note how many items wait behind each stage when the trainer asks for one."""
        with self._lock:
            self._takes += 1
            self._waiting = [sum(pair) for pair in zip(self._waiting or [0] * len(counts), counts)]
            if self.traced and len(self._events) < MOST_EVENTS:
                self._events.append(("waiting", "", step, time.perf_counter_ns(), list(counts)))

    def summary(self) -> dict[str, dict[str, float]]:
        """By stage: ``seconds`` that it worked, ``items`` made, ``waiting``: items behind it when one was asked for."""
        with self._lock:
            means = [total / max(1, self._takes) for total in self._waiting]
            return {
                name: {
                    "seconds": round(seconds, 6),
                    "items": self._items[name],
                    "waiting": round(means[number], 3) if number < len(means) else 0.0,
                }
                for number, (name, seconds) in enumerate(self._seconds.items())
            }

    def events(self, worker: int) -> list[dict[str, Any]]:
        """The spans as events of Chrome's trace format (times in microseconds), one process for every worker."""
        with self._lock:
            kept = list(self._events)
            names = list(self._seconds)
        lanes = {lane: number for number, lane in enumerate([*names, TRAINER])}
        found: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": worker, "tid": 0, "args": {"name": f"worker {worker}"}}
        ]
        for lane, number in lanes.items():
            found.append({"ph": "M", "name": "thread_name", "pid": worker, "tid": number, "args": {"name": lane}})
        for name, lane, step, begun, extent in kept:
            event = {"name": name, "pid": worker, "ts": (self._epoch + begun) / 1e3}
            if isinstance(extent, list):
                found.append({**event, "ph": "C", "args": dict(zip(names, extent))})
            else:
                args = {} if step is None else {"step": step}
                found.append({**event, "ph": "X", "tid": lanes[lane], "dur": extent / 1e3, "args": args})
        return found


def chrome_trace(events: Iterable[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """The events of all workers as one file, which chrome://tracing and ui.perfetto.dev show."""
    return {"traceEvents": [event for of_worker in events for event in of_worker], "displayTimeUnit": "ms"}
