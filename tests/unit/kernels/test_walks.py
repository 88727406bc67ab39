"""Random walks: the compiled kernels against the reference, and both against exact probabilities and brute force."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from partita import kernels
from partita.core.keys import below, fold

KEY = 0x0123456789ABCDEF
# Walks by the written rule; see test_walks_follow_the_written_rule.
KNOWN = [
    [5, 5, 44, 5, 32],
    [5, 45, 23, 40, 5],
    [5, 5, 46, 38, 39],
]


@st.composite
def stores(draw):
    """``indptr``, ``indices``, uint32 ``weights``: sinks, self loops, multi-edges, weights of 0; int32/int64."""
    nodes = draw(st.integers(1, 25))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    degrees = random.integers(0, draw(st.integers(1, 12)) + 1, nodes) * (random.random(nodes) < 0.7)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
    edges = int(indptr[-1])
    indices = torch.from_numpy(random.integers(0, nodes, edges)).to(draw(st.sampled_from([torch.int32, torch.int64])))
    weights = random.integers(0, 2**32, edges, dtype=np.uint32)
    weights[random.random(edges) < 0.5] = 0
    return indptr, indices, torch.from_numpy(weights)


@settings(max_examples=80)
@given(
    stores(),
    st.integers(0, 9),
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.3, 0.99999]),
    st.booleans(),
    st.integers(1, 9),
    st.integers(0, 2**64 - 1),
)
def test_compiled_equals_reference(both, store, count, walks, length, restart, weighted, k, key):
    indptr, indices, weights = store
    nodes = indptr.shape[0] - 1
    start = torch.randint(0, nodes, (count,))
    original, weights = start * 1_000_003 + 7, weights if weighted else None

    def work():
        found = kernels.random_walks(
            indptr, indices, start, original, key, walks=walks, length=length, restart=restart, weights=weights
        )
        return found, kernels.top_visits(found, start, k)

    (compiled, visits), (plain, wanted) = both(work)
    assert compiled.dtype == plain.dtype == indices.dtype
    assert torch.equal(compiled, plain)
    for a, b in zip(visits, wanted):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    draws, steps = both(lambda: [kernels.walk_draws(original, key, walks=walks, step=s, restart=0.4) for s in (0, 5)])
    assert all(torch.equal(a, b) for x, y in zip(draws, steps) for a, b in zip(x, y))
    asked = start.repeat_interleave(walks)
    a, b = both(lambda: kernels.walk_step(indptr, indices, asked, draws[1][0], weights=weights))
    assert torch.equal(a, b)


@settings(max_examples=40)
@given(stores(), st.integers(1, 6), st.integers(1, 4), st.sampled_from([0.0, 0.4]), st.booleans())
def test_a_walk_is_its_steps(store, walks, length, restart, weighted):
    """What is taken step by step, by range of nodes, is what is taken at once."""
    indptr, indices, weights = store
    weights = weights if weighted else None
    start = torch.arange(indptr.shape[0] - 1)
    found = kernels.random_walks(
        indptr, indices, start, start + 9, KEY, walks=walks, length=length, restart=restart, weights=weights
    )
    home = start.repeat_interleave(walks).to(indices.dtype)
    assert torch.equal(found[:, 0], home)
    middle = len(start) // 2
    edge = int(indptr[middle])
    for s in range(length):
        here = found[:, s]
        draws, back = kernels.walk_draws(start + 9, KEY, walks=walks, step=s, restart=restart)
        wanted = torch.where(here < 0, here, home)
        for low, high, edges in ((0, middle, slice(0, edge)), (middle, len(start), slice(edge, None))):
            asked = (here >= low) & (here < high) & ~back
            part = None if weights is None else weights[edges]
            to = kernels.walk_step(
                indptr, indices[edges], here[asked], draws[asked], weights=part, first_edge=edges.start
            )
            sink = to < 0
            wanted[asked] = torch.where(sink & (here[asked] != home[asked]), home[asked], to)
        assert torch.equal(found[:, s + 1], wanted)


@settings(max_examples=30)
@given(stores(), st.booleans(), st.integers(0, 2**32))
def test_walks_belong_to_the_original_index(store, weighted, seed):
    """Neither the order of the starts nor that of the store matters."""
    indptr, indices, weights = store
    nodes, random = indptr.shape[0] - 1, np.random.default_rng(seed)
    to_new = torch.from_numpy(random.permutation(nodes))
    original = to_new.argsort()
    rows = [slice(int(indptr[old]), int(indptr[old + 1])) for old in original.tolist()]
    moved = (
        torch.tensor([0] + [row.stop - row.start for row in rows]).cumsum(0),
        to_new[torch.cat([indices[row] for row in rows]).long()].to(indices.dtype),
    )
    options = {"walks": 3, "length": 4, "restart": 0.2}
    start = torch.arange(nodes)
    plain = kernels.random_walks(indptr, indices, start, start, KEY, weights=weights if weighted else None, **options)
    moved_weights = torch.cat([weights[row] for row in rows]) if weighted else None
    found = kernels.random_walks(*moved, to_new, start, KEY, weights=moved_weights, **options)
    back = torch.where(found < 0, found.long(), original[found.long().clamp(min=0)])
    assert torch.equal(back, plain.long())
    some = torch.from_numpy(random.permutation(nodes)[:3])
    again = kernels.random_walks(indptr, indices, some, some, KEY, weights=weights if weighted else None, **options)
    assert torch.equal(again.view(len(some), -1), plain.view(nodes, -1)[some])


def test_walks_do_not_depend_on_threads():
    random = np.random.default_rng(0)
    indptr = torch.arange(0, 4001 * 9, 9)
    indices = torch.from_numpy(random.integers(0, 4000, 36000).astype(np.int32))
    start = torch.arange(4000)

    def work():
        found = kernels.random_walks(indptr, indices, start, start, KEY, walks=5, length=3, restart=0.1)
        return found, *kernels.top_visits(found, start, 4)

    with kernels.limited(1):
        wanted = work()
    try:
        kernels.set_threads(3)
        assert all(torch.equal(a, b) for a, b in zip(work(), wanted))
    finally:
        kernels.set_threads(None)


# Node 4 is a sink; node 3 has a self loop and a double edge.
INDPTR, INDICES = torch.tensor([0, 3, 5, 6, 10, 10]), torch.tensor([1, 2, 4, 0, 3, 1, 3, 0, 0, 2], dtype=torch.int32)
WEIGHTS = torch.tensor([1, 3, 2, 0, 5, 2**32 - 1, 1, 2, 3, 4], dtype=torch.int64).to(torch.uint32)


def transitions(weighted, restart, home):
    """Exact probabilities of a step, between the nodes and (last) the end."""
    chance = np.zeros((6, 6))
    back = min(int(restart * 65536 + 0.5), 65535) / 65536
    for u in range(5):
        edges = slice(int(INDPTR[u]), int(INDPTR[u + 1]))
        weight = WEIGHTS[edges].double().numpy() if weighted else np.ones(edges.stop - edges.start)
        if weight.sum() == 0:
            chance[u, 5 if u == home else home] += 1 - back
        else:
            np.add.at(chance[u], INDICES[edges].numpy(), (1 - back) * weight / weight.sum())
        chance[u, home] += back
    chance[5, 5] = 1
    return chance


def chi_square(observed, expected):
    """Probability of counts at least as far from ``expected`` as ``observed``; what is impossible must not be."""
    assert (observed[expected == 0] == 0).all()
    observed, expected = observed[expected > 0], expected[expected > 0]
    return 1.0 if len(expected) == 1 else stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


@pytest.mark.parametrize("home", [0, 3, 4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("restart", [0.0, 0.25, 0.8])
def test_steps_have_their_exact_probabilities(home, weighted, restart):
    trials = 20_000
    found = kernels.random_walks(
        INDPTR, INDICES, torch.full((trials,), home), torch.arange(trials), KEY, walks=2, length=4, restart=restart,
        weights=WEIGHTS if weighted else None,
    ).numpy()  # fmt: skip
    found = np.where(found < 0, 5, found)
    chance = transitions(weighted, restart, home)
    at = np.eye(6)[home]
    for s in range(4):
        # Pairs, as each step must be right given the one before.
        pairs = np.bincount(found[:, s] * 6 + found[:, s + 1], minlength=36)
        assert chi_square(pairs, (at[:, None] * chance).ravel()) > 1e-4
        at = at @ chance
        assert chi_square(np.bincount(found[:, s + 1], minlength=6), at) > 1e-4
    # The walks of a start are independent of each other.
    both = np.bincount(found[::2, 4] * 6 + found[1::2, 4], minlength=36)
    assert chi_square(both, np.outer(at, at).ravel()) > 1e-4


def test_walks_follow_the_written_rule():
    """Known answers, so that the rule cannot drift: stored runs depend on it."""
    indptr, indices = torch.arange(0, 61 * 60, 60), torch.arange(60).repeat(60).int()
    start = torch.tensor([5])
    found = kernels.random_walks(indptr, indices, start, start + 37, KEY, walks=3, length=4, restart=0.25)
    assert found.tolist() == KNOWN
    h = fold(fold(fold(KEY, 42), 1), 0)
    assert fold(h, 1) & 0xFFFF >= 2**14
    assert found[1, 1] == below(fold(h, 0), 60)


def test_a_start_without_neighbors_ends_there():
    """Also where its edges have weight 0 only."""
    for start, weights in ((4, None), (0, WEIGHTS * 0)):
        ids = torch.tensor([start])
        found = kernels.random_walks(INDPTR, INDICES, ids, ids, KEY, walks=2, length=2, weights=weights)
        assert found.tolist() == [[start, -1, -1]] * 2
        assert [part.tolist() for part in kernels.top_visits(found, ids, 3)] == [[0, 0], [], []]


@settings(max_examples=60)
@given(st.integers(0, 6), st.integers(1, 30), st.integers(1, 6), st.integers(1, 40), st.integers(2, 40), st.data())
def test_top_visits_are_those_of_brute_force(count, walks, length, k, nodes, data):
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    start = random.integers(0, nodes, count)
    found = random.integers(0, nodes, (count * walks, length + 1))
    ended = random.integers(1, length + 3, count * walks)
    found[np.arange(length + 1) >= ended[:, None]] = -1
    indptr, ids, counts = kernels.top_visits(torch.from_numpy(found), torch.from_numpy(start), k)
    for i in range(count):
        row = [v for v in found[i * walks : (i + 1) * walks, 1:].ravel().tolist() if v not in (-1, start[i])]
        wanted = Counter(row).most_common(k)  # of equals, the one first met comes first
        mine = slice(int(indptr[i]), int(indptr[i + 1]))
        assert list(zip(ids[mine].tolist(), counts[mine].tolist())) == wanted


def test_wrong_arguments():
    one = torch.tensor([0])
    options = {"walks": 1, "length": 1}
    for wrong in ({"walks": 0}, {"length": 0}, {"restart": 1.0}, {"restart": -0.1}, {"weights": WEIGHTS[:3]}):
        with pytest.raises(ValueError, match=r"at least|restart|weights"):
            kernels.random_walks(INDPTR, INDICES, one, one, KEY, **{**options, **wrong})
    with pytest.raises(ValueError, match="of 10 edges 9 are there"):
        kernels.random_walks(INDPTR, INDICES[:9], one, one, KEY, **options)
    with pytest.raises(ValueError, match="2 original"):
        kernels.random_walks(INDPTR, INDICES, one, torch.tensor([0, 1]), KEY, **options)
    for node in (-1, 5):
        with pytest.raises(IndexError, match="start"):
            kernels.random_walks(INDPTR, INDICES, one * 0 + node, one, KEY, **options)
        with pytest.raises(IndexError, match="ids"):
            kernels.walk_step(INDPTR, INDICES, one * 0 + node, one)
    with pytest.raises(IndexError, match="edges 0 to 3"):
        kernels.walk_step(INDPTR, INDICES[3:], one, one, first_edge=3)
    with pytest.raises(ValueError, match="2 draws"):
        kernels.walk_step(INDPTR, INDICES, one, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="at least 1"):
        kernels.top_visits(torch.zeros(2, 2, dtype=torch.int32), one, 0)
    with pytest.raises(ValueError, match="3 walks"):
        kernels.top_visits(torch.zeros(3, 2, dtype=torch.int32), torch.tensor([0, 1]), 2)
