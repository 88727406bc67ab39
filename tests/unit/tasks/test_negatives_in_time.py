"""Negatives of links that are asked about at times: nodes that are there then, whoever draws them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timed_links import ALWAYS, NEVER, timed_store, typed_timed_store

import partita
from partita.core.errors import ConfigError
from partita.core.keys import StepKey
from partita.graph.store import GraphStore
from partita.tasks.links.in_time import InTime, NodesInTime
from partita.tasks.links.negatives import NEGATIVES

KEY = StepKey(3, 1, 4)
COLUMN = {"head": 0, "tail": 1}
UNTIL = 9


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[str, list[GraphStore]]:
    """The same graphs in as many parts each."""
    folder = tmp_path_factory.mktemp("negatives")
    return {
        "untyped": [timed_store(folder / f"u{parts}", parts=parts) for parts in (1, 3)],
        "typed": [typed_timed_store(folder / f"t{parts}", parts) for parts in (1, 3)],
    }


def batch_of(store: GraphStore, times: list[int]) -> torch.Tensor:
    """Some edges as rows of a batch, in original ids, in an order for all stores of a graph, and times."""
    target = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    kinds = np.zeros(store.num_edges, np.int64) if store.edge_type is None else store.edge_type.astype(np.int64)
    rows = np.stack([store.to_original(store.indices.astype(np.int64)), store.to_original(target), kinds], axis=1)
    rows = np.unique(rows, axis=0)
    chosen = np.random.default_rng(0).permutation(len(rows))[: len(times)]
    return torch.from_numpy(np.column_stack([rows[chosen], times]))


def drawn(store: GraphStore, name: str, batch: torch.Tensor, side: str, count: int) -> torch.Tensor:
    """Candidates, all in original ids."""
    order = torch.from_numpy(np.array(store.ingest_order())) if store.ingest_order() is not None else None
    rows = batch.clone()
    if order is not None:
        rows[:, :2] = order[rows[:, :2]]
    found = NEGATIVES.find(name).of(store, count, in_time=InTime(store, UNTIL)).candidates(rows, KEY, side)
    return torch.from_numpy(np.array(store.to_original(found.numpy())))


times = st.lists(st.one_of(st.integers(-7, 14), st.sampled_from([ALWAYS, NEVER - 1])), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    times, st.sampled_from(["uniform", "degree"]), st.sampled_from(list(COLUMN)), st.sampled_from(["untyped", "typed"])
)
def test_they_are_there(stores, times, name, side, kind) -> None:
    """And of the type; the end itself where nobody is; in every order of the nodes the same."""
    one, other = stores[kind]
    batch = batch_of(one, times)
    found = drawn(one, name, batch, side, 7)
    assert torch.equal(found, drawn(other, name, batch, side, 7))
    assert torch.equal(found[:, :3], drawn(one, name, batch, side, 3))
    ids, _ = _by_original(one)
    kinds, node_time, degrees = one.types(ids), one.node_time[ids], _degrees(one, side)
    for row, (edge, mine) in enumerate(zip(batch.tolist(), found.tolist(), strict=True)):
        own = edge[COLUMN[side]]
        able = (kinds == kinds[own]) & (node_time <= edge[3])
        if name == "degree":
            able &= degrees > 0
        assert set(mine) <= (set(np.flatnonzero(able).tolist()) or {own}), row


def _by_original(store: GraphStore) -> tuple[np.ndarray, np.ndarray]:
    original = store.to_original(np.arange(store.num_nodes))
    return np.argsort(original), original


def _degrees(store: GraphStore, side: str) -> np.ndarray:
    """Of edges before validation, by original index."""
    target = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    ends = store.to_original(target if side == "tail" else store.indices.astype(np.int64))
    return np.bincount(ends[store.edge_time < UNTIL], minlength=store.num_nodes)


@pytest.mark.parametrize("name", ["uniform", "degree"])
@pytest.mark.parametrize("side", list(COLUMN))
def test_how_often_each_is_drawn(stores, name, side) -> None:
    store, time, count = stores["typed"][1], 3, 60000
    batch = batch_of(store, [time])
    found = torch.bincount(drawn(store, name, batch, side, count).flatten(), minlength=store.num_nodes).numpy() / count
    ids, _ = _by_original(store)
    able = (store.types(ids) == store.types(ids)[batch[0, COLUMN[side]]]) & (store.node_time[ids] <= time)
    weights = able * (_degrees(store, side) ** 0.75 if name == "degree" else 1.0)
    np.testing.assert_allclose(found, weights / weights.sum(), atol=0.01)


@pytest.mark.parametrize("kind", ["untyped", "typed"])
def test_nodes_in_time_by_brute_force(stores, kind) -> None:
    for store in stores[kind]:
        nodes, kinds = NodesInTime(store), store.types(np.arange(store.num_nodes))
        for number in range(kinds.max() + 1):
            for time in (ALWAYS, -6, 0, 7, 30):
                wanted = np.flatnonzero((kinds == number) & (store.node_time <= time)).tolist()
                assert nodes.at(number, time).tolist() == wanted
                assert nodes.counts(np.array([number]), np.array([time])).tolist() == [len(wanted)]


def test_without_times_of_nodes_all_are_there(tmp_path: Path) -> None:
    store = timed_store(tmp_path / "g", of_nodes=False, parts=2)
    batch = batch_of(store, [ALWAYS] * 9)
    plain = NEGATIVES.find("uniform").of(store, 5)
    order = torch.from_numpy(np.array(store.ingest_order()))
    rows = batch.clone()
    rows[:, :2] = order[rows[:, :2]]
    timed = NEGATIVES.find("uniform").of(store, 5, in_time=InTime(store, UNTIL))
    assert torch.equal(plain.candidates(rows[:, :2], KEY, "tail"), timed.candidates(rows, KEY, "tail"))


@pytest.mark.parametrize("name", ["joint", "in_batch", "all"])
def test_shared_ones_are_refused(stores, name) -> None:
    with pytest.raises(ConfigError, match="negatives of their own"):
        NEGATIVES.find(name).of(stores["untyped"][0], 5, in_time=InTime(stores["untyped"][0], UNTIL))


def test_types_without_weights_are_refused(tmp_path: Path) -> None:
    arrays = {
        "edge_index": np.array([[0, 1], [1, 2]]),
        "edge_time": np.array([50, 60]),
        "x": np.ones((3, 1), np.float32),
    }
    partita.ingest(arrays, tmp_path / "g")
    store = GraphStore.open(tmp_path / "g")
    found = NEGATIVES.find("degree").of(store, 5, in_time=InTime(store, UNTIL))
    with pytest.raises(ConfigError, match="no node of the graph has a weight as a tail"):
        found.candidates(torch.tensor([[0, 1, 0, 49]]), KEY, "tail")
