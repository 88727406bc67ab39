"""Sampling of typed graphs: the compiled kernels against the reference, and both against what was promised."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.kernels import (
    arrival_times,
    pair_edges,
    pick_arrivals,
    pick_relation_arrivals,
    relation_arrival_times,
    sample_neighbors,
    sample_relations,
)

KEY = 0x0123456789ABCDEF


@st.composite
def typed_stores(draw):
    """``indptr``, ``indices``, ``edge_type``, ``weights``, and R."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    nodes, relations = draw(st.integers(1, 20)), draw(st.sampled_from([1, 2, 5, 300]))
    degrees = random.integers(0, draw(st.integers(1, 60)) + 1, nodes) * (random.random(nodes) < 0.8)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
    edges = int(indptr[-1])
    kinds = random.integers(0, relations, edges) * (random.random(edges) < 0.7)
    kinds = kinds[np.lexsort((kinds, np.repeat(np.arange(nodes), degrees)))]
    edge_type = torch.from_numpy(kinds.astype(np.uint8 if relations <= 256 else np.uint16))
    indices = torch.from_numpy(random.integers(0, nodes, edges)).to(draw(st.sampled_from([torch.int32, torch.int64])))
    weights = random.integers(0, 2**32, edges, dtype=np.uint32) * (random.random(edges) < 0.8).astype(np.uint32)
    return indptr, indices, edge_type, torch.from_numpy(weights), relations


@settings(max_examples=60, deadline=None)
@given(typed_stores(), st.data(), st.booleans(), st.booleans(), st.integers(0, 2**64 - 1), st.integers(1, 100))
def test_a_relation_is_drawn_like_a_node_of_its_own(both, store, data, replace, weighted, key, stride):
    indptr, indices, edge_type, weights, relations = store
    nodes = indptr.shape[0] - 1
    dst = torch.tensor(data.draw(st.permutations(range(nodes)))[: data.draw(st.integers(0, nodes))], dtype=torch.int64)
    original = dst * stride + 7
    few = data.draw(st.lists(st.sampled_from([-1, 0, 1, 3, 40]), min_size=1, max_size=5))
    fanouts = [few[relation % len(few)] for relation in range(relations)]
    options = {"replace": replace, "positions": True}

    def work():
        held = weights if weighted else None
        return sample_relations(indptr, indices, edge_type, dst, original, key, fanouts, weights=held, **options)

    found, plain = both(work)
    for name in ("indptr", "indices", "positions", "edge_type"):
        assert torch.equal(getattr(found, name), getattr(plain, name))
    assert found.indices.dtype == indices.dtype
    assert found.edge_type.dtype == torch.int32
    # Each relation's edges, taken out of the store by a mask, are a store without types.
    kinds, row = edge_type.long(), torch.repeat_interleave(indptr.diff())
    expected = []
    for relation in kinds.unique().tolist():
        (at,) = torch.nonzero(kinds == relation, as_tuple=True)
        alone = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(row[at], minlength=nodes).cumsum(0)])
        held = torch.from_numpy(weights.numpy()[at.numpy()]) if weighted else None
        keys = original * relations + relation
        drawn = sample_neighbors(alone, indices[at], dst, keys, key, fanouts[relation], weights=held, **options)
        place = torch.repeat_interleave(drawn.indptr.diff()).tolist()
        edges = at[drawn.positions].tolist()
        expected += [(i, relation, number, edge) for number, (i, edge) in enumerate(zip(place, edges, strict=True))]
    expected.sort()
    place = torch.repeat_interleave(found.indptr.diff()).tolist()
    assert list(zip(place, found.edge_type.tolist(), found.positions.tolist(), strict=True)) == [
        (i, relation, edge) for i, relation, _, edge in expected
    ]
    assert torch.equal(found.indices, indices[found.positions])


