"""Exported models of typed graphs, and of those that read edges: in plain PyG they say what ``predict`` says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typed_graphs import TYPES, typed_store

import partita
from partita.core.errors import ConfigError

pytest.importorskip("torch_geometric")

SETTINGS = {"layers": 2, "hidden": 8, "fanout": (3, 2), "batch_size": 30, "epochs": 2, "precision": "float64"}


def exported(run: Path, out: Path) -> Any:
    partita.export_model(run, out)
    spec = importlib.util.spec_from_file_location("exported_model", out / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("typed") / "g"
    typed_store(path, 120)
    return path


@pytest.fixture(scope="module")
def untyped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, random = tmp_path_factory.mktemp("edges") / "g", np.random.default_rng(3)
    partita.ingest(
        {
            "edge_index": random.integers(0, 80, (2, 400)),
            "x": random.normal(size=(80, 6)).astype(np.float32),
            "y": random.integers(0, 3, 80),
            "edge_weight": random.random(400).astype(np.float32),
            "edge_attr": random.normal(size=(400, 4)).astype(np.float32),
            "num_nodes": np.array(80),
        },
        path,
    )
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"model": "rgcn"},
        {"model": "rgcn", "model_options": {"bases": 2}, "normalize_features": True},
        {"model": "hetero-sage"},
        {"model": "hetero-sage", "aggregator": "sum", "norm": "none"},
        {"model": "rgat", "heads": 2, "activation": "elu"},
        {"model": "sage"},
        {"model": "gat", "heads": 2},
        {"model": "gatv2", "heads": 2},
        {"model": "gine"},
        {"model": "transformer", "heads": 2},
        {"model": "graphconv", "edge_weights": True},
    ],
    ids=str,
)
def test_models_of_typed_graphs_say_in_pyg_what_predict_says(typed, tmp_path, options) -> None:
    partita.Trainer(typed, out=tmp_path / "run", **{**SETTINGS, **options}).fit()
    module = exported(tmp_path / "run", tmp_path / "model")
    assert tuple(module.NODE_TYPES) == TYPES
    model, store = module.load(), partita.open(typed)
    x, index, weight, attr = {}, {}, {}, {}
    for name in TYPES:
        rows = store.x_of(name)
        of_type = len(store.nodes_of(name))
        x[name] = torch.ones(of_type, 1).double() if rows is None else torch.from_numpy(np.array(rows)).double()
    src, dst = np.array(store.indices), np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    for number, relation in enumerate(store.schema.relations):
        at = np.asarray(store.edge_type) == number
        name = (relation.source, relation.name, relation.target)
        index[name] = torch.from_numpy(np.stack([store.type_rows(src[at]), store.type_rows(dst[at])])).long()
        weight[name] = torch.from_numpy(np.array(store.edge_weight)[at]).double()
        attr[name] = torch.from_numpy(np.array(store.edge_attr)[at]).double()
    kind = options["model"]
    more = [attr] if kind in ("gatv2", "gine", "transformer") else [weight] if kind == "graphconv" else []
    with torch.no_grad():
        found = model(x, index, *more)
    predicted = partita.predict(tmp_path / "run", node_type="paper", logits=True)
    places = {node: at for at, node in enumerate(store.to_original(store.nodes_of("paper")).tolist())}
    wanted = torch.from_numpy(np.asarray(predicted.logits).astype(np.float64))
    rows = found["paper"][[places[int(node)] for node in predicted.ids]]
    torch.testing.assert_close(rows, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "column"),
    [
        ({"model": "gatv2", "heads": 2}, "edge_attr"),
        ({"model": "gine"}, "edge_attr"),
        ({"model": "transformer", "heads": 2}, "edge_attr"),
        ({"model": "graphconv", "edge_weights": True}, "edge_weight"),
        ({"model": "graphconv", "edge_weights": True, "aggregator": "mean"}, "edge_weight"),
        ({"model": "gcn", "edge_weights": True}, "edge_weight"),
    ],
    ids=str,
)
def test_models_that_read_edges_say_in_pyg_what_predict_says(untyped, tmp_path, options, column) -> None:
    partita.Trainer(untyped, out=tmp_path / "run", **{**SETTINGS, **options}).fit()
    model = exported(tmp_path / "run", tmp_path / "model").load()
    data = partita.to_pyg(untyped)
    with torch.no_grad():
        found = model(data.x.double(), data.edge_index, data[column].double())
    wanted = torch.from_numpy(partita.predict(tmp_path / "run", logits=True).logits.astype(np.float64))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"model": "hgt"}, "layer 'hgt' has no equal"),
        ({"model": "rgcn", "residual": True, "layers": 3, "fanout": 2}, "residual"),
        ({"model": "sage", "edge_weights": True}, "layer 'sage' has no equal"),
    ],
)
def test_what_has_no_equal_is_said(typed, tmp_path, options, what) -> None:
    partita.Trainer(typed, out=tmp_path / "run", **{**SETTINGS, **options}).fit()
    with pytest.raises(ConfigError, match=what + ".*Use partita predict"):
        partita.export_model(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()
