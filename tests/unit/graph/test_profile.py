"""What ``inspect`` says of a graph, beside plain loops and scipy."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

import partita
from partita.cli.main import main
from partita.core.errors import StoreError
from partita.graph import profile as module
from partita.graph.profile import inspect
from partita.graph.store import GraphStore
from partita.testing.graphs import formula_store, small_random_store


def made(path, edges, **arrays) -> GraphStore:
    partita.ingest({"edge_index": np.asarray(edges), **arrays}, path)
    return GraphStore.open(path)


@pytest.mark.parametrize("undirected", [False, True])
def test_structure_against_scipy(tmp_path, monkeypatch, undirected) -> None:
    monkeypatch.setattr(module, "_EDGES_AT_ONCE", 50)
    store = small_random_store(tmp_path / "graph", 300, 260, undirected=undirected)
    found = partita.inspect(store.path)
    target = np.repeat(np.arange(300), store.in_degree())
    source = np.asarray(store.indices)
    number, label = connected_components(
        coo_matrix((np.ones(len(source)), (source, target)), (300, 300)), directed=False
    )
    assert found["components"] == {"number": number, "largest": int(np.bincount(label).max())}
    pairs = list(zip(source.tolist(), target.tolist()))
    proper = [pair for pair in pairs if pair[0] != pair[1]]
    assert found["structure"]["symmetric"] == (sorted(proper) == sorted((b, a) for a, b in proper))
    assert found["structure"]["symmetric"] == undirected
    assert found["structure"]["self_loops"] == len(pairs) - len(proper)
    assert found["structure"]["repeated_edges"] == len(pairs) - len(set(pairs))
    out = np.bincount(source, minlength=300)
    assert found["structure"]["isolated_nodes"] == int(((out == 0) & (store.in_degree() == 0)).sum())
    assert found["degrees"]["out"]["max"] == out.max()
    assert found["degrees"]["in"]["median"] == np.median(store.in_degree())
    y = store.y
    same = np.mean([y[a] == y[b] for a, b in proper])
    assert found["homophily"]["edges"] == pytest.approx(same)
    ends = [np.bincount(y[[pair[side] for pair in proper]], minlength=4) / len(proper) for side in (0, 1)]
    chance = float(ends[0] @ ends[1])
    assert found["homophily"]["assortativity"] == pytest.approx((same - chance) / (1 - chance))


def test_features_that_look_wrong(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_BYTES_AT_ONCE", 256)
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    x[:, 2] = 7
    x[3, 0], x[4, 1] = np.nan, np.inf
    x[15] = x[2]  # test has a training node's row
    x[16] = x[17]  # twice in test: no leak
    x[5] = 0
    split = np.repeat(["train", "val", "test"], [10, 3, 7])
    masks = {f"{name}_mask": split == name for name in ("train", "val", "test")}
    y = np.arange(20) % 2
    y[[11, 12]] = -1
    edges = [[0, 1, 1, 2], [1, 0, 0, 2]]
    partita.ingest({"edge_index": np.array(edges), "x": x, "y": y, **masks}, tmp_path / "graph", allow_nan=True)
    found = inspect(GraphStore.open(tmp_path / "graph"))
    features = found["features"]
    assert (features["nan"], features["nan_columns"]) == (1, {"number": 1, "first": [0]})
    assert (features["infinite"], features["zero_rows"]) == (1, 1)
    assert features["duplicates"] == {"test": 1, "val": 0}
    assert found["labels"]["unlabeled"] == {"all": 2, "test": 0, "train": 0, "val": 0}
    assert found["labels"]["counts"]["test"] == [3, 4]
    said = "\n".join(found["warnings"])
    for words in (
        "1 test nodes have exactly the features of a training node", "1 feature values are NaN, in 1 columns",
        "1 feature values are infinite", "only zeros",
        "isolated nodes: 17 of 20", "1 edges are repeats",
    ):  # fmt: skip
        assert words in said, said


def test_constant_columns_and_zeros_of_both_signs(tmp_path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    x[:, [1, 3]] = 5
    x[1] = [0, 5, 1, 5]
    x[19] = [-0.0, 5, 1, 5]
    train = np.arange(20) < 10
    arrays = {"x": x, "y": np.arange(20) % 2, "train_mask": train, "test_mask": ~train}
    found = inspect(made(tmp_path / "graph", [[0, 1], [1, 2]], **arrays))["features"]
    assert found["constant_columns"] == {"number": 2, "first": [1, 3]}
    assert found["duplicates"]["test"] == 1


def test_imbalance_and_absent_classes(tmp_path) -> None:
    y = np.zeros(100, dtype=np.int64)
    y[:3] = 1
    train = np.arange(100) % 2 == 0
    arrays = {"x": np.eye(100, dtype=np.float32), "y": y, "train_mask": train, "test_mask": (y == 0) & ~train}
    said = "\n".join(inspect(made(tmp_path / "graph", [[0, 1], [1, 0]], **arrays))["warnings"])
    assert "classes are imbalanced: the most frequent one has 96% of the training nodes" in said
    assert "split test has no node of 1 classes: 1" in said


@pytest.mark.parametrize("options", [{"num_classes": 0, "num_features": 0}, {"num_classes": 3, "task": "multilabel"}])
def test_other_stores(tmp_path, options) -> None:
    found = inspect(small_random_store(tmp_path / "graph", 50, 100, **options))
    assert "homophily" not in found
    assert ("the store has no labels" in found["warnings"]) == (options["num_classes"] == 0)
    json.dumps(found)


def test_a_shard_is_not_looked_into(tmp_path, capsys) -> None:
    store = formula_store(tmp_path / "graph4", num_parts=4)
    partita.shard(store.path, tmp_path / "shard", host=0, hosts=2)
    with pytest.raises(StoreError, match="inspect needs the whole graph"):
        inspect(GraphStore.open(tmp_path / "shard"))


def printed(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", *map(str, arguments)])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_verb(tmp_path, capsys) -> None:
    store = small_random_store(tmp_path / "graph", 200, 600, undirected=True)
    whole, quick = (json.loads(printed(capsys, store.path, "--json", *more)) for more in ((), ("--quick",)))
    assert whole["profile"]["structure"]["symmetric"]
    assert quick == {name: value for name, value in whole.items() if name != "profile"} == store.summary()
    text = " ".join(printed(capsys, store.path).split())
    for words in ("every edge has its reverse", "homophily", "classes, train", "isolated nodes"):
        assert words in text
    assert "homophily" not in printed(capsys, store.path, "--quick")
    settings = {"layers": 1, "fanout": "5", "epochs": 6, "threads": 1, "patience": 1, "lr": 1e-9}
    partita.Trainer(store, out=tmp_path / "run", **settings).fit()
    found = json.loads(printed(capsys, tmp_path / "run", "--json"))
    assert found["best"]["metric"] == "accuracy"
    assert 0 < found["baseline"]["test"]["metrics"]["accuracy"] < 1
    text = " ".join(printed(capsys, tmp_path / "run").split())
    done = found["epochs"]["done"]
    assert done < 6
    assert f"stopped early after epoch {done} of 6 (--patience 1)" in text
    assert "most frequent training class" in text
