"""Edges that are not later than a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita import kernels
from partita.core.keys import fold


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 90), max_size=9), st.sampled_from([1, 4, 16]), st.booleans(), st.integers(0, 99))
def test_what_is_not_later(both, lengths, slots, later_shard, seed):
    """Of rows of any length, with equal times, in a shard or in the whole store."""
    generator = np.random.default_rng(seed)
    first = 7 if later_shard else 0
    indptr = torch.from_numpy(first + np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))]))
    rows = [np.empty(0, np.int64), *(np.sort(generator.integers(-9, 9, n)) for n in lengths)]
    times = torch.from_numpy(np.concatenate(rows))
    until = torch.from_numpy(np.unique(generator.integers(-12, 12, slots)))
    count = 12 if lengths else 0
    nodes = torch.from_numpy(generator.integers(0, max(1, len(lengths)), count))
    slot = torch.from_numpy(generator.integers(0, len(until), count))
    compiled, plain = both(
        lambda: kernels.rows_until(indptr, times, nodes * slots + slot, until, slots, first_edge=first)
    )
    assert torch.equal(compiled, plain)
    for node, at, (begin, end) in zip(nodes.tolist(), slot.tolist(), plain[:-1].reshape(-1, 2).tolist(), strict=True):
        row = range(int(indptr[node]), int(indptr[node + 1]))
        there = [e for e in row if times[e - first] <= until[at]]
        assert list(range(begin, end)) == there
    bounds = torch.stack([indptr[nodes], indptr[nodes + 1]], 1)
    ends = both(lambda: kernels.edges_until(times, bounds, until[slot], first_edge=first))
    assert torch.equal(ends[0], plain[1::2])
    assert torch.equal(ends[1], plain[1::2])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=9), st.sampled_from([1, 8]), st.sampled_from([torch.int32, torch.int64]))
def test_what_is_drawn_is_asked_for_at_the_same_times(both, counts, slots, dtype):
    indptr = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int64)
    requests = torch.arange(len(counts)) * slots + torch.arange(len(counts)) % slots
    drawn = torch.arange(int(indptr[-1])).to(dtype)
    compiled, plain = both(lambda: kernels.to_requests(indptr, drawn, requests, slots))
    assert torch.equal(compiled, plain)
    owners = [i for i, count in enumerate(counts) for _ in range(count)]
    assert plain.tolist() == [e * slots + i % slots for e, i in enumerate(owners)]


@settings(max_examples=30, deadline=None)
@given(st.booleans(), st.sampled_from([1, 8]), st.integers(0, 99))
def test_keys(both, moved, slots, seed):
    generator = np.random.default_rng(seed)
    original = torch.from_numpy(generator.permutation(20))
    until = torch.from_numpy(np.concatenate([[-(2**63)], generator.integers(-9, 2**62, slots - 1)]))
    requests = torch.from_numpy(generator.integers(0, 20 * slots, 30))
    compiled, plain = both(lambda: kernels.request_keys(original if moved else None, requests, until, slots))
    assert torch.equal(compiled, plain)
    for request, key in zip(requests.tolist(), plain.tolist(), strict=True):
        name = int(original[request // slots]) if moved else request // slots
        assert fold(name, int(until[request % slots]) % 2**64) == key % 2**64


def test_bad_arguments():
    indptr, times = torch.tensor([0, 2, 3]), torch.tensor([1, 2, 3])
    zero, two = torch.tensor([0]), torch.tensor([2])
    with pytest.raises(ValueError, match="3 slots"):
        kernels.rows_until(indptr, times, zero, zero, 3)
    with pytest.raises(IndexError, match="slots: 1 to 1"):
        kernels.rows_until(indptr, times, torch.tensor([1]), zero, 2)
    with pytest.raises(IndexError, match="requests: 2 to 2"):
        kernels.request_keys(torch.tensor([5, 6]), two, zero, 1)
    with pytest.raises(IndexError, match="requests: 2 to 2"):
        kernels.rows_until(indptr, times, two, zero, 1)
    with pytest.raises(IndexError, match="edges 0 to 2"):
        kernels.rows_until(indptr, times[:1], zero, zero, 1, first_edge=2)
    with pytest.raises(ValueError, match="1 times for 2 runs"):
        kernels.edges_until(times, torch.tensor([[0, 1], [1, 2]]), zero)
    with pytest.raises(IndexError, match="bounds"):
        kernels.edges_until(times, torch.tensor([[0, 4]]), zero)
    with pytest.raises(ValueError, match="2 rows for 1 requests"):
        kernels.to_requests(indptr, times, zero, 1)
