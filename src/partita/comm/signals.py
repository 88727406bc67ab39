"""What a process that watches workers does with the signals that it gets."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from partita.comm.forkserver import Process


@dataclass(slots=True)
class Stop:
    """Requests to stop.

    Attributes:
        signal: the first one; or ``None``.
        again: whether there was a second one.
    """

    signal: signal.Signals | None = None
    again: bool = False


@contextmanager
def signals_to(workers: Iterable[Process]) -> Iterator[Stop]:
    """Note SIGINT, SIGTERM and SIGHUP instead of acting on them, and pause the workers with this process (Ctrl-Z).

    Python delivers signals to the main thread only; elsewhere nothing is changed.

    Args:
        workers: the processes to pause; may grow while the block runs.

    Yields:
        What has been noted.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        stop.again = stop.signal is not None
        stop.signal = stop.signal or signal.Signals(number)

    def pause(number: int, frame: FrameType | None) -> None:
        for worker in workers:
            worker.send_signal(signal.SIGSTOP)
        signal.raise_signal(signal.SIGSTOP)
        for worker in workers:
            worker.send_signal(signal.SIGCONT)

    handlers = dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), note)
    before = {number: signal.getsignal(number) for number in handlers}
    # What is ignored (nohup, background jobs) stays ignored.
    handlers = {number: handler for number, handler in handlers.items() if before[number] is not signal.SIG_IGN}
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
        handlers[signal.SIGTSTP] = pause
        before[signal.SIGTSTP] = signal.SIG_DFL
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        yield stop
    finally:
        for number in handlers:
            signal.signal(number, before[number])
