"""From edges in parts to nodes in parts."""

from __future__ import annotations

import edge_oracles as oracles
import numpy as np
import pytest
from array_stream import ArrayStream
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import ConfigError, InputError
from partita.core.partitioning import Partitioner, PartitionTask
from partita.partitioning.dbh import Dbh
from partita.partitioning.greedy import Greedy
from partita.partitioning.hdrf import Hdrf
from partita.partitioning.owners import add_replica, has_replica, published_replication, replica_sets
from partita.partitioning.partitioners import find_partitioner
from partita.partitioning.random import Random
from partita.partitioning.stream_stats import survey
from partita.partitioning.two_phase import TwoPhase

EDGE_PARTITIONERS = [Hdrf, Greedy, Dbh, TwoPhase]


@given(graph=oracles.graphs(), num_parts=st.sampled_from(oracles.PARTS), data=st.data())
def test_ties_go_to_the_least_load_of_nodes(graph, num_parts, data):
    weights = data.draw(st.lists(st.integers(1, 9), min_size=graph[0], max_size=graph[0]))
    oracles.check_against(
        Greedy(), lambda edges: oracles.greedy(edges, num_parts), graph, num_parts, weights=np.array(weights)
    )


def test_majority_last_and_nodes_without_in_edges():
    leaves = {p: [v for v in range(1, 60) if oracles.hash_of(v, 3) == p] for p in range(3)}
    row = [leaves[1][0], leaves[1][1], leaves[2][0]]
    # Leaves have one edge each, node 0 has three: DBH places every edge with its leaf.
    graph = 60, [(u, 0) for u in row]
    placed, owners, _ = oracles.run(Dbh(), graph, 3)
    assert placed == [1, 1, 2]
    assert owners[0] == 1
    assert oracles.run(Dbh("last"), graph, 3)[1][0] == 2
    assert [owners[u] for u in row] == [1, 1, 2]  # no in-edges: the part of the out-edge
    assert sorted(np.bincount(owners)) == [20, 20, 20]  # isolated nodes even the loads out


@pytest.mark.parametrize("kind", [*EDGE_PARTITIONERS, Random])
def test_protocol(kind):
    partitioner = kind()
    assert isinstance(partitioner, Partitioner)
    assert partitioner.requires.grouped == (kind is not Random)
    assert partitioner.requires.survey == (kind is not Random)
    a, b = partitioner.requires.node_bytes
    assert a <= 48
    assert b <= 1 / 8
    assert partitioner.bound(oracles.task_of((3, [(0, 1)]), 2)) is None


@pytest.mark.parametrize("name", ["hdrf", "greedy", "dbh", "two_phase", "random"])
@pytest.mark.parametrize("graph", [(1, []), (5, []), (1, [(0, 0)]), (3, [(0, 0), (1, 1), (1, 1)])])
def test_graphs_without_edges(name, graph):
    parts = find_partitioner(name).partition(oracles.task_of(graph, 3))
    assert parts.shape == (graph[0],)
    assert set(parts.tolist()) <= {0, 1, 2}
    if name != "random":
        assert parts.tolist() == [v % 3 for v in range(graph[0])]


@pytest.mark.parametrize("kind", EDGE_PARTITIONERS)
def test_edges_in_any_order_are_refused(kind):
    stream = ArrayStream(np.array([0, 1]), np.array([1, 0]), 2)
    with pytest.raises(InputError, match=r"grouped by destination.*partita ingest"):
        kind().partition(PartitionTask(stream, 2, survey(stream)))


def test_unknown_rule():
    with pytest.raises(ConfigError, match=r"no rule 'first'.*majority"):
        Hdrf("first")


@given(st.sampled_from([1, 8, 9, 32, 33, 64, 65, 200]), st.data())
def test_replica_sets(num_parts, data):
    chosen = data.draw(st.sets(st.integers(0, num_parts - 1)))
    sets = replica_sets(2, num_parts)
    for part in chosen:
        add_replica(sets, 1, part)
    assert oracles.members(sets) == [set(), chosen]
    assert [has_replica(sets, 1, part) for part in range(num_parts)] == [part in chosen for part in range(num_parts)]
    assert sets.nbytes / 2 <= 8 + num_parts / 8


@given(graph=oracles.graphs(), num_parts=st.sampled_from(oracles.PARTS))
def test_published_replication_counts_edges_and_rows_of_owned_nodes(graph, num_parts):
    num_nodes, edges = graph
    task = oracles.task_of(graph, num_parts)
    owners, sets = Hdrf().partition_edges(task)
    before = sets.copy()
    files = [set() for _ in range(num_parts)]
    proper = oracles.without_loops(edges)
    for (u, v), part in zip(proper, oracles.hdrf(proper, num_parts), strict=True):
        files[part] |= {u, v}
        files[owners[v]] |= {u, v}
    found = published_replication(task.stream, owners, sets)
    assert found == sum(map(len, files)) / num_nodes
    assert (sets == before).all()


def test_rows_may_be_cut_anywhere():
    """One row that is longer than any batch, and empty rows around it."""
    graph = 40, [(u, 20) for u in range(20)] * 3 + [(u, 30) for u in range(10)]
    results = {at_once: oracles.run(Hdrf(), graph, 4, at_once=at_once)[1] for at_once in (1, 7, 60, 1000)}
    assert all(result == results[1] for result in results.values())
