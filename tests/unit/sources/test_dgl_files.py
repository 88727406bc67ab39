"""Directories in DGL's file formats, written here by their published descriptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import partita
from partita.core.errors import ConfigError, InputError
from partita.sources import typed_pieces

PAPERS, AUTHORS = 7, 4
CITES = np.array([[0, 1, 2, 6, 3], [1, 2, 0, 5, 3]])
WROTE = np.array([[0, 1, 3, 3], [6, 0, 2, 4]])
X = np.arange(PAPERS * 3, dtype=np.float32).reshape(PAPERS, 3)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0])
SPLITS = {"train": [0, 2, 4], "val": [6], "test": [1, 5]}


def edges_of(store: partita.GraphStore) -> dict[str, list[tuple[int, int]]]:
    """Of each relation, ends within their types."""
    schema = store.schema
    assert schema is not None
    dst = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    rows = store.type_rows(store.indices.astype(np.int64)), store.type_rows(dst)
    return {
        str(relation): sorted(zip(*(end[store.edge_type == at].tolist() for end in rows)))
        for at, relation in enumerate(schema.relations)
    }


EXPECTED = {
    "paper:cites:paper": sorted(zip(*CITES.tolist())),
    "author:wrote:paper": sorted(zip(*WROTE.tolist())),
}


SEEDS = [0, 1, 2, 4, 5, 6]


def check(store: partita.GraphStore, labeled: list[int]) -> None:
    assert store.schema.node_types == ("paper", "author")
    assert store.schema.num_nodes == (PAPERS, AUTHORS)
    assert edges_of(store) == EXPECTED
    assert np.array_equal(store.x_of("paper"), X)
    labels = [int(label) if at in labeled else -1 for at, label in enumerate(LABELS)]
    assert store.y.tolist() == [*labels, *[-1] * AUTHORS]
    assert {name: ids.tolist() for name, ids in store.splits.items()} == SPLITS


def on_disk(folder: Path, *, csv: bool = True) -> dict[str, Any]:
    """An on-disk dataset of GraphBolt; returns its metadata."""
    folder.mkdir()
    for name, edges in (("cites", CITES), ("wrote", WROTE)):
        if csv:
            np.savetxt(folder / f"{name}.csv", edges.T, fmt="%d", delimiter=",")
        else:
            np.save(folder / f"{name}.npy", edges)
    np.save(folder / "x.npy", X)
    np.save(folder / "years.npy", np.arange(len(CITES[0])))
    sets = {}
    for key, split in (("train_set", "train"), ("validation_set", "val"), ("test_set", "test")):
        data = []
        for name, values in (("seeds", SPLITS[split]), ("labels", LABELS[SPLITS[split]])):
            np.save(folder / f"{split}-{name}.npy", np.array(values))
            data.append({"name": name, "format": "numpy", "in_memory": True, "path": f"{split}-{name}.npy"})
        sets[key] = [{"type": "paper", "data": data}]
    form, suffix = ("csv", "csv") if csv else ("numpy", "npy")
    metadata = {
        "dataset_name": "small",
        "graph": {
            "nodes": [{"type": "paper", "num": PAPERS}, {"type": "author", "num": AUTHORS}],
            "edges": [
                {"type": "paper:cites:paper", "format": form, "path": f"cites.{suffix}"},
                {"type": "author:wrote:paper", "format": form, "path": f"wrote.{suffix}"},
            ],
        },
        "feature_data": [
            {"domain": "node", "type": "paper", "name": "feat", "format": "numpy", "in_memory": False, "path": "x.npy"},
            {"domain": "edge", "type": "paper:cites:paper", "name": "year", "format": "numpy", "path": "years.npy"},
        ],
        "tasks": [
            {"name": "links", "train_set": [{"type": "paper:cites:paper", "data": []}]},
            {"name": "classes", "num_classes": 3, **sets},
        ],
    }
    write(folder, metadata)
    return metadata


def write(folder: Path, metadata: dict[str, Any]) -> None:
    if "graph_name" in metadata:
        (folder / "metadata.json").write_text(json.dumps(metadata))
    else:
        (folder / "metadata.yaml").write_text(yaml.safe_dump(metadata))


def chunked(folder: Path, *, parquet: bool = False) -> dict[str, Any]:
    """A chunked graph, every array in two files; returns its metadata."""
    folder.mkdir()
    edges = {}
    for name, ends in (("paper:cites:paper", CITES), ("author:wrote:paper", WROTE)):
        files = []
        for number, part in enumerate(np.array_split(ends, 2, axis=1)):
            files.append(f"{name.split(':')[1]}{number}.{'parquet' if parquet else 'txt'}")
            if parquet:
                pq.write_table(pa.table({"src": part[0], "dst": part[1]}), folder / files[-1])
            else:
                np.savetxt(folder / files[-1], part.T, fmt="%d", delimiter=" ")
        form = {"name": "parquet"} if parquet else {"name": "csv", "delimiter": " "}
        edges[name] = {"format": form, "data": files}
    masks = {f"{name}_mask": np.isin(np.arange(PAPERS), ids) for name, ids in SPLITS.items()}
    data = {}
    for name, rows in {"feat": X, "label": LABELS, "year": np.arange(PAPERS), **masks}.items():
        files = []
        for number, part in enumerate(np.array_split(rows, 2)):
            files.append(f"{name}{number}.npy")
            np.save(folder / files[-1], part)
        data[name] = {"format": {"name": "numpy"}, "data": files}
    np.save(folder / "since.npy", np.arange(len(CITES[0])))
    metadata = {
        "graph_name": "small",
        "node_type": ["paper", "author"],
        "num_nodes_per_chunk": [[4, 3], [2, 2]],
        "edge_type": list(edges),
        "num_edges_per_chunk": [[3, 2], [2, 2]],
        "edges": edges,
        "node_data": {"paper": data},
        "edge_data": {"paper:cites:paper": {"since": {"format": {"name": "numpy"}, "data": ["since.npy"]}}},
    }
    write(folder, metadata)
    return metadata


@pytest.mark.parametrize("csv", [True, False])
def test_an_on_disk_dataset(tmp_path, csv) -> None:
    on_disk(tmp_path / "data", csv=csv)
    summary = partita.ingest(tmp_path / "data", tmp_path / "g")
    check(partita.GraphStore.open(tmp_path / "g"), SEEDS)
    notes = "\n".join(summary.notes)
    assert "year of the edges paper:cites:paper" in notes
    assert "task links" in notes
    partita.ingest(tmp_path / "data" / "metadata.yaml", tmp_path / "again")
    assert {path.name for path in tmp_path.iterdir()} == {"data", "g", "again"}


@pytest.mark.parametrize("parquet", [True, False])
def test_a_chunked_graph(tmp_path, parquet) -> None:
    chunked(tmp_path / "data", parquet=parquet)
    summary = partita.ingest(tmp_path / "data", tmp_path / "g", undirected=False)
    check(partita.GraphStore.open(tmp_path / "g"), list(range(PAPERS)))
    notes = "\n".join(summary.notes)
    assert "year of paper" in notes
    assert "since of the edges paper:cites:paper" in notes
    assert {path.name for path in tmp_path.iterdir()} == {"data", "g"}


CITE_ROWS, WROTE_ROWS = np.arange(10, dtype=np.float32).reshape(5, 2), -np.arange(8, dtype=np.float32).reshape(4, 2)
CITE_WEIGHTS, WROTE_WEIGHTS = np.array([0.5, 1, 2, 3, 4]), np.array([5.0, 6, 7, 8])


def with_edge_data(make: Any, folder: Path, *, parquet: bool = False) -> dict[str, Any]:
    """Weights and features of all edges; returns the metadata."""
    metadata = make(folder)
    of = {"paper:cites:paper": (CITE_ROWS, CITE_WEIGHTS), "author:wrote:paper": (WROTE_ROWS, WROTE_WEIGHTS)}
    for relation, arrays in of.items():
        short, entries = relation.split(":")[1], {}
        for name, rows in zip(("feat", "weight"), arrays):
            files = []
            for number, part in enumerate(np.array_split(rows, 1 if make is on_disk else 2)):
                files.append(f"{short}-{name}{number}.{'parquet' if parquet else 'npy'}")
                if parquet:
                    pq.write_table(
                        pa.table({str(at): column for at, column in enumerate(part.reshape(len(part), -1).T)}),
                        folder / files[-1],
                    )
                else:
                    np.save(folder / files[-1], part)
            entries[name] = {"format": {"name": "parquet" if parquet else "numpy"}, "data": files}
            if make is on_disk:
                entry = {"domain": "edge", "type": relation, "name": name, "format": "numpy", "path": files[0]}
                metadata["feature_data"].append(entry)
        if make is chunked:
            metadata["edge_data"][relation] = entries
    write(folder, metadata)
    return metadata


@pytest.mark.parametrize(("make", "parquet"), [(on_disk, False), (chunked, False), (chunked, True)])
def test_weights_and_features_of_edges(tmp_path, monkeypatch, make, parquet) -> None:
    with_edge_data(make, tmp_path / "data", parquet=parquet)
    partita.ingest(tmp_path / "data", tmp_path / "g", undirected=True)
    store = partita.GraphStore.open(tmp_path / "g")
    dst = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    rows = store.type_rows(store.indices.astype(np.int64)), store.type_rows(dst)
    found = sorted(
        (store.schema.relations[kind].name, int(u), int(v), float(weight), features.tolist())
        for kind, u, v, weight, features in zip(store.edge_type, *rows, store.edge_weight, store.edge_attr)
    )
    wanted = [
        edge
        for name, ends, features, weights in (
            ("cites", CITES, CITE_ROWS, CITE_WEIGHTS), ("wrote", WROTE, WROTE_ROWS, WROTE_WEIGHTS),
        )
        for u, v, row, weight in zip(*ends.tolist(), features.tolist(), weights.tolist())
        for edge in ((name, u, v, weight, row), (f"rev_{name}", v, u, weight, row))
    ]  # fmt: skip
    assert found == sorted(wanted)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "g"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["author:wrote:paper"].pop("weight"), "author:wrote:paper has no weights, but others have"),
        (lambda data: data["author:wrote:paper"]["feat"]["data"].pop(), "2 rows of 'feat' for 4 edges of author:wrote"),
        (lambda data: data["author:wrote:paper"].update(weight=data["author:wrote:paper"]["feat"]), "several columns"),
        (lambda data: data.update({"paper:likes:paper": {}}), None),
        (lambda data: data.update({"paper:likes:paper": data["paper:cites:paper"]}), "no relation 'paper:likes:paper'"),
        (lambda data: data.update({"book:likes:paper": data["paper:cites:paper"]}), "no node type 'book'"),
    ],
)  # fmt: skip
def test_data_of_edges_that_do_not_fit(tmp_path, change, message) -> None:
    metadata = with_edge_data(chunked, tmp_path / "data")
    change(metadata["edge_data"])
    write(tmp_path / "data", metadata)
    if message is None:
        partita.ingest(tmp_path / "data", tmp_path / "g")
        return
    with pytest.raises(InputError, match=message):
        partita.ingest(tmp_path / "data", tmp_path / "g")


def test_features_that_some_edges_have_are_named(tmp_path) -> None:
    metadata = with_edge_data(chunked, tmp_path / "data")
    np.save(tmp_path / "data" / "wide.npy", np.ones((4, 3)))
    metadata["edge_data"]["author:wrote:paper"]["feat"]["data"] = ["wide.npy"]
    mask = {"format": {"name": "numpy"}, "data": ["since.npy"]}
    metadata["edge_data"]["paper:cites:paper"] |= {"since": mask, "train_mask": mask}
    write(tmp_path / "data", metadata)
    summary = partita.ingest(tmp_path / "data", tmp_path / "g")
    store = partita.GraphStore.open(tmp_path / "g")
    assert store.edge_attr is None
    assert store.edge_weight is not None
    notes = "\n".join(summary.notes)
    for name in ("feat of the edges paper:cites:paper", "feat of the edges author:wrote:paper",
                 "since of the edges paper:cites:paper", "train_mask of the edges paper:cites:paper"):  # fmt: skip
        assert name in notes


def test_features_are_side_by_side_where_none_is_called_feat(tmp_path) -> None:
    metadata = chunked(tmp_path / "data")
    data = metadata["node_data"]["paper"]
    data["wide"] = data.pop("feat")
    metadata |= {"num_nodes_per_type": [PAPERS, AUTHORS], "num_edges_per_type": [5, 4]}
    del metadata["num_nodes_per_chunk"], metadata["num_edges_per_chunk"]  # as later versions write it
    write(tmp_path / "data", metadata)
    partita.ingest(tmp_path / "data", tmp_path / "g")
    store = partita.GraphStore.open(tmp_path / "g")
    assert np.array_equal(store.x_of("paper"), np.column_stack([np.arange(PAPERS), X]))


def test_a_graph_of_one_type_is_an_untyped_one(tmp_path) -> None:
    metadata = on_disk(tmp_path / "data")
    metadata["graph"] = {
        "nodes": [{"num": PAPERS}],
        "edges": [{"format": "csv", "path": "cites.csv"}],
    }
    metadata["feature_data"] = [
        {"domain": "node", "name": "feat", "format": "numpy", "path": "x.npy"},
        {"domain": "edge", "name": "feat", "format": "numpy", "path": "years.npy"},
    ]
    for key in ("train_set", "validation_set", "test_set"):
        del metadata["tasks"][1][key][0]["type"]
    write(tmp_path / "data", metadata)
    partita.ingest(tmp_path / "data", tmp_path / "g")
    store = partita.GraphStore.open(tmp_path / "g")
    assert store.schema is None
    assert np.array_equal(store.x, X)
    assert store.edge_attr[:, 0].tolist() == [edge for v in range(PAPERS) for edge in np.flatnonzero(CITES[1] == v)]
    assert store.y.tolist() == [int(label) if at in SEEDS else -1 for at, label in enumerate(LABELS)]
    assert {name: ids.tolist() for name, ids in store.splits.items()} == SPLITS


def test_what_is_there_is_trained(tmp_path) -> None:
    chunked(tmp_path / "data")
    partita.ingest(tmp_path / "data", tmp_path / "g", undirected=True)
    run = partita.Trainer(
        tmp_path / "g", out=tmp_path / "run", model="rgcn", layers=2, hidden=4, fanout=(2, 2), epochs=1
    )
    assert 0 <= run.fit().metrics["test"]["accuracy"] <= 1


def _set(*path: Any, to: Any) -> Any:
    def change(metadata: dict[str, Any]) -> None:
        at: Any = metadata
        for key in path[:-1]:
            at = at[key]
        if to is None:
            del at[path[-1]]
        else:
            at[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("make", "change", "message"),
    [
        (on_disk, _set("graph", "edges", 0, "type", to="paper:cites:book"), "no node type 'book'"),
        (on_disk, _set("graph", "edges", 0, "type", to="cites"), "'cites' is no type of edges"),
        (on_disk, _set("graph", "edges", 1, "type", to="paper:cites:paper"), "there twice"),
        (on_disk, _set("graph", "edges", 0, "path", to="nothing.csv"), "'nothing.csv', which is not there"),
        (on_disk, _set("graph", "edges", 0, "format", to="torch"), "format 'torch' are not read"),
        (on_disk, _set("graph", "nodes", 0, "num", to=5), "edge 3 .*none of 5 nodes of type 'paper'"),
        (on_disk, _set("graph", "nodes", 0, "num", to="many"), "'many' is no number"),
        (on_disk, _set("graph", "nodes", 0, "num", to=9), "7 rows of features for 9 nodes"),
        (on_disk, _set("feature_data", 0, "format", to="torch"), "'x.npy' of the format 'torch' is not read"),
        (on_disk, _set("graph", "edges", to=None), "has no 'edges'"),
        (on_disk, _set("graph", to=[1]), "holds list, not names"),
        (chunked, _set("num_edges_per_chunk", to=[[3, 3], [2, 2]]), "have 5 edges, the metadata say 6"),
        (chunked, _set("num_nodes_per_chunk", to=[[7]]), "of 1 types, and 2 types"),
        (chunked, _set("node_data", "paper", "label", "data", to=["label0.npy"]), "4 rows for 7 nodes"),
        (chunked, _set("node_data", "books", to={"feat": {}}), "no node type 'books'"),
        (chunked, _set("edges", "author:wrote:paper", to=None), "has no 'author:wrote:paper'"),
    ],
)
def test_what_cannot_be_used_is_said(tmp_path, make, change, message) -> None:
    metadata = make(tmp_path / "data")
    change(metadata)
    write(tmp_path / "data", metadata)
    with pytest.raises(InputError, match=message):
        partita.ingest(tmp_path / "data", tmp_path / "g")
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


@pytest.mark.parametrize("make", [on_disk, chunked])
def test_names_and_numbers_of_types(tmp_path, monkeypatch, make) -> None:
    metadata = make(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(typed_pieces, "MOST_RELATIONS", 1)
        with pytest.raises(InputError, match=r"edges.*: there are more than 1 relations"):
            partita.ingest(tmp_path / "data", tmp_path / "g")
    text = json.dumps(metadata).replace("author", "Paper")
    write(tmp_path / "data", json.loads(text))
    with pytest.raises(ConfigError, match="node types 'paper' and 'Paper' differ by capitals only"):
        partita.ingest(tmp_path / "data", tmp_path / "g")


@pytest.mark.parametrize(("name", "text"), [("metadata.yaml", "a: [1"), ("metadata.json", "{")])
def test_metadata_that_cannot_be_read_are_named(tmp_path, name, text) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=name):
        partita.ingest(tmp_path, tmp_path / "g")