@settings(max_examples=60, deadline=None)
@given(typed_stores(), st.data(), st.booleans(), st.booleans(), st.integers(0, 2**64 - 1), st.integers(1, 100))
def test_edges_of_a_relation_arrive_like_those_of_nodes_of_its_own(both, store, data, replace, weighted, key, stride):
    indptr, indices, edge_type, weights, relations = store
    nodes = indptr.shape[0] - 1
    dst = torch.tensor(data.draw(st.permutations(range(nodes)))[: data.draw(st.integers(0, nodes))], dtype=torch.int64)
    original = dst * stride + 7
    few = data.draw(st.lists(st.sampled_from([0, 1, 3, 40]), min_size=1, max_size=5))
    wanted = [few[relation % len(few)] for relation in range(relations)]
    options = {"replace": replace, "weights": weights if weighted else None}

    def work():
        times = relation_arrival_times(indptr, edge_type, dst, original, key, wanted, **options)
        before = [int(each[-1]) if len(each) else 0 for each in times.split(wanted)]
        return times, pick_relation_arrivals(
            indptr, indices, edge_type, dst, original, key, before, positions=True, degrees=True, **options
        )

    (times, found), (plain_times, plain) = both(work)
    assert torch.equal(times, plain_times)
    for name in ("indptr", "indices", "positions", "edge_type", "relation_degree"):
        assert torch.equal(getattr(found, name), getattr(plain, name)), name
    assert found.edge_type.dtype == found.relation_degree.dtype == torch.int32
    # Each relation's edges, taken out of the store by a mask, are a store without types.
    kinds, row = edge_type.long(), torch.repeat_interleave(indptr.diff())
    expected, each_time = [], times.split(wanted)
    for relation, number in enumerate(wanted):
        if not number:
            continue
        (at,) = torch.nonzero(kinds == relation, as_tuple=True)
        degrees = torch.bincount(row[at], minlength=nodes)
        alone = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
        held = {"replace": replace, "weights": torch.from_numpy(weights.numpy()[at.numpy()]) if weighted else None}
        keys = original * relations + relation
        assert torch.equal(arrival_times(alone, dst, keys, key, number, **held), each_time[relation])
        drawn = pick_arrivals(
            alone, indices[at], dst, keys, key, int(each_time[relation][-1]), positions=True, **held
        )  # fmt: skip
        place = torch.repeat_interleave(drawn.indptr.diff())
        edges = at[drawn.positions].tolist()
        expected += zip(place.tolist(), [relation] * len(edges), edges, degrees[dst[place]].tolist(), strict=True)
    columns = (found.edge_type, found.positions, found.relation_degree)
    place = torch.repeat_interleave(found.indptr.diff()).tolist()
    assert list(zip(place, *(column.tolist() for column in columns), strict=True)) == sorted(expected)
    assert torch.equal(found.indices, indices[found.positions])
    if weighted:
        assert np.array_equal(found.weights.numpy(), weights.numpy()[found.positions.numpy()])


