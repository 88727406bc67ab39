"""Triples and held-out edges, beside the same lines read in plain Python."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import partita
from partita.cli import main
from partita.core.errors import ConfigError, InputError, StoreError
from partita.core.options import numbers_by_relation
from partita.graph import leaks
from partita.graph.schema import MOST_RELATIONS
from partita.graph.verify import verify
from partita.graph.writer import StoreWriter
from partita.sources import held_out

TRAIN = [("ann", "knows", "bob"), ("bob", "likes", "cat"), ("cat", "knows", "dan"), ("dan", "likes", "ann"),
         ("ann", "likes", "cat"), ("bob", "knows", "bob")]  # fmt: skip
VALID = [("dan", "knows", "eve"), ("cat", "hates", "ann")]
TEST = [("eve", "likes", "bob"), ("ann", "knows", "bob"), ("bob", "likes", "fay"), ("bob", "likes", "ann")]
HELD = {"val": VALID, "test": TEST}
HEADER = ("head", "relation", "tail")


def write(path: Path, rows: list, *, header: tuple[str, ...] = (), delimiter: str = "\t") -> Path:
    text = "".join(delimiter.join(map(str, row)) + "\n" for row in ([header] if header else []) + list(rows))
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())
    return path


def relation_name(store: partita.GraphStore, number: int) -> str:
    relation = store.schema.relations[number]
    assert (relation.source, relation.target) == ("entity", "entity")
    return relation.name


def messages(store: partita.GraphStore) -> list[tuple[str, str, str]]:
    names, dst = store.names(), np.repeat(np.arange(store.num_nodes), store.in_degree())
    return sorted(
        (str(names[u]), relation_name(store, kind), str(names[v]))
        for u, v, kind in zip(store.indices, dst, store.edge_type)
    )


def held(store: partita.GraphStore, split: str) -> list[tuple[str, ...]]:
    names, (ends, kinds) = store.names(), store.held_out_edges(split)
    assert ends.dtype == np.int64
    if kinds is None:
        return [(str(names[u]), str(names[v])) for u, v in ends.T]
    return [(str(names[u]), relation_name(store, kind), str(names[v])) for (u, v), kind in zip(ends.T, kinds)]


def layouts(folder: Path) -> dict[str, tuple[object, dict[str, object]]]:
    """The same triples in all ways in which they may be given: the source, and options."""
    found: dict[str, tuple[object, dict[str, object]]] = {}

    def files(name: str, suffix: str, change=lambda row: row, options=None, **how: object) -> None:
        (folder / name).mkdir()
        paths = [
            write(folder / name / f"{stem}{suffix}", list(map(change, rows)), **how)
            for stem, rows in (("train", TRAIN), ("valid", VALID), ("test", TEST))
        ]
        splits = {"val_edges": paths[1], "test_edges": paths[2]}
        found[name] = (paths[0], {**splits, **(options or {})})

    files("plain", ".tsv")
    files("packed", ".txt.gz")
    files("named", ".csv", header=HEADER, delimiter=",")
    files("turned", ".csv", lambda row: row[::-1], header=HEADER[::-1], delimiter=",")
    files(
        "others", ".csv", lambda row: (7, row[1], row[0], row[2]), header=("n", "how", "a", "b"), delimiter=",",
        options={"relation_column": "how"},
    )  # fmt: skip
    files("last", ".tsv", lambda row: (row[0], row[2], row[1]), options={"relation_column": 2})
    files("folder", ".txt")
    found["folder"] = (folder / "folder", {})
    frames = [pd.DataFrame(rows, columns=HEADER) for rows in (TRAIN, VALID, TEST)]
    found["frames"] = (frames[0], {"val_edges": frames[1], "test_edges": frames[2]})
    return found


LAYOUTS = ("plain", "packed", "named", "turned", "others", "last", "folder", "frames")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("undirected", [False, True])
def test_triples_are_a_typed_graph_and_held_out_ones_are_no_messages(tmp_path, layout, undirected) -> None:
    source, options = layouts(tmp_path)[layout]
    summary = partita.ingest(source, tmp_path / "g", undirected=undirected, **options)
    store = partita.open(tmp_path / "g")
    back = [(v, f"rev_{name}", u) for u, name, v in TRAIN] if undirected else []
    assert messages(store) == sorted(TRAIN + back)
    assert held(store, "val") == VALID
    assert held(store, "test") == TEST
    assert store.schema.node_types == ("entity",)
    assert [each.name for each in store.schema.relations][:3] == ["knows", "likes", "hates"]
    assert store.schema.num_edges[:3] == (3, 3, 0)
    assert summary.held_out == store.held_out == {"val": 2, "test": 4}
    assert summary.edges_read == len(TRAIN)
    notes = "\n".join(summary.notes)
    assert "1 of the 4 edges that are held out for test are edges of the graph as well" in notes
    assert "held out for val" not in notes
    assert "relations with held-out edges only: entity:hates:entity" in notes
    verify(store.path)


def arrays(*, held_as_arrays: bool = False) -> dict[str, np.ndarray]:
    """The same triples by number."""
    rows = [*TRAIN, *VALID, *TEST]
    people = sorted({end for u, _, v in rows for end in (u, v)})
    ends = np.array([[people.index(u), people.index(v)] for u, _, v in rows])
    kinds = np.array([("knows", "likes", "hates").index(name) for _, name, _ in rows], np.int16)
    split = np.repeat([0, 1, 2], [len(TRAIN), len(VALID), len(TEST)]).astype(np.uint8)
    common = {"edge_type_names": np.array(["knows", "likes", "hates"]), "name": np.array(people)}
    if not held_as_arrays:
        order = np.concatenate([np.flatnonzero(split == at) for at in (2, 0, 1)])
        return {**common, "edge_index": ends[order].T, "edge_type": kinds[order], "edge_split": split[order]}
    own = {
        f"held_{name}{end}": of[split == at]
        for at, name in ((1, "val"), (2, "test"))
        for end, of in (("", ends), ("_type", kinds))
    }
    types = {"node_type": np.zeros(len(people), int), "node_type_names": np.array(["entity"])}
    return {**common, **types, **own, "edge_index": ends[split == 0].T, "edge_type": kinds[split == 0]}


@pytest.mark.parametrize("held_as_arrays", [False, True])
def test_arrays_hold_edges_out(tmp_path, held_as_arrays) -> None:
    np.savez(tmp_path / "kg.npz", **arrays(held_as_arrays=held_as_arrays))
    summary = partita.ingest(tmp_path / "kg.npz", tmp_path / "g", undirected=True)
    store = partita.open(tmp_path / "g")
    assert messages(store) == sorted(TRAIN + [(v, f"rev_{name}", u) for u, name, v in TRAIN])
    assert {split: held(store, split) for split in HELD} == HELD
    assert "1 of the 4 edges that are held out for test" in "\n".join(summary.notes)
    assert "not used" not in "\n".join(summary.notes)


@pytest.mark.parametrize("typed", [False, True])
def test_held_out_edges_go_where_nodes_go(tmp_path, typed) -> None:
    """Partitions, shards, exports, and back."""
    options = {"undirected": True, "val_edges": write(tmp_path / "v.tsv", VALID)}
    options["test_edges"] = write(tmp_path / "t.tsv", TEST)
    if not typed:
        options |= {"source_column": 0, "target_column": 2}
    partita.ingest(write(tmp_path / "g.tsv", TRAIN), tmp_path / "g", **options)
    whole = partita.open(tmp_path / "g")
    partita.partition(tmp_path / "g", tmp_path / "parts", parts=3, algorithm="random")
    parts = partita.open(tmp_path / "parts")
    assert parts.original_index is not None
    wanted = {split: rows if typed else [(u, v) for u, _, v in rows] for split, rows in HELD.items()}
    for store in (whole, parts):
        verify(store.path)
        assert {split: held(store, split) for split in HELD} == wanted
    if not typed:
        partita.shard(parts, tmp_path / "0", host=0, hosts=3)
        shard = partita.open(tmp_path / "0")
        verify(shard.path)
        assert {split: held(shard, split) for split in HELD} == wanted
    partita.export(parts, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as file:
        assert file["edge_index"].shape[1] == whole.num_edges
    partita.ingest(tmp_path / "out.npz", tmp_path / "again")
    assert partita.open(tmp_path / "again").fingerprint == whole.fingerprint


def test_one_relation_is_an_untyped_graph(tmp_path) -> None:
    rows = [(u, "knows", v) for u, _, v in TRAIN]
    partita.ingest(write(tmp_path / "one.tsv", rows), tmp_path / "one", relation_column=1)
    pairs = [(u, v) for u, _, v in TRAIN]
    partita.ingest(write(tmp_path / "two.tsv", pairs), tmp_path / "two")
    one, two = partita.open(tmp_path / "one"), partita.open(tmp_path / "two")
    assert one.schema is None
    assert one.fingerprint == two.fingerprint
    assert one.held_out == {}


def test_weights_and_features_stay_with_messages(tmp_path) -> None:
    rows = [(u, name, v, at + 0.5, -at) for at, (u, name, v) in enumerate(TRAIN)]
    header = ("source", "rel", "target", "w", "f")
    table = write(tmp_path / "g.csv", rows, header=header, delimiter=",")
    valid = write(tmp_path / "v.csv", VALID, header=("source", "rel", "target"), delimiter=",")
    partita.ingest(
        table, tmp_path / "g", relation_column="rel", weight_column="w", edge_feature_columns=["f"], val_edges=valid
    )
    store = partita.open(tmp_path / "g")
    names, dst = store.names(), np.repeat(np.arange(store.num_nodes), store.in_degree())
    found = [
        (names[u], relation_name(store, kind), names[v], weight, row[0])
        for u, v, kind, weight, row in zip(store.indices, dst, store.edge_type, store.edge_weight, store.edge_attr)
    ]
    assert sorted(found) == sorted(rows)
    assert held(store, "val") == VALID


@pytest.mark.parametrize(
    ("rows", "is_typed"),
    [
        (TRAIN, True),
        ([(1, "a", 2), (2, "b", 3), (3, "a", 1)], True),
        ([(u, v, name) for u, name, v in TRAIN], False),  # source, target, relation
        ([("ann", "bob", 0.5), ("bob", "cat", 1.5), ("cat", "bob", 2.5)], False),  # source, target, weight
        ([(1, 2, 3), (2, 2, 4), (3, 2, 5)], False),  # numbers
    ],
)
def test_only_what_looks_like_triples_is_taken_for_them(tmp_path, rows, is_typed) -> None:
    summary = partita.ingest(write(tmp_path / "g.tsv", rows), tmp_path / "g", header=False)
    assert (partita.open(tmp_path / "g").schema is not None) == is_typed
    said = "column 1 names the relations of edges from column 0 to column 2; --relation-column names another"
    assert (said in "\n".join(summary.notes)) == is_typed
    partita.ingest(tmp_path / "g.tsv", tmp_path / "pairs", header=False, source_column=0, target_column=2)
    assert partita.open(tmp_path / "pairs").schema is None


def test_the_commands(tmp_path, capsys) -> None:
    source, options = layouts(tmp_path)["plain"]
    flags = ["--val-edges", str(options["val_edges"]), "--test-edges", str(options["test_edges"])]
    for words in (["ingest", str(source), *flags], ["inspect"], ["inspect", "--quick"]):
        with pytest.raises(SystemExit, match="0"):
            main([*words, str(tmp_path / "g")])
        assert "val 2  test 4" in capsys.readouterr().out


IRIS = [
    ("http://a.org/ann", "http://a.org/v#knows:well", "http://a.org/bob"),
    ("http://a.org/bob", "concept:agent=controls", "http://a.org/cat"),
    ("http://a.org/cat", "concept:agent=controls", "http://a.org/cat:1"),
    ("http://a.org/ann", ":", "http://a.org/cat"),
]


def test_names_with_colons_and_slashes_stay_as_they_are(tmp_path, capsys) -> None:
    """In tables, folders and arrays; in what is shown, exported, and written in settings."""
    (tmp_path / "kg").mkdir()
    for stem, rows in (("train", IRIS), ("valid", IRIS[:1]), ("test", IRIS[1:2])):
        write(tmp_path / "kg" / f"{stem}.txt", rows)
    partita.ingest(tmp_path / "kg", tmp_path / "a", undirected=True)
    partita.export(tmp_path / "a", tmp_path / "a.npz")
    partita.ingest(tmp_path / "a.npz", tmp_path / "b")
    for store in map(partita.open, (tmp_path / "a", tmp_path / "b")):
        expected = IRIS + [(tail, f"rev_{name}", head) for head, name, tail in IRIS]
        assert messages(store) == sorted(expected)
        assert (held(store, "val"), held(store, "test")) == (IRIS[:1], IRIS[1:2])
        numbers = [store.schema.relation_numbers(name) for _, name, _ in IRIS]
        assert numbers == [[0], [1], [1], [2]]
        assert store.schema.relation_numbers("entity:concept:agent=controls:entity") == [1]
        given = numbers_by_relation("concept:agent=controls=3,2 :=1,1")
        assert store.schema.by_relation(given, "fanout")[0] == (0, 3, 1, 0, 0, 0)
        verify(store.path)
    with pytest.raises(SystemExit, match="0"):
        main(["inspect", str(tmp_path / "a")])
    assert "http://a.org/v#knows:well" in capsys.readouterr().out


WRONG_LINES = {
    "cells": ("plain", "ann\tknows\n", "train.tsv, line 7.*2 cells.*3 columns"),
    "no relation": ("plain", "ann\t\tbob\n", r"train.tsv, line 7, column 1: the relation is empty"),
    "no end": ("plain", "ann\tknows\t\n", r"train.tsv, line 7, column 2: the id is empty"),
    "capitals": ("plain", "ann\tKnows\tbob\n", "differ by capitals only"),
}


@pytest.mark.parametrize("case", WRONG_LINES)
def test_lines_that_cannot_be_used(tmp_path, case) -> None:
    layout, line, message = WRONG_LINES[case]
    source, options = layouts(tmp_path)[layout]
    with open(source, "a") as file:
        file.write(line)
    with pytest.raises((InputError, ConfigError), match=message):
        partita.ingest(source, tmp_path / "g", **options)
    assert not (tmp_path / "g").exists()


def test_held_out_files_that_cannot_be_used(tmp_path) -> None:
    source, _ = layouts(tmp_path)["named"]
    empty = write(tmp_path / "v.csv", [("dan", "", "eve")], header=HEADER, delimiter=",")
    with pytest.raises(InputError, match=r"v.csv, line 2, column relation: the relation is empty"):
        partita.ingest(source, tmp_path / "g", val_edges=empty)
    other = write(tmp_path / "o.csv", VALID, delimiter=",")
    with pytest.raises(InputError, match=r"o.csv: there is no column 'relation' \(relation\)"):
        partita.ingest(source, tmp_path / "g", val_edges=other)
    with pytest.raises(InputError, match=r"nothing.csv: no such file"):
        partita.ingest(source, tmp_path / "g", val_edges=tmp_path / "nothing.csv")
    with pytest.raises(ConfigError, match="nodes: is for graphs without types"):
        partita.ingest(source, tmp_path / "g", relation_column="relation", nodes=empty)
    with pytest.raises(InputError, match="column relation names the relations, and is the source"):
        partita.ingest(source, tmp_path / "g", relation_column="relation", source_column="relation")
    (tmp_path / "folder" / "val.txt").write_text("a\tb\tc\n")
    with pytest.raises(InputError, match=r"has both valid.txt and val.txt"):
        partita.ingest(tmp_path / "folder", tmp_path / "g")
    assert not (tmp_path / "g").exists()


def test_too_many_relations_are_refused_where_they_begin(tmp_path) -> None:
    rows = [(at, f"r{at}", at + 1) for at in range(MOST_RELATIONS + 3)]
    table = write(tmp_path / "g.tsv", rows)
    message = (
        rf"g.tsv, line {MOST_RELATIONS + 1}, column 1: 'r{MOST_RELATIONS}' is relation number 65,536, at most 65,535"
    )
    with pytest.raises(InputError, match=message):
        partita.ingest(table, tmp_path / "g", relation_column=1)
    write(tmp_path / "g.tsv", rows[:40_000])
    with pytest.raises(ConfigError, match="80,000 relations, at most 65,535 are possible"):
        partita.ingest(table, tmp_path / "g", relation_column=1, undirected=True)


def changed(**changes: object) -> dict[str, object]:
    found = {**arrays(held_as_arrays="edge_split" not in changes), **changes}
    return {name: value for name, value in found.items() if value is not None}


WRONG_ARRAYS = {
    "split": (changed(edge_split=np.full(12, 3)), r"edge 0 \(from 0\), column split: 3 is the number of no split"),
    "length": (changed(edge_split=np.zeros(11, int)), "has 11 entries for 12 edges"),
    "kind": (changed(edge_split=np.zeros(12)), "needed: integers"),
    "node": (changed(held_val=np.array([[0, 1], [0, 99]])), r"held_val', edge 1 \(from 0\), column target: id 99"),
    "shape": (changed(held_val=np.zeros((2, 3), int)), r"has shape \(2, 3\), not"),
    "types": (changed(held_val_type=np.zeros(3, int)), "has 3 entries for 2 held-out edges"),
    "no types": (changed(held_val_type=None), "has no relations, but the edges have some"),
    "no edges": (changed(held_val=None), "is there without 'held_val'"),
    "unknown": (changed(held_val_type=np.array([0, 9])), "3 names, but there is a relation of number 9"),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_arrays_that_cannot_be_used(tmp_path, case) -> None:
    found, message = WRONG_ARRAYS[case]
    np.savez(tmp_path / "kg.npz", **found)
    with pytest.raises(InputError, match=message):
        partita.ingest(tmp_path / "kg.npz", tmp_path / "g")
    assert [path.name for path in tmp_path.iterdir()] == ["kg.npz"]
    with pytest.raises(ConfigError, match="val_edges: is for tables"):
        partita.ingest({"edge_index": np.zeros((2, 1), int)}, tmp_path / "g", val_edges=tmp_path / "kg.npz")


def test_left_out_nodes_take_their_held_out_edges_along(tmp_path) -> None:
    pairs = write(tmp_path / "e.csv", [(0, 1), (1, 2)], header=("source", "target"), delimiter=",")
    valid = write(tmp_path / "v.csv", [(2, 0), (1, 0)], header=("source", "target"), delimiter=",")
    nodes = write(tmp_path / "n.csv", [(0, 1.0), (1, 2.0)], header=("id", "x"), delimiter=",")
    summary = partita.ingest(pairs, tmp_path / "g", nodes=nodes, missing="drop", val_edges=valid)
    assert summary.held_out == {"val": 1}
    assert held(partita.open(tmp_path / "g"), "val") == [("1", "0")]


def damaged(store: partita.GraphStore, path: Path, without: tuple[str, ...] = (), **columns: np.ndarray) -> Path:
    with StoreWriter(path, overwrite=True) as writer:
        for name in {*store.columns, *columns} - set(without):
            writer.write(name, columns.get(name, store.column(name) if store.has(name) else None))
        return writer.finish_like(store.metadata, {})


def test_what_does_not_fit_is_found(tmp_path) -> None:
    np.savez(tmp_path / "kg.npz", **arrays())
    partita.ingest(tmp_path / "kg.npz", tmp_path / "g")
    store = partita.open(tmp_path / "g")
    pairs, kinds = np.array(store.column("held_val")), np.array(store.column("held_val_type"))
    with pytest.raises(StoreError, match=r"no held-out edges of the split 'train' \(it has: 'val', 'test'\)"):
        store.held_out_edges("train")
    opening = (
        ({"held_val": pairs.astype(np.int32)}, (), "held_val"),
        ({"held_val": pairs.reshape(-1)}, (), "held_val"),
        ({"held_val_type": kinds[:1]}, (), "1 relations of 2 held-out edges"),
        ({"held_val_type": kinds.astype(np.uint16)}, (), "held_val_type"),
        ({}, ("held_val",), "the column is missing"),
        ({}, ("held_val_type",), "just where the graph has types"),
    )
    for columns, without, message in opening:
        with pytest.raises(StoreError, match=message):
            damaged(store, tmp_path / "bad", without, **columns)
    pairs[1, 0] = 77
    bad = damaged(store, tmp_path / "bad", held_val=pairs)
    with pytest.raises(StoreError, match=r"column 'held_val': edge 1 is \[77, 0\], not the ids of two of 6 nodes"):
        verify(bad)
    for attempt in (
        lambda: partita.open(bad).held_out_edges("val"),
        lambda: partita.partition(bad, tmp_path / "parts", parts=2, algorithm="random"),
        lambda: partita.export(bad, tmp_path / "out.npz"),
    ):
        with pytest.raises(StoreError, match="column 'held_val' is damaged: entry 2 is 77"):
            attempt()
    kinds[0] = 9
    with pytest.raises(StoreError, match="column 'held_val': edge 0 is of relation 9 of 'held_val_type'"):
        verify(damaged(store, tmp_path / "bad", held_val_type=kinds))


@pytest.mark.parametrize("at_once", [1, 7, 1000])
@pytest.mark.parametrize("typed", [False, True])
def test_held_out_edges_that_are_edges_are_counted(tmp_path, monkeypatch, typed, at_once) -> None:
    """By brute force, with small pieces of everything."""
    rng = np.random.default_rng(3)
    monkeypatch.setattr(held_out, "_ROWS", 7)
    for name, value in (("_EDGES", 13), ("_LEAST", at_once), ("_BYTES", 1 << 40)):
        monkeypatch.setattr(leaks, name, value)
    edges, kinds = rng.integers(0, 12, (2, 150)), rng.integers(0, 3, 150)
    split = rng.integers(0, 3, 150)
    given = {"edge_index": edges, "edge_split": split, **({"edge_type": kinds} if typed else {})}
    np.savez(tmp_path / "g.npz", **given)
    summary = partita.ingest(tmp_path / "g.npz", tmp_path / "g")
    keys = list(zip(*edges.tolist(), (kinds if typed else 0 * kinds).tolist()))
    there = {key for key, part in zip(keys, split) if part == 0}
    for at, name in ((1, "val"), (2, "test")):
        mine = [key for key, part in zip(keys, split) if part == at]
        count = sum(key in there for key in mine)
        assert f"{count} of the {len(mine)} edges that are held out for {name}" in "\n".join(summary.notes)
    assert summary.edges == int((split == 0).sum())


@pytest.mark.data
def test_a_real_knowledge_graph(tmp_path, data_folder) -> None:
    summary = partita.ingest(data_folder / "kg_wn18rr.npz", tmp_path / "store")
    assert (summary.nodes, summary.edges, summary.held_out) == (40_943, 86_835, {"val": 3_034, "test": 3_134})
    assert len(summary.relations) == 11
    verify(tmp_path / "store")
