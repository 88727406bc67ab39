"""Batches of the loader against the store, and against each other."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import partita
from partita.core.errors import ConfigError, StoreError
from partita.core.keys import StepKey
from partita.loaders.neighbor import NeighborLoader
from partita.sample.blocks import sample_block
from partita.sample.topology import LocalTopology
from partita.testing.graphs import small_random_store


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loaders")
    small_random_store(folder / "whole", 300, 2500, weighted=True)
    partita.partition(folder / "whole", folder / "parts", parts=3, algorithm="random")
    return folder


@pytest.fixture(scope="module")
def store(folder):
    return partita.open(folder / "whole")


def same(one, other) -> bool:
    fields = ("n_id", "edge_index", "e_id", "input_id", "x", "y", "edge_weight")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in fields)


@given(
    fanouts=st.lists(st.integers(-1, 6), min_size=1, max_size=3),
    batch_size=st.integers(1, 70),
    replace=st.booleans(),
    weighted=st.booleans(),
    shuffle=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_batches_are_subgraphs_of_the_store(store, fanouts, batch_size, replace, weighted, shuffle) -> None:
    options = {"batch_size": batch_size, "shuffle": shuffle, "replace": replace, "weighted": weighted}
    loader, seen = NeighborLoader(store, fanouts, "train", **options), []
    for batch in loader:
        nodes, edges = batch.n_id.numpy(), batch.e_id.numpy()
        source, destination = nodes[batch.edge_index.numpy()]
        assert len(np.unique(nodes)) == batch.num_nodes == sum(batch.num_sampled_nodes)
        assert batch.num_edges == sum(batch.num_sampled_edges)
        assert (store.indices[edges] == source).all()
        assert ((store.indptr[destination] <= edges) & (edges < store.indptr[destination + 1])).all()
        assert (batch.x.numpy() == store.x[nodes]).all()
        assert (batch.y.numpy() == store.y[nodes]).all()
        assert (batch.edge_weight.numpy() == store.edge_weight[edges]).all()
        assert (nodes[: batch.batch_size] == store.split("train")[batch.input_id]).all()
        _check_hops(store, batch, fanouts, replace, weighted)
        seen += batch.input_id.tolist()
    assert sorted(seen) == list(range(len(store.split("train"))))
    assert (seen == sorted(seen)) or shuffle


def _check_hops(store, batch, fanouts, replace, weighted) -> None:
    """Every node is drawn for once, in the hop after the one that found it, as often as the fanout says."""
    nodes, destination = batch.n_id.numpy(), batch.edge_index[1].numpy()
    ends = np.cumsum(batch.num_sampled_nodes)
    starts = ends - batch.num_sampled_nodes
    edge = 0
    for hop, fanout in enumerate(fanouts):
        drawn = np.bincount(destination[edge : edge + batch.num_sampled_edges[hop]], minlength=len(nodes))
        edge += batch.num_sampled_edges[hop]
        frontier = np.arange(starts[hop], ends[hop])
        assert drawn.sum() == drawn[frontier].sum()
        degrees = store.in_degree(nodes[frontier])
        if weighted:
            degrees = np.array([(store.edge_weight[store.indptr[v] : store.indptr[v + 1]] > 0).sum() for v in nodes])[
                frontier
            ]
        wanted = degrees if fanout == -1 else np.minimum(degrees, fanout)
        if replace and fanout > 0:
            wanted = np.where(degrees > 0, fanout, 0)
        if not (weighted and fanout == -1):
            assert (drawn[frontier] == wanted).all()


def test_draws_are_those_of_training(store) -> None:
    """The first hop from the seed nodes is the last layer's block of a run with the same seed."""
    batch = next(iter(NeighborLoader(store, [4, 3], "train", batch_size=50, seed=7)))
    block = sample_block(LocalTopology(store), batch.n_id[:50], StepKey(7, 0, 0), 2, 4)
    assert batch.num_sampled_edges[0] == block.num_edges
    assert torch.equal(batch.n_id[batch.edge_index[0, : block.num_edges]], block.indices.long())


