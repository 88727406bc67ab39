"""Edge partitioners written naively from their formulas, and graphs to compare the fast ones with."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import strategies as st

from partita.core import keys
from partita.core.partitioning import PartitionTask
from partita.partitioning import edge_streams
from partita.partitioning import owners as owners_module
from partita.partitioning.edge_streams import RowStream
from partita.partitioning.random import partition_key
from partita.partitioning.stream_stats import survey

PARTS = (1, 2, 3, 5, 70)


@st.composite
def graphs(draw):
    """(N, edges grouped by destination): isolated nodes, stars, multi-edges, loops; directed or symmetric."""
    num_nodes = draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=40))
    if draw(st.booleans()):
        hub = draw(node)
        edges += [(hub, v) for v in range(num_nodes)]
    if draw(st.booleans()):
        edges += [(v, u) for u, v in edges]
    return num_nodes, sorted(edges, key=lambda edge: edge[1])


def random_graph(num_nodes: int, num_edges: int, seed: int, symmetric: bool):
    """As :func:`graphs`, bigger, with degrees that differ."""
    ends = (np.random.default_rng(seed).random((num_edges, 2)) ** 2 * num_nodes).astype(int).tolist()
    edges = [(u, v) for u, v in ends]
    if symmetric:
        edges += [(v, u) for u, v in edges]
    return num_nodes, sorted(edges, key=lambda edge: edge[1])


class RecordedStream(RowStream):
    """One edge at a time; knows where each was placed in the last pass (its loops aside)."""

    def __init__(self, num_nodes, edges, dtype=np.int32):
        src = np.array([u for u, _ in edges], dtype=dtype)
        counts = np.bincount(np.array([v for _, v in edges], dtype=int), minlength=num_nodes)
        super().__init__(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), src)
        self.owners, self.placed = None, []

    def edges(self, doing):
        self.placed = []
        for batch in super().edges(doing):
            yield batch
            if self.owners is not None and len(batch.src) == 1 and batch.src[0] != batch.dst[0]:
                self.placed.append(int(self.owners.open_row[1]))


def task_of(graph, num_parts, *, weights=None, seed=0, dtype=np.int32, epsilon=0.05):
    """A surveyed task on a recorded stream."""
    stream = RecordedStream(*graph, dtype)
    return PartitionTask(stream, num_parts, survey(stream), seed=seed, node_weight=weights, epsilon=epsilon)


def run(partitioner, graph, num_parts, *, at_once=1, **options):
    """(parts of the edges that are no loops, owners, replicas as sets), one edge at a time if ``at_once`` is 1."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_streams, "EDGES_AT_ONCE", at_once)
        task = task_of(graph, num_parts, **options)
        opened = owners_module.open_owners

        def recorded(*args):
            task.stream.owners = opened(*args)
            return task.stream.owners

        patch.setattr(owners_module, "open_owners", recorded)
        owners, sets = partitioner.partition_edges(task)
    return list(task.stream.placed), owners.tolist(), members(sets)


def members(sets):
    """The parts in every set of replicas."""
    bits = 8 * sets.dtype.itemsize
    return [{bits * w + b for w in range(len(row)) for b in range(bits) if int(row[w]) >> b & 1} for row in sets]


def without_loops(edges):
    """Edges between different nodes."""
    return [(u, v) for u, v in edges if u != v]


def holders(num_nodes, edges, placed):
    """For every node the parts that hold an edge of it."""
    sets = [set() for _ in range(num_nodes)]
    for (u, v), part in zip(edges, placed, strict=True):
        sets[u].add(part)
        sets[v].add(part)
    return sets


def owners_of(num_nodes, edges, placed, num_parts, weights=None, rule="majority"):
    """Owners from the rule, node by node."""
    weights = [1] * num_nodes if weights is None else weights
    owned, owners = [0] * num_parts, [None] * num_nodes
    for v in range(num_nodes):
        row = [part for (_, w), part in zip(edges, placed, strict=True) if w == v]
        if row:
            count = Counter(row)
            owners[v] = row[-1] if rule == "last" else min(count, key=lambda p: (-count[p], owned[p], p))
            owned[owners[v]] += weights[v]
    for v in range(num_nodes):
        out = [part for (u, _), part in zip(edges, placed, strict=True) if u == v]
        if owners[v] is None and out:
            owners[v] = out[-1]
            owned[out[-1]] += weights[v]
    for v in range(num_nodes):
        if owners[v] is None:
            owners[v] = owned.index(min(owned))
            owned[owners[v]] += weights[v]
    return owners


def hash_of(node, num_parts, seed=0):
    """The hashed part of a node."""
    return keys.fold(int(partition_key(seed)), node) % num_parts


