"""Sampling and relabeling: the compiled kernels against the reference, and both against what was promised."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from partita import kernels
from partita.core.errors import EdgesError
from partita.core.keys import GOLDEN, fold
from partita.core.records import Sampled
from partita.kernels import Relabeller, sample_neighbors
from partita.kernels.reference.draws import arrival_time, log_table

KEY = 0x0123456789ABCDEF
# Ids drawn by the written rule; see test_draws_follow_the_written_rule.
KNOWN = [
    [19, 433, 126, 615, 376],
    [19, 434, 126, 616, 376],
    [120, 483, 514, 574, 931],
    [137, 659, 356, 785, 614],
]


@st.composite
def stores(draw, max_nodes=30, max_degree=90):
    """``indptr``, ``indices``, uint32 ``weights``: multi-edges, self loops, zero degrees, zero weights; int32/int64."""
    nodes = draw(st.integers(1, max_nodes))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    degrees = random.integers(0, draw(st.integers(1, max_degree)) + 1, nodes) * (random.random(nodes) < 0.8)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
    edges = int(indptr[-1])
    indices = torch.from_numpy(random.integers(0, nodes, edges)).to(draw(st.sampled_from([torch.int32, torch.int64])))
    weights = random.integers(0, 2**32, edges, dtype=np.uint32)
    weights[random.random(edges) < 0.3] = 0
    weights[random.random(edges) < 0.2] = 1
    return indptr, indices, torch.from_numpy(weights)


def chi_square(observed, expected):
    """Probability of counts at least as far from ``expected`` as ``observed``."""
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


def star(degree):
    """A store whose node 0 has ``degree`` in-neighbors 1, 2, ... and whose other nodes have none."""
    indptr = torch.full((degree + 2,), degree)
    indptr[0] = 0
    return indptr, torch.arange(1, degree + 1, dtype=torch.int32)


def draws(degree, fanout, trials, weights=None, **options):
    """Slots picked at node 0 of a star, one row for each of many keys (as many original indices)."""
    indptr = torch.arange(0, (trials + 1) * degree, degree)
    indices = torch.arange(degree, dtype=torch.int32).repeat(trials)
    if weights is not None:
        weights = torch.tensor(weights, dtype=torch.uint32).repeat(trials)
    nodes = torch.arange(trials)
    found = sample_neighbors(indptr, indices, nodes, nodes, KEY, fanout, weights=weights, **options)
    return found.indices.reshape(trials, -1).numpy()


def same(a, b):
    """Samples, or with them what :func:`kernels.relabel` gives, are the same."""
    if isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, Sampled):
        for name in ("indptr", "indices", "positions"):
            same(getattr(a, name), getattr(b, name))
    elif a is None:
        assert b is None
    else:
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def numbered(dst, found, relabeller):
    """A sample, and what its sources are numbered as, if they are."""
    return found, None if relabeller is None else kernels.relabel(dst, found.indices, relabeller)


@settings(max_examples=80, deadline=None)
@given(
    stores(),
    st.data(),
    st.sampled_from([-1, 0, 1, 3, 10, 32, 33, 70, 200]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, "table", "hash"]),
    st.integers(0, 2**64 - 1),
)
def test_compiled_equals_reference(both, store, data, fanout, replace, weighted, mode, key):
    indptr, indices, weights = store
    nodes = indptr.shape[0] - 1
    dst = torch.tensor(data.draw(st.permutations(range(nodes)))[: data.draw(st.integers(0, nodes))], dtype=torch.int64)
    original = dst * 1_000_003 + 7

    def work():
        found = sample_neighbors(
            indptr, indices, dst, original, key, fanout,
            replace=replace, weights=weights if weighted else None, positions=True,
        )  # fmt: skip
        return numbered(dst, found, None if mode is None else Relabeller(nodes, mode))

    found, plain = both(work)
    same(found, plain)
    # What was promised, of either.
    compiled, sources = found
    assert torch.equal(compiled.indices, indices[compiled.positions])
    if mode is not None:
        src, local = sources
        assert src.dtype == compiled.indices.dtype
        assert local.dtype == torch.int32
        assert torch.equal(src[local.long()], compiled.indices)
        assert torch.equal(src[: dst.shape[0]].long(), dst)
        assert src.unique().shape == src.shape
        fresh = local[local >= dst.shape[0]]
        assert torch.equal(torch.from_numpy(np.unique(fresh)), torch.arange(dst.shape[0], len(src)).int())
        first = np.sort(np.unique(fresh.numpy(), return_index=True)[1])
        assert (np.diff(fresh.numpy()[first]) > 0).all()  # numbered by first appearance
    for i, node in enumerate(dst.tolist()):
        begin, end = int(indptr[node]), int(indptr[node + 1])
        picked = compiled.positions[compiled.indptr[i] : compiled.indptr[i + 1]]
        assert ((picked >= begin) & (picked < end)).all()
        able = int((weights.long()[begin:end] > 0).sum()) if weighted else end - begin
        if fanout >= 0 and replace:
            assert len(picked) == (fanout if able else 0)
        else:
            assert len(picked) == (min(able, fanout) if fanout >= 0 else able)
            assert len(picked.unique()) == len(picked)
            if weighted or len(picked) == end - begin:
                assert torch.equal(picked, picked.sort().values)
        if weighted:
            assert (weights.long()[picked] > 0).all()


def test_scan_and_set_of_floyd_pick_the_same(both):
    indptr, indices = star(500)
    dst = torch.zeros(1, dtype=torch.int64)
    for fanout in (31, 32, 33, 34, 250, 499):
        same(*both(lambda f=fanout: sample_neighbors(indptr, indices, dst, dst, KEY, f, positions=True)))


@settings(max_examples=30, deadline=None)
@given(stores(), st.integers(1, 12), st.booleans(), st.booleans(), st.integers(0, 2**32))
def test_picks_depend_on_neither_order_nor_store_order(store, fanout, replace, weighted, seed):
    """The picks of a node are a function of the key and its original index alone."""
    indptr, indices, weights = store
    nodes, random = indptr.shape[0] - 1, np.random.default_rng(seed)
    to_new = torch.from_numpy(random.permutation(nodes))
    original = to_new.argsort()  # of the new ids: original[new] = old
    rows = [indices[indptr[old] : indptr[old + 1]] for old in original.tolist()]
    moved_indices = to_new[torch.cat(rows).long()].to(indices.dtype)
    moved_weights = torch.cat([weights[indptr[old] : indptr[old + 1]] for old in original.tolist()])
    moved_indptr = torch.tensor([0] + [len(row) for row in rows]).cumsum(0)

    def sets(indptr, indices, weights, dst, original):
        weights = weights if weighted else None
        found = sample_neighbors(indptr, indices, dst, original, KEY, fanout, replace=replace, weights=weights)
        return [found.indices[found.indptr[i] : found.indptr[i + 1]].tolist() for i in range(len(dst))]

    dst = torch.arange(nodes)
    expected = sets(indptr, indices, weights, dst, dst)
    shuffled = torch.from_numpy(random.permutation(nodes))
    assert sets(indptr, indices, weights, shuffled, shuffled) == [expected[i] for i in shuffled.tolist()]
    assert sets(indptr, indices, weights, dst[:1], dst[:1]) == expected[:1]
    moved = sets(moved_indptr, moved_indices, moved_weights, to_new[dst], dst)
    assert [[int(original[new]) for new in picks] for picks in moved] == expected


def big_store(nodes=4000, degree=30):
    random = np.random.default_rng(0)
    indptr = torch.arange(0, (nodes + 1) * degree, degree)
    weights = torch.from_numpy(random.integers(1, 2**32, nodes * degree, dtype=np.uint32))
    return indptr, torch.from_numpy(random.integers(0, nodes, nodes * degree).astype(np.int32)), weights


@pytest.mark.parametrize("weighted", [False, True])
def test_picks_depend_on_neither_threads_nor_neighboring_calls(weighted):
    indptr, indices, weights = big_store()
    nodes = indptr.shape[0] - 1
    dst = torch.arange(0, nodes, 2)

    def work(key, relabeller):
        found = sample_neighbors(
            indptr, indices, dst, dst, key, 7, weights=weights if weighted else None, positions=True
        )
        return numbered(dst, found, relabeller)

    with kernels.limited(1):
        expected = [work(key, Relabeller(nodes)) for key in range(12)]
    try:
        for count in (2, 3, 5):
            kernels.set_threads(count)
            relabeller = Relabeller(nodes, "hash")
            for key in range(12):
                same(work(key, relabeller), expected[key])
        scratch = threading.local()

        def in_thread(key):
            if not hasattr(scratch, "relabeller"):
                scratch.relabeller = Relabeller(nodes)
            return work(key, scratch.relabeller)

        with ThreadPoolExecutor(4) as pool:  # every call also uses the shared pool
            for found, wanted in zip(pool.map(in_thread, range(12)), expected):
                same(found, wanted)
    finally:
        kernels.set_threads(None)


def test_every_set_is_equally_likely_without_replacement():
    picks = np.sort(draws(6, 3, 40_000), axis=1)
    _, counts = np.unique(picks, axis=0, return_counts=True)
    assert len(counts) == 20
    assert chi_square(counts, np.ones(20)) > 1e-4


def test_large_fanout_is_uniform():
    picks = draws(90, 40, 20_000)
    counts = np.bincount(picks.ravel(), minlength=90)
    # Without replacement the counts vary less than multinomial ones, by (1 - 40/90).
    statistic = ((counts - counts.mean()) ** 2 / counts.mean()).sum() / (1 - 40 / 90) * 89 / 90
    assert 1e-4 < stats.chi2.sf(statistic, 89) < 1 - 1e-4


def test_every_pair_is_equally_likely_with_replacement():
    picks = draws(5, 2, 40_000, replace=True)
    assert chi_square(np.bincount(picks[:, 0] * 5 + picks[:, 1], minlength=25), np.ones(25)) > 1e-4


@pytest.mark.parametrize("weights", [[1, 2, 3, 4, 0], [2**32 - 1, 2**31, 2**30, 2**32 - 1, 5]])
def test_weighted_with_replacement(weights):
    picks = draws(5, 3, 30_000, weights, replace=True)
    observed, expected = np.bincount(picks.ravel(), minlength=5), np.array(weights, float)
    likely = expected / expected.sum() * picks.size > 5
    assert chi_square(observed[likely], expected[likely]) > 1e-4
    assert (observed[expected == 0] == 0).all()


@pytest.mark.parametrize("scale", [1, 123_456_789])
def test_weighted_without_replacement_is_successive_sampling(scale):
    """Every set has the probability of drawing one by one, each time in proportion to the weights that are left."""
    weights = np.array([1, 2, 3, 10, 19])
    expected = {}
    for order in permutations(range(5), 2):
        chance = weights[order[0]] / 35 * weights[order[1]] / (35 - weights[order[0]])
        expected[tuple(sorted(order))] = expected.get(tuple(sorted(order)), 0) + chance
    picks = draws(5, 2, 60_000, (weights * scale).tolist())
    sets, counts = np.unique(picks, axis=0, return_counts=True)
    assert chi_square(counts, [expected[tuple(pair)] for pair in sets.tolist()]) > 1e-4


def test_light_edges_beside_a_heavy_one_share_equally():
    """Times of arrival keep their resolution over the whole range of weights."""
    picks = draws(9, 2, 20_000, [1] * 4 + [2**32 - 1] + [1] * 4)
    assert (picks == 4).any(axis=1).all()
    others = picks[picks != 4]
    assert chi_square(np.bincount(others, minlength=9)[[0, 1, 2, 3, 5, 6, 7, 8]], np.ones(8)) > 1e-4


def test_heavy_weights_in_a_long_row_do_not_tie():
    indptr, indices = star(300_000)
    weights = torch.full((300_000,), 2**32 - 1, dtype=torch.int64).to(torch.uint32)
    zero = torch.zeros(1, dtype=torch.int64)
    slots = torch.cat(
        [sample_neighbors(indptr, indices, zero, zero, key, 50, weights=weights).indices for key in range(20)]
    )
    assert stats.kstest(slots.numpy() / 300_000, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("weights", [None, [1, 2, 3, 4]])
def test_draws_of_different_nodes_and_keys_are_independent(weights):
    by_node = draws(4, 1, 40_001, weights)[:, 0]
    indptr, indices = star(4)
    zero = torch.zeros(1, dtype=torch.int64)
    weights = None if weights is None else torch.tensor(weights, dtype=torch.uint32)
    keys = [fold(fold(fold(1, 5), step // 4), step % 4) for step in range(8001)]  # steps and layers
    by_key = torch.cat([sample_neighbors(indptr, indices, zero, zero, key, 1, weights=weights).indices for key in keys])
    for series in (by_node, by_key.numpy() - 1):
        pairs = np.bincount(series[:-1] * 4 + series[1:], minlength=16)
        share = np.bincount(series, minlength=4) / len(series)
        assert chi_square(pairs, np.outer(share, share).ravel()) > 1e-4


def test_draws_follow_the_written_rule():
    """Known answers, so that the rule cannot drift: stored runs depend on it."""
    indptr, indices = star(1000)
    zero = torch.zeros(1, dtype=torch.int64)
    weights = torch.arange(1000, dtype=torch.int64).to(torch.uint32)
    picks = [
        sample_neighbors(indptr, indices, zero, zero + 42, KEY, 5, replace=replace, weights=weight).indices.tolist()
        for weight in (None, weights)
        for replace in (False, True)
    ]
    assert picks == KNOWN
    node_key = fold(KEY, 42)
    assert picks[1] == [((fold(node_key, slot) * 1000) >> 64) + 1 for slot in range(5)]


@settings(max_examples=40, deadline=None)
@given(stores(), st.booleans(), st.booleans(), st.sampled_from([torch.float32, torch.float64]))
def test_gcn_coefficients(both, store, relabeled, loops, dtype):
    indptr, indices, _ = store
    nodes = indptr.shape[0] - 1
    rows = torch.repeat_interleave(indptr.diff())
    if loops:
        count = torch.bincount(rows[indices == rows], minlength=nodes).int()
    else:
        indices = torch.where(indices == rows, (indices + 1) % nodes, indices) if nodes > 1 else indices[:0]
        indptr, count = (indptr, None) if nodes > 1 else (indptr * 0, None)
    dst = torch.randperm(nodes)[: nodes // 2 + 1].to(indices.dtype)
    found = sample_neighbors(indptr, indices, dst, dst, KEY, 4)
    src, local = kernels.relabel(dst, found.indices, Relabeller(nodes)) if relabeled else (None, found.indices)
    compiled, plain = both(lambda: kernels.gcn_coefficients(indptr, count, dst, src, found.indptr, local, dtype))
    for a, b in zip(compiled, plain):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b, rtol=1e-6 if dtype == torch.float32 else 1e-13, atol=0)


def test_log_table_and_arrival_time():
    table = log_table()
    exact = -np.log2(1 - np.arange(4097) / 8192) * 2**42
    assert np.abs(table.astype(float) - exact).max() <= 1.01
    for draw in (1, 2**40 + 12345, 2**63 - 1, 2**63, 2**64 - 2**45, GOLDEN):
        exact_time = -np.log2(draw / 2**64) / 77
        code = arrival_time(draw, 77)
        value = (1 + (code & ((1 << 55) - 1)) / 2**55) * 2.0 ** ((code >> 55) - 128 + 63 - 42)
        assert value == pytest.approx(exact_time, rel=2**-13)
    assert arrival_time(2**64 - 1, 3) == 0


def test_wrong_arguments():
    indptr, indices = star(3)
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="fanout -2"):
        sample_neighbors(indptr, indices, one, one, KEY, -2)
    with pytest.raises(IndexError, match="dst: 4 to 4"):
        sample_neighbors(indptr, indices, one + 4, one, KEY, 1)
    with pytest.raises(ValueError, match="original indices"):
        sample_neighbors(indptr, indices, one, torch.arange(2), KEY, 1)
    with pytest.raises(ValueError, match="2 weights for 3 edges"):
        sample_neighbors(indptr, indices, one, one, KEY, 1, weights=torch.ones(2, dtype=torch.uint32))
    with pytest.raises(ValueError, match="none of 'auto'"):
        Relabeller(4, "tree")


@pytest.mark.parametrize("mode", ["table", "hash"])
def test_duplicate_destinations_are_refused_and_leave_the_scratch_usable(both, mode):
    relabeller, ids = Relabeller(10, mode), torch.arange(1, 10)

    def refused():
        with pytest.raises(ValueError, match="twice"):
            kernels.relabel(torch.tensor([3, 0, 3]), ids[:2], relabeller)
        return kernels.relabel(torch.tensor([0]), ids, relabeller)

    same(*both(refused))


@pytest.mark.parametrize("mode", ["table", "hash"])
def test_relabeller_survives_the_wrap_of_its_base(mode):
    indptr, indices, _ = big_store(200, 10)
    dst = torch.arange(50)
    relabeller = Relabeller(200, mode)
    found = sample_neighbors(indptr, indices, dst, dst, KEY, 5)
    expected = numbered(dst, found, relabeller)
    for base in (2**31 - 1, 2**31 - 150, 2**31 - 301):
        relabeller._base = base
        for _ in range(3):
            same(numbered(dst, found, relabeller), expected)


def test_relabeller_memory():
    indptr, indices, _ = big_store(4000, 30)
    dst = torch.arange(10)
    table, hashed = Relabeller(4000, "table"), Relabeller(4000, "hash")
    found = sample_neighbors(indptr, indices, dst, dst, KEY, 5)
    for relabeller in (table, hashed):
        kernels.relabel(dst, found.indices, relabeller)
    assert table.num_bytes == 16_000
    assert hashed.num_bytes <= 48 * 60  # 10 destinations and 50 edges
    for ids in (2**17, 2**19, 2**21):
        entries, _ = Relabeller(2**30, "hash").entries(ids)
        assert 6 * ids <= entries.nbytes <= max(12 * ids, 2**21)
    assert Relabeller(2**24).mode == "table"
    assert Relabeller(2**24 + 1).mode == "hash"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 29), max_size=60),
    st.permutations(range(30)),
    st.integers(0, 30),
    st.sampled_from(["table", "hash"]),
    st.sampled_from([torch.int32, torch.int64]),
    st.sampled_from([torch.int32, torch.int64]),
)
def test_sources_are_numbered_by_first_appearance(both, ids, nodes, num_dst, mode, dst_dtype, dtype):
    dst, relabeller = nodes[:num_dst], Relabeller(30, mode)
    wanted = list(dict.fromkeys(dst + ids))
    given = torch.tensor(dst, dtype=dst_dtype), torch.tensor(ids, dtype=dtype)
    for src, local in both(lambda: kernels.relabel(*given, relabeller)):
        assert (src.dtype, local.dtype) == (dtype, torch.int32)
        assert src.tolist() == wanted
        assert [wanted[number] for number in local.tolist()] == ids


@pytest.mark.parametrize("mode", ["table", "hash"])
def test_relabelling_refuses_what_it_cannot_number(both, mode):
    relabeller = Relabeller(4, mode)

    def work():
        with pytest.raises(ValueError, match="twice"):
            kernels.relabel(torch.tensor([2, 2]), torch.tensor([1]), relabeller)
        with pytest.raises(IndexError, match="it holds the id 4, but there are 4 nodes"):
            kernels.relabel(torch.tensor([2]), torch.tensor([4]), relabeller)
        with pytest.raises(IndexError, match="dst: -1 to -1"):
            kernels.relabel(torch.tensor([-1]), torch.tensor([1]), relabeller)
        return kernels.relabel(torch.tensor([2]), torch.tensor([3, 2, 3]), relabeller)

    for src, local in both(work):
        assert (src.tolist(), local.tolist()) == ([2, 3], [1, 0, 1])


@settings(max_examples=40, deadline=None)
@given(stores(), st.data(), st.sampled_from([-1, 0, 3, 50]), st.booleans(), st.booleans())
def test_a_range_of_rows_draws_what_all_rows_draw(both, store, data, fanout, replace, weighted):
    indptr, indices, weights = store
    nodes = indptr.shape[0] - 1
    low, high = sorted(data.draw(st.lists(st.integers(0, nodes), min_size=2, max_size=2)))
    begin, end = int(indptr[low]), int(indptr[high])
    dst = torch.arange(low, high)

    def work():
        whole = sample_neighbors(
            indptr, indices, dst, dst, KEY, fanout,
            replace=replace, weights=weights if weighted else None, positions=True,
        )  # fmt: skip
        part = sample_neighbors(
            indptr, indices[begin:end], dst, dst, KEY, fanout,
            replace=replace, weights=weights[begin:end] if weighted else None, positions=True, first_edge=begin,
        )  # fmt: skip
        return whole, part

    for whole, part in both(work):
        same(part, whole)


def test_rows_outside_the_range_are_refused():
    indptr, indices = torch.tensor([0, 2, 4, 4]), torch.tensor([1, 2, 0, 2])
    for node, range_ in ((0, slice(2, 4)), (1, slice(0, 2))):
        at = torch.tensor([node])
        with pytest.raises(IndexError, match="dst: edges"):
            sample_neighbors(indptr, indices[range_], at, at, KEY, 1, first_edge=range_.start)


def test_walks_go_to_nodes(both):
    indptr, ids = torch.tensor([0, 1, 2, 2]), torch.tensor([0])
    indices = torch.tensor([3, 1], dtype=torch.int32)

    def work():
        with pytest.raises(EdgesError, match="but there are"):
            kernels.walk_step(indptr, indices, ids, torch.tensor([5]))
        return kernels.walk_step(indptr, indices, ids + 1, torch.tensor([5]))

    for at in both(work):
        assert at.tolist() == [1]
