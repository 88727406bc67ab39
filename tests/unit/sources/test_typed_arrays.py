"""Typed graphs in arrays become stores: brute force, real data, partitions, and back to arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import partita
from partita.core.errors import ConfigError, InputError, StoreError
from partita.graph.export import export
from partita.graph.metadata import _checksum
from partita.graph.profile import inspect
from partita.graph.schema import Relation, Schema
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.graph.writer import StoreWriter
from partita.partitioning.reorder import reorder
from partita.sample.topology import LocalTopology
from partita.sources.ingest import ingest

NAMES = ("paper", "author", "venue")
RELATIONS = ("writes", "cites")


def write(path, **arrays):
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def small(**changes):
    """5 papers, 3 authors, 2 venues; authors write papers, papers cite papers, papers are 'cites' of venues as well."""
    arrays = {
        "node_type": np.array([0] * 5 + [1] * 3 + [2] * 2, np.uint8),
        "node_type_names": np.array(NAMES),
        "edge_type_names": np.array(RELATIONS),
        "edge_index": np.array([[5, 0, 6, 1, 7, 2, 0, 5], [0, 1, 1, 2, 2, 8, 2, 0]], np.int32),
        "edge_type": np.array([0, 1, 0, 1, 0, 1, 1, 0], np.uint8),
        "x_paper": np.arange(10, dtype=np.float32).reshape(5, 2),
        "x_venue": np.arange(6, dtype=np.float16).reshape(2, 3),
        "y": np.array([0, 1, 0, 1, 0, *[-1] * 5]),
        "train_mask": np.arange(10) < 3,
        "test_mask": (np.arange(10) >= 3) & (np.arange(10) < 5),
    }
    return {**arrays, **changes}


@pytest.fixture
def store(tmp_path) -> GraphStore:
    ingest(write(tmp_path / "g.npz", **small()), tmp_path / "store")
    return GraphStore.open(tmp_path / "store")


def triples(store: GraphStore) -> list[tuple[int, str, int]]:
    """Edges by original indices, with their relation."""
    dst = np.repeat(np.arange(store.num_nodes), store.in_degree())
    ends = store.to_original(np.asarray(store.indices)), store.to_original(dst)
    names = [str(store.schema.relations[kind]) for kind in store.edge_type]
    return sorted(zip(ends[0].tolist(), names, ends[1].tolist()))


def test_a_small_graph(store):
    schema = store.schema
    assert schema.node_types == NAMES
    assert schema.num_nodes == (5, 3, 2)
    assert [str(each) for each in schema.relations] == [
        "author:writes:paper", "paper:cites:paper", "paper:cites:venue",
    ]  # fmt: skip
    assert schema.num_edges == (4, 3, 1)
    assert store.type_offsets.tolist() == [0, 5, 8, 10]
    assert store.neighbors(2).tolist() == [7, 1, 0]  # sorted by relation, then as in the source
    assert store.edge_type[store.indptr[2] : store.indptr[3]].tolist() == [0, 1, 1]
    assert store.x_of("paper").tolist() == np.arange(10).reshape(5, 2).tolist()
    assert store.x_of("author") is None
    assert store.x_of("venue").dtype == np.float32
    assert store.nodes_of("author").tolist() == [5, 6, 7]
    assert store.types(np.array([0, 4, 5, 9])).tolist() == [0, 0, 1, 2]
    assert store.type_rows(np.array([0, 4, 5, 9])).tolist() == [0, 4, 0, 1]
    assert store.y.tolist() == [0, 1, 0, 1, 0, *[-1] * 5]
    assert store.split("train").tolist() == [0, 1, 2]
    assert "3 node types, 3 relations" in repr(store)
    assert "author:writes:paper" in store._repr_html_()
    verify(store.path)


def test_what_is_said(tmp_path):
    summary = ingest(write(tmp_path / "g.npz", **small()), tmp_path / "store")
    assert summary.node_types == {"paper": 5, "author": 3, "venue": 2}
    assert summary.relations == {"author:writes:paper": 4, "paper:cites:paper": 3, "paper:cites:venue": 1}
    assert summary.type_features == {"paper": 2, "venue": 3}
    assert summary.edges_read == 8
    notes = "\n".join(summary.notes)
    assert "the edges of 'cites' join several pairs of types, so they are 2 relations" in notes
    assert "node types without features: author" in notes
    found = inspect(tmp_path / "store")
    assert found["types"]["labeled"] == {"paper": 5, "author": 0, "venue": 0}
    assert "the store has no features" not in found["warnings"]


@pytest.mark.parametrize("options", [{"undirected": True}, {}])
def test_reverse_relations(tmp_path, options):
    marks = {} if options else {"is_directed": np.uint8(0), "both_directions": np.uint8(0)}
    arrays = small(**marks)
    summary = ingest(write(tmp_path / "g.npz", **arrays), tmp_path / "store", **options)
    store = GraphStore.open(tmp_path / "store")
    straight, reverse = store.schema.relations[:3], store.schema.relations[3:]
    assert reverse == tuple(each.reverse for each in straight)
    assert str(reverse[0]) == "paper:rev_writes:author"
    found = triples(store)
    one_way = [(source, name, target) for source, name, target in found if ":rev_" not in name]
    back = {str(each): str(each.reverse) for each in straight}
    assert sorted((target, back[name], source) for source, name, target in one_way) == sorted(
        each for each in found if ":rev_" in each[1]
    )
    assert (summary.edges, summary.edges_read) == (16, 8)
    verify(store.path)


def test_directions_are_told(tmp_path):
    file = write(tmp_path / "g.npz", **small(target_node_type=np.array(["paper"])))
    notes = "\n".join(ingest(file, tmp_path / "store").notes)
    assert "edges are taken as directed" in notes
    assert "--undirected adds the reverse of every relation" in notes
    assert "not used: target_node_type" in notes
    both = write(tmp_path / "both.npz", **small(is_directed=np.uint8(0), both_directions=np.uint8(1)))
    summary = ingest(both, tmp_path / "other", undirected=True)
    assert "so no reverse relation was added" in "\n".join(summary.notes)
    assert len(summary.relations) == 3


def test_reverse_relations_that_are_there_are_not_added_again(tmp_path):
    ingest(write(tmp_path / "g.npz", **small()), tmp_path / "store", undirected=True)
    export(tmp_path / "store", tmp_path / "back.npz")
    with pytest.raises(ConfigError, match=r"back.npz.*'paper:rev_writes:author' is there already"):
        ingest(tmp_path / "back.npz", tmp_path / "again", undirected=True)


@st.composite
def graphs(draw):
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(sum))
    count = draw(st.integers(0, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrays = {
        "node_type": np.repeat(np.arange(len(sizes)), sizes),
        "edge_index": rng.integers(0, sum(sizes), (2, count)),
        "edge_type": rng.integers(0, 3, count),
        "edge_type_names": np.array(["a", "b", "c"]),
        "node_type_names": np.array([f"t{number}" for number in range(len(sizes))]),
    }
    if draw(st.booleans()):
        arrays["edge_weight"] = rng.random(count).astype(np.float32)
    for number, size in enumerate(sizes):
        if draw(st.booleans()):
            arrays[f"x_t{number}"] = rng.random((size, number + 1), np.float32)
    parts = rng.integers(0, 3, sum(sizes))
    return arrays, parts, rng.integers(0, 2, sum(sizes))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=graphs())
def test_partitions_and_exports_are_the_same_graph(tmp_path_factory, case):
    arrays, parts, again = case
    folder = tmp_path_factory.mktemp("typed")
    ingest(write(folder / "g.npz", **arrays), folder / "store")
    store = GraphStore.open(folder / "store")
    kinds = arrays["node_type"]
    if store.schema is None:
        assert len(arrays["node_type_names"]) == 1
        assert len(set(arrays["edge_type"].tolist())) <= 1
        return
    ends = arrays["edge_index"]
    names = [f"t{kinds[u]}:{'abc'[kind]}:t{kinds[v]}" for u, v, kind in zip(*ends, arrays["edge_type"])]
    assert triples(store) == sorted(zip(ends[0].tolist(), names, ends[1].tolist()))

    def dealt(of, by, path):
        with StoreWriter(path) as writer:
            return reorder(of, by, writer, num_parts=int(by.max(initial=0)) + 1)

    first = dealt(store, parts, folder / "parts")
    second = dealt(first, again[first.to_original(np.arange(store.num_nodes))], folder / "again")
    for each in (first, second):
        verify(each.path)
        assert triples(each) == triples(store)
        ids = np.arange(store.num_nodes)
        assert each.types(ids).tolist() == kinds[each.to_original(ids)].tolist()
        for number in range(len(store.schema.node_types)):
            name = f"t{number}"
            mine = each.nodes_of(name)
            assert (np.diff(mine) > 0).all()
            assert each.type_rows(mine).tolist() == list(range(len(mine)))
            if (x := store.x_of(name)) is not None:
                rows = store.type_rows(each.to_original(mine))
                np.testing.assert_array_equal(each.x_of(name), x[rows])
    export(second, folder / "back.npz")
    ingest(folder / "back.npz", folder / "back")
    assert GraphStore.open(folder / "back").fingerprint == store.fingerprint


def damaged(store: GraphStore, tmp_path, **changes) -> GraphStore:
    """A copy with other columns, that says that they are right."""
    with StoreWriter(tmp_path / "damaged", overwrite=True) as writer:
        for name in store.columns:
            writer.write(name, changes.get(name, store.column(name)))
        return GraphStore.open(writer.finish_like(store.metadata, {}))


@pytest.mark.parametrize(
    ("column", "at", "value", "message"),
    [
        ("edge_type", 0, 1, "is of relation paper:cites:paper, but its ends are of other types"),
        ("edge_type", 0, 9, "is of relation 9, of 3"),
        ("indices", 0, 1, "is of relation author:writes:paper, but its ends are of other types"),
    ],
)
def test_verify_sees_wrong_types(store, tmp_path, column, at, value, message):
    array = np.array(store.column(column))
    array[at] = value
    with pytest.raises(StoreError, match=message):
        verify(damaged(store, tmp_path, **{column: array}).path)


def test_verify_sees_rows_that_are_not_sorted(store, tmp_path):
    first = int(store.indptr[2])
    changed = {name: np.array(store.column(name)) for name in ("edge_type", "indices")}
    for array in changed.values():
        array[[first, first + 1]] = array[[first + 1, first]]
    with pytest.raises(StoreError, match="the row of node 2 is not sorted by relation"):
        verify(damaged(store, tmp_path, **changed).path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type_offsets": np.array([0, 5, 9, 10])}, "the types have other sizes"),
        ({"type_offsets": np.array([0, 6, 5, 10])}, "ranges of types"),
        ({"type_offsets": np.array([0, 5, 10])}, "type_offsets"),
        ({"edge_type": np.zeros(8, np.uint16)}, "edge_type"),
        ({"x_0": np.zeros((4, 2), np.float32)}, "x_0"),
    ],
)
def test_opening_sees_what_does_not_fit(store, tmp_path, changes, message):
    with pytest.raises(StoreError, match=message):
        damaged(store, tmp_path, **changes)


def test_a_schema_that_does_not_fit_is_refused(store):
    path = store.path / "metadata.json"
    content = json.loads(path.read_text())
    content["schema"]["relations"][0]["source"] = "nobody"
    del content["checksum"]
    path.write_text(json.dumps({**content, "checksum": _checksum(content)}))
    with pytest.raises(StoreError, match=r"metadata.json: what it says .*there is no node type 'nobody'"):
        GraphStore.open(store.path)


WRONG = {
    "order": (small(node_type=np.array([0, 0, 0, 0, 0, 1, 2, 1, 2, 2])), "not in order: node 7 is of type 1 after 2"),
    "negative": (small(node_type=np.array([-1] + [0] * 9)), "is not in order: node 0 is of type -1"),
    "no name": (small(node_type_names=np.array(["paper", "author"])), "2 names, but there is a node type of number 2"),
    "same name": (small(node_type_names=np.array(["paper", "Paper", "venue"])), "differ by capitals only"),
    "twice": (small(node_type_names=np.array(["paper", "paper", "venue"])), "array .*node type 'paper' is there twice"),
    "colon": (small(node_type_names=np.array(["a:b", "author", "venue"])), "'a:b' is no name of a node type"),
    "empty": (small(node_type_names=np.array(["", "author", "venue"])), "'' is no name of a node type"),
    "relation": (small(edge_type=np.array([0, 1, 0, 1, 0, 1, 1, 2])), "2 names, but there is a relation of number 2"),
    "length": (small(edge_type=np.zeros(7, int)), "has 7 entries for 8 edges"),
    "rows": (small(x_paper=np.zeros((4, 2))), "has 4 rows, but there are 5 nodes of type 'paper'"),
    "x": (small(x=np.zeros((10, 2))), "is of all nodes, which have several types"),
    "nodes": (small(y=np.zeros(9, int)), "'y' says that there are 9 nodes, but 'node_type' says 10"),
    "range": (small(edge_index=np.full((2, 8), 10)), "id 10 is out of range"),
    "gap": (small(x_paper=np.full((5, 2), np.nan, np.float32)), "feature 0 of node 0 is nan"),
    "relation twice": (
        small(edge_index=np.zeros((2, 8), int), edge_type_names=np.array(["cites", "cites"])),
        "array 'edge_type_names': relation 'paper:cites:paper' is there twice"),
    "relation's capitals": (
        small(edge_index=np.zeros((2, 8), int), edge_type_names=np.array(["cites", "Cites"])),
        "relations 'paper:cites:paper' and 'paper:Cites:paper' differ by capitals only"),
    "dangling": (small(edge_index=np.array([[0] * 7 + [-1], [1] * 8])), r"edge 7 \(from 0\), column source: id -1"),
    "half of a type": (small(x_venue=np.ones((1, 3))), "has 1 rows, but there are 2 nodes of type 'venue'"),
    "types": (small(node_type=np.array([0] * 9 + [70_000])), "at most 65,535 types"),
    "relations": (small(edge_type=np.full(8, 65_535)), "at most 65,535 relations"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(tmp_path, case):
    arrays, message = WRONG[case]
    with pytest.raises((InputError, ConfigError), match=message):
        ingest(write(tmp_path / "g.npz", **arrays), tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["g.npz"]


@pytest.mark.parametrize("options", [{"self_loops": "add"}, {"missing": "zero"}, {"node_features": "degree"}])
def test_options_for_untyped_graphs_are_refused(tmp_path, options):
    with pytest.raises(ConfigError, match=r"has (types|relations)"):
        ingest(write(tmp_path / "g.npz", **small()), tmp_path / "store", **options)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("parts", [1, 3])
def test_features_are_standardized_by_type(tmp_path, split, parts):
    """By the training nodes of the type that has some, and by all nodes of the others."""
    rng = np.random.default_rng(0)
    x = {"paper": 5 + 3 * rng.normal(size=(5, 2)), "venue": rng.normal(size=(2, 3)) - 9}
    x["paper"][:, 1] = 4  # constant
    masks = {} if split else {"train_mask": None, "test_mask": None}
    arrays = small(**{f"x_{name}": rows.astype(np.float32) for name, rows in x.items()}, **masks)
    options = {} if split else {"split": None}
    ingest(write(tmp_path / "g.npz", **arrays), tmp_path / "store", standardize=True, **options)
    store = GraphStore.open(tmp_path / "store")
    rows = {"paper": [0, 1, 2] if split else slice(None), "venue": slice(None)}
    for name, values in x.items():
        deviation = values[rows[name]].std(axis=0)
        deviation[deviation < 1e-6] = 1
        wanted = (values - values[rows[name]].mean(axis=0)) / deviation
        np.testing.assert_allclose(store.x_of(name), wanted, atol=1e-5)
    assert set(store.metadata.notes["type_features"]) == set(x)
    verify(store.path)
    plain = ingest(write(tmp_path / "g.npz", **arrays), tmp_path / "plain", **options)
    assert "type_features" not in GraphStore.open(tmp_path / "plain").metadata.notes
    assert plain.type_features == {"paper": 2, "venue": 3}
    if parts > 1:
        partita.partition(store, tmp_path / "parts", parts=parts, algorithm="random")
        assert GraphStore.open(tmp_path / "parts").metadata.notes["type_features"]


def test_what_does_not_take_types_says_so(store):
    with pytest.raises(StoreError, match=r"not support typed graphs yet; .* the types 'paper', 'author', 'venue'"):
        LocalTopology(store)


def test_relations_alone(tmp_path):
    """One type of nodes, several relations, features for all nodes."""
    arrays = {
        "node_type": np.zeros(3, int),
        "node_type_names": np.array(["word"]),
        "edge_index": np.array([[0, 1, 2, 0], [1, 2, 0, 1]]),
        "edge_type": np.array([1, 0, 1, 0]),
        "edge_type_names": np.array(["likes", "knows", "hates"]),
        "x": np.eye(3, dtype=np.float32),
    }
    summary = ingest(write(tmp_path / "g.npz", **arrays), tmp_path / "store")
    assert summary.relations == {"word:likes:word": 2, "word:knows:word": 2}
    assert "relations without edges were left out: hates" in "\n".join(summary.notes)
    store = GraphStore.open(tmp_path / "store")
    assert store.neighbors(1).tolist() == [0, 0]
    assert store.x_of("word").shape == (3, 3)
    verify(store.path)


@pytest.mark.parametrize("undirected", [False, True])
def test_one_type_and_one_relation_are_an_untyped_graph(tmp_path, undirected):
    edges, x = np.array([[0, 1, 2, 2], [1, 2, 0, 2]]), np.eye(3, dtype=np.float32)
    types = {"node_type": np.zeros(3, int), "edge_type": np.zeros(4, int), "edge_type_names": np.array(["cites"])}
    named = {"node_type_names": np.array(["paper"]), "x_paper": x, **types}
    for name, arrays in (("plain", {"x": x}), ("named", named)):
        ingest(write(tmp_path / f"{name}.npz", edge_index=edges, **arrays), tmp_path / name, undirected=undirected)
    plain, named = (GraphStore.open(tmp_path / name) for name in ("plain", "named"))
    assert plain.fingerprint == named.fingerprint
    assert plain.schema is named.schema is None
    assert plain.metadata.columns == named.metadata.columns


def test_names_of_a_schema():
    schema = Schema(("a", "b"), (1, 2), (Relation("a", "r", "b"), Relation("b", "r", "a")), (3, 4))
    assert Schema.of_json(json.loads(json.dumps(schema.to_json())), "here", StoreError) == schema
    assert schema.relation_numbers("r") == [0, 1]
    assert schema.relation_numbers("b:r:a") == [1]
    assert schema.ends.tolist() == [[0, 1], [1, 0]]
    with pytest.raises(ConfigError, match="there is no relation 'q'"):
        schema.relation_numbers("q")
    with pytest.raises(ConfigError, match="relation 'a:r:b' is there twice"):
        Schema(("a", "b"), (1, 2), (Relation("a", "r", "b"),) * 2, (3, 4))
    with pytest.raises(ConfigError, match="there is no node type 'c'"):
        Schema(("a", "b"), (1, 2), (Relation("a", "r", "c"),), (3,))


@pytest.mark.data
def test_real_types(tmp_path, data_folder):
    summary = ingest(data_folder / "hetero_dblp_heco.npz", tmp_path / "store", undirected=True, feature_dtype="float16")
    assert summary.node_types == {"paper": 14_328, "author": 4_057, "conference": 20, "term": 7_723}
    assert summary.relations["author:rev_paper-author:paper"] == 19_645
    assert summary.edges == 2 * 119_783
    assert summary.type_features == {"paper": 4_231, "author": 334, "term": 50}
    verify(tmp_path / "store")