def limit_of(edges, num_parts, epsilon=0.05):
    """The most edges of a part."""
    return max(int((1 + epsilon) * len(edges) / num_parts), -(-len(edges) // num_parts))


def scored(edges, num_parts, gains, epsilon=0.05):
    """Parts by [u in p] gain_u + [v in p] gain_v + (max - load) / (1 + max - min), argmax, lowest index; full: none."""
    limit = limit_of(edges, num_parts, epsilon)
    loads, replicas, degree, placed = [0] * num_parts, {}, Counter(), []
    for u, v in edges:
        degree.update((u, v))
        gain_u, gain_v = gains(degree[u], degree[v])
        high, low = max(loads), min(loads)
        scores = [
            (gain_u if p in replicas.get(u, ()) else 0.0)
            + (gain_v if p in replicas.get(v, ()) else 0.0)
            + (high - loads[p]) / (1.0 + high - low)
            if loads[p] < limit
            else -1.0
            for p in range(num_parts)
        ]
        best = scores.index(max(scores))
        loads[best] += 1
        replicas.setdefault(u, set()).add(best)
        replicas.setdefault(v, set()).add(best)
        placed.append(best)
    return placed


def hdrf(edges, num_parts, epsilon=0.05):
    """HDRF with lambda = 1, and epsilon = 1 in the score."""
    return scored(edges, num_parts, lambda du, dv: (2.0 - du / (du + dv), 2.0 - dv / (du + dv)), epsilon)


def greedy(edges, num_parts, epsilon=0.05):
    """PowerGraph's rule."""
    return scored(edges, num_parts, lambda du, dv: (1.0, 1.0), epsilon)


def dbh(edges, num_parts, seed=0):
    """The hash of the end of lower degree; the destination's if equal."""
    degree = Counter(node for edge in edges for node in edge)
    return [hash_of(u if degree[u] < degree[v] else v, num_parts, seed) for u, v in edges]


def two_phase(edges, num_parts, *, symmetric, epsilon=0.05, seed=0):
    """2PS-L: clusters, clusters to parts, inner edges, other edges."""
    once = [(u, v) for u, v in edges if not (symmetric and u > v)]
    degree = Counter(node for edge in once for node in edge)
    cluster, volume = {v: v for v in degree}, dict(degree)
    cap = 2 * len(once) // num_parts
    for u, v in once:
        cu, cv = cluster[u], cluster[v]
        if cu == cv or volume[cu] > cap or volume[cv] > cap:
            continue
        moving, target = (u, cv) if volume[cu] - degree[u] <= volume[cv] - degree[v] else (v, cu)
        if volume[target] + degree[moving] <= cap:
            volume[cluster[moving]] -= degree[moving]
            volume[target] += degree[moving]
            cluster[moving] = target
    part_of, part_volume = {}, [0] * num_parts
    for c in sorted((c for c in volume if volume[c] > 0), key=lambda c: (-volume[c], -c)):
        part_of[c] = part_volume.index(min(part_volume))
        part_volume[part_of[c]] += volume[c]
    limit, loads, replicas, placed = limit_of(edges, num_parts, epsilon), [0] * num_parts, {}, {}

    def score(p, u, v):
        total, volumes = degree[u] + degree[v], volume[cluster[u]] + volume[cluster[v]]
        here = [p in replicas.get(node, ()) for node in (u, v)]
        mapped = [part_of[cluster[node]] == p for node in (u, v)]
        return (
            (2.0 - degree[u] / total if here[0] else 0.0)
            + (2.0 - degree[v] / total if here[1] else 0.0)
            + (volume[cluster[u]] / volumes if here[0] and mapped[0] else 0.0)
            + (volume[cluster[v]] / volumes if here[1] and mapped[1] else 0.0)
        )

    for inner in (True, False):
        for e, (u, v) in enumerate(edges):
            home_u, home_v = part_of[cluster[u]], part_of[cluster[v]]
            if (home_u == home_v) != inner:
                continue
            if loads[home_u] >= limit or loads[home_v] >= limit:
                part = hash_of(u if degree[u] > degree[v] else v, num_parts, seed)
                if loads[part] >= limit:
                    part = loads.index(min(loads))
            else:
                part = home_v if score(home_v, u, v) >= score(home_u, u, v) else home_u
            loads[part] += 1
            replicas.setdefault(u, set()).add(part)
            replicas.setdefault(v, set()).add(part)
            placed[e] = part
    return [placed[e] for e in range(len(edges))]


def check_against(partitioner, oracle, graph, num_parts, **options):
    """Every edge, owner and replica set as the oracle has it, one edge at a time and in bigger batches."""
    num_nodes, edges = graph
    proper = without_loops(edges)
    expected = oracle(proper)
    owners = owners_of(num_nodes, proper, expected, num_parts, options.get("weights"), partitioner.owner)
    placed, found, sets = run(partitioner, graph, num_parts, **options)
    assert placed == expected
    assert found == owners
    assert sets == holders(num_nodes, proper, expected)
    for at_once in (3, 1000):
        assert run(partitioner, graph, num_parts, at_once=at_once, **options)[1:] == (found, sets)
    again = partitioner.partition(task_of(graph, num_parts, **options))
    assert again.dtype == np.int32
    assert again.tolist() == found
