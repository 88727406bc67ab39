"""Columns of node tables, and how labels, splits and features are read from them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from partita.core.errors import InputError
from partita.graph.writer import StoreWriter
from partita.sources.batch import Cells
from partita.sources.edges import open_table
from partita.sources.features import Features
from partita.sources.labels import MOST_CLASSES, LabelRules, make_labels
from partita.sources.node_tables import Splits, describe_table, repeated


class Writer(StoreWriter):
    """Keeps columns in memory."""

    def __init__(self):
        self.columns = {}

    def write(self, name, array):
        self.columns[name] = array

    def allocate(self, name, shape, dtype):
        self.columns[name] = np.zeros(shape, dtype)
        return self.columns[name]


def batch(*columns, names=None):
    names = names or [str(position) for position in range(len(columns))]
    return Cells([pa.array(column) for column in columns], names, lambda row: f"n.csv, line {row + 2}")


def read_labels(*columns, task="auto", kinds=None, nodes=None, num_nodes=None, **rules):
    count = len(columns[0])
    nodes = np.arange(count) if nodes is None else np.array(nodes)
    rules = LabelRules(task, "n.csv", **rules)
    labels = make_labels(rules, kinds or [None] * len(columns), None, num_nodes or count)
    labels.put(nodes, batch(*columns), range(len(columns)))
    writer = Writer()
    found = labels.finish(writer)
    return writer.columns["y"], found


@pytest.mark.parametrize(
    ("cells", "options", "y", "task", "classes", "names"),
    [
        (["2", "0", "", "1"], {}, [2, 0, -1, 1], "classes", 3, None),
        ([2, 0, None, 1], {}, [2, 0, -1, 1], "classes", 3, None),
        (["b", "a", "", "-1", "c"], {"unlabeled": "-1"}, [1, 0, -1, -1, 2], "classes", 3, ["a", "b", "c"]),
        (["b", "?", "a"], {"unlabeled": "?"}, [1, -1, 0], "classes", 2, ["a", "b"]),
        (["b", "-1"], {"unlabeled": "none"}, [1, 0], "classes", 2, ["-1", "b"]),
        (["10", "9", "x"], {}, [0, 1, 2], "classes", 3, ["10", "9", "x"]),
        ([True, False], {}, [1, 0], "classes", 2, None),
        # -1: none where that is said, or where arrays mean it so
        (["2", "0", "1", "-1"], {"unlabeled": "-1"}, [2, 0, 1, -1], "classes", 3, None),
        ([2, 0, 1, -1], {"by_convention": True}, [2, 0, 1, -1], "classes", 3, None),
        ([1, -1, 1], {"unlabeled": "none"}, [1, 0, 1], "classes", 2, ["-1", "1"]),
        ([1, -1, 1, 0], {"unlabeled": "0"}, [1, 0, 1, -1], "classes", 2, ["-1", "1"]),
        ([1, -1, -2], {}, [2, 1, 0], "classes", 3, ["-2", "-1", "1"]),
        # Codes
        ([100002, 100001, 100002], {}, [1, 0, 1], "classes", 2, ["100001", "100002"]),
        (["11", "1", ""], {}, [1, 0, -1], "classes", 2, ["1", "11"]),
        ([3, 1], {"keep_codes": True}, [3, 1], "classes", 4, None),
        # Numbers
        ([1.0, None, 0.0, float("nan")], {"task": "classes", "kinds": ["float"]}, [1, -1, 0, -1], "classes", 2, None),
        ([1.0, None, 0.0, 1.0, 0.0], {"kinds": ["float"]}, [1, -1, 0, 1, 0], "classes", 2, None),
        ([1.0, 0.0, 2.0], {"kinds": ["float"]}, [1, 0, 2], "regression", 1, None),
        ([1.0, 0.0, 1.0, 0.0], {"kinds": ["float"], "task": "regression"}, [1, 0, 1, 0], "regression", 1, None),
        ([-9.0, 0.5], {"kinds": ["float"], "unlabeled": "-9"}, [np.nan, 0.5], "regression", 1, None),
        (["1.0", "NA", "0.0", "0", "1"], {"task": "classes"}, [1, -1, 0, 0, 1], "classes", 2, None),
        ([1.5, None], {"kinds": ["float"]}, [1.5, np.nan], "regression", 1, None),
        (["1", "1.5", "nan"], {}, [1, 1.5, np.nan], "regression", 1, None),
        ([3, 4], {"task": "regression"}, [3, 4], "regression", 1, None),
    ],
)
def test_labels(cells, options, y, task, classes, names):
    found_y, found = read_labels(cells, **options)
    np.testing.assert_array_equal(found_y, np.array(y))
    assert found_y.dtype == (np.float32 if task == "regression" else np.int64)
    assert (found.task, found.num_classes, found.class_names) == (task, classes, names)
    unlabeled = np.isnan(found_y) if task == "regression" else found_y < 0
    np.testing.assert_array_equal(found.labeled, ~unlabeled)


def test_labels_of_some_nodes():
    y, found = read_labels(["b", "a"], nodes=[3, 1], num_nodes=5)
    assert y.tolist() == [-1, 0, -1, 1, -1]
    y, found = read_labels([1, None], [0, None], nodes=[0, 1], num_nodes=2)
    assert (y.tolist(), found.labeled.tolist(), found.sizes) == ([[1, 0], [0, 0]], [True, False], [1, 0])
    y, found = read_labels([1.5], kinds=["float"], nodes=[1], num_nodes=2)
    np.testing.assert_array_equal(y, [np.nan, 1.5])
    y, found = read_labels([1, 0], [1, 1], nodes=[2, 0], num_nodes=3)
    assert (y.tolist(), y.dtype) == ([[0, 1], [0, 0], [1, 1]], np.uint8)
    assert (found.task, found.num_classes, found.labeled.tolist()) == ("multilabel", 2, [True, False, True])


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ((["0", "-1"],), {}, r"n\.csv: 1 nodes have the label -1.*--unlabeled -1"),
        (([1, -1, 1],), {}, "1 nodes have the label -1"),
        (([1, -1],), {"by_convention": True}, "1 nodes have the label -1"),
        ((["a", "-1"],), {}, "1 nodes have the label -1"),
        (([1, MOST_CLASSES],), {"keep_codes": True}, "label 1048576 cannot be kept"),
        (([1, -2],), {"keep_codes": True}, "label -2 cannot be kept"),
        (([1.0, 2.5],), {"task": "classes"}, r"line 3, column 0: label 2\.5 is not an integer"),
        ((["1", "2.5"],), {"task": "classes"}, r"line 3: label 2\.5 is not an integer"),
        ((["", "-1"],), {"unlabeled": "-1"}, r"n\.csv: no node has a label"),
        (([1, 2], [0, 1]), {}, "line 3, column 0: label 2 is neither 0 nor 1"),
        (([1, 1], [0, None]), {}, "line 3, column 1: one label is empty and another is not"),
        (([1, 1], [0, 1]), {"task": "classes"}, "there are 2 label columns, but task=classes"),
        (([1.0, float("inf")],), {"kinds": ["float"]}, "line 3, column 0: label inf is not a finite"),
    ],
)
def test_bad_labels(columns, options, message):
    with pytest.raises(InputError, match=message):
        read_labels(*columns, **options)


def test_splits():
    splits = Splits(7)
    words = ["train", "Valid", "validation", "test", "", "val"]
    splits.put(np.array([6, 5, 4, 3, 2, 1]), batch(words), 0)
    assert {name: nodes.tolist() for name, nodes in splits.nodes().items()} == {
        "train": [6],
        "val": [1, 4, 5],
        "test": [3],
    }
    assert splits.leave_out(np.arange(7) != 4) == 1
    assert splits.nodes()["val"].tolist() == [1, 5]
    with pytest.raises(InputError, match=r"line 3, column 0: there is no split 'tset'\. Did you mean 'test'"):
        splits.put(np.arange(2), batch(["train", "tset"]), 0)
    with pytest.raises(InputError, match=r"g\.npz: 1 node\(s\) are in both val and test, the first is node 1"):
        splits.put_mask("test", np.arange(7) < 2, "g.npz", str)


@pytest.mark.parametrize("kind", ["columns", "list", "fixed"])
def test_features_come_from_columns_or_lists(kind):
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    columns = {
        "columns": [pa.array(rows[:, 0]), pa.array([1, 3, 5])],
        "list": [pa.array(rows.tolist())],
        "fixed": [pa.FixedSizeListArray.from_arrays(rows.ravel(), 2)],
    }[kind]
    found = batch(*columns).matrix(range(len(columns)), missing=None)
    np.testing.assert_array_equal(found, rows)
    writer = Writer()
    features = Features(writer, 3, np.dtype(np.float16), allow_nan=False, name_of=str)
    features.put(np.array([2, 0, 1]), found, str)
    assert writer.columns["x"].dtype == np.float16
    np.testing.assert_array_equal(writer.columns["x"], rows[[1, 2, 0]])


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (np.nan, "float32", "line 3: feature 1 of node n7 is nan, which is not finite"),
        (np.inf, "float32", "line 3: feature 1 of node n7 is inf, which is not finite"),
        (1e5, "float16", r"line 3: feature 1 of node n7 is 100000\.0, which does not fit float16"),
    ],
)
def test_bad_features(value, dtype, message):
    rows = np.array([[1, 2], [3, value]], np.float32)
    features = Features(Writer(), 9, np.dtype(dtype), allow_nan=False, name_of=lambda node: f"n{node}")
    with pytest.raises(InputError, match=message):
        features.put(np.array([0, 7]), rows, lambda row: f"line {row + 2}")
    features = Features(Writer(), 9, np.dtype(dtype), allow_nan=True, name_of=str)
    features.put(np.array([0, 7]), rows, str)


def test_ragged_lists_and_words_are_no_features():
    with pytest.raises(InputError, match="line 3, column 0: the lists are not equally long"):
        batch([[1.0], [1.0, 2.0]]).matrix([0], missing=None)
    with pytest.raises(InputError, match="column 0: holds string, not numbers"):
        batch(["a"]).matrix([0], missing=None)
    with pytest.raises(InputError, match="line 3, column 0: the cell is empty"):
        batch([1.0, None]).matrix([0], missing=None)


def describe(tmp_path, text, roles="nodes", **options):
    (tmp_path / "n.csv").write_text(text)
    asked = dict.fromkeys(["id_column", "feature_columns", "label_columns", "split_column"])
    found = describe_table(open_table(tmp_path / "n.csv"), roles=roles, **{**asked, **options})
    return found.id_column, found.features, found.labels, found.split


def test_roles_of_columns(tmp_path):
    full = "id,a,label,b,split\n1,2,3,4,train\n"
    assert describe(tmp_path, full) == (0, (1, 3), (2,), 4)
    assert describe(tmp_path, full, feature_columns=["b"], label_columns=["a"]) == (0, (3,), (1,), 4)
    assert describe(tmp_path, full, id_column="b", split_column=4) == (3, (0, 1), (2,), 4)
    assert describe(tmp_path, full, roles="labels", label_columns=[1, 2]) == (0, (), (1, 2), 4)
    assert describe(tmp_path, "1,2,3\n", roles="labels") == (0, (), (1, 2), None)
    assert describe(tmp_path, "1,train\n", roles="splits") == (0, (), (), 1)
    assert describe(tmp_path, "1,2,3\n", roles="features") == (0, (1, 2), (), None)
    with pytest.raises(InputError, match="column a has two roles"):
        describe(tmp_path, full, id_column="a", label_columns=["a"])
    with pytest.raises(InputError, match=r"no column 'lable' \(label\)\. Did you mean 'label'"):
        describe(tmp_path, full, label_columns=["lable"])
    with pytest.raises(InputError, match="has no feature column besides"):
        describe(tmp_path, "1\n2\n", roles="features")


def test_repeated():
    assert repeated(np.array([3, 1, 3, 3, 2, 1])).tolist() == [False, False, True, True, False, True]
