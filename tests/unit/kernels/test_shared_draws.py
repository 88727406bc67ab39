"""Draws that destinations share: the compiled kernel against the reference, and both against exact probabilities."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from partita import kernels
from partita.core.errors import EdgesError
from partita.core.keys import MASK64, fold
from partita.kernels import SharedKey
from partita.kernels.reference.draws import arrival_time
from partita.kernels.reference.shared_draws import distribution, quantile, shared_draw
from partita.sample.topology import ArrayTopology

KEY = 0x0123456789ABCDEF
# Draws by the written rule; see test_draws_of_the_written_rule.
KNOWN = [1752626741948677504, 9181714400034721280, 16337308506912668927]
UNTURNED, TURNED = SharedKey(KEY), SharedKey.turning(KEY, 77, 0.375)


@st.composite
def stores(draw):
    """Columns of a store with multi-edges, weights and relations, and edges to leave out; some of the first edges."""
    nodes, most = draw(st.sampled_from([(1, 3), (12, 4), (25, 12), (2, 700)]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    degrees = random.integers(0, most + 1, nodes) * (random.random(nodes) < 0.7)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    edges = int(indptr[-1])
    kinds = np.concatenate([np.sort(random.integers(0, 3, degree)) for degree in degrees]) if edges else np.zeros(0)
    weights = random.integers(0, 2**32, edges, dtype=np.uint32) * (random.random(edges) < 0.8)
    return {
        "indptr": torch.from_numpy(indptr),
        "indices": torch.from_numpy(random.integers(0, nodes, edges)).to(
            draw(st.sampled_from([torch.int32, torch.int64]))
        ),
        "weights": torch.from_numpy(weights.astype(np.uint32)),
        "edge_type": torch.from_numpy(kinds.astype(np.uint8)),
        "excluded": torch.from_numpy(np.flatnonzero(random.random(edges) < draw(st.sampled_from([0, 0.05, 0.6])))),
        "original": torch.from_numpy(random.permutation(nodes)),
        "dst": torch.from_numpy(random.integers(0, nodes, draw(st.integers(0, 9)))),
    }


def by_definition(store, key, fanouts, first_edge=0):
    """Positions of every destination, by sorting all edges of every run."""
    found = []
    for node in store["dst"].tolist():
        row, kept = range(*store["indptr"][node : node + 2].tolist()), list[int]()
        lost = set() if store["excluded"] is None else set(store["excluded"].tolist())
        for kind, fanout in enumerate(fanouts):
            timed = []
            for position in sorted(set(row) - lost):
                if store["edge_type"] is not None and store["edge_type"][position - first_edge] != kind:
                    continue
                source = int(store["indices"][position - first_edge])
                draw = shared_draw(key, source if store["original"] is None else int(store["original"][source]))
                time = draw // 2
                if store["weights"] is not None:
                    weight = int(store["weights"][position - first_edge])
                    if not weight:
                        continue
                    time = arrival_time(MASK64 - draw, weight)
                timed.append((time, position))
            kept += sorted(position for _, position in (sorted(timed)[:fanout] if fanout >= 0 else timed))
        found.append(kept)
    return found


@settings(max_examples=60, deadline=None)
@given(
    stores(), st.integers(-1, 9), st.integers(0, 2), st.booleans(), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([UNTURNED, TURNED]),
)  # fmt: skip
def test_both_implementations_draw_by_definition(both, store, fanout, other, typed, weighted, whole, renumbered, key):
    fanouts = (fanout, other, 3) if typed else (fanout,)
    for name, kept in (("edge_type", typed), ("weights", weighted), ("excluded", not whole), ("original", renumbered)):
        store[name] = store[name] if kept else None
    found = both(lambda: kernels.sample_shared(**store, key=key, fanouts=fanouts, positions=True))
    wanted = by_definition(store, key, fanouts)
    for sampled in found:
        assert [sampled.positions[low:high].tolist() for low, high in pairwise(sampled.indptr.tolist())] == wanted
        assert torch.equal(sampled.indices, store["indices"][sampled.positions])
        assert (sampled.edge_type is None) == (not typed)
        assert not typed or torch.equal(sampled.edge_type, store["edge_type"][sampled.positions].int())


@settings(max_examples=20, deadline=None)
@given(stores(), st.integers(0, 5), st.booleans())
def test_of_some_edges_at_hand(both, store, fanout, typed):
    """As from all of them, where the rows of the destinations are among them."""
    first, last = (int(store["dst"].min()), int(store["dst"].max()) + 1) if len(store["dst"]) else (0, 0)
    begin, end = int(store["indptr"][first]), int(store["indptr"][last])
    store["edge_type"] = store["edge_type"] if typed else None
    fanouts = (fanout, 1, -1) if typed else (fanout,)
    whole = kernels.sample_shared(**store, key=UNTURNED, fanouts=fanouts, positions=True)
    part = {
        name: None if store[name] is None else store[name][begin:end] for name in ("indices", "weights", "edge_type")
    }
    excluded = store["excluded"]
    part["excluded"] = excluded[(excluded >= begin) & (excluded < end)]
    for found in both(
        lambda: kernels.sample_shared(
            **{**store, **part}, key=UNTURNED, fanouts=fanouts, positions=True, first_edge=begin
        )
    ):
        assert torch.equal(found.positions, whole.positions)
        assert torch.equal(found.indptr, whole.indptr)
        assert torch.equal(found.indices, whole.indices)


def test_threads_draw_what_one_draws():
    random = np.random.default_rng(3)
    indptr, dst = torch.arange(0, 500 * 200 + 1, 200), torch.from_numpy(random.permutation(500))
    indices = torch.from_numpy(random.integers(0, 500, 100_000).astype(np.int32))
    found = []
    try:
        for threads in (1, 3):
            kernels.set_threads(threads)
            found.append(kernels.sample_shared(indptr, indices, dst, None, TURNED, (40,)))
    finally:
        kernels.set_threads(None)
    assert torch.equal(found[0].indices, found[1].indices)


def test_parallel_edges_are_taken_in_the_order_of_the_row(both):
    """Their source has one number: they come one after the other, whoever asks."""
    indices = torch.tensor([1, 2, 1, 2, 1, 2])
    indptr = torch.tensor([0, 6, 6, 6])
    first = min((1, 2), key=lambda node: shared_draw(UNTURNED, node))
    wanted = [position for position, node in enumerate(indices.tolist()) if node == first]
    for fanout in (1, 2, 3):
        for found in both(
            lambda fanout=fanout: kernels.sample_shared(
                indptr, indices, torch.tensor([0]), None, UNTURNED, (fanout,), positions=True
            )
        ):
            assert found.positions.tolist() == wanted[:fanout]


def test_destinations_with_the_same_neighbors_take_the_same():
    indptr, indices = torch.arange(0, 31, 10), torch.arange(10).repeat(3)
    found = kernels.sample_shared(
        torch.cat([indptr, indptr[-1:].expand(7)]), indices, torch.arange(3), None, UNTURNED, (4,)
    )
    one, two, three = found.indices.reshape(3, 4).tolist()
    assert one == two == three == sorted(sorted(range(10), key=lambda node: fold(KEY, node))[:4])


def taken(rows, degree, fanout, share, weights=None):
    """How often each edge of a row is taken, over rows of equal degree that have no source in common."""
    num_nodes = rows * degree
    indptr = torch.cat([torch.arange(0, num_nodes + 1, degree), torch.full((num_nodes - rows,), num_nodes)])
    weights = None if weights is None else torch.from_numpy(np.tile(weights, rows))
    found = kernels.sample_shared(
        indptr, torch.arange(num_nodes), torch.arange(rows), None, SharedKey.turning(KEY, 77, share), (fanout,),
        weights=weights, positions=True,
    )  # fmt: skip
    assert (found.indptr.diff() == fanout).all()
    return torch.bincount(found.positions % degree, minlength=degree).numpy()


SHARES = (0.0, 0.25, 0.5, 0.9)


@pytest.mark.parametrize("share", SHARES)
def test_every_edge_is_taken_equally_often(share):
    """k of d, whether or not draws are on their way from one key's to the next."""
    counts = taken(20_000, 12, 5, share)
    mean = 20_000 * 5 / 12
    # Of draws without replacement the counts vary less than those of a multinomial distribution.
    spread = ((counts - mean) ** 2 / (mean * 7 / 12)).sum() * 11 / 12
    assert stats.chi2.sf(spread, 11) > 1e-4


