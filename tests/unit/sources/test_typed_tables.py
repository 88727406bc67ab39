"""Typed graphs in tables that a YAML file names, beside the same rows read in plain Python."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import partita
from partita.core.errors import ConfigError, InputError

PAPERS = [
    ("p3", 0.5, 1, "red", "train"),
    ("p1", 1.5, 2, "blue", "val"),
    ("p2", 2.5, 3, "", ""),
    ("p9", 3.5, 4, "red", "test"),
]
AUTHORS = [(70, 1.0), (3, 2.0), (12, 3.0)]
WROTE = [(3, "p1", 0.5), (70, "p1", 1.5), (12, "p9", 2.0), (3, "p3", 4.0)]
WORKS = [(70, "uni", 1.0), (3, "lab", 2.0), (12, "uni", 3.0)]
YAML = """
nodes:
  paper: {file: papers.csv, id: paper, label: color, split: split, features: [year, "f*"]}
  author: {file: authors.parquet}
  place: {}
edges:
  - {source: author, name: wrote, target: paper, file: wrote.csv, weight_column: hours, reverse: true}
  - {source: author, name: works_at, target: place, file: works.tsv, source_column: who, target_column: where,
     weight_column: w}
"""


def write(path: Path, header: str, rows: list, delimiter: str = ",") -> None:
    lines = [header, *(delimiter.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "papers.csv", "paper,f1,year,color,split", PAPERS)
    pq.write_table(
        pa.table({"id": [a for a, _ in AUTHORS], "h": [h for _, h in AUTHORS]}), tmp_path / "authors.parquet"
    )
    write(tmp_path / "wrote.csv", "author,paper,hours", WROTE)
    write(tmp_path / "works.tsv", "who\twhere\tw", WORKS, "\t")
    (tmp_path / "schema.yaml").write_text(YAML)
    return tmp_path


def named_edges(store: partita.GraphStore) -> dict[str, list[tuple[str, str, float]]]:
    names, dst = store.names(), np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    found: dict[str, list[tuple[str, str, float]]] = {str(each): [] for each in store.schema.relations}
    for u, v, kind, weight in zip(store.indices, dst, store.edge_type, store.edge_weight):
        found[str(store.schema.relations[kind])].append((str(names[u]), str(names[v]), float(weight)))
    return {name: sorted(edges) for name, edges in found.items()}


def test_everything_is_there_by_the_users_ids(folder) -> None:
    summary = partita.ingest(folder / "schema.yaml", folder / "g")
    store = partita.GraphStore.open(folder / "g")
    assert dict(zip(store.schema.node_types, store.schema.num_nodes)) == {"paper": 4, "author": 3, "place": 2}
    assert store.names().tolist() == ["p3", "p1", "p2", "p9", "70", "3", "12", "uni", "lab"]
    wrote, works = ([(str(u), str(v), w) for u, v, w in rows] for rows in (WROTE, WORKS))
    assert named_edges(store) == {
        "author:wrote:paper": sorted(wrote),
        "author:works_at:place": sorted(works),
        "paper:rev_wrote:author": sorted((v, u, w) for u, v, w in wrote),
    }
    assert store.x_of("paper").tolist() == [[year, f1] for _, f1, year, *_ in PAPERS]
    assert store.x_of("author").tolist() == [[h] for _, h in AUTHORS]
    assert store.x_of("place") is None
    assert list(store.class_names) == ["blue", "red"]
    assert store.y.tolist() == [1, 0, -1, 1, *[-1] * 5]
    assert {name: ids.tolist() for name, ids in store.splits.items()} == {"train": [0], "val": [1], "test": [3]}
    assert any("node types without features: place" in note for note in summary.notes)
    assert {path.name for path in folder.iterdir()} == {
        "authors.parquet", "g", "papers.csv", "schema.yaml", "works.tsv", "wrote.csv"
    }  # fmt: skip
    assert partita.verify(folder / "g")


def test_a_column_of_edges_says_which_are_held_out(folder) -> None:
    """They are no edges of the graph, have no reverse, and are there in the order of the table."""
    splits = ["train", "test", "val", ""]
    rows = [(*row, split) for row, split in zip(WROTE, splits)]
    write(folder / "wrote.csv", "author,paper,hours,use", rows)
    text = YAML.replace("weight_column: hours, reverse: true", "weight_column: hours, split: use, reverse: true")
    (folder / "schema.yaml").write_text(text)
    summary = partita.ingest(folder / "schema.yaml", folder / "g")
    partita.export(folder / "g", folder / "g.npz")
    partita.ingest(folder / "g.npz", folder / "again")
    kept = [(str(u), str(v), w) for u, v, w, split in rows if split in ("train", "")]
    for store in map(partita.open, (folder / "g", folder / "again")):
        edges = named_edges(store)
        assert edges["author:wrote:paper"] == sorted(kept)
        assert edges["paper:rev_wrote:author"] == sorted((v, u, w) for u, v, w in kept)
        assert len(edges["author:works_at:place"]) == 3
        assert store.held_out == {"val": 1, "test": 1}
        for split, end in (("val", 2), ("test", 1)):
            (pairs, kinds), names = store.held_out_edges(split), store.names()
            assert names[pairs[:, 0]].tolist() == [str(WROTE[end][0]), WROTE[end][1]]
            assert str(store.schema.relations[kinds[0]]) == "author:wrote:paper"
        assert [(leak.edges, leak.reverses) for leak in partita.check_leaks(store)] == [(0, 0)] * 2
        partita.verify(store.path)
    assert summary.held_out == {"val": 1, "test": 1}
    write(folder / "wrote.csv", "author,paper,hours,use", [*rows, (3, "p1", 1, "dev")])
    with pytest.raises(InputError, match=r"wrote.csv, row 4 \(from 0\): 'dev' is no split.*train, val, test"):
        partita.ingest(folder / "schema.yaml", folder / "no")


def test_two_types_may_share_ids_and_the_store_is_exported_with_them(folder) -> None:
    write(folder / "a.csv", "id,x", [(5, 1), (2, 2)])
    write(folder / "b.csv", "id,x", [(2, 3), (5, 4), (9, 5)])
    write(folder / "e.csv", "from,to", [(5, 2), (2, 9), (5, 5)])
    (folder / "s.yaml").write_text(
        "nodes: {a: {file: a.csv}, b: {file: b.csv}}\nedges: [{source: a, name: r, target: b, file: e.csv}]\n"
    )
    partita.ingest(folder / "s.yaml", folder / "g")
    store = partita.GraphStore.open(folder / "g")
    assert store.names().tolist() == [5, 2, 2, 5, 9]
    partita.export(store, folder / "out.npz")
    partita.ingest(folder / "out.npz", folder / "again")
    again = partita.GraphStore.open(folder / "again")
    assert again.names().tolist() == store.names().tolist()
    assert again.x_of("b").tolist() == [[3], [4], [5]]
    assert np.array_equal(again.indices, store.indices)


def test_predictions_have_the_users_ids(folder) -> None:
    partita.ingest(folder / "schema.yaml", folder / "g")
    partita.Trainer(
        folder / "g", out=folder / "run", model="hetero-sage", layers=2, hidden=4, fanout=(2, 2), epochs=1
    ).fit()
    partita.predict(folder / "run", out=folder / "papers.csv.out.csv")
    with (folder / "papers.csv.out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["node"], row["type"]) for row in rows] == [(paper, "paper") for paper, *_ in PAPERS]
    assert {row["prediction"] for row in rows} <= {"red", "blue"}
    found = partita.predict(folder / "run", node_type="author", embeddings=True)
    assert len(found.ids) == 3


def change(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("source: author, name: works_at", "source: autor, name: works_at", InputError, "no node type 'autor'.*author"),
        ("name: works_at, target: place", "name: wrote, target: paper", InputError, "there twice"),
        ("place: {}", "place: {}\n  Paper: {}", ConfigError, "capitals|differ"),
        ("file: wrote.csv", "file: nothing.csv", InputError, "'nothing.csv', which is not there"),
        ("file: wrote.csv", "fil: wrote.csv", InputError, "there is no 'fil'.*file"),
        ("id: paper", "id: papr", InputError, "no column 'papr'.*paper"),
        ("weight_column: hours, ", "", InputError, "1 column.* of weights, those of .* 0"),
        (
            "{file: authors.parquet}",
            "{file: authors.parquet, label: h}",
            InputError,
            "labels of several types: paper, author",
        ),
        ("reverse: true", "reverse: maybe", InputError, "reverse is 'maybe'"),
        ("features: [year, ", "features: [yeer, ", InputError, "no column 'yeer'.*year"),
        ("nodes:", "node:", InputError, "there is no 'node'.*nodes"),
        ("place: {}", "place: {id: x}", InputError, "has no file"),
        ("edges:", "edges: [", InputError, "is not YAML"),
    ],
)
def test_a_description_that_cannot_be_used(folder, old, new, error, message) -> None:
    (folder / "schema.yaml").write_text(change(YAML, old, new))
    before = {path.name for path in folder.iterdir()}
    with pytest.raises(error, match=message):
        partita.ingest(folder / "schema.yaml", folder / "g")
    assert {path.name for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("wrote.csv", "12,p9", "12,p8", "wrote.csv, line 4.*p8 is the id of no node of type 'paper'"),
        ("wrote.csv", "12,p9", "13,p9", "wrote.csv, line 4.*13 is the id of no node of type 'author'"),
        ("papers.csv", "p2,", "p3,", "papers.csv, line 4.*the id p3 is there twice"),
        ("papers.csv", "1.5", "much", "papers.csv, line 3"),
        ("papers.csv", "p1,1.5", "p1,", "papers.csv, line 3.*empty"),
        ("papers.csv", "red,test", "red,holdout", "'holdout' is no split"),
        ("wrote.csv", "1.5", "-1", "line 3.*-1.*not a finite number|negative"),
    ],
)
def test_a_table_that_cannot_be_used(folder, file, old, new, message) -> None:
    (folder / file).write_text(change((folder / file).read_text(), old, new))
    with pytest.raises(InputError, match=message):
        partita.ingest(folder / "schema.yaml", folder / "g")
    assert not (folder / "g").exists()
