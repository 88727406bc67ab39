"""Held-out links beside the same choice in plain Python, with the keys one by one."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import partita
from partita.cli import main
from partita.core.errors import ConfigError, PartitaError, StoreError
from partita.core.keys import Purpose, fold
from partita.graph import leaks, links
from partita.graph import split_links as module
from partita.graph.schema import Relation, Schema
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.graph.writer import StoreWriter
from partita.testing.graphs import small_random_store

SHARES = {"val": Fraction(1, 10), "test": Fraction(1, 5)}
KINDS = {"cites": (0, 0), "wrote": (1, 0), "likes": (1, 0)}


def edges_of(store: GraphStore) -> list[tuple[int, int, int]]:
    """Source, destination and relation of every edge, in order of rows; by original index."""
    dst = np.repeat(np.arange(store.num_nodes), store.in_degree())
    kinds = np.zeros(store.num_edges, int) if store.edge_type is None else store.edge_type
    return list(zip(*(np.asarray(each).tolist() for each in (*map(store.to_original, (store.indices, dst)), kinds))))


def held(store: GraphStore, split: str) -> list[tuple[int, int, int]]:
    if split not in store.held_out:
        return []
    ends, kinds = store.held_out_edges(split)
    kinds = np.zeros(ends.shape[1], int) if kinds is None else kinds
    return list(zip(*store.to_original(ends).tolist(), kinds.tolist()))


@cache
def rules(store: GraphStore) -> list[tuple[int, bool, bool]]:
    """Of each relation: whose links its edges are of, whether turned round, and whether either way is the same."""
    if store.schema is None:
        return [(0, False, True)]
    found = []
    for number, relation in enumerate(store.schema.relations):
        turned = relation.name.startswith("rev_")
        of = store.schema.relation_numbers(relation.name.removeprefix("rev_"))[0] if turned else number
        found.append((of, turned, relation.source == relation.target))
    return found


def link_of(store: GraphStore, edge: tuple[int, int, int]) -> tuple[int, int, int]:
    """Relation, and ends in the direction of the relation; in ascending order where they are of one type."""
    u, v, number = edge
    kind, turned, either_way = rules(store)[number]
    if turned or (either_way and u > v):
        u, v = v, u
    return (kind, min(u, v), max(u, v)) if either_way else (kind, u, v)


def expected(store: GraphStore, chosen: list[int], seed: int, mask: int) -> dict[str, list[tuple[int, int, int]]]:
    """The links of each split, in order of their keys."""

    def key(link: tuple[int, int, int]) -> int:
        relation, low, high = link
        base = fold(fold(int(Purpose.LINK_SPLIT), seed), relation)
        return fold(fold(base, low) & mask, high) & mask

    found: dict[str, list[tuple[int, int, int]]] = {split: [] for split in SHARES}
    for relation in chosen:
        all_links = {link_of(store, edge) for edge in edges_of(store) if edge[0] != edge[1]}
        mine = sorted((link for link in all_links if link[0] == relation), key=lambda link: (key(link), link))
        sizes = {split: int(share * len(mine)) for split, share in SHARES.items()}
        if min(sizes.values()):
            at = 0
            for split, size in sizes.items():
                found[split] += mine[at : at + size]
                at += size
    return {split: sorted(mine, key=lambda link: (key(link), link)) for split, mine in found.items()}


def check(store: GraphStore, made: GraphStore, chosen: list[int], seed: int, mask: int = 2**64 - 1) -> None:
    """Which links are held out, what is listed, and what is left of the rows."""
    wanted = expected(store, chosen, seed, mask)
    before, gone = edges_of(store), {link for mine in wanted.values() for link in mine}
    stays = [edge for edge in before if edge[0] == edge[1] or link_of(store, edge) not in gone]
    assert edges_of(made) == stays  # every row in its order
    for split, mine in wanted.items():
        listed = held(made, split)
        assert [link_of(store, edge) for edge in listed] == mine
        there = set(before)
        for u, v, kind in listed:
            turned = [k for a, b, k in there if (a, b) == (v, u) and link_of(store, (a, b, k)) == (kind, u, v)]
            assert (u, v, kind) in there or turned  # by the reverse relation only
            if (u, v, kind) in there and (v, u, kind) in there:
                assert u < v
    assert Counter(before) - Counter(stays) == Counter(edge for edge in before if edge not in set(stays))
    if made.schema is not None:
        counts = Counter(kind for *_, kind in stays)
        assert made.schema.num_edges == tuple(counts[at] for at in range(len(made.schema.relations)))


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Arrays of a graph with repeats, loops and edges in both directions; with types, or without."""
    count, pairs = draw(st.integers(6, 12)), st.integers(0, 11)
    kinds = list(KINDS.values()) if draw(st.booleans()) else [(0, 0)]
    rows = []
    for number, ends in enumerate(kinds):
        drawn = draw(st.lists(st.tuples(pairs, pairs), min_size=10, max_size=40))
        rows += [(u % count + count * ends[0], v % count + count * ends[1], number) for u, v in drawn]
        if draw(st.booleans()) and ends[0] == ends[1]:
            rows += [(v, u, number) for u, v, number in rows if number == len(rows) % 2]
    edges = np.array(rows)
    arrays = {"edge_index": edges[:, :2].T, "num_nodes": np.array(count * (1 + (len(kinds) > 1)))}
    if len(kinds) > 1:
        arrays |= {"node_type": np.repeat([0, 1], count), "node_type_names": np.array(["paper", "author"])}
        arrays |= {"edge_type": edges[:, 2], "edge_type_names": np.array(list(KINDS))}
    return arrays


