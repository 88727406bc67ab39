"""Samples at times are those of graphs that end there, for any key."""

from __future__ import annotations

from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
from edge_files import N, topology
from hypothesis import given, settings
from hypothesis import strategies as st
from temporal_steps import ALWAYS, until

import partita
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.records import TargetEdges
from partita.graph.store import GraphStore
from partita.sample.temporal import SeedTimes, TemporalTopology, Windows, slots_for
from partita.sample.topology import ArrayTopology, LocalTopology
from partita.setup.temporal import seed_times, with_times
from partita.tasks.times import TaskTimes, TimedTask

SPAN = 12


def times_of(local: ArrayTopology) -> torch.Tensor:
    """Of the edges, in order within each relation of a row; some were always there."""
    generator = torch.Generator().manual_seed(3)
    given = local.arrays()
    indptr, kinds = given["indptr"], given["edge_type"]
    times = torch.randint(-2, SPAN, (int(indptr[-1]),), generator=generator)
    times[torch.rand(len(times), generator=generator) < 0.1] = ALWAYS
    rows = torch.repeat_interleave(torch.arange(N), indptr.diff())
    run = rows if kinds is None else rows * 3 + kinds.long()
    order = torch.argsort(times, stable=True)
    return times[order[torch.argsort(run[order], stable=True)]]