@pytest.mark.parametrize("share", SHARES)
def test_the_first_edge_is_taken_in_proportion_to_its_weight(share):
    weights = np.array([1, 2, 0, 5, 30, 12], np.uint32)
    counts = taken(20_000, 6, 1, share, weights)
    assert counts[2] == 0
    able = weights > 0
    assert stats.chisquare(counts[able], 20_000 * weights[able] / 50).pvalue > 1e-4


def test_gaussian_numbers():
    draws = np.random.default_rng(0).integers(0, 2**64, 2000, dtype=np.uint64).tolist()
    draws += [1 << bit for bit in range(16, 64)] + [MASK64 - (1 << bit) for bit in range(16, 64)]
    for draw in draws:
        exact, found = stats.norm.ppf(min(draw, MASK64 - draw) / 2**64), quantile(draw) / 2**30
        assert abs(abs(found) - abs(exact)) < 2e-4
        assert (found > 0) == (draw >= 1 << 63)
        back = distribution(quantile(draw)) / 2**64
        assert min(back, 1 - back) == pytest.approx(min(draw, MASK64 - draw) / 2**64, rel=2e-3, abs=1e-15)
    ordered = sorted(draws)
    assert [quantile(draw) for draw in ordered] == sorted(quantile(draw) for draw in draws)
    numbers = range(-(11 << 30), 11 << 30, 98_765_431)
    assert [distribution(number) for number in numbers] == sorted(distribution(number) for number in numbers)
    assert (distribution(-(11 << 30)), distribution(0), distribution(11 << 30)) == (0, 1 << 63, MASK64)


