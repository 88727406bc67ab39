"""Quality of a partition against sets."""

from __future__ import annotations

import json

import numpy as np
import pytest
from array_stream import ArrayStream
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import ConfigError, InputError
from partita.graph.derived import add_columns
from partita.graph.store import GraphStore
from partita.partitioning import edge_streams
from partita.partitioning.edge_streams import RowStream
from partita.partitioning.quality import own_parts, quality, store_quality
from partita.testing.graphs import formula_store, small_random_store


def stream_of(num_nodes, edges, dtype=np.int32, weight=None):
    """A stream of (source, destination) pairs, and the pairs in its order."""
    edges = sorted(edges, key=lambda edge: edge[1])
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 1], minlength=num_nodes))])
    return RowStream(indptr, pairs[:, 0].astype(dtype), weight), edges


def brute_force(num_nodes, edges, parts, num_parts, weight):
    owned = [{v for v in range(num_nodes) if parts[v] == p} for p in range(num_parts)]
    needed = [{u for u, v in edges if v in own} for own in owned]
    proper = [(u, v, w) for (u, v), w in zip(edges, weight) if u != v]
    cut = [(u, v, w) for u, v, w in proper if parts[u] != parts[v]]
    linked = {end for u, v, _ in proper for end in (u, v)}
    members = sum(len(own | need) for own, need in zip(owned, needed))
    members_linked = sum(len((own | need) & linked) for own, need in zip(owned, needed))
    return {
        "empty_parts": sum(not own for own in owned),
        "cut_edges": len(cut),
        "edge_cut": len(cut) / max(1, len(proper)),
        "cross_edge_share": sum(w for *_, w in cut) / max(1, sum(w for *_, w in proper)),
        "replication_factor": members / num_nodes,
        "replication_factor_connected": members_linked / len(linked) if linked else 1.0,
        "nodes": [len(own) for own in owned],
        "halo": [len(need - own) for own, need in zip(owned, needed)],
        "in_edges": [sum(v in own for _, v in edges) for own in owned],
        "sampled_edges": [sum(w for (_, v), w in zip(edges, weight) if v in own) for own in owned],
    }


@st.composite
def partitions(draw):
    num_nodes = draw(st.integers(1, 14))
    ends = st.tuples(st.integers(0, num_nodes - 1), st.integers(0, num_nodes - 1))
    edges = draw(st.lists(ends, max_size=50))
    num_parts = draw(st.sampled_from([1, 2, 3, 8, 9, 64, 65, 130]))
    parts = draw(st.lists(st.integers(0, num_parts - 1), min_size=num_nodes, max_size=num_nodes))
    weight = draw(st.lists(st.integers(0, 2**32 - 1), min_size=len(edges), max_size=len(edges)))
    return num_nodes, edges, np.array(parts), num_parts, weight


@given(partitions(), st.sampled_from([np.int32, np.int64]), st.sampled_from([1, 4, 1 << 18]), st.booleans())
def test_against_sets(case, dtype, at_once, weights_in_stream):
    num_nodes, edges, parts, num_parts, weight = case
    weights = np.array(weight, dtype=np.uint32)
    stream, edges = stream_of(num_nodes, edges, dtype, weights if weights_in_stream else None)
    before, edge_streams.EDGES_AT_ONCE = edge_streams.EDGES_AT_ONCE, at_once
    try:
        found = quality(stream, parts, num_parts, edge_weight=None if weights_in_stream else weights).to_json()
    finally:
        edge_streams.EDGES_AT_ONCE = before
    for name, wanted in brute_force(num_nodes, edges, parts, num_parts, weight).items():
        value = found[name]["counts"] if isinstance(found[name], dict) else found[name]
        assert value == (pytest.approx(wanted) if isinstance(wanted, float) else wanted), name
    assert (found["num_nodes"], found["num_edges"], found["num_parts"]) == (num_nodes, len(edges), num_parts)


def test_a_star_by_hand():
    # Node 0 has an edge from each of 1 to 4, twice from 1; 5 is isolated, 6 has a self loop only.
    stream, _ = stream_of(7, [(1, 0), (1, 0), (2, 0), (3, 0), (4, 0), (6, 6)])
    found = quality(stream, np.array([0, 1, 1, 0, 2, 2, 3]), 5, train=np.array([0, 3, 4]), node_weight=np.arange(7))
    assert found.cut_edges == 4
    assert found.edge_cut == 4 / 5
    assert found.cross_edge_share is None
    assert found.sampled_edges is None
    assert found.halo.counts == (3, 0, 0, 0, 0)
    assert found.replication_factor == (7 + 3) / 7
    assert found.replication_factor_connected == (5 + 3) / 5
    assert found.in_edges.counts == (5, 0, 0, 1, 0)
    assert found.train_nodes.counts == (2, 0, 1, 0, 0)
    assert found.train_nodes.balance == 2 / (3 / 5)
    assert found.load.counts == (3, 3, 9, 6, 0)
    assert found.empty_parts == 1