def test_a_range_of_edges_is_enough(both):
    indptr = torch.arange(0, 21 * 12, 12)
    indices = torch.arange(20 * 12) % 20
    edge_type = (torch.arange(12) // 4).to(torch.uint8).repeat(20)
    dst = torch.arange(5, 15)

    def work(held, first):
        fanouts = (2, -1, 1)
        return sample_relations(
            indptr, indices[held], edge_type[held], dst, dst, KEY, fanouts, positions=True, first_edge=first
        )

    whole = work(slice(None), 0)
    for part in both(lambda: work(slice(60, 180), 60)):
        assert torch.equal(part.positions, whole.positions)
        assert torch.equal(part.indices, whole.indices)
    assert whole.indptr.diff().tolist() == [2 + 4 + 1] * 10


def test_a_range_of_edges_is_enough_for_a_layer_as_a_whole(both):
    indptr = torch.arange(0, 21 * 12, 12)
    indices = torch.arange(20 * 12) % 20
    weights = (torch.arange(20 * 12) % 7).to(torch.uint32)
    edge_type = (torch.arange(12) // 4).to(torch.uint8).repeat(20)
    dst = torch.arange(5, 15)

    def work(held, first):
        options = {"weights": weights[held], "first_edge": first}
        times = relation_arrival_times(indptr, edge_type[held], dst, dst, KEY, (4, 0, 6), **options)
        before = [int(times[3]), 0, int(times[9])]
        return times, pick_relation_arrivals(
            indptr, indices[held], edge_type[held], dst, dst, KEY, before, positions=True, **options
        )

    times, whole = work(slice(None), 0)
    for part_times, part in both(lambda: work(slice(60, 180), 60)):
        assert torch.equal(part_times, times)
        for name in ("positions", "indices", "edge_type"):
            assert torch.equal(getattr(part, name), getattr(whole, name))
        assert part.weights.tolist() == whole.weights.tolist()
    assert whole.edge_type.bincount().tolist() == [3, 0, 5]
    assert whole.relation_degree is None


def test_rows_that_are_not_sorted_are_read_within_their_bounds(both):
    """Whatever a damaged column says, nothing outside of the row is read."""
    indptr, indices = torch.tensor([0, 5, 10]), torch.arange(10)
    for kinds in ([4, 0, 3, 0, 1, 2, 9, 0, 0, 1], [255] * 10, [0, 1, 0, 1, 0, 1, 0, 1, 0, 255]):
        edge_type = torch.tensor(kinds, dtype=torch.uint8)
        for found in both(
            lambda held=edge_type: sample_relations(
                indptr, indices, held, torch.tensor([1]), torch.tensor([1]), KEY, [-1] * 5, positions=True
            )
        ):
            assert ((found.positions >= 5) & (found.positions < 10)).all()


def test_what_is_refused():
    indptr, indices, edge_type = torch.tensor([0, 2]), torch.tensor([0, 0]), torch.tensor([0, 1], dtype=torch.uint8)
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="fanout -2"):
        sample_relations(indptr, indices, edge_type, one, one, KEY, (1, -2))
    with pytest.raises(ValueError, match="1 types for 2 edges"):
        sample_relations(indptr, indices, edge_type[:1], one, one, KEY, (1, 1))
    with pytest.raises(IndexError, match="dst"):
        sample_relations(indptr, indices, edge_type, one + 1, one, KEY, (1, 1))
    with pytest.raises(IndexError, match="dst"):
        relation_arrival_times(indptr, edge_type, one + 1, one, KEY, (1, 1))
    with pytest.raises(ValueError, match="-1 times"):
        relation_arrival_times(indptr, edge_type, one, one, KEY, (1, -1))
    with pytest.raises(ValueError, match="1 types for 2 edges"):
        pick_relation_arrivals(indptr, indices, edge_type[:1], one, one, KEY, (1, 1))


@settings(max_examples=60, deadline=None)
@given(typed_stores())
def test_pairs_of_destinations_and_relations(both, store):
    indptr, _, edge_type, _, relations = store
    kinds = edge_type.to(torch.int32)
    found, plain = both(lambda: pair_edges(indptr, kinds, relations))
    for compiled, expected in zip(found, plain, strict=True):
        assert compiled.dtype == expected.dtype
        assert torch.equal(compiled, expected)
    dst, rows, edges, sizes, of_dst, place = found
    row = torch.repeat_interleave(indptr.diff())
    wanted = sorted(set(zip(kinds.tolist(), row.tolist())))
    assert dst.tolist() == [node for _, node in wanted]
    assert sizes.tolist() == np.bincount([kind for kind, _ in wanted], minlength=relations).tolist()
    for pair, (kind, node) in enumerate(wanted):
        of_pair = edges[rows[pair] : rows[pair + 1]]
        assert of_pair.tolist() == torch.nonzero((kinds == kind) & (row == node)).flatten().tolist()
    for node in range(len(indptr) - 1):
        assert [wanted[pair] for pair in place[of_dst[node] : of_dst[node + 1]]] == [
            each for each in wanted if each[1] == node
        ]


def test_pairs_of_a_relation_that_there_is_not():
    with pytest.raises(IndexError, match="edge_type: 0 to 2, but there are 2"):
        pair_edges(torch.tensor([0, 2]), torch.tensor([0, 2]), 2)
    with pytest.raises(ValueError, match="number of edges"):
        pair_edges(torch.tensor([0, 1]), torch.tensor([0, 1]), 2)