@settings(max_examples=20)
@given(arrays=graphs(), undirected=st.booleans(), seed=st.integers(0, 3), memory=st.sampled_from([1, 2000, 10**6]))
def test_as_in_plain_python(tmp_path_factory, arrays, undirected, seed, memory) -> None:
    folder = tmp_path_factory.mktemp("graph")
    partita.ingest(arrays, folder / "g", undirected=undirected)
    partita.partition(folder / "g", folder / "parts", parts=3, algorithm="random", seed=seed)
    one_way = [0] if "edge_type" not in arrays else [0, 1, 2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "EDGES_AT_ONCE", 16)
        made = []
        for name in ("g", "parts"):
            store = GraphStore.open(folder / name)
            options = {"val": 0.1, "test": 0.2, "seed": seed, "memory_limit": memory}
            if not any(expected(store, one_way, seed, 2**64 - 1).values()):
                with pytest.raises(ConfigError, match="no edge"):
                    partita.split_links(store, folder / f"{name}-out", **options)
                return
            made.append(partita.split_links(store, folder / f"{name}-out", **options))
            check(store, made[-1], one_way, seed)
            verify(made[-1].path)
    whole, parts = made
    assert [held(whole, split) for split in SHARES] == [held(parts, split) for split in SHARES]
    assert sorted(edges_of(whole)) == sorted(edges_of(parts))
    assert parts.num_parts == 3


@pytest.mark.parametrize("mask", [0, 3])
@pytest.mark.parametrize("undirected", [False, True])
def test_links_whose_keys_are_equal(tmp_path, monkeypatch, mask, undirected) -> None:
    """They go by their ends."""
    real = links.fold_arrays
    monkeypatch.setattr(links, "fold_arrays", lambda keys, values: real(keys, values) & np.uint64(mask))
    store = small_random_store(tmp_path / "g", 40, 200, undirected=undirected)
    made = partita.split_links(store, tmp_path / "out", val=0.1, test=0.2, memory_limit=1)
    check(store, made, [0], 0, mask)


