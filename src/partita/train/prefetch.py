"""Batches sampled ahead of the trainer by background threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetched(
    make: Callable[[int], T], start: int, stop: int, ahead: int, *, in_order: bool = False
) -> Generator[T, None, None]:
    """Yield ``make(start) ... make(stop - 1)`` in order, each made up to ``ahead`` items before it is asked for.

    ``make`` must be a pure function of its argument; several calls then run at once, and the result does not
    depend on ``ahead``. An error in ``make`` is raised where its item would have been yielded. Leaving the
    iterator early waits for the calls in progress and drops the others.

    Args:
        make: makes an item; called from background threads unless ``ahead`` is 0.
        start: first argument.
        stop: one past the last argument.
        ahead: how many items may be ready or in the making, besides the one in use.
        in_order: ``make`` talks to other workers: one call at a time, and none that was begun for is dropped, so that
            all workers make the same items in the same order.
    """
    if ahead == 0:
        yield from (make(index) for index in range(start, stop))
        return
    with ThreadPoolExecutor(max_workers=1 if in_order else ahead, thread_name_prefix="partita-sample") as pool:
        pending: deque[Future[T]] = deque()
        following = start
        try:
            while pending or following < stop:
                while following < stop and len(pending) < ahead:
                    pending.append(pool.submit(make, following))
                    following += 1
                item = pending.popleft().result()
                if following < stop:
                    pending.append(pool.submit(make, following))
                    following += 1
                yield item
        finally:
            for future in pending:
                if not in_order:
                    future.cancel()
