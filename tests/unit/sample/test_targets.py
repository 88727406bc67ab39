"""Links that are left out: which edges are meant, and that those whose places are known are those that are found."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import partita
from partita import kernels
from partita.sample.targets import LinkPositions, TargetSide, target_edges
from partita.sample.topology import LocalTopology


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Most edges are between a few nodes, so that many are parallel; a few go one way only."""
    path = tmp_path_factory.mktemp("targets") / "g"
    return partita.GraphStore.open(partita.generate_rmat(path, scale=6, edge_factor=12, seed=3))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.sampled_from([1, 5, 40, 900]), batch=st.sampled_from([1, 7, 60]))
def test_positions_are_those_of_a_search(store, seed, count, batch) -> None:
    """Of links that are edges, and of pairs that are none."""
    random = np.random.default_rng(seed)
    at = random.integers(0, store.num_edges, count)
    dst = np.searchsorted(store.indptr, at, side="right") - 1
    links = torch.from_numpy(np.stack([store.indices[at].astype(np.int64), dst], axis=1))
    links[random.random(count) < 0.2] = torch.from_numpy(random.integers(0, store.num_nodes, 2))
    sides = [TargetSide(backward=False), TargetSide(backward=True)]
    positions, topology = LinkPositions(store, links, sides), LocalTopology(store)
    for _ in range(4):
        numbers = torch.from_numpy(random.integers(0, count, batch))
        known = target_edges(links[numbers], sides, positions.of(numbers))
        pairs = set(zip(known.dst.tolist(), known.src.tolist()))
        rows = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr)).tolist()
        wanted = [e for e, pair in enumerate(zip(rows, store.indices.tolist())) if pair in pairs]
        assert known.positions.tolist() == wanted
        assert topology.without(target_edges(links[numbers], sides)).left_out.tolist() == wanted
        assert topology.without(known).left_out.tolist() == wanted


def test_relations_are_those_of_the_side() -> None:
    """Links of a relation without a reverse have no edges the other way round."""
    links = torch.tensor([[0, 1, 0], [2, 3, 1], [4, 5, 2]])
    sides = [TargetSide(False, torch.arange(3)), TargetSide(True, torch.tensor([1, 0, -1]))]
    found = target_edges(links, sides)
    triples = list(zip(found.dst.tolist(), found.src.tolist(), found.edge_type.tolist()))
    assert triples == [(1, 0, 0), (3, 2, 1), (5, 4, 2), (0, 1, 1), (2, 3, 0)]
    found = target_edges(links[:, :2], [TargetSide(True, torch.tensor([7]))])
    assert found.edge_type.tolist() == [7, 7, 7]


def test_edges_are_found_once(store, monkeypatch) -> None:
    """Also where several threads ask first."""
    calls, locate = [], kernels.locate_edges
    monkeypatch.setattr(kernels, "locate_edges", lambda *given, **more: calls.append(1) or locate(*given, **more))
    links = torch.from_numpy(np.random.default_rng(0).integers(0, store.num_nodes, (50, 2)))
    positions = LinkPositions(store, links, [TargetSide(backward=False)])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: positions.of(torch.arange(50)).tolist(), range(8)))
    assert len(calls) == 1
    assert found == found[:1] * 8
