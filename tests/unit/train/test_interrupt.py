"""The first signal is noted, the second acts; outside the block nothing has changed."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from partita.train.interrupt import stop_requests


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_is_noted_second_acts_as_before(number) -> None:
    class Before(Exception):
        pass

    def handler(*_: object) -> None:
        raise Before

    old = signal.signal(number, handler)
    try:
        with stop_requests() as request:
            assert not request
            os.kill(os.getpid(), number)
            assert request
            assert request.signal == number
            with pytest.raises(Before):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, old)


def test_another_thread_catches_nothing() -> None:
    seen = []

    def body() -> None:
        with stop_requests() as request:
            seen.append(bool(request))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [False]
    assert signal.getsignal(signal.SIGINT) is before
