"""Edges that are not later than a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita import kernels
from partita.core.errors import EdgesError
from partita.core.keys import fold


@st.composite
def requested(draw):
    """Rows of edges in order of time, with equal times, in a shard or in the whole store; and nodes at times."""
    lengths, slots = draw(st.lists(st.integers(0, 90), max_size=9)), draw(st.sampled_from([1, 4, 16]))
    generator, first = np.random.default_rng(draw(st.integers(0, 99))), draw(st.sampled_from([0, 7]))
    indptr = torch.from_numpy(first + np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))]))
    rows = [np.empty(0, np.int64), *(np.sort(generator.integers(-9, 9, n)) for n in lengths)]
    times = torch.from_numpy(np.concatenate(rows))
    until = torch.from_numpy(np.unique(generator.integers(-12, 12, slots)))
    count = 12 if lengths else 0
    nodes = torch.from_numpy(generator.integers(0, max(1, len(lengths)), count))
    slot = torch.from_numpy(generator.integers(0, len(until), count))
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    indices = torch.from_numpy(generator.integers(0, max(1, len(lengths)), len(times)).astype(dtype))
    weights = torch.from_numpy(generator.integers(0, 3, len(times)).astype(np.uint32)) if draw(st.booleans()) else None
    return indptr, indices, times, until, nodes, slot, slots, first, weights


@settings(max_examples=100, deadline=None)
@given(requested(), st.booleans())
def test_what_is_not_later(both, given, windowed):
    """All that is there, by the definition."""
    indptr, indices, times, until, nodes, slot, slots, first, weights = given
    since = until - 5 if windowed else None
    for keys, drawn in both(
        lambda: kernels.sample_until(
            None, indptr, indices, times, nodes * slots + slot, until, slots, 3, -1,
            since=since, weights=weights, first_edge=first,
        )
    ):  # fmt: skip
        assert torch.equal(keys, kernels.request_keys(None, nodes * slots + slot, until, slots))
        for i, (node, at) in enumerate(zip(nodes.tolist(), slot.tolist(), strict=True)):
            mine = range(int(drawn.indptr[i]), int(drawn.indptr[i + 1]))
            row, last = range(int(indptr[node]), int(indptr[node + 1])), int(until[at])
            there = [e for e in row if times[e - first] <= last and (since is None or times[e - first] > since[at])]
            there = [e for e in there if weights is None or int(weights[e - first]) > 0]
            assert [int(drawn.positions[e]) for e in mine] == there
            assert [int(drawn.indices[e]) for e in mine] == [int(indices[e - first]) * slots + at for e in there]
            assert drawn.indices.dtype == torch.int64
    bounds = torch.stack([indptr[nodes], indptr[nodes + 1]], 1)
    ends = both(lambda: kernels.edges_until(times, bounds, until[slot], first_edge=first))
    for node, at, end in zip(nodes.tolist(), slot.tolist(), ends[0].tolist(), strict=True):
        row = range(int(indptr[node]), int(indptr[node + 1]))
        assert end == int(indptr[node]) + sum(bool(times[e - first] <= until[at]) for e in row)
    assert torch.equal(*ends)


@settings(max_examples=100, deadline=None)
@given(requested(), st.sampled_from([0, 1, 5, 40]), st.booleans(), st.booleans(), st.booleans())
def test_draws_are_those_of_a_graph_with_the_edges_of_then(both, given, fanout, last, replace, moved):
    """Each request's are those of :func:`partita.kernels.sample_neighbors` in a row of what is not later."""
    indptr, indices, times, until, nodes, slot, slots, first, weights = given
    original = torch.arange(len(indptr) - 1).flip(0) if moved else None
    options = {"replace": replace and not last, "weights": weights, "first_edge": first}
    requests = nodes * slots + slot
    compiled, plain = both(
        lambda: kernels.sample_until(
            original, indptr, indices, times, requests, until, slots, 3, fanout, last=last, **options
        )
    )
    assert torch.equal(compiled[0], plain[0])
    for part in ("indptr", "indices", "positions"):
        assert torch.equal(getattr(compiled[1], part), getattr(plain[1], part))
    ends = kernels.edges_until(times, torch.stack([indptr[nodes], indptr[nodes + 1]], 1), until[slot], first_edge=first)
    keys = kernels.request_keys(original, requests, until, slots)
    for i, (node, end) in enumerate(zip(nodes.tolist(), ends.tolist(), strict=True)):
        begin = max(int(indptr[node]), end - fanout) if last else int(indptr[node])
        drawn = kernels.sample_neighbors(
            torch.tensor([begin, end, first + len(times)]), indices, torch.tensor([0]), keys[i : i + 1], 3,
            -1 if last else fanout, positions=True, **options,
        )  # fmt: skip
        mine = slice(int(plain[1].indptr[i]), int(plain[1].indptr[i + 1]))
        assert torch.equal(plain[1].positions[mine], drawn.positions)


