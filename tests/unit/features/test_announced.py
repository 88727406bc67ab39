"""What is kept follows from sets of rows: not from the order of a batch's rows, nor from what threads know already."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.features.announced import AnnouncedBatches

ROWS = 9
Plan = list[list[int]]
PLANS = st.lists(st.sets(st.integers(0, ROWS - 1), max_size=6).map(sorted), min_size=1, max_size=12)


def hits_of(plan: Plan, slots: int, ahead: int, together: int, early: int) -> list[set[int]]:
    """Rows of each batch that were kept, where so many batches more are announced than must be; sees where they are."""
    tier = AnnouncedBatches[int](ROWS, slots, ahead, together, lambda at: np.array(plan[at], np.int64))
    contents, found, announced = dict[int, int](), list[set[int]](), 0
    while len(found) < len(plan):
        while announced < min(len(plan), len(found) + 1 + ahead + early):
            tier.announce(announced)
            announced += 1
        assert tier.is_next(len(found))
        for at, kept in tier.decide():
            assert at == len(found)
            found.append({row for row, slot in zip(plan[at], kept.slots.tolist(), strict=True) if slot >= 0})
            there = [(row, slot) for row, slot in zip(plan[at], kept.slots.tolist(), strict=True) if slot >= 0]
            assert all(contents[slot] == row for row, slot in there)
            for place, slot in zip(kept.kept.tolist(), kept.into.tolist(), strict=True):
                assert plan[at][place] not in found[-1]
                contents[slot] = plan[at][place]
    return found


@settings(max_examples=150, deadline=None)
@given(PLANS, st.integers(0, 5), st.integers(1, 5), st.integers(1, 4), st.randoms(use_true_random=False))
def test_hits_are_those_that_are_foreseen(
    plan: Plan, slots: int, ahead: int, together: int, generator: random.Random
) -> None:
    wanted = hits_of(plan, slots, ahead, together, 0)
    shuffled = [generator.sample(rows, len(rows)) for rows in plan]
    assert hits_of(shuffled, slots, ahead, together, 3) == wanted
    tier = AnnouncedBatches[int](ROWS, slots, ahead, together, lambda at: np.array(plan[at], np.int64))
    one_epoch = [False] * len(plan)
    foreseen = tier.foresee([np.array(rows, np.int64) for rows in plan], one_epoch)
    assert [set(np.array(rows)[hit].tolist()) for rows, hit in zip(plan, foreseen, strict=True)] == wanted
    again = tier.foresee([np.array(rows, np.int64) for rows in shuffled], one_epoch)
    assert [set(np.array(rows)[hit].tolist()) for rows, hit in zip(shuffled, again, strict=True)] == wanted


@settings(max_examples=100, deadline=None)
@given(PLANS, st.integers(0, 5), st.integers(1, 5), st.integers(1, 4), st.data())
def test_batches_of_the_next_epoch_are_not_known_ahead(
    plan: Plan, slots: int, ahead: int, together: int, data: st.DataObject
) -> None:
    begins = data.draw(st.lists(st.booleans(), min_size=len(plan), max_size=len(plan)))
    batches = [np.array(rows, np.int64) for rows in plan]
    tier = AnnouncedBatches[int](ROWS, slots, ahead, together, lambda at: batches[at])
    wanted = list[list[bool]]()
    for number in range(len(plan)):
        if begins[number]:  # by then all before it are decided
            while tier.is_next(len(wanted)):
                wanted += [(kept.slots >= 0).tolist() for _, kept in tier.decide()]
            tier.restart(lost=False)
        tier.announce(number)
    while len(wanted) < len(plan):
        wanted += [(kept.slots >= 0).tolist() for _, kept in tier.decide()]
    assert [hit.tolist() for hit in tier.foresee(batches, begins)] == wanted


def test_foreseeing_changes_nothing() -> None:
    plan: Plan = [[0, 1], [2, 3], [0, 1]]
    tier = AnnouncedBatches[int](ROWS, 2, 1, 1, lambda at: np.array(plan[at], np.int64))
    tier.announce(0)
    tier.announce(1)
    tier.decide()
    assert [hit.tolist() for hit in tier.foresee([np.array([0, 1]), np.array([0, 4])], [True, False])] == [
        [False, False], [True, False],
    ]  # fmt: skip
    tier.restart(lost=False)
    tier.announce(2)
    ((_, kept),) = tier.decide()
    assert (kept.slots >= 0).all()
