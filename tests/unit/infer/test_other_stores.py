"""A run applied to other stores: predictions are those of the exported model in plain PyG."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch import Tensor

import partita
from partita.core.errors import ConfigError, RunError

FEATURES, CLASSES = 6, 3


def graph(
    path: Path, nodes: int, seed: int, *, grown_from: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """Ingest a random graph with multi-edges, loops and isolated nodes; grown from another one, if that is given."""
    random = np.random.default_rng(seed)
    source = {
        "edge_index": random.integers(0, nodes - 3, (2, 5 * nodes)),
        "x": random.normal(size=(nodes, FEATURES)).astype(np.float32),
        "y": random.integers(0, CLASSES, nodes),
    }
    if grown_from is not None:
        old = grown_from["x"].shape[0]
        new_edges = random.integers(0, nodes, (2, grown_from["edge_index"].shape[1] // 10))
        source["edge_index"] = np.concatenate([grown_from["edge_index"], new_edges], axis=1)
        for name in ("x", "y"):
            source[name] = np.concatenate([grown_from[name], source[name][old:]])
    source |= changes
    source = {name: value for name, value in source.items() if value is not None}
    partita.ingest({**source, "num_nodes": np.array(nodes)}, path)
    return source


def exported(run: Path, out: Path) -> Any:
    partita.export_model(run, out)
    spec = importlib.util.spec_from_file_location("exported_model", out / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()


def plain(model: Any, store: Path) -> Tensor:
    data = partita.to_pyg(store)
    with torch.no_grad():
        return model(data.x.to(next(model.parameters()).dtype), data.edge_index)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("stores")
    first = graph(made / "trained", 100, 1)
    partita.partition(made / "trained", made / "parts", parts=2, algorithm="random")
    graph(made / "grown", 110, 2, grown_from=first)
    graph(made / "another", 70, 3)
    graph(made / "unlabeled", 60, 4, y=None)
    graph(made / "wide", 60, 5, x=np.ones((60, FEATURES + 1), np.float32))
    graph(made / "strange", 60, 6, y=np.arange(60) % (CLASSES + 2))
    train(made / "trained", made / "run")
    return made


def train(store: Path, run: Path, **settings: Any) -> None:
    chosen = {"layers": 2, "hidden": 8, "fanout": (4, 3), "batch_size": 32, "epochs": 1, "threads": 1, **settings}
    partita.Trainer(store, out=run, **chosen).fit()


@pytest.mark.parametrize("name", ["trained", "parts", "grown", "another", "unlabeled"])
def test_predictions_on_any_store_are_those_of_plain_pyg(folder, tmp_path, name) -> None:
    found = partita.predict(folder / "run", store=folder / name, logits=True)
    assert found.ids.tolist() == list(range(len(found)))  # in the order of ingest
    expected = plain(exported(folder / "run", tmp_path / "model"), folder / name)
    torch.testing.assert_close(torch.from_numpy(found.logits.copy()), expected, rtol=1e-5, atol=1e-5)
    assert found.predicted.tolist() == expected.argmax(1).tolist()
    assert bool(found.notes) == (name != "trained")
    if name == "unlabeled":
        with pytest.raises(RunError, match="has no labels"):
            partita.evaluate(folder / "run", store=folder / name)
    else:
        judged = partita.evaluate(folder / "run", store=folder / name, split="all")
        assert judged["nodes"] == len(found)


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("sage", {}),
        ("sage", {"aggregator": "max"}),
        ("gcn", {}),
        ("gat", {"heads": 2, "activation": "elu"}),
        ("gin", {}),
    ],
)
def test_every_layer_and_normalization_is_exported(folder, tmp_path, model, options, norm) -> None:
    train(folder / "trained", tmp_path / "run", model=model, norm=norm, normalize_features=norm == "layer", **options)
    loaded = exported(tmp_path / "run", tmp_path / "model")
    for name in ("trained", "parts", "grown", "another"):
        found = partita.predict(tmp_path / "run", store=folder / name, logits=True)
        expected = plain(loaded, folder / name)
        torch.testing.assert_close(torch.from_numpy(found.logits.copy()), expected, rtol=1e-5, atol=1e-5)


def test_double_precision_is_kept(folder, tmp_path) -> None:
    train(folder / "trained", tmp_path / "run", precision="float64")
    found = partita.predict(tmp_path / "run", store=folder / "grown", logits=True)
    expected = plain(exported(tmp_path / "run", tmp_path / "model"), folder / "grown")
    assert expected.dtype == torch.float64
    torch.testing.assert_close(torch.from_numpy(found.logits.copy()).double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"model": "mlp"}, "'mlp'"),
        ({"residual": True, "layers": 3, "fanout": 3}, "residual"),
        ({"model": "pyg:GATv2Conv"}, "pyg"),
    ],
)
def test_what_is_not_exported_is_said(folder, tmp_path, settings, what) -> None:
    train(folder / "trained", tmp_path / "run", **settings)
    with pytest.raises(ConfigError, match=what + ".*Use partita predict"):
        partita.export_model(tmp_path / "run", tmp_path / "model")
    assert len(partita.predict(tmp_path / "run", store=folder / "another")) == 70


def test_features_of_other_names_are_refused_and_classes_are_matched_by_name(tmp_path) -> None:
    edges = tmp_path / "edges.csv"
    edges.write_text("src,dst\n" + "".join(f"{v},{(v * 7 + 1) % 40}\n" for v in range(40)))
    tables = {
        "trained": ("id,age,height,label", "xyz"), "renamed": ("id,age,weight,label", "xyz"),
        "reordered": ("id,height,age,label", "xyz"), "fewer": ("id,age,height,label", "zy"),
    }  # fmt: skip
    for name, (header, classes) in tables.items():
        lines = [f"{v},{v / 40},{v % 9},{classes[v % len(classes)]}\n" for v in range(40)]
        (tmp_path / f"{name}.csv").write_text(header + "\n" + "".join(lines))
        partita.ingest(edges, tmp_path / name, nodes=tmp_path / f"{name}.csv", label_column="label")
    train(tmp_path / "trained", tmp_path / "run")
    with pytest.raises(RunError, match=r"feature 1 is 'weight', in training 'height'.*--like"):
        partita.predict(tmp_path / "run", store=tmp_path / "renamed")
    with pytest.raises(RunError, match="in another order than in training"):
        partita.predict(tmp_path / "run", store=tmp_path / "reordered")
    found = partita.predict(tmp_path / "run", store=tmp_path / "fewer", labels=True)
    assert found.class_names == ["x", "y", "z"]
    assert found.labels.tolist() == [("z", "y")[v % 2] for v in range(40)]
    judged = partita.evaluate(tmp_path / "run", store=tmp_path / "fewer", split="all")
    assert judged["accuracy"] == pytest.approx(np.mean(found.labels == found.predicted))
    for kind in ("csv", "parquet"):
        out = tmp_path / f"out.{kind}"
        partita.predict(tmp_path / "run", store=tmp_path / "fewer", out=out, probabilities=True, labels=True)
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["node", "prediction", "probability", "probabilities", "label"]
    first = (tmp_path / "out.csv").read_text().splitlines()[0]
    assert first.replace('"', "") == "node,prediction,probability,probability_x,probability_y,probability_z,label"


def test_what_does_not_fit_is_said(folder, tmp_path) -> None:
    run = folder / "run"
    with pytest.raises(RunError, match=rf"has {FEATURES + 1} features, but the model was trained on {FEATURES}"):
        partita.predict(run, store=folder / "wide")
    partita.predict(run, store=folder / "strange")  # its labels are not read
    with pytest.raises(RunError, match="classes that the model does not know: '3', '4'"):
        partita.evaluate(run, store=folder / "strange")
    for call in (partita.evaluate, partita.predict):
        with pytest.raises(ConfigError, match="memory_limit"):
            call(run, memory_limit="many")
    with pytest.raises(ConfigError, match="holds embeddings and nothing else"):
        partita.predict(run, out=tmp_path / "e.npy")


def test_arrays_and_files_hold_the_same(folder, tmp_path) -> None:
    options = {"logits": True, "labels": True, "splits": True, "embeddings": True, "store": folder / "parts"}
    found = partita.predict(folder / "run", **options)
    assert found.probabilities.shape == found.logits.shape == (100, CLASSES)
    np.testing.assert_allclose(found.probabilities.sum(1), 1, rtol=1e-5)
    y = partita.to_pyg(folder / "trained").y
    assert [int(label) for label in found.labels] == y.tolist()
    assert set(found.splits) == {"train", "val", "test"}
    partita.predict(folder / "run", out=tmp_path / "e.npy", embeddings=True, store=folder / "parts")
    np.testing.assert_array_equal(np.load(tmp_path / "e.npy"), found.embeddings)


def test_features_are_standardized_as_in_training(tmp_path) -> None:
    random = np.random.default_rng(0)
    rows = {"trained": random.normal(50, 9, (40, 2)), "raw": random.normal(60, 5, (40, 2))}
    rows["alike"] = rows["raw"]
    settings = {"trained": {"standardize": True}, "raw": {}, "alike": {"like": tmp_path / "trained"}}
    edges = tmp_path / "edges.csv"
    edges.write_text("src,dst\n" + "".join(f"{v},{(v * 7 + 1) % 40}\n" for v in range(40)))
    for name, options in settings.items():
        nodes = tmp_path / f"{name}.csv"
        lines = [f"{v},{a:.4f},{b:.4f},{'xyz'[v % 3]}\n" for v, (a, b) in enumerate(rows[name])]
        nodes.write_text("id,age,height,label\n" + "".join(lines))
        partita.ingest(edges, tmp_path / name, nodes=nodes, label_column="label", **options)
    train(tmp_path / "trained", tmp_path / "run")
    raw, alike = (partita.predict(tmp_path / "run", store=tmp_path / name, logits=True) for name in ("raw", "alike"))
    np.testing.assert_array_equal(raw.logits, alike.logits)
    assert any("standardized" in note for note in raw.notes)


def test_numbers_are_exported_in_their_units(tmp_path) -> None:
    graph(tmp_path / "g", 60, 9, y=np.random.default_rng(1).normal(1025, 17, 60).astype(np.float32))
    train(tmp_path / "g", tmp_path / "run", epochs=3)
    found = partita.predict(tmp_path / "run")
    expected = plain(exported(tmp_path / "run", tmp_path / "model"), tmp_path / "g")
    assert expected.mean() > 900
    torch.testing.assert_close(torch.from_numpy(found.predicted.copy()), expected[:, 0], rtol=1e-5, atol=1e-3)


def test_two_workers_say_the_same(folder) -> None:
    one, two = (
        partita.predict(folder / "run", store=folder / "parts", logits=True, embeddings=True, workers=workers)
        for workers in (1, 2)
    )
    np.testing.assert_array_equal(one.ids, two.ids)
    np.testing.assert_allclose(one.logits, two.logits, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(one.embeddings, two.embeddings, rtol=1e-6, atol=1e-6)