def test_one_part_and_no_edges():
    whole = quality(stream_of(3, [(0, 1), (1, 2), (2, 2)])[0], np.zeros(3, np.int32), 1)
    assert (whole.edge_cut, whole.replication_factor, whole.replication_factor_connected) == (0.0, 1.0, 1.0)
    none = quality(stream_of(3, [])[0], np.array([0, 1, 1]), 2, edge_weight=np.zeros(0, np.uint32))
    assert (none.edge_cut, none.cross_edge_share, none.replication_factor) == (0.0, 0.0, 1.0)
    assert (none.replication_factor_connected, none.in_edges.balance) == (1.0, 1.0)
    nobody = quality(stream_of(0, [])[0], np.zeros(0, np.int32), 2, node_weight=np.zeros(0, np.int64))
    assert (nobody.empty_parts, nobody.replication_factor, nobody.load.counts) == (2, 1.0, (0, 0))


def test_large_weights_are_exact():
    stream, _ = stream_of(2, [(0, 1), (1, 0)])
    found = quality(stream, np.array([0, 0]), 1, node_weight=np.array([2**62 - 1, 2]))
    assert found.load.counts == (2**62 + 1,)


def test_of_a_store(tmp_path):
    store = formula_store(tmp_path / "store", num_parts=4, shuffle_seed=2)
    parts = own_parts(store)
    assert parts.dtype == np.int32
    assert [np.count_nonzero(parts == p) for p in range(4)] == np.diff(store.part_offsets).tolist()
    found = store_quality(store)
    assert found == quality(store, parts, 4, train=store.split("train"))
    assert found.train_nodes.total == len(store.split("train"))
    node, edge = np.arange(2, 62), np.arange(store.num_edges, dtype=np.uint32)
    add_columns(store.path, {"presample_node": node, "presample_edge": edge})
    again = store_quality(GraphStore.open(store.path))
    assert again.load.total == node.sum()
    assert again.sampled_edges.total == edge.sum()
    assert 0 < again.cross_edge_share < 1
    other = store_quality(store, np.arange(60) % 7)
    assert (other.num_parts, store_quality(store, np.zeros(60, np.int64), 3).empty_parts) == (7, 2)


def test_json_and_table(tmp_path):
    store = small_random_store(tmp_path / "store", 50, 400)
    found = store_quality(store, np.arange(50) % 3, 4)
    values = json.loads(json.dumps(found.to_json()))
    assert values["nodes"] == {"counts": [17, 17, 16, 0], "total": 50, "balance": 17 * 4 / 50}
    assert values["load"] is None
    rows = dict(found.rows())
    assert rows["parts"] == "4, 1 of them empty"
    assert rows["nodes"] == "balance 1.360 (most 17, mean 12)"
    assert "load" not in rows
    assert f"({found.cut_edges:,} edges)" in rows["edge cut"]


def test_arguments_that_cannot_be():
    stream, _ = stream_of(3, [(0, 1), (1, 2)])
    with pytest.raises(ConfigError, match="0 parts"):
        quality(stream, np.zeros(3, np.int32), 0)
    with pytest.raises(InputError, match=r"node 1 has part 2, outside \[0, 2\)"):
        quality(stream, np.array([0, 2, 0]), 2)
    with pytest.raises(InputError, match="does not fit 3 nodes"):
        quality(stream, np.zeros(4, np.int32), 2)
    with pytest.raises(InputError, match="node_weight: 2 weights for 3"):
        quality(stream, np.zeros(3, np.int32), 2, node_weight=np.ones(2, np.int64))
    with pytest.raises(InputError, match="edge_weight: 3 weights for 2"):
        quality(stream, np.zeros(3, np.int32), 2, edge_weight=np.ones(3, np.uint32))
    with pytest.raises(InputError, match="partita ingest"):
        quality(ArrayStream(np.array([0]), np.array([1])), np.zeros(2, np.int32), 2)
    for wrong in (-1, 3):
        bad = RowStream(np.array([0, 1, 2, 3]), np.array([0, 1, wrong], dtype=np.int32))
        with pytest.raises(InputError, match=rf"edge 2, counted from 0: an edge names the node {wrong}"):
            quality(bad, np.zeros(3, np.int32), 2)
