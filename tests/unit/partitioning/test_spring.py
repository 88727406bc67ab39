"""SPRING against the paper's pseudo-code written out with sets and a heap."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from array_stream import ArrayStream
from hypothesis import given, settings
from hypothesis import strategies as st

import partita
from partita.core.partitioning import PartitionTask
from partita.graph.generate import generate_sbm
from partita.partitioning.clusters import Clusters
from partita.partitioning.edge_streams import StoreStream
from partita.partitioning.quality import quality
from partita.partitioning.spring import Spring
from partita.partitioning.stream_stats import survey
from partita.testing.graphs import small_random_store


@st.composite
def cases(draw):
    num_nodes = draw(st.integers(1, 20))
    nodes = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(nodes, nodes), max_size=60))
    if draw(st.booleans()):
        edges = [pair for u, v in edges for pair in ((u, v), (v, u))]
    options = {"cap": draw(st.sampled_from([0.05, 0.1, 0.5, 2.0])), "beta": draw(st.sampled_from([1.0, 1.05, 2]))}
    return num_nodes, edges, draw(st.integers(1, 5)), options


def task_of(case):
    num_nodes, edges, num_parts, options = case
    pairs = np.array(edges, dtype=np.int32).reshape(-1, 2)
    stream = ArrayStream(pairs[:, 0].copy(), pairs[:, 1].copy(), num_nodes)
    return PartitionTask(stream, num_parts, survey=survey(stream), options=options), edges


def naive_clusters(edges, degree, cap):
    """Algorithm 1, lines 1-17. A cluster is named by its founder; every node founds one when it is first met."""
    cluster, members, richest = {}, {}, {}
    for u, v in edges:
        if u == v:
            continue
        for node in (u, v):
            if node not in cluster:
                cluster[node] = node
                members[node] = {node}
        cu, cv = cluster[u], cluster[v]

        def volume(c):
            return sum(degree[w] for w in members[c])

        if cu != cv and volume(cu) <= cap and volume(cv) <= cap:
            mover, home, to = (u, cu, cv) if volume(cu) <= volume(cv) else (v, cv, cu)
            members[home].discard(mover)
            members[to].add(mover)
            cluster[mover] = to
        if v not in richest or degree[richest[v]] < degree[u]:
            richest[v] = u
        if u not in richest or degree[richest[u]] < degree[v]:
            richest[u] = v
    return cluster, richest


def naive_spring(edges, num_nodes, degree, num_parts, cap, beta):
    cluster, richest = naive_clusters(edges, degree, cap * sum(degree) / num_parts)
    groups = {}
    for node, c in cluster.items():
        groups.setdefault(c, set()).add(node)
    groups = {number: groups[c] for number, c in enumerate(sorted(groups))}
    limit = int(beta * num_nodes / num_parts)

    def representative(nodes):  # the richest neighbor of the representative
        return min((richest[v] for v in nodes), key=lambda r: (-degree[r], r))

    best = {c: representative(nodes) for c, nodes in groups.items()}
    home = {v: c for c, nodes in groups.items() for v in nodes}
    heap = [(len(nodes), c) for c, nodes in groups.items()]
    heapq.heapify(heap)
    final = set()
    while heap:
        size, c = heapq.heappop(heap)
        if c not in groups or c in final or size != len(groups[c]):
            continue
        target = home[best[c]]
        if target == c or size + len(groups[target]) > limit:
            final.add(c)
            continue
        for v in groups[c]:
            home[v] = target
        groups[target] |= groups.pop(c)
        best[target] = min((best[target], best[c]), key=lambda r: (-degree[r], r))
        if target not in final:
            heapq.heappush(heap, (len(groups[target]), target))
    loads, parts = [0] * num_parts, [None] * num_nodes
    for c in sorted(groups, key=lambda c: (-len(groups[c]), c)):
        part = loads.index(min(loads))
        loads[part] += len(groups[c])
        for v in groups[c]:
            parts[v] = part
    for v in range(num_nodes):
        if parts[v] is None:
            part = loads.index(min(loads))
            parts[v] = part
            loads[part] += 1
    return parts


@settings(max_examples=300)
@given(cases())
def test_clusters_are_those_of_the_pseudo_code(case):
    task, edges = task_of(case)
    degree = task.survey.degree.tolist()
    cap = task.options["cap"] * sum(degree)
    clusters = Clusters(task, richest=True)
    clusters.grow(cap)
    cluster, richest = naive_clusters(edges, degree, int(cap))
    for node in range(task.num_nodes):
        assert clusters.of[node] == cluster.get(node, node)
        assert degree[clusters.richest[node]] == degree[richest[node]] if node in richest else True


@settings(max_examples=300)
@given(cases())
def test_parts_are_those_of_the_pseudo_code(case):
    task, edges = task_of(case)
    degree = task.survey.degree.tolist()
    cap = task.options["cap"] * sum(degree) / task.num_parts
    # The cap is a whole number in the loop; volumes are, too.
    whole = int(cap) * task.num_parts / max(1, sum(degree))
    expected = naive_spring(edges, task.num_nodes, degree, task.num_parts, whole + 1e-9, task.options["beta"])
    assert Spring().partition(task).tolist() == expected


def test_communities_are_found(tmp_path):
    generate_sbm(tmp_path / "sbm", num_nodes=4000, num_classes=4, homophily=0.95, num_features=0)
    stream = StoreStream(partita.open(tmp_path / "sbm"))
    task = PartitionTask(stream, 4, survey=survey(stream))
    cut = quality(stream, Spring().partition(task), 4).edge_cut
    assert cut < 0.68  # random owners cut three quarters


def test_node_weights_are_balanced(tmp_path):
    store = small_random_store(tmp_path / "store", 2000, 6000, undirected=True)
    weight = np.ones(2000, dtype=np.int64)
    weight[:200] = 50
    stream = StoreStream(store)
    loads = {}
    for name, given_weight in (("weighted", weight), ("not", None)):
        task = PartitionTask(stream, 4, survey=survey(stream), node_weight=given_weight, options={"cap": 0.01})
        loads[name] = np.bincount(Spring().partition(task), weights=weight, minlength=4)
    mean = weight.sum() / 4
    assert loads["weighted"].max() < 1.05 * mean
    assert loads["not"].max() > loads["weighted"].max()


def test_edges_of_weight_zero_are_not_there():
    src, dst = np.array([0, 1, 2, 3], dtype=np.int32), np.array([1, 0, 3, 2], dtype=np.int32)
    weighted = ArrayStream(src, dst, 4, weight=np.array([1, 1, 0, 0]))
    clusters = Clusters(PartitionTask(weighted, 1, survey=survey(weighted)), richest=True)
    clusters.grow(100)
    assert clusters.of.tolist() == [1, 1, 2, 3]
    assert clusters.richest.tolist() == [1, 0, -1, -1]


@pytest.mark.parametrize("num_parts", [1, 3])
def test_a_graph_without_edges_is_spread_evenly(num_parts):
    empty = ArrayStream(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32), 9)
    parts = Spring().partition(PartitionTask(empty, num_parts, survey=survey(empty)))
    assert np.bincount(parts).tolist() == [9 // num_parts] * num_parts
