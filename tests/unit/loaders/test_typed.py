"""Batches of typed graphs against the store, against each other, and in a model of PyG."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import partita
import partita.testing.graphs
from partita.core.errors import ConfigError
from partita.graph.generate_typed import generate_typed

CITES, TOPIC = ("paper", "cites", "paper"), ("paper", "topic", "fos")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typed")
    generate_typed(folder / "whole", scale=0.002, num_features=8, num_classes=4)
    partita.partition(folder / "whole", folder / "parts", parts=3, algorithm="random")
    return folder


@pytest.fixture(scope="module")
def store(folder):
    return partita.open(folder / "whole")


def triples(store):
    return [(each.source, each.name, each.target) for each in store.schema.relations]


def originals(store, batch, kind):
    """Original indices of the nodes of a type in a batch."""
    return store.to_original(store.nodes_of(kind)[batch.n_id_dict[kind].numpy()])


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(-1, 4), min_size=1, max_size=3),
    st.integers(1, 70), st.booleans(), st.booleans(), st.sampled_from(["train", "author"]),
)  # fmt: skip
def test_batches_are_subgraphs_of_the_store(store, fanouts, batch_size, replace, shuffle, seeds):
    loader = partita.NeighborLoader(store, fanouts, seeds, batch_size=batch_size, replace=replace, shuffle=shuffle)
    seen = []
    for batch in list(loader)[:4]:
        nodes = {name: store.nodes_of(name)[rows.numpy()] for name, rows in batch.n_id_dict.items()}
        assert batch.input_type == ("paper" if seeds == "train" else "author")
        seen += nodes[batch.input_type][: batch.batch_size].tolist()
        for name, ids in nodes.items():
            assert len(np.unique(ids)) == len(ids) == sum(batch.num_sampled_nodes_dict[name])
            assert np.array_equal(batch.x_dict[name].numpy(), store.x_of(name)[batch.n_id_dict[name].numpy()])
        labels = batch.y_dict[batch.input_type].numpy()
        assert np.array_equal(labels, store.y[nodes[batch.input_type]])
        assert list(batch.edge_index_dict) == list(batch.e_id_dict) == triples(store)
        for number, triple in enumerate(triples(store)):
            edges = batch.e_id_dict[triple].numpy()
            source, target = batch.edge_index_dict[triple].numpy()
            assert len(edges) == sum(batch.num_sampled_edges_dict[triple])
            assert (store.edge_type[edges] == number).all()
            assert np.array_equal(store.indices[edges], nodes[triple[0]][source])
            row = nodes[triple[2]][target]
            assert ((store.indptr[row] <= edges) & (edges < store.indptr[row + 1])).all()
            if not replace:
                assert len(np.unique(edges)) == len(edges)
    assert len(set(seen)) == len(seen)
    if not shuffle:
        assert seen == (store.split("train") if seeds == "train" else store.nodes_of("author"))[: len(seen)].tolist()


def test_every_relation_has_its_fanout(store):
    fanouts = {"cites": [2, 0], TOPIC: [-1, -1], "rev_topic": [1, 3]}
    batch = next(iter(partita.NeighborLoader(store, fanouts, "train", batch_size=50)))
    kinds, degrees = np.asarray(store.edge_type), {}
    seeds = store.nodes_of("paper")[batch.n_id_dict["paper"][:50].numpy()]
    for number, triple in enumerate(triples(store)):
        rows = [kinds[store.indptr[node] : store.indptr[node + 1]] for node in seeds]
        degrees[triple] = np.array([(row == number).sum() for row in rows])
    drawn = {name: counts for name, counts in batch.num_sampled_edges_dict.items() if any(counts)}
    assert set(drawn) == {CITES, TOPIC, ("fos", "rev_topic", "paper")}
    assert drawn[CITES] == [np.minimum(degrees[CITES], 2).sum(), 0]
    assert drawn["fos", "rev_topic", "paper"][0] == np.minimum(degrees["fos", "rev_topic", "paper"], 1).sum()
    assert drawn[TOPIC][1] > 0  # all papers of the fields that the first hop has found
    assert not any(batch.num_sampled_nodes_dict["author"])


def test_batches_do_not_depend_on_parts_and_threads(folder, store):
    parts = partita.open(folder / "parts")
    options = {"batch_size": 30, "shuffle": True, "seed": 5}
    one = list(partita.NeighborLoader(store, [3, 2], "train", **options))
    for other, held in (
        (list(partita.NeighborLoader(parts, [3, 2], "train", **options)), parts),
        (list(partita.NeighborLoader(store, [3, 2], "train", num_workers=2, **options)), store),
    ):
        for a, b in zip(one, other, strict=True):
            for name in store.schema.node_types:
                assert np.array_equal(originals(store, a, name), originals(held, b, name))
                assert torch.equal(a.x_dict[name], b.x_dict[name])
            for triple in triples(store):
                assert torch.equal(a.edge_index_dict[triple], b.edge_index_dict[triple])
            assert torch.equal(a.y_dict["paper"], b.y_dict["paper"])


@pytest.mark.parametrize(
    ("fanouts", "seeds", "message"),
    [
        ({"cite": [2]}, "train", "there is no relation 'cite'.*'cites'"),
        ({("paper", "cites", "author"): [2]}, "train", "there is no relation 'paper:cites:author'"),
        ({"cites": [2], "topic": [2, 3]}, "train", "numbers for 1 and 2 layers"),
        ({}, "train", "numbers for no layers"),
        ({"cites": [2], CITES: [3]}, "train", "relation 'paper:cites:paper' is there twice"),
        ({"cites": [-2]}, "train", "a number of at least -1 a hop"),
        ([], "train", "a number of at least -1 a hop"),
        ([2], None, "seeds are of the types 'paper' and 'author'"),
    ],
)
def test_what_is_refused(store, fanouts, seeds, message):
    with pytest.raises(ConfigError, match=message):
        partita.NeighborLoader(store, fanouts, seeds)


def test_relations_of_an_untyped_graph_are_refused(tmp_path):
    store = partita.testing.graphs.small_random_store(tmp_path / "g", 20, 60)
    with pytest.raises(ConfigError, match="the graph has no relations"):
        partita.NeighborLoader(store, {"cites": [2]})


def test_a_batch_shows_its_shapes_and_moves(store):
    batch = next(iter(partita.NeighborLoader(store, [1], "train", batch_size=2)))
    assert "'fos': [" in repr(batch)
    assert "input_type=paper, batch_size=2" in repr(batch)
    assert batch.num_nodes == sum(map(len, batch.x_dict.values()))
    assert batch.num_edges == sum(each.shape[1] for each in batch.edge_index_dict.values())
    assert batch.to("meta") is batch
    assert {each.device.type for each in [*batch.x_dict.values(), *batch.edge_index_dict.values()]} == {"meta"}


def test_a_model_of_pyg_learns_on_batches(store):
    nn = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = torch.nn.ModuleList(
                nn.HeteroConv({triple: nn.SAGEConv(width, 16) for triple in triples(store)}) for width in (8, 16)
            )
            self.out = torch.nn.Linear(16, 4)

        def forward(self, batch):
            x = batch.x_dict
            for conv in self.convs:
                x = {name: rows.relu() for name, rows in conv(x, batch.edge_index_dict).items()}
            return self.out(x["paper"][: batch.batch_size])

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    loader, losses = partita.NeighborLoader(store, [4, 4], "train", batch_size=40, shuffle=True), []
    for _ in range(12):
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch), batch.y_dict["paper"][: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])
