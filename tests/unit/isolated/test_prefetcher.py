"""Which views are in memory, and when."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from partita.isolated.prefetcher import ViewPrefetcher
from partita.isolated.views import PartView
from partita.testing.graphs import small_random_store


class Loader:
    """Loads views of no parts, and knows how many are alive; the one of part 9 cannot be loaded."""

    def __init__(self, store) -> None:
        self.store, self.alive, self.most, self.loaded = store, weakref.WeakSet(), 0, []
        self.threads: set[str] = set()

    def __call__(self, parts):
        if parts == (9,):
            raise OSError("the disk is gone")
        found = View(parts)
        self.alive.add(found)
        gc.collect()
        self.most = max(self.most, len(self.alive))
        self.loaded.append(parts)
        self.threads.add(threading.current_thread().name)
        return found

    def wait_for(self, parts) -> None:
        deadline = time.monotonic() + 20
        while self.loaded[-1] != parts:
            assert time.monotonic() < deadline
            time.sleep(0.001)


class View(PartView):
    """Stands for a view of some parts."""

    __slots__ = ("__weakref__",)

    def __init__(self, parts) -> None:
        object.__setattr__(self, "parts", parts)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def size(self):
        from partita.isolated.views import ViewSize

        return ViewSize(1, 0, 0, 100)


@pytest.fixture
def loader(tmp_path) -> Loader:
    return Loader(small_random_store(tmp_path / "g", 20, 50))


@pytest.mark.parametrize("ahead", [False, True])
def test_never_more_than_two_views_and_one_where_nothing_is_read_ahead(loader, ahead) -> None:
    prefetcher = ViewPrefetcher(loader, ahead=ahead)
    order = [(0,), (1,), (2,), (3,), (0,)]
    for now, following in zip(order, [*order[1:], order[0]], strict=True):
        assert prefetcher.get(now).parts == now
        prefetcher.prefetch(following)
        if ahead:
            loader.wait_for(following)
    prefetcher.close()
    assert loader.most == (2 if ahead else 1)
    assert loader.loaded[: len(order)] == order
    assert any("partita-view" in name for name in loader.threads) == ahead
    assert prefetcher.times.views == len(order)
    assert prefetcher.times.bytes == 100 * len(order)
    gc.collect()
    assert not loader.alive


def test_a_view_that_stays_is_not_read_again(loader) -> None:
    prefetcher = ViewPrefetcher(loader)
    for _ in range(3):
        prefetcher.get((1,))
        prefetcher.prefetch((1,))
    prefetcher.close()
    assert loader.loaded == [(1,)]


def test_another_view_than_was_expected(loader) -> None:
    prefetcher = ViewPrefetcher(loader)
    prefetcher.get((0,))
    prefetcher.prefetch((1,))
    loader.wait_for((1,))
    assert prefetcher.get((2,)).parts == (2,)
    assert loader.most == 2
    prefetcher.close()


def test_what_goes_wrong_in_the_background_is_raised_where_the_view_is_wanted(loader) -> None:
    prefetcher = ViewPrefetcher(loader)
    prefetcher.get((0,))
    prefetcher.prefetch((9,))
    with pytest.raises(OSError, match="the disk is gone"):
        prefetcher.get((9,))
    prefetcher.close()