def test_what_is_not_held_out_is_as_it_was(tmp_path, monkeypatch) -> None:
    """Columns of nodes are the same files; those of edges what ingest makes of the edges that are left."""
    monkeypatch.setattr(links, "EDGES_AT_ONCE", 64)
    monkeypatch.setattr(module, "CHUNK_BYTES", 100)
    store = small_random_store(tmp_path / "whole", 60, 500, num_features=3, weighted=True, undirected=True)
    partita.presample(store.path, fanout=(2, 2), epochs=1)
    store = GraphStore.open(store.path)
    own = np.arange(store.num_edges) * 3
    with StoreWriter(tmp_path / "g") as writer:
        for name in store.columns:
            writer.write(name, store.column(name))
        writer.write("own_column", own)
        writer.finish_like(store.metadata, store.metadata.notes)
    store = GraphStore.open(tmp_path / "g")
    made = partita.split_links(store, tmp_path / "out", val=0.1, test=0.2)
    gone = {link_of(store, edge) for split in SHARES for edge in held(made, split)}
    kept = np.array([edge[0] == edge[1] or link_of(store, edge) not in gone for edge in edges_of(store)])
    for name in ("x", "y", "split_train", "split_val", "split_test", "self_loops", "part_offsets"):
        assert made.metadata.columns[name] == store.metadata.columns[name]
    for name in ("indices", "edge_weight", "own_column"):
        np.testing.assert_array_equal(made.column(name), store.column(name)[kept])
    assert "presample" in store.metadata.notes
    assert not {"presample_node", "presample_edge"} & set(made.columns)
    assert made.metadata.notes.keys() - store.metadata.notes.keys() == {"links"}
    assert "presample" not in made.metadata.notes
    dst = np.repeat(np.arange(60), made.in_degree())
    left = {"edge_index": np.stack([made.indices, dst]), "edge_weight": np.array(made.edge_weight)}
    partita.ingest({**left, "num_nodes": np.array(60)}, tmp_path / "left")
    again = GraphStore.open(tmp_path / "left")
    for name in ("indptr", "indices", "edge_weight", "edge_weight_quantised", "weight_sum", "loop_weight"):
        assert made.metadata.columns[name] == again.metadata.columns[name], name
    verify(made.path)


def test_edge_features_and_names_go_along(tmp_path) -> None:
    rng = np.random.default_rng(2)
    arrays = {
        "edge_index": rng.integers(0, 30, (2, 300)), "edge_attr": rng.random((300, 2), np.float32),
        "name": np.array([f"node {at}" for at in range(30)]), "num_nodes": np.array(30),
    }  # fmt: skip
    partita.ingest(arrays, tmp_path / "g")
    made = partita.split_links(tmp_path / "g", tmp_path / "out", val=0, test=0.3, seed=5)
    known = {tuple(row): edge for row, edge in zip(arrays["edge_attr"].tolist(), arrays["edge_index"].T.tolist())}
    assert [known[tuple(row)] for row in made.edge_attr.tolist()] == [[u, v] for u, v, _ in edges_of(made)]
    assert made.names().tolist() == arrays["name"].tolist()
    assert list(made.held_out) == ["test"]


def test_seeds_differ_and_larger_shares_hold_the_same_links_out(tmp_path) -> None:
    store = small_random_store(tmp_path / "g", 60, 500)
    few, more, other = (
        partita.split_links(store, tmp_path / str(at), val=0, test=share, seed=seed)
        for at, (share, seed) in enumerate([(0.1, 0), (0.2, 0), (0.1, 1)])
    )
    assert held(more, "test")[: few.held_out["test"]] == held(few, "test")
    assert held(other, "test") != held(few, "test")


def test_a_partition_is_split_alike(tmp_path) -> None:
    store = small_random_store(tmp_path / "g", 60, 500, undirected=True)
    partita.partition(store, tmp_path / "parts", parts=3, algorithm="random")
    whole, parts = (partita.split_links(tmp_path / name, tmp_path / f"{name}-out") for name in ("g", "parts"))
    assert [held(parts, split) for split in SHARES] == [held(whole, split) for split in SHARES]
    assert sorted(edges_of(parts)) == sorted(edges_of(whole))


def test_counts_are_exact(tmp_path) -> None:
    """0.29 of 100 are 29, though 0.29 * 100 is less."""
    edges = np.stack([np.arange(100), np.arange(1, 101)])
    partita.ingest({"edge_index": edges, "num_nodes": np.array(101)}, tmp_path / "g")
    made = partita.split_links(tmp_path / "g", tmp_path / "out", val=0.29, test=0.7)
    assert made.held_out == {"val": 29, "test": 70}
    assert made.num_edges == 1


