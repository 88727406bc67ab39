"""HDRF and greedy, which place edges by the parts that their ends already have."""

from __future__ import annotations

import edge_oracles as oracles
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.partitioning.greedy import Greedy
from partita.partitioning.hdrf import Hdrf

CASES = [(Hdrf, oracles.hdrf), (Greedy, oracles.greedy)]


@pytest.mark.parametrize(("kind", "oracle"), CASES)
@given(graph=oracles.graphs(), num_parts=st.sampled_from(oracles.PARTS), rule=st.sampled_from(["majority", "last"]))
def test_every_edge_lies_where_the_formula_puts_it(kind, oracle, graph, num_parts, rule):
    oracles.check_against(kind(rule), lambda edges: oracle(edges, num_parts), graph, num_parts)


@pytest.mark.parametrize(("kind", "oracle"), CASES)
@pytest.mark.parametrize(("num_parts", "dtype"), [(4, np.int64), (16, np.int32), (32, np.int32), (64, np.int32)])
def test_all_widths_of_words(kind, oracle, num_parts, dtype):
    graph = oracles.random_graph(60, 500, num_parts, symmetric=num_parts > 16)
    oracles.check_against(kind(), lambda edges: oracle(edges, num_parts), graph, num_parts, dtype=dtype)


@pytest.mark.parametrize(("kind", "oracle"), CASES)
def test_hundreds_of_parts(kind, oracle):
    graph = oracles.random_graph(200, 2000, 7, symmetric=True)
    oracles.check_against(kind(), lambda edges: oracle(edges, 300), graph, 300)


def test_the_end_of_lower_degree_keeps_its_part():
    """0 -> 1 opens part 0; 2 -> 3, 4 -> 3, 5 -> 3 part 1, whose node 3 then meets 0: the hub 3 is cut, not 0."""
    graph = 6, [(0, 1), (2, 3), (4, 3), (5, 3), (0, 3)]
    assert oracles.run(Hdrf(), graph, 2)[0] == [0, 1, 1, 1, 0]
    assert oracles.run(Greedy(), graph, 2)[0] == [0, 1, 1, 1, 0]  # less load
    graph = 6, [(1, 0), (2, 0), (3, 0), (5, 4), (0, 4)]
    assert oracles.run(Hdrf(), graph, 2)[0] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("kind", [Hdrf, Greedy])
def test_a_chain_of_edges_that_share_ends_does_not_stay_in_one_part(kind):
    """In row order every edge meets the part of the edge before; staying there wins until that part is full."""
    graph = 400, [edge for v in range(400) for edge in ((v - 1, v), (v + 1, v)) if 0 <= edge[0] < 400]
    placed, owners, _ = oracles.run(kind(), graph, 4)
    assert np.bincount(placed, minlength=4).max() == int(1.05 * len(placed) / 4)
    assert np.bincount(owners, minlength=4).min() > 80
    assert set(oracles.run(kind(), graph, 4, epsilon=3.0)[0]) == {0}  # nothing is ever full


@pytest.mark.parametrize(("kind", "oracle"), CASES)
@given(graph=oracles.graphs(), epsilon=st.sampled_from([0.0, 0.2, 1.0, 5.0]))
def test_parts_are_full_where_epsilon_says(kind, oracle, graph, epsilon):
    oracles.check_against(kind(), lambda edges: oracle(edges, 3, epsilon), graph, 3, epsilon=epsilon)