@pytest.mark.parametrize("weighted", [False, True])
def test_draws_do_not_depend_on_threads(weighted):
    generator, slots = np.random.default_rng(0), 64
    lengths = generator.integers(0, 40, 3000)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    times = torch.from_numpy(np.concatenate([np.sort(generator.integers(0, 99, n)) for n in lengths]))
    indices = torch.from_numpy(generator.integers(0, 3000, len(times)).astype(np.int32))
    weights = torch.from_numpy(generator.integers(0, 3, len(times)).astype(np.uint32)) if weighted else None
    requests, until = torch.from_numpy(generator.integers(0, 3000 * slots, 9000)), torch.arange(slots) + 30
    found = []
    for threads in (1, 3):
        kernels.set_threads(threads)
        try:
            given = None, indptr, indices, times, requests, until, slots, 5, 6
            found.append(kernels.sample_until(*given, since=until - 25, weights=weights))
        finally:
            kernels.set_threads(None)
    (keys, one), (same_keys, three) = found
    assert torch.equal(keys, same_keys)
    for part in ("indptr", "indices", "positions"):
        assert torch.equal(getattr(one, part), getattr(three, part))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.sampled_from([1, 2**20, 2**61]), st.integers(0, 99))
def test_distinct_times(both, given, scale, seed):
    times = torch.tensor(given) * scale
    ids = torch.from_numpy(np.random.default_rng(seed).integers(0, len(times), 40))
    for found, places in both(lambda: kernels.distinct_times(times, ids)):
        assert torch.equal(found, times[ids].unique())
        assert torch.equal(found[places], times[ids])
    extremes = torch.tensor([2**63 - 1, -(2**63), 0])
    for found, places in both(lambda: kernels.distinct_times(extremes, torch.tensor([0, 1, 2, 0]))):
        assert (found.tolist(), places.tolist()) == ([-(2**63), 0, 2**63 - 1], [2, 0, 1, 2])
    assert [len(part) for part in kernels.distinct_times(times, ids[:0])] == [0, 0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=9), st.sampled_from([1, 8]), st.sampled_from([torch.int32, torch.int64]))
def test_what_is_drawn_is_asked_for_at_the_same_times(both, counts, slots, dtype):
    indptr = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int64)
    requests = torch.arange(len(counts)) * slots + torch.arange(len(counts)) % slots
    drawn = torch.arange(int(indptr[-1])).to(dtype)
    compiled, plain = both(lambda: kernels.to_requests(indptr, drawn, requests, slots, len(drawn)))
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


def test_bad_arguments(both):
    indptr, times = torch.tensor([0, 2, 3]), torch.tensor([1, 2, 3])
    zero, two, indices = torch.tensor([0]), torch.tensor([2]), torch.tensor([1, 0, 1])

    def until(error, match, requests, slots, indices=indices, times=times, fanout=1, **options):
        def refused():
            with pytest.raises(error, match=match):
                kernels.sample_until(None, indptr, indices, times, requests, zero + 9, slots, 3, fanout, **options)

        both(refused)

    until(ValueError, "3 slots", zero, 3)
    until(ValueError, "fanout -2", zero, 1, fanout=-2)
    until(ValueError, "3 times for 2 edges", zero, 1, indices=indices[:2])
    until(ValueError, "1 weights for 3 edges", zero, 1, weights=torch.ones(1, dtype=torch.uint32))
    until(IndexError, "slots: 1 to 1", zero + 1, 2)
    until(IndexError, "requests: 2 to 2", two, 1)
    until(IndexError, "requests: -1 to -1", zero - 1, 1)
    until(IndexError, "edges 0 to 2", zero, 1, indices=indices[:1], times=times[:1], first_edge=2)
    for wrong in (2, -1, 2**62):  # at a time, the last one would be node 0
        until(EdgesError, f"holds the id {wrong}", zero, 4, indices=torch.tensor([wrong] * 3), times=times)
        until(EdgesError, f"holds the id {wrong}", zero, 4, indices=torch.tensor([wrong] * 3), times=times, fanout=-1)
    with pytest.raises(IndexError, match="requests: 2 to 2"):
        kernels.request_keys(torch.tensor([5, 6]), two, zero, 1)
    with pytest.raises(ValueError, match="1 times for 2 runs"):
        kernels.edges_until(times, torch.tensor([[0, 1], [1, 2]]), zero)
    with pytest.raises(IndexError, match="bounds"):
        kernels.edges_until(times, torch.tensor([[0, 4]]), zero)
    with pytest.raises(ValueError, match="2 rows for 1 requests"):
        kernels.to_requests(indptr, times, zero, 1, 9)

    def refused():
        with pytest.raises(EdgesError, match="holds the id 3, but there are 3 nodes"):
            kernels.to_requests(torch.tensor([0, 3]), times, zero, 1, 3)
        with pytest.raises(IndexError, match="ids: -1 to 0"):
            kernels.distinct_times(times, torch.tensor([0, -1]))

    both(refused)
