"""Ctrl-C and termination requests: finish the step, save, stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Whether somebody has asked the run to stop, and how."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Catch SIGINT, SIGTERM and SIGHUP once; a second one acts as it did before.

    A step that is cut in half would leave weights that belong to no position, so the first request is only noted.
    Outside the main thread, where Python delivers no signals, nothing is caught.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    if before[signal.SIGHUP] is signal.SIG_IGN:  # nohup: the terminal may go
        del before[signal.SIGHUP]

    def note(number: int, frame: FrameType | None) -> None:
        request.signal = signal.Signals(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