def test_batches_do_not_depend_on_the_partition(folder, store) -> None:
    """The same nodes and edges by the user's ids, in the same order."""
    parts = partita.open(folder / "parts")
    for nodes in ("train", None):
        batches = [list(NeighborLoader(s, [3, 3], nodes, batch_size=64, shuffle=True)) for s in (store, parts)]
        for one, other in zip(*batches, strict=True):
            assert store.names(one.n_id.numpy()).tolist() == parts.names(other.n_id.numpy()).tolist()
            assert torch.equal(one.edge_index, other.edge_index)
            assert torch.equal(one.x, other.x)


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_change_nothing(store, workers) -> None:
    options = {"batch_size": 16, "shuffle": True}
    alone, ahead = (NeighborLoader(store, [5, 5], "train", num_workers=n, **options) for n in (0, workers))
    for _ in range(2):
        for one, other in zip(alone, ahead, strict=True):
            assert same(one, other)


def test_epochs_differ_and_can_be_left(store) -> None:
    loader = NeighborLoader(store, [5], "train", batch_size=32, shuffle=True)
    first = [batch.n_id.tolist() for batch in loader]
    again = NeighborLoader(store, [5], "train", batch_size=32, shuffle=True)
    assert next(iter(again)).n_id.tolist() == first[0]
    second = [batch.n_id.tolist() for batch in loader]
    assert second != first
    assert [batch.n_id.tolist() for batch in again] == second  # what was left unfinished is not gone on with


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_goes_on_where_it_was(store, workers) -> None:
    def make():
        return NeighborLoader(store, [5, 2], "train", batch_size=16, shuffle=True, num_workers=workers)

    wanted = [batch for loader in [make()] for _ in range(2) for batch in loader]
    stopped = make()
    list(stopped)
    before = list(islice(stopped, 3))
    state = stopped.state_dict()
    assert state == {"epoch": 1, "batches": 3}
    resumed = make()
    resumed.load_state_dict(state)
    after = list(resumed)
    assert len(wanted) == 2 * len(resumed)
    assert all(map(same, [*before, *after], wanted[len(resumed) :]))
    assert resumed.state_dict() == {"epoch": 2, "batches": 0}
    with pytest.raises(ConfigError, match="99 batches of an epoch"):
        resumed.load_state_dict({"epoch": 0, "batches": 99})


def test_an_epoch_ends_with_its_last_batch(store) -> None:
    """Also for those who count batches, and do not ask whether there is one more."""
    loader = NeighborLoader(store, [5], "train", batch_size=32, shuffle=True)
    last = list(islice(loader, len(loader)))[-1]
    assert last.batch_size == len(store.split("train")) - 32 * (len(loader) - 1)
    assert loader.state_dict() == {"epoch": 1, "batches": 0}
    again = NeighborLoader(store, [5], "train", batch_size=32, shuffle=True)
    again.load_state_dict(loader.state_dict())
    assert same(next(iter(loader)), next(iter(again)))


@given(size=st.integers(1, 5), count=st.integers(5, 60), batch_size=st.integers(1, 50), shuffle=st.booleans())
@settings(max_examples=25, deadline=None)
def test_processes_share_the_seeds(store, size, count, batch_size, shuffle) -> None:
    """Together they have all seeds, each equally many in equally many batches."""
    loaders = [
        NeighborLoader(store, [2], range(count), batch_size=batch_size, shuffle=shuffle, rank=rank, world_size=size)
        for rank in range(size)
    ]
    shares = [list(loader) for loader in loaders]
    assert len({len(share) for share in shares}) == 1
    for of_step in zip(*shares):
        assert len({batch.batch_size for batch in of_step}) == 1
        assert all(len(batch.input_id.unique()) == batch.batch_size for batch in of_step)
    seen = torch.cat([batch.input_id for share in shares for batch in share])
    assert set(seen.tolist()) == set(range(count))
    assert 0 <= len(seen) - count < size