def test_draws_of_the_written_rule():
    """Of any machine."""
    assert [shared_draw(UNTURNED, node) for node in (0, 7)] == [fold(KEY, node) for node in (0, 7)]
    assert shared_draw(SharedKey.turning(KEY, 77, 0), 7) == fold(KEY, 7)
    assert (TURNED.cosine, TURNED.sine) == (223195925, 149134749)
    assert [shared_draw(TURNED, node) for node in (0, 7, 2**40)] == KNOWN


def test_an_id_that_is_no_node_is_noticed(both):
    indices = torch.tensor([1, 2, 99, 0, 1, 2], dtype=torch.int32)
    for wrong in (99, -5, 3):
        indices[2] = wrong
        for weights in (None, torch.full((6,), 7).to(torch.uint32)):
            topology = ArrayTopology(
                torch.tensor([0, 6, 6, 6]), indices, weights=weights, weighted=weights is not None,
                original=torch.tensor([2, 0, 1]),
            )  # fmt: skip

            def work(topology=topology):
                with pytest.raises(EdgesError, match="damaged"):
                    topology.sample_shared(torch.tensor([0]), UNTURNED, 2)

            both(work)


def test_what_cannot_be_drawn():
    indptr, indices, dst = torch.tensor([0, 2, 2]), torch.tensor([0, 1]), torch.tensor([0])

    def draw(fanouts=(1,), dst=dst, original=None, **options):
        return kernels.sample_shared(indptr, indices, dst, original, UNTURNED, fanouts, **options)

    with pytest.raises(ValueError, match="fanout -2"):
        draw((-2,))
    with pytest.raises(ValueError, match="2 fanouts for edges without types"):
        draw((1, 1))
    with pytest.raises(ValueError, match="1 types for 2 edges"):
        draw(edge_type=torch.zeros(1, dtype=torch.uint8))
    with pytest.raises(ValueError, match="3 original indices for 2 nodes"):
        draw(original=torch.arange(3))
    with pytest.raises(ValueError, match="1 weights for 2 edges"):
        draw(weights=torch.ones(1).to(torch.uint32))
    with pytest.raises(IndexError, match="dst: 2 to 2"):
        draw(dst=torch.tensor([2]))
    with pytest.raises(ValueError, match="without replacement"):
        ArrayTopology(indptr, indices, replace=True).sample_shared(dst, UNTURNED, 1)
    with pytest.raises(ValueError, match="2 fanouts for 1 relations"):
        ArrayTopology(indptr, indices).sample_shared(dst, UNTURNED, (1, 1))
