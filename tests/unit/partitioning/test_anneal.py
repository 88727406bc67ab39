"""Annealing, the counters of replicas that it shares with refinement, and parts by degree."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from array_stream import ArrayStream
from hypothesis import given, settings
from hypothesis import strategies as st
from row_streams import both_ways, cut_weight, replicas, row_streams

import partita
from partita.core.errors import InputError
from partita.core.partitioning import PartitionTask
from partita.graph.generate import generate_rmat, generate_sbm
from partita.partitioning import anneal as annealing
from partita.partitioning import edge_streams, near
from partita.partitioning.anneal import anneal, cost
from partita.partitioning.core_first import core_first
from partita.partitioning.edge_streams import RowStream, StoreStream
from partita.partitioning.loads import class_caps, class_loads
from partita.partitioning.quality import quality
from partita.partitioning.random import hashed
from partita.partitioning.refine import refine
from partita.partitioning.spring_plus import SpringPlus
from partita.partitioning.stream_stats import survey

NO_COUNTERS = 0  # a memory limit


def drawn(data, low, high, size, dtype):
    return np.array(data.draw(st.lists(st.integers(low, high), min_size=size, max_size=size)), dtype=dtype)


def task_of(stream, num_parts, **kwargs):
    return PartitionTask(stream, num_parts, survey=survey(stream), **kwargs)


def beyond(task, parts):
    """Load of parts beyond what they may have."""
    loads = class_loads(parts, task.num_parts, task.weights(), task.class_of())
    return int(np.maximum(loads - class_caps(loads, task.epsilon)[:, None], 0).sum())


# Annealing


@settings(max_examples=200)
@given(
    st.booleans().flatmap(lambda weighted: row_streams(weights=weighted)), st.integers(2, 6),
    st.sampled_from([0.0, 0.2, 5.0]), st.sampled_from([NO_COUNTERS, 1 << 20]), st.integers(0, 2**70), st.data(),
)  # fmt: skip
def test_it_is_never_worse_than_before_and_every_node_keeps_one_part(stream, num_parts, epsilon, limit, seed, data):
    size = stream.num_nodes
    parts = drawn(data, 0, num_parts - 1, size, np.int32)
    load = drawn(data, 1, 5, size, np.int64) if data.draw(st.booleans()) else None
    classes = drawn(data, 0, 2, size, np.uint16) if data.draw(st.booleans()) else None
    task = task_of(
        stream, num_parts, epsilon=epsilon, memory_limit=limit, seed=seed, node_weight=load, classes=classes
    )  # fmt: skip

    def spent(parts):
        by_volume = limit and not stream.weighted
        return beyond(task, parts), (replicas if by_volume else cut_weight)(stream, parts)

    before = spent(parts)
    saved = anneal(task, parts, 6)
    after = spent(parts)
    assert parts.dtype == np.int32
    assert 0 <= parts.min() <= parts.max() < num_parts
    assert after <= before
    assert saved == before[1] - after[1]
    assert after == cost(task, parts, near.counters(task))


@given(row_streams(), st.integers(2, 4), st.data())
def test_what_it_does_depends_on_the_seed_and_not_on_the_size_of_batches(stream, num_parts, data):
    start = drawn(data, 0, num_parts - 1, stream.num_nodes, np.int32)
    first, again = start.copy(), start.copy()
    anneal(task_of(stream, num_parts, seed=3), first, 5)
    at_once = edge_streams.EDGES_AT_ONCE
    try:
        edge_streams.EDGES_AT_ONCE = 2
        anneal(task_of(stream, num_parts, seed=3), again, 5)
    finally:
        edge_streams.EDGES_AT_ONCE = at_once
    assert first.tolist() == again.tolist()


@given(st.booleans().flatmap(lambda weighted: row_streams(weights=weighted)), st.integers(2, 5), st.data())
def test_compiled_and_plain_loops_move_the_same_nodes(stream, num_parts, data):
    start = drawn(data, 0, num_parts - 1, stream.num_nodes, np.int32)
    task = task_of(stream, num_parts)
    found = []
    for loops in (annealing._anneal_rows, annealing._anneal_rows.py_func):
        parts, counted = start.copy(), near.counters(task)
        if len(counted):
            near.count(task, parts, counted, "count")
        loads = class_loads(parts, num_parts, task.weights(), task.class_of())
        # what compiled functions return to plain ones has lost its type
        with patch.object(annealing, "hashed", lambda v, key: np.uint64(hashed(v, key))):
            for rows in stream.rows("anneal"):
                loops(
                    rows.first, rows.indptr, rows.src, rows.weight, parts, loads, task.weights(), task.class_of(),
                    class_caps(loads, 0.5), np.maximum(loads // 2, 1),
                    np.ones(1, dtype=bool), counted, 2.0, 1.0, np.uint64(7),
                )  # fmt: skip
        found.append((parts.tolist(), loads.tolist(), counted.tolist()))
    assert found[0] == found[1]


def test_it_gets_out_of_places_in_which_greedy_moves_end():
    """A ring of cliques, dealt out at random: most greedy moves end where no part has room for a whole clique."""
    src, dst = zip(*[(4 * c + i, 4 * c + j) for c in range(64) for i in range(4) for j in range(4) if i != j])
    ring = np.arange(0, 256, 4)
    src, dst = np.concatenate([src, ring, np.roll(ring, 1)]), np.concatenate([dst, np.roll(ring, 1), ring])
    order = np.argsort(dst, kind="stable")
    stream = RowStream(np.concatenate([[0], np.cumsum(np.bincount(dst))]), src[order].astype(np.int32))
    task = task_of(stream, 4, epsilon=0.05)
    parts = np.random.default_rng(0).integers(0, 4, 256, dtype=np.int32)
    greedy = parts.copy()
    refine(task, greedy, 20)
    anneal(task, parts, 80)
    assert replicas(stream, parts) < 0.7 * replicas(stream, greedy)
    assert np.bincount(parts).max() <= 68


def test_parts_without_nodes_are_filled():
    """Their neighbors cannot draw anyone into them."""
    generator = np.random.default_rng(0)
    src = generator.integers(0, 64, 256, dtype=np.int32)
    stream = RowStream(np.arange(0, 257, 4), src)
    parts = np.zeros(64, dtype=np.int32)
    anneal(task_of(stream, 4), parts, 4)
    assert np.bincount(parts, minlength=4).max() <= 17


def test_nodes_without_edges_fill_up_what_others_leave():
    """Two cliques and as many nodes without edges; neither part has room, and one has too few nodes with edges."""
    pairs = [(8 * c + i, 8 * c + j) for c in range(2) for j in range(8) for i in range(8) if i != j]
    indptr = np.concatenate([np.arange(0, 7 * 16 + 1, 7), np.full(16, 7 * 16)])
    stream = RowStream(indptr, np.array([u for u, _ in pairs], dtype=np.int32))
    parts = np.array(([0] * 6 + [1] * 2) * 2 + [0] * 4 + [1] * 12, dtype=np.int32)
    anneal(task_of(stream, 2, epsilon=0.2), parts, 100)
    assert replicas(stream, parts) == 0
    assert np.bincount(parts).tolist() == [16, 16]


def test_no_part_runs_empty_for_the_sake_of_replicas():
    generator = np.random.default_rng(0)
    stream = both_ways(RowStream(np.arange(0, 1001, 5), generator.integers(0, 200, 1000, dtype=np.int32)))
    for start in (np.arange(200) % 20, np.arange(200) % 19):  # the last part has its share, or nothing
        parts = start.astype(np.int32)
        anneal(task_of(stream, 20, epsilon=0.2), parts, 50)
        assert 8 <= np.bincount(parts, minlength=20).min() <= np.bincount(parts).max() <= 12


def test_it_needs_rows_and_does_nothing_for_one_part_or_without_passes():
    stream = ArrayStream(np.array([0]), np.array([1]))
    with pytest.raises(InputError, match="grouped by destination"):
        anneal(task_of(stream, 2), np.zeros(2, dtype=np.int32), 1)
    assert anneal(task_of(stream, 1), np.zeros(2, dtype=np.int32), 1) == 0
    assert anneal(task_of(stream, 2), np.zeros(2, dtype=np.int32), 0) == 0


# Counters of replicas


@given(row_streams(), st.integers(1, 5), st.data())
def test_counters_are_those_of_a_dictionary_up_to_fifteen(stream, num_parts, data):
    parts = drawn(data, 0, num_parts - 1, stream.num_nodes, np.int32)
    task = PartitionTask(stream, num_parts)
    counted = near.counters(task)
    near.count(task, parts, counted, "count")
    dst = np.repeat(np.arange(stream.num_nodes), np.diff(stream._indptr))
    for u in range(stream.num_nodes):
        for p in range(num_parts):
            expected = np.count_nonzero((stream._src == u) & (dst != u) & (parts[dst] == p))
            assert near.get(counted, u, p) == min(expected, 15)
    assert near.replicas(parts, counted) == replicas(stream, parts)


@given(row_streams(), st.integers(2, 5), st.data())
def test_a_move_saves_what_is_said_and_counters_follow_it(stream, num_parts, data):
    stream = both_ways(stream)
    parts = drawn(data, 0, num_parts - 1, stream.num_nodes, np.int32)
    v, to = data.draw(st.integers(0, stream.num_nodes - 1)), data.draw(st.integers(0, num_parts - 1))
    task = PartitionTask(stream, num_parts)
    counted, again = near.counters(task), near.counters(task)
    near.count(task, parts, counted, "count")
    begin, end, own = stream._indptr[v], stream._indptr[v + 1], parts[v]
    once = len(set(stream._src[begin:end].tolist())) == end - begin  # an edge that is repeated can hide a saving
    said = near.saved(stream._src, begin, end, v, own, to, parts, counted)
    before = replicas(stream, parts)
    near.move(stream._src, begin, end, v, own, to, counted)
    parts[v] = to
    near.count(task, parts, again, "count")
    if to != own:
        assert said == before - replicas(stream, parts) if once else said <= before - replicas(stream, parts)
    assert counted.max(initial=0) >= 15 or counted.tolist() == again.tolist()


def test_counters_are_left_out_where_they_do_not_fit():
    stream = RowStream(np.zeros(11, dtype=np.int64), np.empty(0, dtype=np.int32))
    assert near.counters(PartitionTask(stream, 5, memory_limit=30)).shape == (10, 3)
    assert near.counters(PartitionTask(stream, 5, memory_limit=29)).shape == (0, 3)


# Parts by degree


@given(st.booleans().flatmap(lambda weighted: row_streams(weights=weighted)), st.integers(1, 5), st.data())
def test_parts_by_degree_are_even_and_the_first_have_the_hubs(stream, num_parts, data):
    size = stream.num_nodes
    load = drawn(data, 1, 5, size, np.int64) if data.draw(st.booleans()) else None
    classes = drawn(data, 0, 2, size, np.uint16) if data.draw(st.booleans()) else None
    task = task_of(stream, num_parts, node_weight=load, classes=classes)
    parts, degree = core_first(task), task.survey.degree
    assert np.array_equal(parts < 0, degree == 0)
    load = np.ones(size, dtype=np.int64) if load is None else load
    classes = np.zeros(size, dtype=np.uint16) if classes is None else classes
    for number in range(3):
        mine = (classes == number) & (degree > 0)
        for p in range(num_parts):
            inside = mine & (parts == p)
            assert load[inside].sum() <= load[mine].sum() / num_parts + load[mine].max(initial=0)
            assert degree[inside].min(initial=2**31 - 1) >= degree[mine & (parts > p)].max(initial=0)


# What it is for


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("graphs")


def by_links(store, num_parts, share, **options):
    stream = StoreStream(store)
    task = task_of(stream, num_parts, options={"links": int(share * survey(stream).volume) // 2, **options})
    return quality(stream, SpringPlus().partition(task), num_parts)


def test_a_sixteenth_of_the_links_is_enough_for_communities(folder):
    generate_sbm(folder / "sbm", num_nodes=6000, num_classes=24, average_degree=12, num_features=0)
    store = partita.open(folder / "sbm")
    found = by_links(store, 16, 1 / 16)
    assert found.replication_factor < 1.03 * by_links(store, 16, 1, anneal=0).replication_factor
    assert found.nodes.balance <= 1.051


def test_a_core_is_found_without_its_edges(folder):
    generate_rmat(folder / "rmat", scale=13, edge_factor=16, undirected=True, deduplicate=True)
    store = partita.open(folder / "rmat")
    found = by_links(store, 16, 1 / 16)
    assert found.replication_factor < 1.08 * by_links(store, 16, 1, anneal=0).replication_factor
    assert found.nodes.balance <= 1.051


def test_a_part_that_everybody_wants_takes_no_more_than_it_has_room_for():
    """One community of half of the nodes among eight parts: annealing saves replicas without what parts may not have.

    Where it let a part grow beyond its room, all of its moves would be taken back at the end.
    """
    generator = np.random.default_rng(0)
    own = np.where(np.arange(320)[:, None] < 160, 0, 160) + generator.integers(0, 160, (320, 6))
    stream = both_ways(RowStream(np.arange(0, 1921, 6), own.ravel().astype(np.int32)))
    task = task_of(stream, 8, epsilon=0.1)
    parts = (np.arange(320) % 8).astype(np.int32)
    before = replicas(stream, parts)
    assert anneal(task, parts, 60) == before - replicas(stream, parts) > 0.1 * before
    assert np.bincount(parts).max() <= 44
