"""What is kept between batches: brute force over all that could be, and what was said of where rows are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.features.look_ahead import LookAhead
from partita.features.row_loops import NEVER

ROWS = 7


def batches(most: int = 6):
    return st.lists(st.sets(st.integers(0, ROWS - 1), max_size=5).map(sorted), min_size=1, max_size=most)


def run(plan: list[list[int]], slots: int, window: int) -> list[list[int]]:
    """Rows that are read for each batch; sees that every row is where it is said to be."""
    look, contents, read = LookAhead(ROWS, slots, window), dict[int, int](), []
    announced = 0
    for step, rows in enumerate(plan):
        while announced < min(len(plan), step + window):
            look.announce(np.array(plan[announced], np.int64))
            announced += 1
        found = look.take()
        hits = [row for row, slot in zip(rows, found.slots.tolist(), strict=True) if slot >= 0]
        assert all(contents[slot] == row for row, slot in zip(rows, found.slots.tolist(), strict=True) if slot >= 0)
        assert set(contents.values()) & set(rows) == set(hits)
        read.append([row for row in rows if row not in hits])
        assert len(set(found.into.tolist())) == len(found.into)
        for place, slot in zip(found.kept.tolist(), found.into.tolist(), strict=True):
            assert rows[place] in read[-1]
            assert 0 <= slot < slots
            contents[slot] = rows[place]
        assert len(set(contents.values())) == len(contents)
    return read


def fewest(plan: list[list[int]], slots: int) -> int:
    """Reads at least, over all that could be kept after each batch."""
    states = {frozenset(): 0}
    for rows in plan:
        following: dict[frozenset, int] = {}
        for kept, count in states.items():
            cost, there = count + len(set(rows) - kept), sorted(kept | set(rows))
            for size in range(min(slots, len(there)) + 1):
                for some in itertools.combinations(there, size):
                    key = frozenset(some)
                    following[key] = min(following.get(key, cost), cost)
        states = following
    return min(states.values())


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(0, 4))
def test_no_fewer_rows_can_be_read(plan, slots) -> None:
    assert sum(map(len, run(plan, slots, len(plan)))) == fewest(plan, slots)


def by_sorting(plan: list[list[int]], slots: int, window: int) -> list[int]:
    """Numbers of rows read if those are kept whose next known use is first, and of others none that push one out."""
    kept, found = list[int](), []
    for step, rows in enumerate(plan):
        found.append(len(set(rows) - set(kept)))
        known = plan[step + 1 : step + window]

        def use(row: int, known=known) -> int:
            return next((at for at, each in enumerate(known) if row in each), NEVER)

        there = [*kept, *(row for row in rows if row not in kept)]  # who was there before stays, where equal
        kept = sorted(there, key=use)[:slots]
    return found


@settings(max_examples=200, deadline=None)
@given(batches(12), st.integers(0, 4), st.integers(1, 5))
def test_what_is_known_is_used(plan, slots, window) -> None:
    """Rows without a known use may differ, so only the known ones are compared: with all known there are as many."""
    read = run(plan, slots, window)
    if window >= len(plan):
        assert list(map(len, read)) == by_sorting(plan, slots, window)


def test_a_row_that_is_used_next_is_kept_whatever_was_before() -> None:
    plan = [[0, 1], [2, 3], [4, 5], [4, 5], [0, 1]]
    assert run(plan, 2, 2) == [[0, 1], [2, 3], [4, 5], [], [0, 1]]
    assert run(plan, 2, 5) == [[0, 1], [2, 3], [4, 5], [], [0, 1]]
    assert run(plan, 4, 5) == [[0, 1], [2, 3], [4, 5], [], []]
    assert run(plan, 4, 3)[3] == []


def test_what_was_announced_can_be_forgotten() -> None:
    look = LookAhead(5, 2, 3)
    for rows in ([0, 1], [2], [0]):
        look.announce(np.array(rows))
    assert look.take().slots.tolist() == [-1, -1]
    look.forget_announced()
    look.announce(np.array([1, 0, 3]))
    found = look.take()
    assert [slot >= 0 for slot in found.slots.tolist()] == [True, True, False]
    with pytest.raises(IndexError):
        look.take()


def test_no_more_batches_are_announced_than_there_is_room_for() -> None:
    look = LookAhead(5, 2, 2)
    look.announce(np.array([0]))
    look.announce(np.array([0]))
    with pytest.raises(ValueError, match="2 batches"):
        look.announce(np.array([0]))


def test_large_batches() -> None:
    """Room for what is announced grows, with what it holds."""
    generator = np.random.default_rng(0)
    plan = [np.sort(generator.choice(30_000, 3000, replace=False)) for _ in range(12)]
    look, contents, hits, announced = LookAhead(30_000, 5000, 5), np.full(5000, -1), 0, 0
    for step, rows in enumerate(plan):
        while announced < min(len(plan), step + 5):
            look.announce(plan[announced])
            announced += 1
        found = look.take()
        there = found.slots >= 0
        assert (contents[found.slots[there]] == rows[there]).all()
        assert there.sum() == np.isin(rows, contents).sum()
        contents[found.into] = rows[found.kept]
        hits += int(there.sum())
    assert hits > 12 * 3000 // 5
    assert look.num_bytes >= LookAhead.bytes_for(30_000, 5000, 5 * 3000)
