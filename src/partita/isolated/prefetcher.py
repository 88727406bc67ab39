"""Which views are in memory: the one that is trained on, and the next one, which is read meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from partita.comm.group import Group
from partita.core.adding import Adding
from partita.core.errors import ResourceError
from partita.graph.store import GraphStore
from partita.isolated.views import PartView

Parts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadTimes(Adding):
    """What loading views has cost a worker.

    Attributes:
        views: that were loaded.
        bytes: of them.
        seconds: of loading them, mostly in the background.
        waited: seconds in which training waited for a view.
    """

    views: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waited: float = 0.0


class ViewPrefetcher:
    """Holds the view that is in use, and reads the next one in a thread. Never more than two views are in memory.

    Args:
        load: reads a view.
        ahead: read the next view while this one is in use.

    Attributes:
        times: so far.
    """

    def __init__(self, load: Callable[[Parts], PartView], *, ahead: bool = True) -> None:
        self._load, self._ahead = load, ahead
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="partita-view")
        self._held: PartView | None = None
        self._next: tuple[Parts, Future[tuple[PartView, float]]] | None = None
        self.times = LoadTimes()

    def get(self, parts: Parts) -> PartView:
        """The view of some parts, which is in use from now on. Nobody may hold the one before any longer."""
        started = time.perf_counter()
        if self._held is not None and self._held.parts == parts:
            return self._held
        self._held = None
        pending, self._next = self._next, None
        if pending is not None and pending[0] == parts:
            self._held, seconds = pending[1].result()
        else:
            if pending is not None:  # another one was expected
                pending[1].result()
                del pending
            self._held, seconds = self._timed(parts)
        waited = time.perf_counter() - started
        self.times += LoadTimes(int(bool(parts)), self._held.size.bytes, seconds, waited)
        return self._held

    def prefetch(self, parts: Parts) -> None:
        """Begin to read the view that will probably be taken next."""
        known = self._held is not None and self._held.parts == parts
        if self._ahead and not known and self._next is None:
            self._next = parts, self._pool.submit(self._timed, parts)

    def close(self) -> None:
        """Drop all views; waits for one that is being read."""
        self._held = self._next = None
        self._pool.shutdown()

    def _timed(self, parts: Parts) -> tuple[PartView, float]:
        started = time.perf_counter()
        view = self._load(parts)
        return view, time.perf_counter() - started


def fit_views(
    store: GraphStore, views: Iterable[Parts], halo: str, room: int, group: Group, *, without: Collection[str] = ()
) -> bool:
    """See that every view fits the memory that there is for views; known before any is loaded.

    Reads the edges of views where bounds do not tell, on all workers together. All workers call this.

    Args:
        store: the graph.
        views: parts of every view that will be used, the same list on all workers.
        halo: see :class:`~partita.isolated.views.PartView`.
        room: bytes that a worker has for views.
        group: of all workers.
        without: columns that views leave out.

    Returns:
        Whether two views fit at a time.

    Raises:
        ResourceError: a view is too large, on all workers; names its parts and bytes.
    """
    listed = sorted(set(views))
    bounds = [PartView.bound(store, parts, halo, without=without).bytes for parts in listed]
    if 2 * max(bounds, default=0) <= room:
        return True
    unsure = [parts for parts, size in zip(listed, bounds) if 2 * size > room]
    sizes = [
        [PartView.measure(store, parts, halo, without=without).bytes, list(parts)]
        for parts in unsure[group.rank :: group.size]
    ]
    largest, parts = max([max(found) for found in group.gather(sizes) if found])
    if largest > room:
        share = -(-largest * store.num_parts // room)
        named = f"part{'' if len(parts) == 1 else 's'} {', '.join(map(str, parts))}"
        raise ResourceError(
            f"the view of {named} takes {largest:,} bytes, and a worker has {room:,} for it",
            where=str(store.path),
            fix=f"Cut the store into more parts (partita partition STORE OUT --parts {share}), take less halo, or give "
            "workers more memory: --memory-per-worker, --compute-share",
        )
    return 2 * largest <= room
