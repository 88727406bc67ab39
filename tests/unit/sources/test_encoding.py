"""Features made of columns: categories, gaps, scales, and the same once more for another graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest

import partita
from partita.core.errors import ConfigError, InputError, StoreError
from partita.graph.store import GraphStore
from partita.sources.encoding import NOTE, Encoding

EDGES = "src,dst\n" + "".join(f"{i},{(i + 1) % 8}\n" for i in range(8))
NODES = """id,age,city,zip,income,extra,split,label
0,10,Rome,007,1.5,x,train,a
1,20,Oslo,012,,y,train,b
2,,Rome,007,2.5,z,train,a
3,40,,099,3.5,x,val,b
4,50,Oslo,007,4.5,x,test,a
5,60,Bonn,012,NA,x,train,a
6,70,Rome,007,6.5,x,test,b
7,80,Oslo,012,7.5,x,val,b
"""
TRAIN = [0, 1, 2, 5]


def ingest(folder: Path, name: str = "s", nodes: str = NODES, edges: str = EDGES, **options) -> tuple:
    (folder / "e.csv").write_text(edges)
    (folder / "n.csv").write_text(nodes)
    summary = partita.ingest(folder / "e.csv", folder / name, nodes=folder / "n.csv", **options)
    return summary, np.asarray(GraphStore.open(folder / name).column("x"))


def table(nodes: str = NODES) -> pandas.DataFrame:
    from io import StringIO

    return pandas.read_csv(StringIO(nodes), dtype={"zip": str})


def one_hot(column: pandas.Series) -> np.ndarray:
    return pandas.get_dummies(column).to_numpy(np.float32)


def test_words_are_refused_by_name(tmp_path) -> None:
    with pytest.raises(InputError, match=r"2 columns hold words, not numbers: city,extra. Give --categorical"):
        ingest(tmp_path)
    with pytest.raises(InputError, match=r"line 3, column income: the cell is empty.*--missing"):
        ingest(tmp_path, drop_columns=["city", "extra", "age"])


def test_patterns_name_columns(tmp_path) -> None:
    wide = "id,f_a,f_b,g,note\n" + "".join(f"{i},{i},{i + 1},{i + 2},word\n" for i in range(8))
    _, x = ingest(tmp_path, nodes=wide, feature_columns=["f_*"])
    assert x[:, 1].tolist() == list(range(1, 9))
    summary, x = ingest(tmp_path, "t", nodes=wide, drop_columns=["no*", "f_?"])
    assert x.tolist() == [[i + 2] for i in range(8)]
    assert any("3 columns not used: f_a, f_b, note" in note for note in summary.notes)
    with pytest.raises(InputError, match=r"no column fits 'h_\*'"):
        ingest(tmp_path, "u", nodes=wide, feature_columns=["h_*"])


@pytest.mark.parametrize("missing", ["zero", "mean"])
@pytest.mark.parametrize("standardize", [False, True])
def test_all_at_once_is_what_pandas_makes(tmp_path, missing, standardize) -> None:
    summary, x = ingest(
        tmp_path, categorical=["city", "zip"], drop_columns=["extra"], missing=missing, standardize=standardize
    )
    found = table()
    parts = {"age": found[["age"]].to_numpy(float), "city": one_hot(found.city), "zip": one_hot(found.zip)}
    parts["income"] = found[["income"]].to_numpy(float)
    for name in ("age", "income"):
        mean = np.nanmean(parts[name][TRAIN])
        filled = np.where(np.isnan(parts[name]), mean if missing == "mean" else 0, parts[name])
        deviation = np.nanstd(parts[name][TRAIN])
        parts[name] = (filled - mean) / deviation if standardize else filled
    np.testing.assert_allclose(x, np.concatenate(list(parts.values()), axis=1), rtol=1e-6)
    encoding = Encoding.of(GraphStore.open(tmp_path / "s").metadata.notes)
    assert encoding.names == ["age", "city=Bonn", "city=Oslo", "city=Rome", "zip=007", "zip=012", "zip=099", "income"]
    assert (encoding.mean is not None, encoding.missing) == (standardize, missing)
    done = {"zero": "filled with 0", "mean": "filled with the mean of the training nodes"}[missing]
    assert f"3 empty or NaN feature values, {done}: income 2 (25.0%), age 1 (12.5%)" in summary.notes


def test_nodes_without_a_row(tmp_path) -> None:
    short = "id,a,c\n" + "".join(f"{i},{i},{'uv'[i % 2]}\n" for i in range(6))
    with pytest.raises(InputError, match=r"no row of features.*--missing zero or mean"):
        ingest(tmp_path, nodes=short, categorical=["c"])
    summary, x = ingest(tmp_path, nodes=short, categorical=["c"], missing="mean", split=None)
    assert x[6:].tolist() == [[2.5, 0, 0]] * 2
    assert "2 nodes without a row of features, taken as empty cells" in summary.notes


def test_nan_is_counted_where_it_is_kept(tmp_path) -> None:
    summary, x = ingest(tmp_path, drop_columns=["city", "extra"], allow_nan=True)
    assert np.isnan(x).sum() == 3
    assert "3 empty or NaN feature values, kept as NaN: income 2 (25.0%), age 1 (12.5%)" in summary.notes


def test_arrays_are_filled_and_scaled(tmp_path) -> None:
    x = np.random.default_rng(0).normal(5, 3, (8, 3)).astype(np.float32)
    x[2, 1] = np.nan
    edges = np.arange(8), (np.arange(8) + 1) % 8
    partita.ingest(edges, tmp_path / "s", features=x, missing="mean", standardize=True, split=None)
    filled = np.where(np.isnan(x), np.nanmean(x.astype(float), axis=0), x)
    wanted = (filled - np.nanmean(x.astype(float), axis=0)) / np.nanstd(x.astype(float), axis=0)
    np.testing.assert_allclose(GraphStore.open(tmp_path / "s").column("x"), wanted, rtol=1e-5, atol=1e-6)


def test_the_same_for_another_graph(tmp_path) -> None:
    """Categories, means and deviations are those of the first; columns are found by their names."""
    options = {"categorical": ["city", "zip"], "drop_columns": ["extra"], "missing": "mean", "standardize": True}
    _, first = ingest(tmp_path, "first", **options)
    frame = table()[["id", "income", "zip", "age", "city", "label"]]
    other = frame.to_csv(index=False).replace("Bonn", "Lima")
    summary, second = ingest(tmp_path, "second", nodes=other, like=tmp_path / "first")
    wanted = first.copy()
    wanted[5, 1] = 0  # of Bonn
    np.testing.assert_array_equal(second, wanted)
    assert "column city: 1 cells with categories that the other store does not have, as 0" in summary.notes
    notes = [GraphStore.open(tmp_path / name).metadata.notes["features"] for name in ("first", "second")]
    assert notes[0] == notes[1]
    with pytest.raises(InputError, match="there is no column 'age'"):
        ingest(tmp_path, "third", nodes=other.replace("age", "years"), like=tmp_path / "first")


def test_classes_are_those_of_the_other_store(tmp_path) -> None:
    small = "id,f,label\n" + "".join(f"{i},{i},{'cab'[i % 3]}\n" for i in range(8))
    ingest(tmp_path, "first", nodes=small)
    summary, _ = ingest(tmp_path, "second", nodes=small.replace(",a\n", ",\n"), like=tmp_path / "first")
    assert summary.class_sizes == {"a": 0, "b": 2, "c": 3}
    assert GraphStore.open(tmp_path / "second").column("y").tolist() == [2, -1, 1, 2, -1, 1, 2, -1]
    with pytest.raises(InputError, match="the other store has no class 'd'"):
        ingest(tmp_path, "third", nodes=small.replace(",a\n", ",d\n"), like=tmp_path / "first")
    codes = small.replace(",a\n", ",7\n").replace(",b\n", ",30\n").replace(",c\n", ",5\n")
    ingest(tmp_path, "codes", nodes=codes)
    summary, _ = ingest(tmp_path, "other", nodes=codes.replace(",30\n", ",\n"), like=tmp_path / "codes")
    assert summary.class_sizes == {"5": 3, "7": 3, "30": 0}


def test_kept_through_partitions(tmp_path) -> None:
    ingest(tmp_path, categorical=["city", "zip"], drop_columns=["extra"], missing="mean")
    partita.partition(tmp_path / "s", tmp_path / "two", parts=2, algorithm="random")
    notes = [GraphStore.open(tmp_path / name).metadata.notes["features"] for name in ("s", "two")]
    assert notes[0] == notes[1]


def test_what_is_no_category(tmp_path) -> None:
    with pytest.raises(ConfigError, match="column label is categorical, but no feature"):
        ingest(tmp_path, categorical=["label"], drop_columns=["city", "extra"])
    many = "id,c\n" + "".join(f"{i},w{i}\n" for i in range(10_001))
    with pytest.raises(InputError, match="column c has more than 10,000 different words"):
        ingest(tmp_path, nodes=many, categorical=["c"])


def test_codes_of_pandas_with_gaps(tmp_path) -> None:
    """Whole numbers that a gap made decimals of are the same categories."""
    frame = pandas.DataFrame({"id": range(8), "c": [1.0, 2, None, 10, 1, 2, 1, 10]})
    edges = pandas.DataFrame({"a": range(8), "b": [1, 2, 3, 4, 5, 6, 7, 0]})
    partita.ingest(edges, tmp_path / "s", nodes=frame, categorical=["c"], missing="zero", split=None)
    encoding = Encoding.of(GraphStore.open(tmp_path / "s").metadata.notes)
    assert encoding.names == ["c=1", "c=2", "c=10"]


def test_dropping_leaves_out_incomplete_nodes_and_their_edges(tmp_path) -> None:
    short = "\n".join(line for line in NODES.splitlines() if not line.startswith("7,")) + "\n"
    options = {"categorical": ["city"], "drop_columns": ["extra", "zip"], "missing": "drop", "standardize": True}
    summary, x = ingest(tmp_path, nodes=short, **options)
    kept = [0, 4, 6]  # 1 and 5 have no income, 2 no age, 3 no city, 7 no row
    store = GraphStore.open(tmp_path / "s")
    assert store.names(np.arange(len(kept))).tolist() == kept
    assert "1 nodes of the edges without a row, 4 rows with an empty feature cell, and their 8 of 8 edges" in str(
        summary.notes
    )
    partita.verify(tmp_path / "s")
    whole = table(short).loc[kept]
    alone = tmp_path / "alone"
    alone.mkdir()
    pairs = [(0, 4), (4, 6), (6, 0)]
    edges = "src,dst\n" + "".join(f"{a},{b}\n" for a, b in pairs)
    _, expected = ingest(alone, nodes=whole.to_csv(index=False), edges=edges, **options)
    _, x = ingest(tmp_path, "t", nodes=short, edges=EDGES + edges.split("\n", 1)[1], **options)
    stores = [GraphStore.open(folder) for folder in (tmp_path / "t", alone / "s")]
    encodings = [Encoding.of(store.metadata.notes) for store in stores]
    same = [name in encodings[1].names for name in encodings[0].names]
    assert [name for name, used in zip(encodings[0].names, same) if not used] == ["city=Bonn"]  # of a node left out
    assert x[:, same].tolist() == expected.tolist()
    assert not x[:, np.logical_not(same)].any()
    assert np.array(encodings[0].mean)[same].tolist() == list(encodings[1].mean)
    for name in ("indptr", "indices", "y", "name"):
        assert stores[0].column(name).tolist() == stores[1].column(name).tolist()
    assert stores[0].metadata.class_names == stores[1].metadata.class_names


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("ids", ["int", "str"])
def test_dropping_equals_leaving_the_lines_out(tmp_path, ids, undirected) -> None:
    random = np.random.default_rng(3)
    pairs = random.integers(0, 60, (400, 2))
    gone = {3, 17, 44, 45, 59}
    rows = [(i, "" if i in {3, 17, 44} else f"{i / 7:.3f}") for i in random.permutation(60) if i not in {45, 59}]
    labels = "id,label\n" + "".join(f"{i},{i % 3}\n" for i in range(60))
    left = [(a, b) for a, b in pairs if a not in gone and b not in gone]

    def stored(name, edges, nodes, some_labels, **options):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "l.csv").write_text(some_labels)
        lines = "src,dst\n" + "".join(f"{a},{b}\n" for a, b in edges)
        table_of = "id,f\n" + "".join(f"{i},{value}\n" for i, value in nodes)
        return ingest(
            folder, nodes=table_of, edges=lines, labels=folder / "l.csv", ids=ids, undirected=undirected,
            self_loops="drop", split=None, **options,
        )[0]  # fmt: skip

    summary = stored("drop", pairs, rows, labels, missing="drop")
    kept_labels = "\n".join(line for line in labels.splitlines() if line.split(",")[0] not in set(map(str, gone)))
    stored("less", left, [(i, value) for i, value in rows if value], kept_labels)
    stores = [GraphStore.open(tmp_path / name / "s") for name in ("drop", "less")]
    assert set(stores[0].columns) == set(stores[1].columns)
    for name in stores[0].columns:
        assert stores[0].column(name).tolist() == stores[1].column(name).tolist()
    assert f"{400 - len(left)} of 400 edges" in str(summary.notes)


def test_what_cannot_be_dropped_is_refused(tmp_path) -> None:
    (tmp_path / "e.csv").write_text(EDGES)
    with pytest.raises(ConfigError, match=r"left out by their ids.*--nodes"):
        partita.ingest(tmp_path / "e.csv", tmp_path / "s", features=np.ones((8, 2), np.float32), missing="drop")
    with pytest.raises(InputError, match="no node is left"):
        ingest(tmp_path, nodes="id,f\n" + "".join(f"{i},\n" for i in range(8)), missing="drop")


def test_features_are_made_of_degrees(tmp_path) -> None:
    (tmp_path / "e.csv").write_text("src,dst\n" + "".join(f"{i},0\n" for i in range(1, 8)) + "0,1\n2,1\n0,2\n")
    summary = partita.ingest(tmp_path / "e.csv", tmp_path / "s", node_features="degree")
    store = GraphStore.open(tmp_path / "s")
    x, degree = np.asarray(store.column("x")), np.diff(store.indptr)
    assert degree.tolist() == [7, 2, 1, 0, 0, 0, 0, 0]
    assert summary.features == x.shape[1] == 17
    np.testing.assert_allclose(x[:, 0], np.log1p(degree), rtol=1e-6)
    encoding = Encoding.of(store.metadata.notes)
    assert encoding.made == "degree"
    assert [encoding.names[column] for column in x[:, 1:].argmax(1)[:4] + 1] == [
        "in-degree=7-14", "in-degree=1-2", "in-degree=1-2", "in-degree=0",
    ]  # fmt: skip
    assert (x[:, 1:].sum(1) == 1).all()
    (tmp_path / "f.csv").write_text("a,b\n0,1\n")
    partita.ingest(tmp_path / "f.csv", tmp_path / "other", like=tmp_path / "s")
    again = GraphStore.open(tmp_path / "other")
    assert Encoding.of(again.metadata.notes).names == encoding.names
    assert again.column("x").shape == (2, 17)


def test_features_may_be_constant_and_are_made_of_nothing_where_there_are_some(tmp_path) -> None:
    (tmp_path / "e.csv").write_text(EDGES)
    partita.ingest(tmp_path / "e.csv", tmp_path / "s", node_features="constant")
    assert np.asarray(GraphStore.open(tmp_path / "s").column("x")).tolist() == [[1.0]] * 8
    with pytest.raises(ConfigError, match="the source has features"):
        ingest(tmp_path, "t", nodes="id,f\n" + "".join(f"{i},1\n" for i in range(8)), node_features="degree")


@pytest.mark.parametrize("columns", [[{}], [{"name": "a", "width": "two"}], [3], 5])
def test_notes_of_something_else_are_no_encoding(columns) -> None:
    with pytest.raises(StoreError, match="its notes on features are damaged"):
        Encoding.of({NOTE: {"columns": columns}})