@settings(max_examples=80, deadline=None)
@given(
    st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.lists(st.integers(-1, 6), min_size=3, max_size=3),
    st.none() | st.lists(st.integers(-1, 12), min_size=3, max_size=3), st.integers(0, 2**63), st.data(),
)  # fmt: skip
def test_all_keys(typed, weighted, replace, attributes, fanouts, widths, key, data):
    local = topology(weighted=weighted, replace=replace, typed=typed, attributes=attributes)
    edge_time = times_of(local)
    times = torch.tensor(sorted(data.draw(st.sets(st.integers(-4, SPAN + 2), min_size=1, max_size=5))))
    windows = None if widths is None else Windows(torch.tensor(widths if typed else widths[:1]), SPAN)
    temporal = TemporalTopology(local, edge_time, 8, windows=windows).at_times(times)
    columns = ["edge_weight", "edge_attr"] if attributes else []
    fanout = tuple(fanouts) if typed else fanouts[0]
    slot = torch.randint(0, len(times), (40,), generator=torch.Generator().manual_seed(int(times.sum()) + 99))
    nodes = torch.randperm(N, generator=torch.Generator().manual_seed(5))[:40]
    whole = temporal.drawing(columns) if columns else temporal
    found = whole.sample(nodes * 8 + slot, key, fanout, positions=True)
    assert bool((found.indices % 8 == slot.repeat_interleave(found.indptr.diff())).all())
    at = times[slot].repeat_interleave(found.indptr.diff())
    assert bool((edge_time[found.positions] <= at).all())
    for number, last in enumerate(times.tolist()):
        mine = (slot == number).nonzero().flatten()
        plain = until(local, edge_time, last, windows=windows)
        wanted = (plain.drawing(columns) if columns else plain).sample(nodes[mine], key, fanout)
        edges = torch.cat([torch.arange(*found.indptr[i : i + 2].tolist()) for i in mine.tolist()] or [slot[:0]])
        assert torch.equal(found.indptr.diff()[mine], wanted.indptr.diff())
        assert torch.equal(found.indices[edges] // 8, wanted.indices.long())
        for column in ("edge_type", "edge_weight", "edge_attr"):
            mine_of, theirs = getattr(found, column), getattr(wanted, column)
            assert (mine_of is None) == (theirs is None)
            assert theirs is None or torch.equal(mine_of[edges], theirs)


@pytest.mark.parametrize("typed", [False, True])
def test_edges_of_any_age(typed):
    """A window of -1 is none, such as where no edge has a time."""
    local, times = topology(typed=typed), torch.tensor([2, 9])
    found = [
        TemporalTopology(local, times_of(local), 2, windows=windows).at_times(times).sample(torch.arange(2 * N), 7, 3)
        for windows in (None, Windows(torch.full((3 if typed else 1,), -1), SPAN))
    ]
    assert len(found[0].indices) > N
    assert torch.equal(found[0].indptr, found[1].indptr)
    assert torch.equal(found[0].indices, found[1].indices)


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("newest", [1, 3])
def test_the_last_edges(typed, newest):
    local = topology(typed=typed)
    edge_time = times_of(local)
    times = torch.tensor([-3, 2, 7, SPAN])
    temporal = TemporalTopology(local, edge_time, 4, last=True).at_times(times)
    for number, last in enumerate(times.tolist()):
        found = temporal.sample(torch.arange(N) * 4 + number, 1, newest)
        wanted = until(local, edge_time, last, newest).sample(torch.arange(N), 2, -1)
        assert torch.equal(found.indptr, wanted.indptr)
        assert torch.equal(found.indices // 4, wanted.indices.long())


def test_requests_are_nodes_at_times():
    times = SeedTimes(torch.tensor([5, 3, 5, 9]), slots_for(3))
    assert times.slots == 4
    of_batch = times.of(torch.tensor([0, 2, 3]))
    assert of_batch.tolist() == [5, 9]
    assert times.requests(torch.tensor([3, 0, 2]), of_batch).tolist() == [13, 0, 8]
    nodes = torch.tensor([3, 1, 0])
    found = times.of(nodes)
    assert times.requests(nodes, found).tolist() == times.requests(nodes.clone(), found).tolist() == [14, 4, 1]
    assert times.requests(nodes, of_batch.clone()).tolist()[::2] == [13, 0]  # what is kept is of other times
    assert [slots_for(batch) for batch in (1, 2, 3, 4, 5, 1024, 1025)] == [2, 2, 4, 4, 8, 1024, 2048]


def test_all_seeds_of_a_batch_at_once():
    times = SeedTimes(torch.tensor([5, 3, 5, 9]), 4, at_once=True)
    nodes = torch.tensor([3, 2])
    assert times.of(nodes).tolist() == [5]
    assert times.requests(nodes, times.of(nodes)).tolist() == [12, 8]
    assert times.of(nodes[:0]).tolist() == []
    assert times.each(nodes).tolist() == [9, 5]
    with pytest.raises(ConfigError, match=r"time_cutoff: a task of one's own says of each seed"):
        TaskTimes.of_run(create_autospec(TimedTask, instance=True), times)


def test_what_cannot_be_is_refused():
    local = topology()
    edge_time = times_of(local)
    with pytest.raises(ValueError, match="3 slots"):
        TemporalTopology(local, edge_time, 3)
    with pytest.raises(ConfigError, match="no ids of 62 bits"):
        TemporalTopology(local, edge_time, 2**56)
    temporal = TemporalTopology(local, edge_time, 2)
    pairs = TargetEdges(torch.tensor([1]), torch.tensor([2]))
    with pytest.raises(ConfigError, match="cannot be left out"):
        temporal.without(pairs)
    with pytest.raises(IndexError, match="slots: 0 to 0, but there are 0"):
        temporal.sample(torch.tensor([4]), 1, 2)
    with pytest.raises(ValueError, match="2 fanouts for 1 relations"):
        temporal.at_times(edge_time[:1]).sample(torch.tensor([4]), 1, (2, 2))


def test_edges_that_are_never_there_carry_no_messages(tmp_path):
    """Not even for nodes that are asked about once all is known, in runs and in loaders."""
    never = torch.iinfo(torch.int64).max
    arrays = {
        "edge_index": np.array([[0, 1, 2], [3, 3, 3]]), "edge_time": np.array([5, never - 1, never]),
        "seed_time": np.array([never, -(2**63), 3, never - 1]), "x": np.ones((4, 2), np.float32), "y": np.arange(4) % 2,
    }  # fmt: skip
    partita.ingest(arrays, tmp_path / "g", split=None)
    store = GraphStore.open(tmp_path / "g")
    config = Config.make({"task": "classes", "batch_size": 4})
    times = seed_times(config, store)
    assert times.of_nodes.tolist() == [never - 1, never - 1, 3, never - 1]
    topology = with_times(LocalTopology(store), config, store).at_times(torch.tensor([never - 1]))
    assert sorted((topology.sample(torch.tensor([3 * times.slots]), 1, -1).indices // times.slots).tolist()) == [0, 1]
    loader = partita.NeighborLoader(
        store, [-1], input_nodes=np.array([3]), batch_size=1, temporal_strategy="uniform", input_time=np.array([never])
    )
    assert next(iter(loader)).edge_index.shape == (2, 2)