def test_the_last_batch_may_be_dropped(store) -> None:
    count = len(store.split("train"))
    loader = NeighborLoader(store, [2], "train", batch_size=count // 2 - 1, drop_last=True)
    assert [batch.batch_size for batch in loader] == [count // 2 - 1] * len(loader)
    assert len(loader) == 2


def test_seeds_by_mask_and_by_ids(store) -> None:
    train = torch.from_numpy(store.split("train").copy())
    mask = torch.zeros(store.num_nodes, dtype=torch.bool)
    mask[train] = True
    by_name, by_mask = (NeighborLoader(store, [2], nodes, batch_size=1000) for nodes in ("train", mask))
    assert same(next(iter(by_name)), next(iter(by_mask)))
    some = [5, 3, 9]
    (batch,) = NeighborLoader(store, [2], some, batch_size=8)
    assert batch.n_id[:3].tolist() == some
    assert batch.input_id.tolist() == [0, 1, 2]


def test_batches_can_be_changed_and_moved(store) -> None:
    def without_labels(batch):
        batch.y = None
        return batch

    batch = next(iter(NeighborLoader(store, [2], "train", batch_size=4, transform=without_labels)))
    assert batch.to("cpu") is batch
    assert batch.y is None
    assert batch.batch_size == 4


def test_a_store_without_features_and_labels(tmp_path) -> None:
    small_random_store(tmp_path / "bare", 20, 60, num_features=0, num_classes=0)
    (batch,) = NeighborLoader(tmp_path / "bare", [2], batch_size=20)
    assert (batch.x, batch.y, batch.edge_weight) == (None, None, None)
    assert batch.num_nodes == 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_neighbors": []}, "num_neighbors"),
        ({"num_neighbors": [-2]}, "num_neighbors"),
        ({"batch_size": 0}, "batch_size"),
        ({"num_workers": -1}, "num_workers"),
        ({"rank": 1}, "rank"),
        ({"input_nodes": []}, "input_nodes"),
        ({"input_nodes": [1, 2], "world_size": 3}, "one seed for every process"),
        ({"input_nodes": [1, 2, 1]}, "node 1 is there more than once"),
        ({"input_nodes": [1, 300]}, "node 300 at position 1"),
        ({"input_nodes": [0.5]}, "float32"),
        ({"input_nodes": torch.zeros(7, dtype=torch.bool)}, "a mask of 7 for 300 nodes"),
    ],
)
def test_bad_input(store, arguments, said) -> None:
    with pytest.raises(ConfigError, match=said):
        NeighborLoader(**{"store": store, "num_neighbors": [2], **arguments})


def test_no_such_split(store) -> None:
    with pytest.raises(StoreError, match="no split 'tset'"):
        NeighborLoader(store, [2], "tset")


def test_the_shard_of_a_host_is_refused(folder, tmp_path) -> None:
    partita.partition(folder / "whole", tmp_path / "two", parts=2, algorithm="random")
    partita.shard(tmp_path / "two", tmp_path / "shard", host=0, hosts=2)
    with pytest.raises(StoreError, match="a loader needs the whole graph"):
        NeighborLoader(tmp_path / "shard", [2])


def test_arguments_of_pygs_loader_are_taken_or_refused_in_words(tmp_path) -> None:
    store = small_random_store(tmp_path / "g", 60, 300)
    given = {"pin_memory": True, "persistent_workers": True, "prefetch_factor": 4, "subgraph_type": "directional"}
    plain, same = NeighborLoader(store, [3, 2], "train"), NeighborLoader(store, [3, 2], "train", **given)
    assert torch.equal(next(iter(plain)).n_id, next(iter(same)).n_id)
    refused = [
        ({"weight_attr": "w"}, r"weight_attr='w'.*weighted=True"),
        ({"disjoint": True}, "disjoint=False"),
        ({"time_attr": "t"}, "Times are those that the store has"),
        ({"batch_sise": 4}, "Did you mean 'batch_size'"),
    ]
    for arguments, message in refused:
        with pytest.raises(ConfigError, match=message):
            NeighborLoader(store, [3, 2], "train", **arguments)
    with pytest.raises(ConfigError, match=r"a dict is not a graph store.*partita.ingest"):
        NeighborLoader({}, [3, 2])


def test_a_batch_shows_shapes(tmp_path) -> None:
    batch = next(iter(NeighborLoader(small_random_store(tmp_path / "g", 60, 300), [3], "train", batch_size=4)))
    assert repr(batch).startswith(f"Batch(n_id=[{batch.num_nodes}], edge_index=[2, {batch.num_edges}], ")
    assert "batch_size=4" in repr(batch)
    assert "tensor" not in repr(batch)
