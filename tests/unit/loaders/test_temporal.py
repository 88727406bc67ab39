"""Loaders that draw edges not later than the time of each seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import partita
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.sample.topology import as_tensor

NODES, EDGES = 60, 500
ALWAYS = np.iinfo(np.int64).min


def made(folder: Path, *, typed: bool = False, **changes: Any) -> GraphStore:
    generator = np.random.default_rng(3)
    arrays: dict[str, Any] = {
        "edge_index": generator.integers(0, NODES, (2, EDGES)), "edge_time": generator.integers(0, 50, EDGES),
        "edge_weight": np.arange(1, EDGES + 1, dtype=np.float32), "seed_time": generator.integers(0, 50, NODES),
    }  # fmt: skip
    if typed:
        arrays["node_type"] = (np.arange(NODES) >= NODES // 2).astype(int)
        ends = arrays["node_type"][arrays["edge_index"]]
        arrays["edge_type"] = 2 * ends[0] + ends[1]
    np.savez(folder / "g.npz", **{name: value for name, value in (arrays | changes).items() if value is not None})
    partita.ingest(folder / "g.npz", folder / "whole")
    partita.partition(folder / "whole", folder / "g", parts=3, algorithm="random")
    return GraphStore.open(folder / "g")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return made(tmp_path_factory.mktemp("times"))


@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("workers", [0, 2])
def test_no_edge_is_later_than_the_seed(store, strategy, workers) -> None:
    loader = partita.NeighborLoader(
        store, [4, 3], batch_size=16, shuffle=True, temporal_strategy=strategy, num_workers=workers
    )
    seen = 0
    for batch in loader:
        seeds = batch.n_id[: batch.batch_size]
        assert torch.equal(batch.seed_time, as_tensor(store.seed_time)[seeds])
        assert torch.equal(batch.time[: batch.batch_size], batch.seed_time)
        sources, targets = batch.edge_index
        assert torch.equal(batch.time[sources], batch.time[targets])
        edge_time = as_tensor(store.edge_time)[batch.e_id]
        assert bool((edge_time <= batch.time[targets]).all())
        assert torch.equal(as_tensor(store.indices)[batch.e_id].long(), batch.n_id[sources])
        both = torch.stack([batch.n_id, batch.time])
        assert both.unique(dim=1).shape == both.shape
        if strategy == "last":
            rows = torch.searchsorted(as_tensor(store.indptr), batch.e_id, right=True) - 1
            assert torch.equal(rows, batch.n_id[targets])
        seen += batch.num_edges
    assert seen > 0


def test_the_last_edges_are_taken(store) -> None:
    (batch,) = partita.NeighborLoader(store, [3], batch_size=NODES, temporal_strategy="last")
    for place, node in enumerate(batch.n_id[:NODES].tolist()):
        row = np.arange(store.indptr[node], store.indptr[node + 1])
        there = row[store.edge_time[row] <= store.seed_time[node]]
        assert batch.e_id[batch.edge_index[1] == place].tolist() == there[-3:].tolist()


def test_a_node_may_be_asked_about_at_several_times(store) -> None:
    nodes, times = torch.tensor([5, 5, 9, 5]), torch.tensor([10, 40, 40, 25])
    (batch,) = partita.NeighborLoader(
        store, [-1], nodes, batch_size=4, temporal_strategy="uniform", input_time=times, weighted=True
    )
    assert batch.n_id[:4].tolist() == nodes.tolist()
    assert batch.seed_time.tolist() == times.tolist()
    for place, (node, time) in enumerate(zip(nodes.tolist(), times.tolist(), strict=True)):
        row = np.arange(store.indptr[node], store.indptr[node + 1])
        there = row[store.edge_time[row] <= time]
        assert batch.e_id[batch.edge_index[1] == place].tolist() == there.tolist()


def test_batches_do_not_depend_on_what_else_is_asked_about(store) -> None:
    def drawn(nodes: list[int]) -> dict[int, list[int]]:
        (batch,) = partita.NeighborLoader(store, [2], nodes, batch_size=50, temporal_strategy="uniform")
        return {node: batch.e_id[batch.edge_index[1] == at].tolist() for at, node in enumerate(nodes)}

    few, many = drawn([3, 8]), drawn([8, *range(20, 40), 3])
    assert {node: many[node] for node in few} == few


def test_typed_graphs(tmp_path) -> None:
    store = made(tmp_path, typed=True)
    first = store.schema.node_types[0]
    for batch in partita.NeighborLoader(store, [3, 2], first, batch_size=8, temporal_strategy="uniform"):
        assert len(batch.seed_time) == batch.batch_size
        assert torch.equal(batch.time_dict[first][: batch.batch_size], batch.seed_time)
        for (source, _, target), ends in batch.edge_index_dict.items():
            time = batch.time_dict[target][ends[1]]
            assert torch.equal(batch.time_dict[source][ends[0]], time)
        for triple, e_id in batch.e_id_dict.items():
            time = batch.time_dict[triple[2]][batch.edge_index_dict[triple][1]]
            assert bool((as_tensor(store.edge_time)[e_id] <= time).all())
        assert batch.to("cpu").num_edges == sum(map(len, batch.e_id_dict.values()))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "not said how they are drawn"),
    ({"temporal_strategy": "lats"}, "there is no 'lats'"),
    ({"temporal_strategy": "none", "input_time": [1] * 4}, "none are looked at"),
    ({"temporal_strategy": "last", "weighted": True}, "none is drawn"),
    ({"temporal_strategy": "uniform", "input_time": [1, 2]}, "int64 of shape"),
    ({"temporal_strategy": "uniform", "input_time": [1.0, 2, 3, 4]}, "float32 of shape"),
    ({"temporal_strategy": "uniform", "input_time": [1, 2, ALWAYS, 4]}, "1 of the 4 input nodes have no time"),
    ({"time_attr": "time"}, "there is no option 'time_attr'"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_cannot_be_is_refused(store, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        partita.NeighborLoader(store, [2], [1, 2, 3, 4], **settings)


def test_missing_times_and_links_are_refused(store, tmp_path) -> None:
    with pytest.raises(ConfigError, match="more than once at one time"):
        partita.NeighborLoader(store, [2], [1, 1], temporal_strategy="last", input_time=[3, 3])
    with pytest.raises(ConfigError, match="links are not sampled by time"):
        partita.LinkNeighborLoader(store, [2], temporal_strategy="last")
    (tmp_path / "a").mkdir()
    without = made(tmp_path / "a", seed_time=None)
    with pytest.raises(ConfigError, match="not known when the inputs are asked about"):
        partita.NeighborLoader(without, [2], temporal_strategy="last")
    (batch,) = partita.NeighborLoader(without, [2], [1], temporal_strategy="last", input_time=[9])
    assert batch.seed_time.tolist() == [9]
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="the edges of the store have no times"):
        partita.NeighborLoader(made(tmp_path / "b", edge_time=None), [2], temporal_strategy="last")
