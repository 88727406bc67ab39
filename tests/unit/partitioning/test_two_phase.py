"""2PS-L."""

from __future__ import annotations

import edge_oracles as oracles
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.partitioning.dbh import Dbh
from partita.partitioning.stream_stats import survey
from partita.partitioning.two_phase import TwoPhase


def oracle_for(graph, num_parts):
    symmetric = survey(oracles.RecordedStream(*graph)).symmetric
    return lambda edges: oracles.two_phase(edges, num_parts, symmetric=symmetric)


@given(graph=oracles.graphs(), num_parts=st.sampled_from(oracles.PARTS), rule=st.sampled_from(["majority", "last"]))
def test_every_edge_lies_where_both_phases_put_it(graph, num_parts, rule):
    oracles.check_against(TwoPhase(rule), oracle_for(graph, num_parts), graph, num_parts)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("num_parts", "dtype"), [(4, np.int64), (16, np.int32), (32, np.int32), (300, np.int32)])
def test_bigger_graphs(num_parts, dtype, symmetric):
    graph = oracles.random_graph(150, 1200, num_parts, symmetric)
    oracles.check_against(TwoPhase(), oracle_for(graph, num_parts), graph, num_parts, dtype=dtype)


def test_edges_inside_a_part_overflow_too():
    """Three triangles and two parts: one part is home to two triangles, more than it may hold."""
    edges = [(u, v) for first in (0, 3, 6) for u in range(first, first + 3) for v in range(first, first + 3) if u != v]
    graph = 9, sorted(edges, key=lambda edge: edge[1])
    oracles.check_against(TwoPhase(), oracle_for(graph, 2), graph, 2)
    assert np.bincount(oracles.run(TwoPhase(), graph, 2)[0]).tolist() == [9, 9]


def test_clusters_are_found():
    """Full graphs of 8 nodes side by side, their nodes mixed, in a ring: most edges stay inside a part."""
    mixed = np.random.default_rng(0).permutation(256)
    edges = [(u, v) for first in range(0, 256, 8) for u in range(first, first + 8) for v in range(first, u)]
    edges += [(first, (first + 8) % 256) for first in range(0, 256, 8)]
    ends = mixed[np.array(edges + [(v, u) for u, v in edges])]
    graph = 256, sorted(map(tuple, ends.tolist()), key=lambda edge: edge[1])
    owners = np.array(oracles.run(TwoPhase(), graph, 4)[1])
    by_hash = np.array(oracles.run(Dbh(), graph, 4)[1])
    cut, cut_by_hash = ((parts[ends[:, 0]] != parts[ends[:, 1]]).mean() for parts in (owners, by_hash))
    assert cut < 0.3 * cut_by_hash


@pytest.mark.parametrize("num_parts", [2, 3, 5])
def test_no_part_is_overfull(num_parts):
    """A few hubs: clusters alone would not balance the edges."""
    graph = oracles.random_graph(40, 600, num_parts, symmetric=False)
    placed = oracles.run(TwoPhase(), graph, num_parts)[0]
    loads = np.bincount(placed, minlength=num_parts)
    assert loads.max() <= int(1.05 * len(placed) / num_parts)