@pytest.fixture
def typed(tmp_path) -> GraphStore:
    rng = np.random.default_rng(0)
    rows = [
        (rng.integers(20) + 20 * source, rng.integers(20) + 20 * target, number)
        for number, (count, (source, target)) in enumerate(zip((60, 80, 5), KINDS.values()))
        for _ in range(count)
    ]
    edges = np.array(rows)
    arrays = {
        "edge_index": edges[:, :2].T, "edge_type": edges[:, 2], "edge_type_names": np.array(list(KINDS)),
        "node_type": np.repeat([0, 1], 20), "node_type_names": np.array(["paper", "author"]),
    }  # fmt: skip
    partita.ingest(arrays, tmp_path / "typed", undirected=True)
    return GraphStore.open(tmp_path / "typed")


def test_named_relations_lose_edges_and_their_reverses(tmp_path, typed) -> None:
    assert typed.schema.reverses.tolist() == [3, 4, 5, 0, 1, 2]
    for names in (["wrote"], "wrote", ("author:wrote:paper", "wrote")):
        made = partita.split_links(typed, tmp_path / "out", val=0.1, test=0.2, relations=names, overwrite=True)
        check(typed, made, [1], 0)
        lost = np.subtract(typed.schema.num_edges, made.schema.num_edges)
        assert lost[1] == lost[4] > 0
        assert lost.sum() == 2 * lost[1]
        assert made.metadata.notes["links"]["relations"] == ["author:wrote:paper"]


def test_relations_that_are_too_small_stay_whole_and_that_is_said(tmp_path, typed, capsys) -> None:
    made = partita.split_links(typed, tmp_path / "out", val=0.1, test=0.2)
    check(typed, made, [0, 1, 2], 0)
    assert made.schema.num_edges[2] == typed.schema.num_edges[2] == 5
    assert made.metadata.notes["links"]["whole"] == ["author:likes:paper"]
    assert set(made.summary()["held_out_relations"]) == {"paper:cites:paper", "author:wrote:paper"}
    with pytest.raises(SystemExit, match="0"):
        main(["split", str(typed.path), str(tmp_path / "other"), "--val", "0.1", "--test", "0.2"])
    said = capsys.readouterr().out
    assert "held out, val" in said
    assert "Too small for an edge in each split, so all edges stay: author:likes:paper" in said


def test_relations_without_edges_are_none(tmp_path) -> None:
    relations = (Relation("a", "r", "a"), Relation("a", "idle", "a"), Relation("a", "rev_rev_r", "a"))
    assert Schema(("a",), (1,), relations, (0, 0, 0)).reverses.tolist() == [-1, -1, -1]
    chain = (Relation("a", "r", "a"), Relation("a", "rev_r", "a"), Relation("a", "rev_rev_r", "a"))
    assert Schema(("a",), (1,), chain, (0, 0, 0)).reverses.tolist() == [1, 0, -1]


