"""DBH and random owners, which hash node ids."""

from __future__ import annotations

import edge_oracles as oracles
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.core.partitioning import PartitionTask
from partita.partitioning.dbh import Dbh
from partita.partitioning.random import Random


@given(
    graph=oracles.graphs(),
    num_parts=st.sampled_from(oracles.PARTS),
    rule=st.sampled_from(["majority", "last"]),
    seed=st.integers(0, 3),
)
def test_every_edge_lies_with_its_end_of_lower_degree(graph, num_parts, rule, seed):
    oracles.check_against(Dbh(rule), lambda edges: oracles.dbh(edges, num_parts, seed), graph, num_parts, seed=seed)


@pytest.mark.parametrize(("num_parts", "dtype"), [(4, np.int64), (16, np.int32), (300, np.int32)])
def test_bigger_graphs(num_parts, dtype):
    graph = oracles.random_graph(100, 900, num_parts, symmetric=num_parts > 4)
    oracles.check_against(Dbh(), lambda edges: oracles.dbh(edges, num_parts), graph, num_parts, dtype=dtype)


@given(graph=oracles.graphs(), num_parts=st.sampled_from(oracles.PARTS), data=st.data())
def test_the_order_within_rows_does_not_matter(graph, num_parts, data):
    num_nodes, edges = graph
    shuffled = sorted(data.draw(st.permutations(edges)), key=lambda edge: edge[1])
    first, second = (Dbh().partition(oracles.task_of((num_nodes, order), num_parts)) for order in (edges, shuffled))
    assert first.tolist() == second.tolist()
    assert Dbh().order_independent
    assert not Dbh("last").order_independent


class UnreadStream(oracles.RecordedStream):
    def edges(self, doing):
        raise AssertionError("a pass was made")


@given(num_nodes=st.integers(1, 50), num_parts=st.sampled_from(oracles.PARTS), seed=st.integers(0, 2**40))
def test_random_owners_are_a_hash_of_node_and_seed(num_nodes, num_parts, seed):
    stream = UnreadStream(num_nodes, [])
    parts = Random().partition(PartitionTask(stream, num_parts, seed=seed))
    assert parts.dtype == np.int32
    assert parts.tolist() == [oracles.hash_of(v, num_parts, seed) for v in range(num_nodes)]


def test_random_owners_are_spread_evenly():
    parts = Random().partition(PartitionTask(oracles.RecordedStream(100_000, []), 10))
    assert np.bincount(parts, minlength=10).min() > 9_600
    other = Random().partition(PartitionTask(oracles.RecordedStream(100_000, []), 10, seed=1))
    assert abs((parts == other).mean() - 0.1) < 0.01
