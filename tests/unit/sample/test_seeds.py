"""The order of the seed nodes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.sample.seeds import SeedOrder


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 300), st.integers(1, 320), st.integers(0, 2**40), st.integers(0, 5))
def test_every_seed_once_an_epoch(count, batch_size, seed, epoch):
    order = SeedOrder(torch.arange(count) * 3, seed, batch_size)
    batches = [order.batch(epoch, step) for step in range(order.num_steps)]
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (order.num_steps - 1)
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(0, 3 * count, 3))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 300), st.integers(1, 320), st.integers(0, 2**40), st.integers(0, 5), st.integers(1, 400))
def test_batches_go_by_time(count, batch_size, seed, epoch, span):
    times = (torch.arange(count) * 7919 + 5) % span
    order = SeedOrder(torch.arange(count) * 3, seed, batch_size, times=times)
    batches = [order.batch(epoch, step) for step in range(order.num_steps)]
    assert [len(batch) for batch in batches] == [order.size(step) for step in range(order.num_steps)]
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(0, 3 * count, 3))
    spans = sorted((int(times[batch // 3].min()), int(times[batch // 3].max())) for batch in batches)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))  # none begins before another one ends
    parts = [order.between(epoch, at, min(at + 7, count)) for at in range(0, count, 7)]
    assert torch.equal(torch.cat([*parts, order.seeds[:0]]), torch.cat([*batches, order.seeds[:0]]))


def test_batches_that_go_by_time_come_in_another_order_in_every_epoch():
    order = SeedOrder(torch.arange(1000), 3, 90, times=torch.arange(1000).flip(0))
    firsts = [[int(order.batch(epoch, step).max()) for step in range(order.num_steps)] for epoch in range(8)]
    assert len({tuple(each) for each in firsts}) == 8
    assert len({each[-1] for each in firsts}) > 2  # the one that is left over is of other times
    assert firsts[3] == [int(order.batch(3, step).max()) for step in range(order.num_steps)]


def test_seeds_of_equal_times_meet_others_in_every_epoch():
    seeds, times = torch.arange(1000), torch.arange(1000) // 500
    order = SeedOrder(seeds, 3, 100, times=times)
    epochs = [[order.batch(epoch, step).sort().values for step in range(order.num_steps)] for epoch in range(3)]
    for batches in epochs:
        assert all(len(times[batch].unique()) == 1 for batch in batches)
        assert all(int(batch.max() - batch.min()) > 300 for batch in batches)  # from all over the list
    together = [{frozenset(batch.tolist()) for batch in batches} for batches in epochs]
    assert not together[0] & together[1]
    assert not together[1] & together[2]


def test_order_depends_on_seed_and_epoch_only():
    seeds = torch.arange(1000)

    def whole(seed, epoch, batch_size):
        order = SeedOrder(seeds, seed, batch_size)
        return torch.cat([order.batch(epoch, step) for step in reversed(range(order.num_steps))][::-1])

    first = whole(1, 0, 100)
    assert torch.equal(first, whole(1, 0, 37))
    assert not torch.equal(first, seeds)
    for other in (whole(2, 0, 100), whole(1, 1, 100)):
        assert not torch.equal(first, other)
        assert (first == other).sum() < 10


def test_wrong_arguments():
    with pytest.raises(ValueError, match="batch size 0"):
        SeedOrder(torch.arange(3), 0, 0)
    order = SeedOrder(torch.arange(5), 0, 2)
    assert order.num_steps == 3
    for step in (-1, 3):
        with pytest.raises(IndexError, match="of 3 steps"):
            order.batch(0, step)