WRONG = {
    "all": ({"val": 0.5, "test": 0.5}, ConfigError, "0.5 for validation and 0.5 for tests leave no edge to train on"),
    "nothing": ({"val": 0, "test": 0}, ConfigError, "nothing would be held out"),
    "below": ({"val": -0.1}, ConfigError, "val: -0.1 is not between 0 and 1"),
    "nan": ({"test": float("nan")}, ConfigError, "test: nan is not between 0 and 1"),
    "empty": ({"val": 0.001}, ConfigError, r"0.001 of the \d+ links of relation '.*' are none, .* no edge for val"),
    "unknown": ({"relations": ["cite"]}, ConfigError, "there is no relation 'cite'.*cites"),
    "reverse": ({"relations": ["rev_cites"]}, ConfigError, "'paper:rev_cites:paper' has the edges of 'paper:cites:"),
    "small": ({"relations": ["cites", "likes"]}, ConfigError, "0.05 of the 5 links of relation 'author:likes:paper'"),
    "no name": ({"relations": []}, ConfigError, "no relation is named"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_shares_and_relations_that_cannot_be(tmp_path, typed, case) -> None:
    options, error, message = WRONG[case]
    before = set(tmp_path.iterdir())
    with pytest.raises(error, match=message):
        partita.split_links(typed, tmp_path / "out", **options)
    assert set(tmp_path.iterdir()) == before


def test_stores_that_cannot_be_split(tmp_path, typed) -> None:
    made = partita.split_links(typed, tmp_path / "out", val=0.1, test=0.2)
    partita.partition(typed, tmp_path / "parts", parts=2, algorithm="random")
    partita.shard(tmp_path / "parts", tmp_path / "shard", host=0, hosts=2)
    loops = {"edge_index": np.array([[0, 1], [0, 1]]), "num_nodes": np.array(2)}
    partita.ingest(loops, tmp_path / "loops")
    cases = (
        (made.path, {}, StoreError, r"has held-out edges already \(12 for val, 25 for test\)"),
        (tmp_path / "shard", {}, StoreError, "holding edges out needs the whole graph.*Use the whole store"),
        (tmp_path / "loops", {}, ConfigError, "there are no edges to hold out but self loops"),
        (tmp_path / "loops", {"relations": ["r"]}, ConfigError, "relations are named, and the graph has none"),
    )
    for path, options, error, message in cases:
        with pytest.raises(error, match=message):
            partita.split_links(path, tmp_path / "no", **options)
    with pytest.raises(ConfigError, match="the new store would replace the one that has all edges"):
        partita.split_links(typed, typed.path, overwrite=True)
    with pytest.raises(StoreError, match="already exists"):
        partita.split_links(typed, tmp_path / "out")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("place", ["choose", "weight_sums", "spec_by_shape"])
def test_an_interruption_leaves_nothing(tmp_path, monkeypatch, place) -> None:
    store = small_random_store(tmp_path / "g", 40, 200, weighted=True)

    def interrupted(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    target = module.weight_sums if place == "weight_sums" else module
    monkeypatch.setattr(target, place, interrupted)
    with pytest.raises(KeyboardInterrupt):
        partita.split_links(store, tmp_path / "out", val=0.1)
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_held_out_edges_go_where_nodes_go(tmp_path, typed) -> None:
    """Parts, shards, exports, and back."""
    made = partita.split_links(typed, tmp_path / "out", val=0.1, test=0.2)
    partita.partition(made, tmp_path / "parts", parts=2, algorithm="random")
    partita.shard(tmp_path / "parts", tmp_path / "shard", host=1, hosts=2)
    partita.export(tmp_path / "parts", tmp_path / "g.npz")
    partita.ingest(tmp_path / "g.npz", tmp_path / "again")
    for name in ("parts", "shard", "again"):
        store = GraphStore.open(tmp_path / name)
        assert [held(store, split) for split in SHARES] == [held(made, split) for split in SHARES]
        verify(store.path)
    assert sorted(edges_of(GraphStore.open(tmp_path / "again"))) == sorted(edges_of(made))


def test_the_command(tmp_path, capsys) -> None:
    store = small_random_store(tmp_path / "g", 60, 500)
    flags = ["--val", "0.1", "--test", "0.2", "--seed", "7", "--json"]
    with pytest.raises(SystemExit, match="0"):
        main(["split", str(store.path), str(tmp_path / "out"), *flags])
    said = json.loads(capsys.readouterr().out)
    made = GraphStore.open(tmp_path / "out")
    check(store, made, [0], 7)
    assert (said["held_out"], said["edges"]) == (made.held_out, made.num_edges)
    assert made.metadata.notes["links"] == {"val": 0.1, "test": 0.2, "seed": 7, "of": store.fingerprint}
    for words in (["verify"], ["inspect"], ["inspect", "--quick"]):
        with pytest.raises(SystemExit, match="0"):
            main([*words, str(made.path)])
        assert words == ["verify"] or "held-out edges" in capsys.readouterr().out


def brute_force(store: GraphStore) -> list[leaks.Leak]:
    there = set(edges_of(store))
    found = []
    for split in store.held_out:
        mine = held(store, split)
        for kind in sorted({kind for *_, kind in mine}):
            turned, name = [kind], None
            if store.schema is not None:
                relation, name = store.schema.relations[kind], str(store.schema.relations[kind])
                turned = [] if relation.source != relation.target else [kind]
                turned += [at for at, each in enumerate(store.schema.relations) if relation.reverse == each]
                turned += [at for at, each in enumerate(store.schema.relations) if each.reverse == relation]
            of = [(u, v) for u, v, k in mine if k == kind]
            edges = sum((u, v, kind) in there for u, v in of)
            reverses = sum(u != v and any((v, u, k) in there for k in turned) for u, v in of)
            found.append(leaks.Leak(split, name, len(of), edges, reverses))
    return found


@pytest.mark.parametrize("at_once", [1, 7, 1000])
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("kinds", [1, 3])
def test_leaks_are_counted(tmp_path, monkeypatch, capsys, kinds, undirected, at_once) -> None:
    for name, value in (("_EDGES", 13), ("_LEAST", at_once), ("_BYTES", 1 << 40)):
        monkeypatch.setattr(leaks, name, value)
    rng = np.random.default_rng(3)
    arrays = {"edge_index": rng.integers(0, 12, (2, 150)), "edge_split": rng.integers(0, 3, 150)}
    if kinds > 1:
        arrays |= {"node_type": np.repeat([0, 1], 6), "edge_type": rng.integers(0, kinds, 150)}
    partita.ingest(arrays, tmp_path / "whole", undirected=undirected)
    partita.partition(tmp_path / "whole", tmp_path / "g", parts=2, algorithm="random")
    store = GraphStore.open(tmp_path / "g")
    found = partita.check_leaks(store)
    assert found == brute_force(store)
    assert sum(leak.edges for leak in found) > 0
    assert sum(leak.reverses for leak in found) > 0
    with pytest.raises(SystemExit, match="0"):
        main(["inspect", str(store.path)])
    edges, total = (sum(getattr(leak, name) for leak in found if leak.split == "val") for name in ("edges", "held_out"))
    assert f"{edges} of the {total} edges that are held out for val are edges of the graph" in capsys.readouterr().out
    partita.shard(store, tmp_path / "shard", host=0, hosts=2)
    with pytest.raises(PartitaError, match="needs the whole graph"):
        partita.check_leaks(tmp_path / "shard")


def test_a_split_has_no_leaks(tmp_path, typed) -> None:
    assert partita.check_leaks(typed) == []
    found = partita.check_leaks(partita.split_links(typed, tmp_path / "out", val=0.1, test=0.2))
    assert [(leak.edges, leak.reverses) for leak in found] == [(0, 0)] * 4


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "undirected", "counts"),
    [
        ("cora", False, {"val": 263, "test": 527}),  # of 5,278 pairs, as VGAE's paper splits them
        ("hetero_dblp_heco", True, None),
    ],
)
def test_real_graphs(tmp_path: Path, data_folder, name, undirected, counts) -> None:
    partita.ingest(data_folder / f"{name}.npz", tmp_path / "g", undirected=undirected)
    store = GraphStore.open(tmp_path / "g")
    made = partita.split_links(store, tmp_path / "out")
    assert counts is None or made.held_out == counts
    gone = {link_of(store, edge) for split in made.held_out for edge in held(made, split)}
    assert len(gone) == sum(made.held_out.values())
    assert edges_of(made) == [edge for edge in edges_of(store) if link_of(store, edge) not in gone]
    assert not any(leak.edges or leak.reverses for leak in partita.check_leaks(made))
    verify(made.path)


@pytest.mark.data
def test_the_leaks_of_a_real_knowledge_graph(tmp_path, data_folder) -> None:
    """A third of the triples that WN18RR holds out are known to the graph the other way round."""
    partita.ingest(data_folder / "kg_wn18rr.npz", tmp_path / "g")
    found = partita.check_leaks(tmp_path / "g")
    assert sum(leak.edges for leak in found) == 0
    for split, total in (("val", 3_034), ("test", 3_134)):
        mine = [leak for leak in found if leak.split == split]
        assert sum(leak.held_out for leak in mine) == total
        assert 0.33 < sum(leak.reverses for leak in mine) / total < 0.36
