"""What is kept between batches: brute force over all that could be, and what was said of where rows are."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.features.look_ahead import LookAhead
from partita.features.row_loops import MOST_USES, NEVER

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


def class_of(uses: int) -> int:
    """Two for each power of two, as of numbers of two binary digits."""
    return uses if uses < 4 else 2 * (uses.bit_length() - 2) + (uses >> (uses.bit_length() - 2))


def check_that_the_best_are_kept(plan: list[list[int]], slots: int, window: int) -> None:
    """Those whose next known use is first, of others those that were used most often; counts are halved at a limit."""
    look, kept, counts, announced = LookAhead(ROWS, slots, window), dict[int, int](), Counter[int](), 0
    for step, rows in enumerate(plan):
        while announced < min(len(plan), step + window):
            look.announce(np.array(plan[announced], np.int64))
            announced += 1
        if max(counts.values(), default=0) == MOST_USES:
            counts = Counter({row: count // 2 for row, count in counts.items()})
        counts.update(rows)
        before, found = set(kept.values()), look.take()
        for place, slot in zip(found.kept.tolist(), found.into.tolist(), strict=True):
            kept[slot] = rows[place]
        known = plan[step + 1 : step + window]

        def use(row: int, known=known, counts=counts) -> tuple[int, int]:
            return next(((at, 0) for at, each in enumerate(known) if row in each), (NEVER, -class_of(counts[row])))

        there, after = before | set(rows), set(kept.values())
        assert after <= there
        assert len(after) == min(slots, len(there))
        for row in there - after if after else ():
            assert use(row) >= max(map(use, after))
            assert row not in before or use(row) > min(map(use, after - before))  # none gives way to its equal


@settings(max_examples=300, deadline=None)
@given(batches(12), st.integers(0, 4), st.integers(1, 5))
def test_what_is_known_is_used_and_else_what_was_used_most(plan, slots, window) -> None:
    check_that_the_best_are_kept(plan, slots, window)


@pytest.mark.parametrize("window", [1, 3])
def test_counts_are_halved(window) -> None:
    """Long enough for it; then rows that were used most often give way to others."""
    generator = np.random.default_rng(0)
    first = [np.flatnonzero(generator.random(ROWS) < np.linspace(1, 0.1, ROWS)).tolist() for _ in range(400)]
    then = [np.flatnonzero(generator.random(ROWS) < np.linspace(0.1, 1, ROWS)).tolist() for _ in range(800)]
    check_that_the_best_are_kept(first + then, 3, window)
    assert [row for row in run(first + then, 3, 1)[-1] if row == ROWS - 1] == []


def test_rows_used_often_are_kept_beyond_what_is_known() -> None:
    """0 and 1 are used in every second batch, and never known when it is decided whether they stay."""
    plan = [[0, 1] if step % 2 == 0 else [2 + step % 5] for step in range(40)]
    assert sum(map(len, run(plan, 2, 1))) == 2 + 20


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
