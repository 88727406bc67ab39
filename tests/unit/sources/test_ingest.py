"""Ingest: every format gives the same store, files are joined by id, and every mistake is named."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partita.core import progress
from partita.core.errors import ConfigError, InputError, StoreError
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.sources.ingest import ingest

NODES, FEATURES, CLASSES = 40, 3, 4
COLUMNS = ("indptr", "indices", "x", "y", "split_train", "split_val", "split_test")


@pytest.fixture
def graph():
    """Edges, features, labels and splits of a small graph; every node has an edge."""
    random = np.random.default_rng(0)
    edges = np.stack([np.arange(300) % NODES, random.integers(0, NODES, 300)])[:, random.permutation(300)]
    return {
        "edges": edges,
        "x": random.integers(-8, 8, (NODES, FEATURES)).astype(np.float32) / 4,
        "y": np.concatenate([np.arange(CLASSES), random.integers(-1, CLASSES, NODES - CLASSES)]),
        "split": np.array(["train", "val", "test", ""])[random.integers(0, 4, NODES)],
    }


def text(columns, separator=",", header=None, ending="\n"):
    lines = [] if header is None else [separator.join(header)]
    return ending.join([*lines, *(separator.join(map(str, row)) for row in zip(*columns))]) + ending


def write_nodes(path, graph, order=None, ids=None):
    order = np.arange(NODES) if order is None else order
    names = np.arange(NODES) if ids is None else np.array(ids)
    columns = [names[order], *graph["x"][order].T, graph["y"][order], graph["split"][order]]
    path.write_text(text(columns, header=["id", "a", "b", "c", "label", "split"]))
    return path


def columns_of(path, names=COLUMNS):
    verify(path)
    return {name: (path / f"{name}.npy").read_bytes() for name in names}


@pytest.fixture
def reference(tmp_path, graph):
    """The store of the graph, made from an npz file."""
    masks = {f"{name}_mask": graph["split"] == name for name in ("train", "val", "test")}
    np.savez_compressed(tmp_path / "g.npz", edge_index=graph["edges"], x=graph["x"], y=graph["y"], **masks)
    ingest(tmp_path / "g.npz", tmp_path / "reference")
    return columns_of(tmp_path / "reference")


def test_the_store_holds_the_graph(tmp_path, graph, reference):
    store = GraphStore.open(tmp_path / "reference")
    for node in range(NODES):
        np.testing.assert_array_equal(store.neighbors(node), graph["edges"][0][graph["edges"][1] == node])
    np.testing.assert_array_equal(store.x, graph["x"])
    np.testing.assert_array_equal(store.y, graph["y"])
    labeled = graph["y"] >= 0
    for name, nodes in store.splits.items():
        np.testing.assert_array_equal(nodes, np.flatnonzero((graph["split"] == name) & labeled))
    assert not store.has("name")


def write_edges(path, edges, kind):
    if kind.startswith("parquet"):
        table = pa.table({"u": edges[0], "v": edges[1].astype(np.uint16)})
        if kind == "parquet directory":
            path.mkdir()
            pq.write_table(table.slice(0, 100), path / "a.parquet", row_group_size=7)
            pq.write_table(table.slice(100), path / "b.parquet")
        else:
            pq.write_table(table, path, row_group_size=64)
        return
    content = {
        "csv": text(edges),
        "csv header": text(edges, header=["source", "target"]),
        "tsv": text(edges, "\t"),
        "semicolon crlf": text(edges, ";", ending="\r\n"),
        "snap": "# Nodes: 40 Edges: 300\n# FromNodeId\tToNodeId\n" + text(edges, "\t"),
        "blanks": text(edges, "   ").replace("\n", " \n"),
        "quoted": text([[f'"{end}"' for end in row] for row in edges]),
        "reordered": text([np.zeros(300), edges[1], edges[0]], header=["w", "to", "from"]),
    }[kind.removesuffix(" gz")].encode()
    path.write_bytes(gzip.compress(content) if kind.endswith(" gz") else content)


@pytest.mark.parametrize("ids", ["auto", "index"])
@pytest.mark.parametrize(
    "kind",
    [
        *("csv", "csv header", "tsv", "semicolon crlf", "snap", "blanks", "quoted", "reordered", "csv gz", "snap gz"),
        *("parquet", "parquet directory"),
    ],
)
def test_every_format_gives_the_same_store(tmp_path, graph, reference, kind, ids):
    path = tmp_path / ("edges" if kind == "parquet directory" else "edges.parquet" if kind == "parquet" else "edges.x")
    write_edges(path, graph["edges"], kind)
    ends = {"source_column": "from", "target_column": "to"} if kind == "reordered" else {}
    nodes = write_nodes(tmp_path / "n.csv", graph, np.random.default_rng(1).permutation(NODES))
    summary = ingest(path, tmp_path / "s", ids=ids, nodes=nodes, unlabeled="-1", memory_limit=1 << 20, **ends)
    assert columns_of(tmp_path / "s") == reference
    assert summary.ids == ("index" if ids == "index" else "int")
    assert summary.header == (None if kind.startswith("parquet") else kind in ("csv header", "reordered"))
    assert (summary.nodes, summary.edges, summary.features, summary.classes) == (NODES, 300, FEATURES, CLASSES)
    assert summary.split_rule == f"given: column split of {nodes}"
    assert json.loads(summary.to_json()) == dict(summary)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy"])
def test_features_labels_and_splits_apart(tmp_path, graph, reference, kind):
    write_edges(tmp_path / "e.csv", graph["edges"], "csv")
    order = np.random.default_rng(2).permutation(NODES)
    parts = {"features": [*graph["x"].T], "labels": [graph["y"]], "splits": [graph["split"]]}
    paths = {name: tmp_path / f"{name}.{kind}" for name in parts}
    for name, columns in parts.items():
        if kind == "npy":
            np.save(paths[name], {"features": graph["x"], "labels": graph["y"], "splits": graph["split"]}[name])
        elif kind == "csv":
            paths[name].write_text(text([column[order] for column in [np.arange(NODES), *columns]]))
        else:
            names = ["id", *(f"c{position}" for position in range(len(columns)))]
            pq.write_table(pa.table([c[order] for c in [np.arange(NODES), *columns]], names=names), paths[name])
    ingest(tmp_path / "e.csv", tmp_path / "s", unlabeled="-1", **paths)
    assert columns_of(tmp_path / "s") == reference


def test_ids_with_gaps_are_ordered_and_named(tmp_path, graph, reference):
    names = np.sort(np.random.default_rng(3).choice(10**12, NODES, replace=False))
    (tmp_path / "e.csv").write_text(text(names[graph["edges"]]))
    nodes = write_nodes(tmp_path / "n.csv", graph, np.random.default_rng(1).permutation(NODES), names)
    ingest(tmp_path / "e.csv", tmp_path / "s", nodes=nodes, unlabeled="-1")
    assert columns_of(tmp_path / "s") == reference
    np.testing.assert_array_equal(GraphStore.open(tmp_path / "s").names(), names)


def test_names_round_trip(tmp_path, graph):
    names = np.array([f"node {i} \u00e9\u4e16{'x' * (i % 5)}" for i in range(NODES)])
    (tmp_path / "e.csv").write_text(text(names[graph["edges"]]))
    ingest(tmp_path / "e.csv", tmp_path / "s", memory_limit=1 << 20)
    verify(tmp_path / "s")
    store = GraphStore.open(tmp_path / "s")
    found = store.names()
    first = list(dict.fromkeys(names[graph["edges"]].T.ravel().tolist()))
    assert found.tolist() == first
    for node in range(NODES):
        sources = names[graph["edges"][0][names[graph["edges"][1]] == found[node]]]
        assert found[store.neighbors(node)].tolist() == sources.tolist()


def test_tables_come_first_in_the_order_of_names_and_isolated_nodes_stay(tmp_path):
    (tmp_path / "e.csv").write_text("carol,bob\n")
    (tmp_path / "n.csv").write_text("id,f\nalone,1\nbob,2\ncarol,3\n")
    summary = ingest(tmp_path / "e.csv", tmp_path / "s", nodes=tmp_path / "n.csv")
    store = GraphStore.open(tmp_path / "s")
    assert (summary.ids, store.names().tolist()) == ("str", ["alone", "bob", "carol"])
    assert (store.x.ravel().tolist(), store.indptr.tolist()) == ([1, 2, 3], [0, 0, 1, 1])


def test_a_table_of_nothing_but_ids_adds_nodes(tmp_path):
    (tmp_path / "e.csv").write_text("5,2\n")
    (tmp_path / "n.csv").write_text("id\n9\n2\n")
    ingest(tmp_path / "e.csv", tmp_path / "s", nodes=tmp_path / "n.csv")
    store = GraphStore.open(tmp_path / "s")
    assert (store.names().tolist(), store.x, store.y) == ([2, 5, 9], None, None)


def test_one_name_among_integers_makes_all_of_them_names(tmp_path):
    lines = [f"{i},{i + 1}" for i in range(1000)]
    (tmp_path / "e.csv").write_text("\n".join([*lines, "7,x7"]))
    summary = ingest(tmp_path / "e.csv", tmp_path / "s")
    assert (summary.ids, summary.nodes) == ("str", 1002)
    assert "line 1001, column 1: 'x7' is not an integer" in summary.notes[0]
    with pytest.raises(InputError, match=r"e\.csv, line 1001, column 1: 'x7' is not an integer"):
        ingest(tmp_path / "e.csv", tmp_path / "t", ids="int")


def test_the_memory_limit_does_not_change_the_store(tmp_path):
    random = np.random.default_rng(0)
    (tmp_path / "e.csv").write_text(text(random.integers(0, 5000, (2, 60_000)) * 7, header=["s", "t"]))
    found = []
    for number, limit in enumerate([1 << 16, 1 << 21, 1 << 30]):
        ingest(tmp_path / "e.csv", tmp_path / str(number), memory_limit=limit, undirected=True)
        found.append(columns_of(tmp_path / str(number), ("indptr", "indices", "name")))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("gap", ["", "   ", "\t "])
def test_empty_and_blank_lines_change_nothing(tmp_path, gap):
    """In edges, held-out edges, labels and tables of nodes, with labels or without."""
    tables = {
        "edges": ["a,b", "u1,u2", "u2,u3", "u3,u4"],
        "val": ["a,b", "u1,u4"],
        "labels": ["id,y", "u1,0", "u2,1", "u3,0", "u4,1"],
        "nodes": ["id,x", "u1,0.5", "u2,1.5", "u3,2.5", "u4,3.5"],
    }
    for labeled in (False, True):
        stores = []
        for lines_between in ("\n", f"\n{gap}\n"):
            for name, lines in tables.items():
                (tmp_path / f"{name}.csv").write_text(lines_between.join(lines) + lines_between)
            stores.append(
                ingest(
                    tmp_path / "edges.csv", tmp_path / f"store-{len(stores)}-{labeled}", header=True,
                    nodes=tmp_path / "nodes.csv", val_edges=tmp_path / "val.csv",
                    labels=tmp_path / "labels.csv" if labeled else None,
                )
            )  # fmt: skip
        one, other = (GraphStore.open(store.path) for store in stores)
        assert one.held_out == other.held_out == {"val": 1}
        assert one.columns == other.columns
        for name in one.columns:
            np.testing.assert_array_equal(one.column(name), other.column(name), err_msg=name)


def test_weights_and_mirrors(tmp_path):
    (tmp_path / "e.csv").write_text("s,t,w\n0,1,0.5\n0,1,2\n1,1,4\n")
    options = {"weight_column": "w", "undirected": True, "deduplicate": True}
    summary = ingest(tmp_path / "e.csv", tmp_path / "s", **options)
    store = GraphStore.open(tmp_path / "s")
    assert (summary.edges, summary.self_loops, summary.duplicates_dropped) == (3, 1, 2)
    assert (store.indices.tolist(), store.edge_weight.tolist()) == ([1, 0, 1], [0.5, 0.5, 4])
    assert ingest(tmp_path / "e.csv", tmp_path / "t", self_loops="add").self_loops == 2


def test_npz_directions_sparse_features_and_one_of_several_splits(tmp_path):
    dense = np.array([[0, 1.5], [0, 0], [2, 3]], np.float32)
    masks = np.array([[1, 0, 0], [0, 1, 0]], bool)
    arrays = {
        "edge_index": np.asfortranarray([[0, 1], [1, 2]], dtype=np.int32),
        "x_indptr": np.array([0, 1, 1, 3], np.int32),
        "x_indices": np.array([1, 0, 1], np.uint16),
        "x_data": np.array([1.5, 2, 3], np.float16),
        "x_shape": np.array([3, 2]),
        "y": np.array([0, 1, 0]),
        "class_names": np.array(["no", "yes"]),
        "train_mask": masks,
        "test_mask": ~masks,
        "is_directed": np.uint8(0),
        "both_directions": np.uint8(0),
        "edge_type": np.zeros(2, np.uint8),
        "edge_weight": np.array([1, 2.0]),
    }
    np.savez(tmp_path / "g.npz", **arrays)
    summary = ingest(tmp_path / "g.npz", tmp_path / "s", split_index=1, feature_dtype="float16")
    store = GraphStore.open(tmp_path / "s")
    verify(tmp_path / "s")
    np.testing.assert_array_equal(store.x, dense)
    assert (store.x.dtype, store.class_names) == (np.float16, ["no", "yes"])
    assert (store.indices.tolist(), store.edge_weight.tolist()) == ([1, 0, 2, 1], [1, 1, 2, 2])
    assert {name: nodes.tolist() for name, nodes in store.splits.items()} == {"train": [1], "val": [], "test": [0, 2]}
    assert summary.split_rule.endswith("split 1 of 2")
    assert any("edge_type" in note for note in summary.notes)
    np.savez(tmp_path / "h.npz", **{**arrays, "both_directions": np.uint8(1)})
    summary = ingest(tmp_path / "h.npz", tmp_path / "t", undirected=True)
    assert summary.edges == 2
    assert any("both directions" in note for note in summary.notes)
    with pytest.raises(InputError, match=r"has 2 splits, number 5 .* from 0 to 1"):
        ingest(tmp_path / "g.npz", tmp_path / "u", split_index=5)


def test_a_seeded_split_of_labelled_nodes(tmp_path, graph):
    write_edges(tmp_path / "e.csv", graph["edges"], "csv")
    np.save(tmp_path / "y.npy", graph["y"])
    summary = ingest(tmp_path / "e.csv", tmp_path / "s", labels=tmp_path / "y.npy", split=(0.5, 0.25, 0.25))
    labeled = np.flatnonzero(graph["y"] >= 0)
    splits = GraphStore.open(tmp_path / "s").splits
    assert sorted(np.concatenate(list(splits.values())).tolist()) == labeled.tolist()
    assert summary.split_rule == f"seeded: 50/25/25 of the {len(labeled)} labelled nodes, seed 0"
    assert ingest(tmp_path / "e.csv", tmp_path / "t", labels=tmp_path / "y.npy", split=None).splits == {}


def test_split_nodes_without_a_label_are_left_out_and_told(tmp_path):
    (tmp_path / "e.csv").write_text("0,1\n")
    (tmp_path / "n.csv").write_text("id,label,split\n0,,train\n1,a,train\n")
    summary = ingest(tmp_path / "e.csv", tmp_path / "s", nodes=tmp_path / "n.csv")
    assert summary.splits == {"train": 1, "val": 0, "test": 0}
    assert any("1 node(s) of the splits have no label" in note for note in summary.notes)


def test_progress_is_shown(tmp_path):
    seen = {}

    class Display:
        def start(self, description, total, unit):
            self.key = (description, total, unit)
            seen[self.key] = 0
            return self

        def advance(self, amount=1):
            seen[self.key] += amount

        def stop(self, task):
            pass

    (tmp_path / "e.csv").write_bytes(gzip.compress(b"0,1\n" * 1000))
    size = (tmp_path / "e.csv").stat().st_size
    with progress.shown_by(Display()):
        ingest(tmp_path / "e.csv", tmp_path / "s")
    assert seen["read edges", size, "bytes"] == size


GOOD = {"e.csv": "0,1\n1,2\n", "n.csv": "id,f,label,split\n0,1,0,train\n1,2,1,val\n2,3,0,test\n"}
NPZ = {"edge_index": np.array([[0, 1], [1, 2]]), "x": np.ones((3, 2), np.float32), "y": np.array([0, 1, 0])}
EDGES_ONLY: dict[str, object] = {"source": "e.csv"}
WITH_NODES: dict[str, object] = {"source": "e.csv", "nodes": "n.csv"}
OF_NPZ: dict[str, object] = {"source": "g.npz"}


def array(**changes):
    return {"g.npz": {name: value for name, value in {**NPZ, **changes}.items() if value is not None}}


BAD = {
    "no file": ({}, {"source": "z.csv"}, r"z\.csv: no such file"),
    "no node file": ({}, {**EDGES_ONLY, "nodes": "z.csv"}, r"z\.csv: no such file"),
    "empty": ({"e.csv": ""}, EDGES_ONLY, r"e\.csv: the file holds no data"),
    "header only": ({"e.csv": "source,target\n"}, EDGES_ONLY, r"e\.csv: there are no nodes"),
    "one column": ({"e.csv": "1\n2\n"}, EDGES_ONLY, r"e\.csv: has one column, but edges need two"),
    "ragged": ({"e.csv": "# c\ns,t\n0,1\n\n1\n"}, EDGES_ONLY, r"e\.csv, line 5: the line has 1 cell"),
    "word": (
        {"e.csv": "s,t\n0,1\nx,2\n"},
        {**EDGES_ONLY, "ids": "int"},
        r"e\.csv, line 3, column s: 'x' is not an int",
    ),
    "missing id": ({"e.csv": "0,1\n1,\n"}, EDGES_ONLY, r"e\.csv, line 2, column 1: the cell is empty"),
    "negative id": ({"e.csv": "0,1\n-1,2\n"}, EDGES_ONLY, r"e\.csv, line 2, column 0: id -1 is negative"),
    "huge index": (
        {"e.csv": "0,1\n9999999999,2\n"},
        {**EDGES_ONLY, "ids": "index"},
        r"e\.csv: the largest id is 9999999",
    ),
    "index out of range": (
        {"e.csv": "0,1\n1,3\n"},
        {**WITH_NODES, "ids": "index"},
        r"e\.csv, line 2, column 1: id 3 is out of range: ids are 0\.\.2, because .*n\.csv has 3 nodes",
    ),
    "unknown column": ({"e.csv": "from,to\n0,1\n"}, {**EDGES_ONLY, "source_column": "form"}, r"Did you mean 'from'"),
    "weight": (
        {"e.csv": "0,1,2\n1,2,-3\n"},
        {**EDGES_ONLY, "weight_column": 2},
        r"line 2, column 2: the weight -3\.0 is neg",
    ),
    "nan weight": (
        {"e.csv": "0,1,2\n1,2,nan\n"},
        {**EDGES_ONLY, "weight_column": 2},
        r"line 2, column 2: the cell is empty",
    ),
    "no gzip": ({"e.csv.gz": "0,1\n"}, {"source": "e.csv.gz"}, r"e\.csv\.gz: is named \.gz but is not gzipped"),
    "no parquet": ({"e.parquet": "0,1\n"}, {"source": "e.parquet"}, r"e\.parquet: is damaged or not a Parquet file"),
    "node without features": (
        {"e.csv": "0,1\n1,7\n9,0\n"},
        WITH_NODES,
        r"n\.csv: 2 node\(s\) of the edges have no row of features: 7, 9 \(need 5 rows, .* in column id\)",
    ),
    "node twice": (
        {"n.csv": GOOD["n.csv"] + "1,5,0,\n"},
        WITH_NODES,
        r"n\.csv, line 5, column id: node 1 has a row already",
    ),
    "gap in an index": (
        {"n.csv": "id,f\n0,1\n1,1\n3,1\n"},
        {**WITH_NODES, "ids": "index"},
        r"n\.csv: has 3 rows, but needs 4, .* there is none for 2",
    ),
    "feature word": (
        {"n.csv": "id,f,g\n0,1,2\n1,2,x\n2,1,1\n"},
        WITH_NODES,
        r"n\.csv, line 3, column g: 'x' is not a number",
    ),
    "feature missing": ({"n.csv": "id,f\n0,1\n1,\n2,1\n"}, WITH_NODES, r"n\.csv, line 3, column f: the cell is empty"),
    "feature inf": ({"n.csv": "id,f\n0,1\n1,1\n2,inf\n"}, WITH_NODES, r"n\.csv, line 4: feature 0 of node 2 is inf"),
    "label -1": (
        {"n.csv": "id,f,label\n0,1,0\n1,1,-1\n2,1,0\n"},
        WITH_NODES,
        r"n\.csv: 1 nodes have the label -1, which is a class, or means that they have no label",
    ),
    "label fraction": (
        {"n.csv": "id,f,label\n0,1,0\n1,1,0.5\n2,1,0\n"},
        {**WITH_NODES, "task": "classes"},
        r"n\.csv, line 3: label 0\.5 is not an integer",
    ),
    "split word": (
        {"n.csv": "id,f,split\n0,1,train\n1,1,tran\n2,1,\n"},
        WITH_NODES,
        r"n\.csv, line 3, column split: there is no split 'tran'",
    ),
    "unknown label row": (
        {"l.csv": "0,1\n5,1\n"},
        {**EDGES_ONLY, "labels": "l.csv"},
        r"l\.csv, line 2, column 0: there is no node 5",
    ),
    "label row twice": (
        {"l.csv": "0,1\n0,1\n"},
        {**EDGES_ONLY, "labels": "l.csv"},
        r"l\.csv, line 2, column 0: node 0 has a row",
    ),
    "unknown split row": (
        {"l.csv": "7,test\n"},
        {**EDGES_ONLY, "splits": "l.csv"},
        r"l\.csv, line 1, column 0: there is no node 7",
    ),
    "labels in two places": (
        {"l.csv": "0,1\n"},
        {**WITH_NODES, "labels": "l.csv", "label_column": 1},
        "labels in two places|two roles|label",
    ),
    "short npy": (
        {"x.npy": np.ones((2, 2))},
        {**EDGES_ONLY, "features": "x.npy"},
        r"e\.csv, line 2, column 1: id 2 is out of range",
    ),
    "npy lengths": (
        {"x.npy": np.ones((3, 2)), "y.npy": np.ones(4, int)},
        {**EDGES_ONLY, "features": "x.npy", "labels": "y.npy"},
        r"y\.npy: has 4 rows, but .*x\.npy has 3 nodes",
    ),
    "npy names": (
        {"x.npy": np.ones((3, 2))},
        {**EDGES_ONLY, "features": "x.npy", "ids": "str"},
        "ids=str does not go together",
    ),
    "npy shape": ({"x.npy": np.ones(3)}, {**EDGES_ONLY, "features": "x.npy"}, r"x\.npy: holds float64 of shape \(3,\)"),
    "npy nan": (
        {"x.npy": np.full((3, 1), np.nan)},
        {**EDGES_ONLY, "features": "x.npy"},
        r"x\.npy, row 0 .*: feature 0 of node 0 is nan",
    ),
    "complex": ({"x.npy": np.ones((3, 1), complex)}, {**EDGES_ONLY, "features": "x.npy"}, r"x\.npy: holds complex128"),
    "no edge_index": (array(edge_index=None), OF_NPZ, r"g\.npz: has no array 'edge_index'"),
    "edge shape": (
        array(edge_index=NPZ["edge_index"].T.repeat(2, 0)),
        OF_NPZ,
        r"array 'edge_index': has shape \(4, 2\)",
    ),
    "edge dtype": (array(edge_index=NPZ["edge_index"] / 2), OF_NPZ, "array 'edge_index': holds float64"),
    "edge range": (
        array(edge_index=np.array([[0, 1], [1, 3]])),
        OF_NPZ,
        r"'edge_index', edge 1 .*, column target: id 3 is out",
    ),
    "edge negative": (
        array(edge_index=np.array([[0, -1], [1, 2]])),
        OF_NPZ,
        r"edge 1 .*, column source: id -1 is negative",
    ),
    "objects": (array(y=np.array([{}, {}, {}], object)), OF_NPZ, "array 'y': holds pickled objects"),
    "y length": (array(y=np.zeros(4, int)), OF_NPZ, "'y' says that there are 4 nodes, but 'x' says 3"),
    "y of -1 and 1": (array(y=np.array([1, -1, 1])), OF_NPZ, r"array 'y': 1 nodes have the label -1"),
    "y both": (
        array(y=np.array([[0, 1], [2, 0], [0, 0]])),
        OF_NPZ,
        r"array 'y', row 1 .*, column 0: label 2 is neither",
    ),
    "x nan": (array(x=np.array([[1], [np.nan], [1]])), OF_NPZ, r"array 'x', row 1 .*: feature 0 of node 1 is nan"),
    "num_nodes": (
        array(x=None, y=None, num_nodes=10**12),
        OF_NPZ,
        "'num_nodes' is 1000000000000, which cannot be right",
    ),
    "mask length": (array(train_mask=np.ones(4, bool)), OF_NPZ, "'train_mask' says that there are 4 nodes"),
    "mask overlap": (
        array(train_mask=np.array([1, 1, 0], bool), test_mask=np.array([0, 1, 1], bool)),
        OF_NPZ,
        r"g\.npz: 1 node\(s\) are in both train and test, the first is node 1",
    ),
    "hetero": (array(node_type=np.zeros(3)), OF_NPZ, "array 'node_type': holds float64"),
    "sparse parts": (array(x=None, x_indptr=np.zeros(4, int)), OF_NPZ, "has no array 'x_indices'"),
    "sparse column": (
        array(x=None, x_indptr=np.array([0, 1, 1, 1]), x_indices=[2], x_data=[1.0], x_shape=[3, 2]),
        OF_NPZ,
        r"array 'x_indices': holds a column that is not in 0\.\.1",
    ),
    "npz names": (array(), {**OF_NPZ, "ids": "str"}, "ids=str does not go together"),
    "npz features twice": (
        {**array(), "x.npy": np.ones((3, 2))},
        {**OF_NPZ, "features": "x.npy"},
        "features in two places",
    ),
    "split_index": (
        {},
        {**EDGES_ONLY, "split_index": 1},
        r"e\.csv: split_index=1, but the source has no numbered splits",
    ),
    "choice": ({}, {**EDGES_ONLY, "ids": "integer"}, "ids: 'integer' is not a choice"),
    "fractions": ({}, {**EDGES_ONLY, "split": (0.9, 0.9, 0.9)}, "split: .* is not a valid"),
    "memory": ({}, {**EDGES_ONLY, "memory_limit": 0}, "memory_limit: 0 is not a size"),
    "nodes and features": ({}, {**WITH_NODES, "features": "n.csv"}, "nodes and features exclude each other"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_and_leaves_nothing(tmp_path, name):
    files, options, message = BAD[name]
    for file, content in {**GOOD, **files}.items():
        if isinstance(content, str):
            (tmp_path / file).write_text(content)
        elif isinstance(content, dict):
            np.savez(tmp_path / file, **content)
        else:
            np.save(tmp_path / file, content)
    before = sorted(tmp_path.iterdir())
    options = {
        key: tmp_path / value if key in ("source", "nodes", "features", "labels", "splits") else value
        for key, value in options.items()
    }
    with pytest.raises((InputError, ConfigError), match=message):
        ingest(options.pop("source"), tmp_path / "store", **options)
    assert sorted(tmp_path.iterdir()) == before


def test_the_good_files_of_the_bad_cases_are_good(tmp_path):
    for file, content in GOOD.items():
        (tmp_path / file).write_text(content)
    summary = ingest(tmp_path / "e.csv", tmp_path / "s", nodes=tmp_path / "n.csv")
    verify(tmp_path / "s")
    assert (summary.nodes, summary.features, summary.splits) == (3, 1, {"train": 1, "val": 1, "test": 1})
    with pytest.raises(StoreError, match="already exists"):
        ingest(tmp_path / "e.csv", tmp_path / "s")
    ingest(tmp_path / "e.csv", tmp_path / "s", overwrite=True)


def test_nan_features_are_accepted_on_request(tmp_path):
    (tmp_path / "e.csv").write_text("0,1\n")
    (tmp_path / "n.csv").write_text("id,f\n0,nan\n1,\n")
    ingest(tmp_path / "e.csv", tmp_path / "s", nodes=tmp_path / "n.csv", allow_nan=True)
    assert verify(tmp_path / "s")
    assert np.isnan(GraphStore.open(tmp_path / "s").x).all()


@pytest.mark.data
def test_real_graphs(tmp_path, data_folder):
    manifest = json.loads((data_folder / "manifest.json").read_text())
    for name, facts in manifest.items():
        if name.startswith("hetero"):  # see test_typed_arrays.py
            continue
        summary = ingest(data_folder / f"{name}.npz", tmp_path / name)
        mirrored = not facts["is_directed"] and not facts["both_directions"]
        edges = 2 * facts["edges_stored"] - facts["self_loops"] if mirrored else facts["edges_stored"]
        assert (summary.nodes, summary.edges + sum(summary.held_out.values())) == (facts["nodes"], edges), name
        loops = 2 if summary.held_out else 0  # of those that are held out
        assert summary.self_loops + loops == facts["self_loops"], name
        if "classes" in facts:
            assert summary.classes == facts["classes"], name
        if "features" in facts:
            assert summary.features == facts["features"][0], name
        if "split_sizes" in facts:
            assert {f"{split}_mask": size for split, size in summary.splits.items()} == facts["split_sizes"], name
