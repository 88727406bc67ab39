"""Drawing a layer as a whole: the compiled kernels against the reference, and both against what was promised."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from itertools import combinations, permutations, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from partita import kernels
from partita.core.keys import fold
from partita.kernels.reference.draws import LOG_BITS, NEVER, code, decoded, log_of

KEY = 0x0123456789ABCDEF
# The first times of two rows of five edges by the written rule; see test_times_follow_the_written_rule.
KNOWN = {
    (False, False): [3770302200672367411, 3799648613180846899],
    (True, True): [3626876161325094229, 3724883695808959829],
}


@st.composite
def stores(draw):
    """``indptr``, ``indices``, uint32 ``weights``: zero degrees, zero weights; int32/int64."""
    nodes = draw(st.integers(1, 30))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    degrees = random.integers(0, draw(st.integers(1, 40)) + 1, nodes) * (random.random(nodes) < 0.8)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
    edges = int(indptr[-1])
    indices = torch.from_numpy(random.integers(0, nodes, edges)).to(draw(st.sampled_from([torch.int32, torch.int64])))
    weights = random.integers(0, 2**32, edges, dtype=np.uint32)
    weights[random.random(edges) < 0.3] = 0
    weights[random.random(edges) < 0.2] = 1
    return indptr, indices, torch.from_numpy(weights)


def by_hand(indptr, dst, original, key, weights, arrivals):
    """Every arrival as (time, place in ``dst``, position), from the written rule."""
    found = []
    for place, (node, v) in enumerate(zip(dst.tolist(), original.tolist())):
        begin, end = int(indptr[node]), int(indptr[node + 1])
        if weights is None:
            log, a, seen = 0, 0, {}
            while end > begin and (a < arrivals if arrivals > 1 else len(seen) < end - begin):
                draw = fold(fold(key, v), a)
                log, a = log + (log_of(draw) >> 6), a + 1
                slot = (fold(draw, 1) * (end - begin)) >> 64
                if arrivals > 1 or slot not in seen:
                    found.append((code(log, end - begin) + (6 << 55), place, begin + slot))
                seen[slot] = True
            continue
        for j in range(end - begin):
            weight = 1 if weights is None else int(weights[begin + j])
            log = 0
            for a in range(arrivals if weight else 0):
                log += log_of(fold(fold(fold(key, v), j), a))
                found.append((code(log, weight), place, begin + j))
    return found


@settings(max_examples=60, deadline=None)
@given(
    store=stores(),
    data=st.data(),
    budget=st.sampled_from([1, 2, 7, 60, 5000]),
    replace=st.booleans(),
    weighted=st.booleans(),
    key=st.integers(0, 2**64 - 1),
)
def test_compiled_equals_reference(both, store, data, budget, replace, weighted, key):
    indptr, indices, weights = store
    nodes = indptr.shape[0] - 1
    if replace:
        budget = min(budget, 60)
    dst = torch.tensor(data.draw(st.lists(st.integers(0, nodes - 1), max_size=nodes)), dtype=torch.int64)
    original, options = dst * 1_000_003 + 7, {"replace": replace, "weights": weights if weighted else None}

    def work():
        times = kernels.arrival_times(indptr, dst, original, key, budget + 1, **options)
        return times, kernels.pick_arrivals(
            indptr, indices, dst, original, key, int(times[budget]), positions=True, **options
        )

    (times, found), (plain_times, plain) = both(work)
    assert torch.equal(times, plain_times)
    for name in ("indptr", "indices", "positions"):
        assert torch.equal(getattr(found, name), getattr(plain, name)), name
    # What was promised, of either. A slot can win at most all places with replacement.
    arrived = by_hand(indptr, dst, original, key, options["weights"], budget + 1 if replace else 1)
    distinct = sorted({time for time, _, _ in arrived})
    first = distinct[: budget + 1]
    assert times.tolist() == first + [NEVER] * (budget + 1 - len(first))
    tau = first[budget] if len(first) > budget else NEVER
    wanted = sorted((place, position) for time, place, position in arrived if time < tau)
    places = torch.repeat_interleave(found.indptr.diff()).tolist()
    assert list(zip(places, found.positions.tolist())) == wanted
    assert torch.equal(found.indices, indices[found.positions])
    if weighted:
        index = found.positions.numpy()  # older versions of PyTorch do not index unsigned numbers
        assert np.array_equal(found.weights.numpy(), weights.numpy()[index])
    if dst.unique().shape == dst.shape and (not replace or not arrived):
        assert found.indices.shape[0] == min(budget, len(arrived))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_range_of_edges_and_any_number_of_threads_give_the_same(replace, weighted):
    random = np.random.default_rng(1)
    indptr = torch.arange(0, 4001 * 30, 30)
    indices = torch.from_numpy(random.integers(0, 4000, 4000 * 30)).int()
    weights = torch.from_numpy(random.integers(0, 9, 4000 * 30, dtype=np.uint32)) if weighted else None
    dst = torch.arange(1000, 3000)

    def work(first, last):
        held = None if weights is None else weights[first:last]
        options = {"replace": replace, "weights": held, "first_edge": first}
        times = kernels.arrival_times(indptr, dst, dst, KEY, 401, last_edge=last, **options)
        return times, kernels.pick_arrivals(
            indptr, indices[first:last], dst, dst, KEY, int(times[400]), positions=True, **options
        )

    with kernels.limited(1):
        times, wanted = work(0, 120_000)
    assert wanted.indices.shape[0] == 400
    try:
        for count in (1, 2, 5):
            kernels.set_threads(count)
            for bounds in ((0, 120_000), (29_000, 91_000)):
                found_times, found = work(*bounds)
                assert torch.equal(found_times, times)
                assert torch.equal(found.indptr, wanted.indptr)
                assert torch.equal(found.positions, wanted.positions)
    finally:
        kernels.set_threads(None)


def test_bad_arguments():
    indptr, indices, none = torch.tensor([0, 2]), torch.tensor([0, 0]), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="0 times"):
        kernels.arrival_times(indptr, none, none, 1, 0)
    with pytest.raises(ValueError, match="at most 1048577"):
        kernels.arrival_times(indptr, none, none, 1, 2**20 + 2, replace=True)
    with pytest.raises(IndexError, match="dst"):
        kernels.arrival_times(indptr, none + 1, none, 1, 3)
    with pytest.raises(ValueError, match="1 destinations with 2"):
        kernels.arrival_times(indptr, none, torch.zeros(2, dtype=torch.int64), 1, 3)
    with pytest.raises(ValueError, match="1 weights for 2 edges"):
        kernels.pick_arrivals(indptr, indices, none, none, 1, 3, weights=torch.ones(1, dtype=torch.uint32))
    with pytest.raises(IndexError, match="only 1 to 2 are there"):
        kernels.pick_arrivals(indptr, indices[1:], none, none, 1, 3, first_edge=1)


def test_without_edges_nothing_ever_arrives():
    indptr, none = torch.tensor([0, 0, 2]), torch.zeros(1, dtype=torch.int64)
    weights = torch.zeros(2, dtype=torch.uint32)
    for dst, weight in ((none, None), (none + 1, weights), (none[:0], None)):
        for replace in (False, True):
            times = kernels.arrival_times(indptr, dst, dst, 1, 3, replace=replace, weights=weight)
            assert times.tolist() == [NEVER] * 3
            found = kernels.pick_arrivals(
                indptr, torch.tensor([0, 1]), dst, dst, 1, NEVER, replace=replace, weights=weight
            )
            assert found.indices.shape == (0,)


def test_a_single_edge_arrives_a_million_times():
    """The sums of so many logarithms do not overflow."""
    indptr, node = torch.tensor([0, 1]), torch.zeros(1, dtype=torch.int64)
    times = kernels.arrival_times(indptr, node, node, KEY, 2**20 + 1, replace=True)
    assert (times.diff() > 0).all()
    assert decoded(int(times[-1])) * math.log(2) / 2**LOG_BITS == pytest.approx(2**20, rel=4e-3)


@cache
def drawn(budget, weights, replace, trials):
    """How often each multiset of edges was drawn; two destinations share them."""
    indptr, dst = torch.tensor([0, 2, len(weights)]), torch.tensor([0, 1])
    weight = None if len(set(weights)) == 1 else torch.tensor(weights, dtype=torch.uint32)
    indices = torch.arange(len(weights))
    found = Counter()
    for key in range(trials):
        options = {"replace": replace, "weights": weight}
        times = kernels.arrival_times(indptr, dst, dst, key, budget + 1, **options)
        picks = kernels.pick_arrivals(indptr, indices, dst, dst, key, int(times[budget]), **options)
        found[tuple(picks.indices.tolist())] += 1
    return found


def chi_square(found, chances):
    assert set(found) <= set(chances)
    total = sum(found.values())
    observed = [found[each] for each in chances]
    return stats.chisquare(observed, [chance * total for chance in chances.values()]).pvalue


@pytest.mark.parametrize("weights", [(1,) * 5, (1, 2, 3, 10, 4)])
def test_with_replacement_it_is_multinomial_over_the_union(weights):
    total, chances = sum(weights), Counter()
    for picks in product(range(5), repeat=3):
        chances[tuple(sorted(picks))] += math.prod(weights[e] / total for e in picks)
    assert chi_square(drawn(3, weights, True, 8000), chances) > 1e-4


@pytest.mark.parametrize("weights", [(1,) * 5, (1, 2, 3, 10, 4)])
def test_without_replacement_it_is_drawing_one_by_one(weights):
    """With equal weights, the numbers of edges of each destination are hypergeometric."""
    chances = Counter()
    for order in permutations(range(5), 2):
        first, second = (weights[e] for e in order)
        chances[tuple(sorted(order))] += first / sum(weights) * second / (sum(weights) - first)
    found = drawn(2, weights, False, 8000)
    assert chi_square(found, chances) > 1e-4
    if set(weights) == {1}:
        first = Counter(sum(e < 2 for e in picks) for picks in found.elements())
        wanted = {k: math.comb(2, k) * math.comb(3, 2 - k) / math.comb(5, 2) for k in range(3)}
        assert chi_square(first, wanted) > 1e-4


VALUES = np.array([3.0, -1.0, 7.0, 0.5, 2.0])


def importance(time, weights, replace):
    """Of edges of some weights, for a time in units of 1 / weight."""
    before = code(round(time / math.log(2) * 2**LOG_BITS), 1)
    weight = torch.tensor(weights, dtype=torch.int64).to(torch.uint32)
    return kernels.importance(before, len(weights), weight, replace).numpy()


@pytest.mark.parametrize("weights", [(1,) * 5, (1, 2, 3, 10, 4)])
@pytest.mark.parametrize("budget", [1, 2, 4])
def test_the_estimate_is_unbiased_by_exact_probabilities(weights, budget):
    """Over all sets of winners and all first losers, integrated over the time of the loser."""
    w = np.array(weights, float)

    def integrand(time):
        arrived = -np.expm1(-w * time)
        total, count = 0.0, importance(time, weights, False)
        for loser in range(5):
            others = [e for e in range(5) if e != loser]
            for winners in combinations(others, budget):
                late = [e for e in others if e not in winners]
                chance = w[loser] * np.exp(-w[loser] * time)
                chance *= np.prod(arrived[list(winners)]) * np.prod(1 - arrived[late])
                total += chance * (VALUES * count)[list(winners)].sum()
        return total

    estimate = integrate.quad(integrand, 1e-9, 60, limit=200, points=[0.1, 0.5, 2, 8])[0]
    assert estimate == pytest.approx(VALUES.sum(), rel=1e-6)


@pytest.mark.parametrize("weights", [(1,) * 5, (1, 2, 3, 10, 4)])
@pytest.mark.parametrize("budget", [1, 3])
def test_the_estimate_with_replacement_is_unbiased_by_exact_probabilities(weights, budget):
    """The time of the first loser is that of arrival ``budget + 1`` of all edges together; draws before it are free."""
    w = np.array(weights, float)
    loser = stats.gamma(budget + 1, scale=1 / w.sum())

    def integrand(time):
        return loser.pdf(time) * (budget * w / w.sum() * VALUES * importance(time, weights, True)).sum()

    estimate = integrate.quad(integrand, 1e-9, 60, limit=200, points=[0.1, 0.5, 2, 8])[0]
    assert estimate == pytest.approx(VALUES.sum(), rel=1e-6)


@pytest.mark.parametrize("weights", [(1,) * 5, (1, 2, 3, 10, 4)])
@pytest.mark.parametrize("replace", [False, True])
def test_the_estimate_is_unbiased_over_keys(weights, replace):
    indptr, dst, indices = torch.tensor([0, 2, 5]), torch.tensor([0, 1]), torch.arange(5)
    weight = None if len(set(weights)) == 1 else torch.tensor(weights, dtype=torch.uint32)
    sums = []
    for key in range(6000):
        options = {"replace": replace, "weights": weight}
        before = int(kernels.arrival_times(indptr, dst, dst, key, 4, **options)[3])
        found = kernels.pick_arrivals(indptr, indices, dst, dst, key, before, **options)
        count = kernels.importance(before, len(found.indices), found.weights, replace).numpy()
        sums.append((count * VALUES[found.indices.numpy()]).sum())
    error = (np.mean(sums) - VALUES.sum()) / (np.std(sums) / len(sums) ** 0.5)
    assert abs(error) < 4


def test_importance_is_1_where_everything_was_drawn():
    assert kernels.importance(NEVER, 3, None, False).tolist() == [1.0] * 3
    assert kernels.importance(NEVER, 0, torch.ones(0, dtype=torch.uint32), True).shape == (0,)


def test_times_follow_the_written_rule():
    """Known answers, so that the rule cannot drift: stored runs depend on it."""
    indptr, dst = torch.tensor([0, 5, 10]), torch.tensor([0, 1])
    weights = torch.arange(10).to(torch.uint32)
    for replace, weighted in KNOWN:
        times = kernels.arrival_times(
            indptr, dst, dst + 42, KEY, 2, replace=replace, weights=weights if weighted else None
        )
        assert times.tolist() == KNOWN[replace, weighted]
