"""Batches of links against the store, and against each other."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import partita
from partita.core.errors import ConfigError
from partita.core.keys import below
from partita.kernels.reference.draws import below_all
from partita.testing.graphs import small_random_store

TRIPLE = ("paper", "topic", "fos")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("links")
    small_random_store(folder / "whole", 200, 1500)
    partita.partition(folder / "whole", folder / "parts", parts=3, algorithm="random")
    partita.generate_typed(folder / "typed", scale=0.001, seed=1)
    partita.partition(folder / "typed", folder / "typed-parts", parts=2, algorithm="random")
    return folder


@pytest.fixture(scope="module")
def store(folder):
    return partita.open(folder / "whole")


@pytest.fixture(scope="module")
def typed(folder):
    return partita.open(folder / "typed")


def pairs_of(batch) -> list[tuple[int, int]]:
    """Edges that carry messages, by store ids."""
    return list(zip(*batch.n_id[batch.edge_index].tolist()))


def edges_of(store) -> list[tuple[int, int]]:
    return list(zip(store.indices.tolist(), np.repeat(np.arange(store.num_nodes), store.in_degree()).tolist()))


@given(
    batch_size=st.integers(1, 90),
    shuffle=st.booleans(),
    exclude=st.booleans(),
    neg_sampling=st.sampled_from([None, "binary", {"mode": "binary", "amount": 2.3}]),
    labels=st.sampled_from([None, 0, 3]),
)
@settings(max_examples=20, deadline=None)
def test_links_of_batches_are_those_of_the_loader(store, batch_size, shuffle, exclude, neg_sampling, labels) -> None:
    links = torch.tensor(edges_of(store)).T[:, ::5]
    given = None if labels is None else torch.arange(links.shape[1]) % 4 + labels
    loader = partita.LinkNeighborLoader(
        store, [-1], links, edge_label=given, neg_sampling=neg_sampling, batch_size=batch_size, shuffle=shuffle,
        exclude_targets=exclude,
    )  # fmt: skip
    seen, every = [], {}
    for pair in edges_of(store):
        every[pair] = every.get(pair, 0) + 1
    for batch in loader:
        ends = batch.n_id[batch.edge_label_index]
        assert torch.equal(ends[:, : batch.batch_size], links[:, batch.input_id])
        more = 0 if neg_sampling is None else neg_sampling["amount"] if isinstance(neg_sampling, dict) else 1
        assert ends.shape[1] == batch.batch_size + int(np.ceil(batch.batch_size * more))
        assert batch.num_sampled_nodes[0] == len(ends.unique())
        if given is not None:
            own = given[batch.input_id] + (labels == 0 and neg_sampling is not None)
            assert torch.equal(batch.edge_label[: batch.batch_size], own)
        else:
            assert (batch.edge_label is None) == (neg_sampling is None)
        if neg_sampling is not None:
            assert not batch.edge_label[batch.batch_size :].any()
        lost = set(zip(*links[:, batch.input_id].tolist()))
        lost = lost | {(b, a) for a, b in lost} if exclude else set()
        seeds = set(ends.flatten().tolist())
        wanted = sorted(p for p, count in every.items() if p[1] in seeds and p not in lost for _ in range(count))
        assert sorted(pairs_of(batch)) == wanted
        assert torch.equal(batch.x, torch.from_numpy(store.x[batch.n_id.numpy()]))
        seen += batch.input_id.tolist()
    assert sorted(seen) == list(range(links.shape[1]))
    assert shuffle or seen == sorted(seen)


def test_links_are_all_edges_where_none_are_given(store) -> None:
    loader = partita.LinkNeighborLoader(store, [2], batch_size=100)
    assert sorted(map(tuple, loader.edge_label_index.T.tolist())) == sorted(edges_of(store))
    assert len(loader) == -(-store.num_edges // 100)
    assert next(iter(loader)).edge_label is None


@pytest.mark.parametrize("amount", [1, 3])
def test_triplets(store, amount) -> None:
    loader = partita.LinkNeighborLoader(store, [3], neg_sampling={"mode": "triplet", "amount": amount}, batch_size=64)
    found = []
    for batch in loader:
        assert batch.edge_label_index is None
        assert batch.edge_label is None
        links = torch.stack([batch.n_id[batch.src_index], batch.n_id[batch.dst_pos_index]])
        assert torch.equal(links, loader.edge_label_index[:, batch.input_id])
        assert batch.dst_neg_index.shape == ((batch.batch_size,) if amount == 1 else (batch.batch_size, amount))
        found.append(batch.n_id[batch.dst_neg_index].flatten())
    counts = torch.cat(found).bincount(minlength=store.num_nodes)
    assert len(counts) == store.num_nodes
    assert counts.max() < 12 * amount + 20  # about 7 of each
    assert (counts > 0).sum() > 0.98 * store.num_nodes


def content(batch) -> list[list[int]]:
    return [value.tolist() for value in (batch.n_id, batch.edge_index, batch.edge_label_index, batch.edge_label)]


def test_threads_states_and_processes_change_nothing(store) -> None:
    options = {"neg_sampling": "binary", "batch_size": 60, "shuffle": True, "seed": 4}
    alone = [content(batch) for batch in partita.LinkNeighborLoader(store, [4, 3], **options)]
    threads = partita.LinkNeighborLoader(store, [4, 3], num_workers=2, **options)
    assert [content(batch) for batch in threads] == alone
    assert [content(batch) for batch in threads] != alone  # another epoch
    stopped = partita.LinkNeighborLoader(store, [4, 3], **options)
    list(islice(stopped, 3))
    going_on = partita.LinkNeighborLoader(store, [4, 3], **options)
    going_on.load_state_dict(stopped.state_dict())
    assert [content(batch) for batch in going_on] == alone[3:]
    ranks = [
        partita.LinkNeighborLoader(store, [4, 3], **{**options, "batch_size": 30}, rank=rank, world_size=2)
        for rank in range(2)
    ]
    whole = partita.LinkNeighborLoader(store, [4, 3], **options)
    for batch, *shares in zip(whole, *ranks, strict=True):
        rows = {}
        for each in (batch, *shares):
            for node, *edges in _rows(each):
                rows.setdefault(node, []).append(edges)
        both = {node for each in shares for node in each.n_id[: each.num_sampled_nodes[0]].tolist()}
        # What a node draws depends neither on the process nor on the others: no link of the step carries messages.
        assert all(edges == rows[node][0] for node in both for edges in rows[node] if edges[0] and rows[node][0][0])
        if len(batch.input_id) % 2 == 0:
            negatives = [
                link for each in shares
                for link in zip(*each.n_id[each.edge_label_index[:, each.batch_size :]].tolist())
            ]  # fmt: skip
            whole_ones = zip(*batch.n_id[batch.edge_label_index[:, batch.batch_size :]].tolist())
            assert sorted(negatives) == sorted(whole_ones)


def _rows(batch):
    """The sources that each seed has drawn in the first hop."""
    drawn = batch.num_sampled_edges[0]
    source, destination = batch.n_id[batch.edge_index[:, :drawn]]
    for node in batch.n_id[: batch.num_sampled_nodes[0]].tolist():
        yield node, source[destination == node].tolist()


@pytest.mark.parametrize("neg_sampling", ["binary", "triplet"])
def test_a_partition_changes_nothing(folder, neg_sampling) -> None:
    options = {"neg_sampling": neg_sampling, "batch_size": 50, "shuffle": True}
    whole, parts = (partita.LinkNeighborLoader(folder / name, [3, 3], **options) for name in ("whole", "parts"))
    for a, b in zip(whole, parts, strict=True):
        assert whole.store.names(a.n_id.numpy()).tolist() == parts.store.names(b.n_id.numpy()).tolist()
        assert torch.equal(a.edge_index, b.edge_index)


@pytest.mark.parametrize("neg_sampling", [None, "binary", "triplet"])
def test_typed_graphs(typed, neg_sampling) -> None:
    number = typed.schema.relation_numbers(":".join(TRIPLE))[0]
    reverse = [at for at, each in enumerate(typed.schema.relations) if each == typed.schema.relations[number].reverse]
    loader = partita.LinkNeighborLoader(typed, [-1], TRIPLE, neg_sampling=neg_sampling, batch_size=20, shuffle=True)
    assert loader.edge_label_index.shape[1] == typed.schema.num_edges[number]
    for batch in islice(loader, 5):
        assert batch.input_type == TRIPLE
        papers, fields = batch.n_id_dict["paper"], batch.n_id_dict["fos"]
        if neg_sampling == "triplet":
            src, dst = batch.src_index_dict["paper"], batch.dst_pos_index_dict["fos"]
            assert batch.dst_neg_index_dict["fos"].max() < len(fields)
            assert batch.edge_label_index_dict is None
        else:
            src, dst = batch.edge_label_index_dict[TRIPLE]
            assert batch.src_index_dict is None
            if neg_sampling:
                assert batch.edge_label_dict[TRIPLE].tolist() == [1.0] * 20 + [0.0] * 20
        links = loader.edge_label_index[:, batch.input_id].numpy()
        assert papers[src[:20]].tolist() == typed.type_rows(links[0]).tolist()
        assert fields[dst[:20]].tolist() == typed.type_rows(links[1]).tolist()
        assert torch.equal(batch.x_dict["paper"], torch.from_numpy(typed.x_of("paper")[papers.numpy()]).float())
        lost = set(zip(papers[src[:20]].tolist(), fields[dst[:20]].tolist()))
        a, b = batch.edge_index_dict[TRIPLE]
        assert not lost & set(zip(papers[a].tolist(), fields[b].tolist()))
        assert reverse
        a, b = batch.edge_index_dict[("fos", "rev_topic", "paper")]
        assert not lost & set(zip(papers[b].tolist(), fields[a].tolist()))
        assert any(len(each) for each in batch.e_id_dict.values())


def test_rows_of_a_relation(typed) -> None:
    index = torch.tensor([[0, 3, 5], [1, 0, 1]])
    batch = next(iter(partita.LinkNeighborLoader(typed, {"topic": [2]}, (TRIPLE, index), batch_size=3)))
    src, dst = batch.edge_label_index_dict[TRIPLE]
    assert batch.n_id_dict["paper"][src].tolist() == [0, 3, 5]
    assert batch.n_id_dict["fos"][dst].tolist() == [1, 0, 1]


def test_a_typed_partition_changes_nothing(folder) -> None:
    one, other = (
        partita.LinkNeighborLoader(folder / name, [2, 2], "topic", neg_sampling="triplet", batch_size=30)
        for name in ("typed", "typed-parts")
    )
    for a, b in islice(zip(one, other, strict=True), 5):
        for kind in a.n_id_dict:
            names = [
                each.store.names(each.store.nodes_of(kind)[batch.n_id_dict[kind].numpy()]).tolist()
                for each, batch in ((one, a), (other, b))
            ]
            assert names[0] == names[1]


def test_reverses_are_those_that_are_named(typed) -> None:
    with pytest.raises(ConfigError, match="does not lead from where"):
        partita.LinkNeighborLoader(typed, [2], TRIPLE, reverse_relations={"topic": "topic"})
    loader = partita.LinkNeighborLoader(typed, [2], "rev_topic", reverse_relations={"topic": "rev_topic"})
    assert loader._reverse_number() == typed.schema.relation_numbers("topic")[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"edge_label_index": torch.zeros(3, 2)}, r"float32 of shape \(3, 2\)"),
        ({"edge_label_index": torch.tensor([[0, 1], [0, 200]])}, "node 200 at position 1: there are nodes 0 to 199"),
        ({"edge_label": [1, 2]}, "2 labels for"),
        ({"edge_label": [1], "neg_sampling": "triplet"}, "triplets have none"),
        ({"neg_sampling": "other"}, "cannot be drawn as 'other' says"),
        ({"neg_sampling": {"mode": "triplet", "amount": 1.5}}, "cannot be drawn as"),
        ({"edge_label_time": torch.zeros(3)}, "edge_label_time"),
        ({"edge_label_index": torch.zeros((2, 0), dtype=torch.int64)}, "at least one seed"),
    ],
)
def test_what_cannot_be_is_refused(store, changes, said) -> None:
    with pytest.raises(ConfigError, match=said):
        partita.LinkNeighborLoader(store, [2], **changes)


def test_a_typed_graph_needs_a_relation(typed) -> None:
    with pytest.raises(ConfigError, match="of one relation"):
        partita.LinkNeighborLoader(typed, [2])
    with pytest.raises(ConfigError, match="no relation 'topics'"):
        partita.LinkNeighborLoader(typed, [2], "topics")


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.sampled_from([1, 7, 2**31, 2**32, 2**33 + 1]))
def test_draws_below_a_number(draws, n) -> None:
    assert below_all(np.array(draws, np.uint64), n).tolist() == [below(draw, n) for draw in draws]
