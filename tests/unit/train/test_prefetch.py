"""Prefetching changes when items are made, never which or in what order."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.train.prefetch import prefetched


@given(st.integers(0, 5), st.integers(0, 12), st.integers(0, 4))
def test_same_items_whatever_the_look_ahead(start, count, ahead) -> None:
    assert list(prefetched(lambda i: i * i, start, start + count, ahead)) == [
        i * i for i in range(start, start + count)
    ]


def test_items_are_made_ahead_and_never_more_than_asked() -> None:
    made: list[int] = []
    enough = threading.Event()

    def make(index: int) -> int:
        made.append(index)
        if len(made) == 3:
            enough.set()
        return index

    with closing(prefetched(make, 0, 10, 2)) as items:
        assert next(items) == 0
        assert enough.wait(5)
        time.sleep(0.05)
        assert sorted(made) == [0, 1, 2]


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_an_error_comes_at_its_place(ahead) -> None:
    def make(index: int) -> int:
        if index == 2:
            raise ValueError("two")
        return index

    items = prefetched(make, 0, 5, ahead)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(items)


def test_leaving_early_leaves_no_thread() -> None:
    before = threading.active_count()
    with closing(prefetched(lambda index: index, 0, 1000, 3)) as items:
        next(items)
    assert threading.active_count() == before
