"""What every partitioner must keep to. A new one in the table is covered without a new test."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from itertools import pairwise

import edge_oracles as oracles
import numpy as np
import pytest
from array_stream import ArrayStream
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.core.errors import InputError
from partita.core.partitioning import Partitioner, PartitionTask
from partita.graph.generate import generate_rmat
from partita.partitioning import edge_streams
from partita.partitioning.balance import even_out
from partita.partitioning.edge_streams import RowStream
from partita.partitioning.partitioners import PARTITIONERS, find_partitioner
from partita.partitioning.quality import quality
from partita.partitioning.refine import refine
from partita.partitioning.stream_stats import survey

ALL = sorted(PARTITIONERS)
LIMIT = 64 << 20


@st.composite
def graphs(draw):
    """Rows of a graph with isolated nodes, stars, several components, repeated edges and self loops; and a P."""
    num_nodes = draw(st.integers(1, 24))
    nodes = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(nodes, nodes), max_size=50))
    if draw(st.booleans()):
        hub = draw(nodes)
        edges += [(hub, leaf) for leaf in range(num_nodes)]
    if draw(st.booleans()):
        edges += [(v, u) for u, v in edges]
    src, dst = np.array(edges, dtype=np.int32).reshape(-1, 2).T
    order = np.argsort(dst, kind="stable")
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(dst, minlength=num_nodes), out=indptr[1:])
    return indptr, np.ascontiguousarray(src[order]), draw(st.integers(1, min(6, num_nodes)))


def run(name, stream, num_parts, **kwargs):
    partitioner = find_partitioner(name)
    task = PartitionTask(stream, num_parts, memory_limit=LIMIT, **kwargs)
    if partitioner.requires.survey:
        task.survey = survey(stream)
    return partitioner.partition(task), partitioner, task


@pytest.mark.parametrize("name", ALL)
def test_it_follows_the_protocol(name):
    partitioner = find_partitioner(name)
    assert isinstance(partitioner, Partitioner)
    assert partitioner.requires.passes >= 0
    assert not (partitioner.requires.in_memory and partitioner.requires.grouped)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=60)
@given(graph=graphs(), seed=st.integers(0, 2**70))
def test_every_node_has_one_part_and_the_load_keeps_the_declared_bound(name, graph, seed):
    indptr, src, num_parts = graph
    parts, partitioner, task = run(name, RowStream(indptr, src), num_parts, seed=seed)
    assert parts.dtype == np.int32
    assert parts.shape == (len(indptr) - 1,)
    assert parts.min() >= 0
    assert parts.max() < num_parts
    bound = partitioner.bound(task)
    if bound is not None:
        assert np.bincount(parts).max() <= bound


def edge_bounds():
    """Edge partitioners that promise a bound for edges."""
    task = oracles.task_of((3, [(0, 1)]), 2)
    return [name for name in ALL if getattr(find_partitioner(name), "edge_bound", lambda _: None)(task) is not None]


def test_the_edge_partitioners_with_a_score_promise_a_bound():
    assert {"hdrf", "greedy", "two_phase"} <= set(edge_bounds())


@pytest.mark.parametrize("name", edge_bounds())
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 1.0])
@settings(max_examples=30)
@given(graph=oracles.graphs(), num_parts=st.sampled_from(oracles.PARTS))
def test_no_part_gets_more_edges_than_the_declared_bound(name, epsilon, graph, num_parts):
    partitioner = find_partitioner(name)
    placed, _, _ = oracles.run(partitioner, graph, num_parts, epsilon=epsilon)
    bound = partitioner.edge_bound(oracles.task_of(graph, num_parts, epsilon=epsilon))
    assert len(placed) == len(oracles.without_loops(graph[1]))
    assert bound <= max(-(-len(placed) // num_parts), (1 + epsilon) * len(placed) / num_parts)
    assert np.bincount(placed, minlength=num_parts).max() <= bound


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=30)
@given(graph=graphs())
def test_it_is_deterministic_whatever_the_size_of_the_batches(name, graph):
    indptr, src, num_parts = graph
    first, _, _ = run(name, RowStream(indptr, src), num_parts)
    at_once = edge_streams.EDGES_AT_ONCE
    try:
        edge_streams.EDGES_AT_ONCE = 3
        again, _, _ = run(name, RowStream(indptr, src), num_parts)
    finally:
        edge_streams.EDGES_AT_ONCE = at_once
    assert first.tolist() == again.tolist()


@pytest.mark.parametrize("name", [name for name in ALL if find_partitioner(name).order_independent])
@settings(max_examples=30)
@given(graph=graphs(), data=st.data())
def test_the_order_of_edges_does_not_matter_where_claimed(name, graph, data):
    indptr, src, num_parts = graph
    first, _, _ = run(name, RowStream(indptr, src), num_parts)
    shuffled = src.copy()
    for begin, end in pairwise(indptr):
        shuffled[begin:end] = data.draw(st.permutations(src[begin:end].tolist()))
    again, _, _ = run(name, RowStream(indptr, shuffled), num_parts)
    assert first.tolist() == again.tolist()


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=20)
@given(graph=graphs())
def test_a_raw_edge_list_works_or_is_refused(name, graph):
    indptr, src, num_parts = graph
    dst = np.repeat(np.arange(len(indptr) - 1, dtype=src.dtype), np.diff(indptr))
    stream = ArrayStream(src[::-1].copy(), dst[::-1].copy(), len(indptr) - 1)
    if find_partitioner(name).requires.grouped:
        with pytest.raises(InputError, match="grouped by destination"):
            run(name, stream, num_parts)
    else:
        parts, _, _ = run(name, stream, num_parts)
        assert parts.shape == (stream.num_nodes,)
        assert set(parts.tolist()) <= set(range(num_parts))


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=20)
@given(graph=graphs())
def test_quality_is_that_of_a_brute_force_count(name, graph):
    indptr, src, num_parts = graph
    stream = RowStream(indptr, src)
    parts, _, _ = run(name, stream, num_parts)
    found = quality(stream, parts, num_parts)
    owner = parts.tolist()
    rows = {v: src[indptr[v] : indptr[v + 1]].tolist() for v in range(len(owner))}
    held = [
        {v for v in rows if owner[v] == part} | {u for v in rows if owner[v] == part for u in rows[v]}
        for part in range(num_parts)
    ]
    assert found.replication_factor == pytest.approx(sum(map(len, held)) / len(owner))
    proper = [(u, v) for v in rows for u in rows[v] if u != v]
    assert found.cut_edges == sum(owner[u] != owner[v] for u, v in proper)
    assert found.nodes.counts == tuple(owner.count(part) for part in range(num_parts))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
@settings(max_examples=30)
@given(graph=graphs(), weighted=st.booleans(), data=st.data())
def test_every_class_of_nodes_can_be_spread_evenly(name, epsilon, graph, weighted, data):
    indptr, src, num_parts = graph
    size = len(indptr) - 1

    def numbers(low, high, dtype):
        return np.array(data.draw(st.lists(st.integers(low, high), min_size=size, max_size=size)), dtype=dtype)

    classes, load = numbers(0, 2, np.uint16), numbers(1, 9, np.int64) if weighted else None
    parts, _, task = run(
        name, RowStream(indptr, src), num_parts, classes=classes, node_weight=load, epsilon=epsilon
    )  # fmt: skip
    before = parts.copy()
    moved = even_out(task, parts)
    assert moved >= np.count_nonzero(before != parts)
    load = np.ones(size, dtype=np.int64) if load is None else load
    for number in range(3):
        of_class = np.bincount(parts[classes == number], load[classes == number], minlength=num_parts)
        mean, heaviest = of_class.sum() / num_parts, load[classes == number].max(initial=0)
        assert of_class.max() <= max(np.ceil((1 + epsilon) * mean), mean + heaviest * weighted)
    again = parts.copy()
    assert weighted or even_out(task, again) == 0
    refine(task, parts, 2)  # what is even stays even
    for number in range(3 * (not weighted)):
        of_class = np.bincount(parts[classes == number], minlength=num_parts)
        assert of_class.max() <= np.ceil((1 + epsilon) * np.count_nonzero(classes == number) / num_parts)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=20)
@given(graph=graphs(), data=st.data())
def test_weighted_streams_and_loads_are_accepted(name, graph, data):
    indptr, src, num_parts = graph
    size = len(indptr) - 1
    weight = np.array(data.draw(st.lists(st.integers(0, 5), min_size=len(src), max_size=len(src))), dtype=np.uint32)
    load = np.array(data.draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)), dtype=np.int64)
    parts, _, _ = run(name, RowStream(indptr, src, weight), num_parts, node_weight=load)
    assert parts.shape == (size,)
    assert 0 <= parts.min() <= parts.max() < num_parts


@pytest.mark.parametrize("name", ALL)
def test_edges_of_weight_zero_are_accepted(name):
    """Then even nodes with edges may have no weight at all."""
    indptr, src = np.array([0, 0, 1, 1, 3]), np.array([0, 2, 0], dtype=np.int32)
    for weight in ([0, 1, 0], [0, 0, 0]):
        stream = RowStream(indptr, src, np.array(weight, dtype=np.uint32))
        for num_parts in (1, 2, 3):
            parts, _, _ = run(name, stream, num_parts)
            assert 0 <= parts.min() <= parts.max() < num_parts


# Memory: the same nodes with ten times the edges, under a hard limit of private memory

NUM_PARTS = 16
SCALE = 20


@pytest.fixture(scope="module")
def growing(tmp_path_factory):
    """Two stores with the same number of nodes, the second with ten times the edges of the first."""
    folder = tmp_path_factory.mktemp("growing")
    for edge_factor in (1, 10):
        generate_rmat(folder / f"edges{edge_factor}", scale=SCALE, edge_factor=edge_factor, undirected=True)
    return folder


_MEASURE = """
    import json, resource, sys
    import partita
    from partita.core.partitioning import PartitionTask
    from partita.partitioning.quality import quality
    from partita.partitioning.edge_streams import StoreStream, Watched
    from partita.partitioning.stream_stats import survey
    from partita.partitioning.partitioners import find_partitioner

    name, folder, num_parts, budget = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    partitioner = find_partitioner(name)

    def run(stream):
        task = PartitionTask(Watched(stream), num_parts, memory_limit=budget)
        if partitioner.requires.survey:
            task.survey = survey(task.stream)
        parts = partitioner.partition(task)
        task.survey = None
        return quality(stream, parts, num_parts).replication_factor

    def data_bytes():
        for line in open("/proc/self/status"):
            if line.startswith("VmData"):
                return int(line.split()[1]) * 1024

    found = []
    for edge_factor in (1, 10):
        stream = StoreStream(partita.open(f"{folder}/edges{edge_factor}"))
        run(stream.prefix(1000))  # loads what has to be loaded
        a, b = partitioner.requires.node_bytes
        a, b = min(a, 48), min(b, 1 / 8) if not partitioner.requires.budget else b
        allowed = 64 * 2**20 + (a + b * num_parts + num_parts / 8 + 4) * stream.num_nodes
        allowed += budget * partitioner.requires.budget
        resource.setrlimit(resource.RLIMIT_DATA, (int(data_bytes() + allowed), -1))
        found.append(run(stream))
        resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))
    print(json.dumps(found))
"""


def importable(name: str) -> str:
    """By which another process finds the same partitioner: names that others have registered are known here only."""
    found = PARTITIONERS.find(name)
    return name if found.__module__.startswith("partita.") else f"{found.__module__}:{found.__qualname__}"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA counts private memory on Linux only")
@pytest.mark.parametrize("name", [name for name in ALL if not find_partitioner(name).requires.in_memory])
def test_memory_does_not_grow_with_the_edges(name, growing):
    script = textwrap.dedent(_MEASURE)
    done = subprocess.run(
        [sys.executable, "-c", script, importable(name), str(growing), str(NUM_PARTS), str(64 << 20)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(1 <= factor <= NUM_PARTS for factor in json.loads(done.stdout))
