"""Runs on features stored as small integers: the same bytes as on float32 features of the same values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from on_workers import train_on_workers

import partita
from partita.graph.small import BITS
from partita.graph.store import GraphStore
from partita.graph.writer import StoreWriter
from partita.isolated.views import PartView
from partita.partitioning.shards import shard
from partita.testing.graphs import small_random_store

pytestmark = pytest.mark.usefixtures("libraries")

SETTINGS = {"layers": 2, "hidden": 8, "fanout": (3, 2), "batch_size": 40, "epochs": 2, "threads": 1, "eval_every": 2}
NODES = 200
FROM_FILES = {"feature_memory": 9 * NODES + 3000, "look_ahead": 3}
# Sums of scaled rows that lie in place round a factor and a row in one; GAT has no such sums.
SCALED = {"normalize_features": True, "model": "gat"}
WAYS = {
    "plain": {},
    "gcn": {"model": "gcn", "input_dropout": 0.3},
    "gat": {"model": "gat"},
    "one layer": {"layers": 1, "fanout": (3,)},
    "scaled": SCALED,
    "cached": {"cache": "2000"},
    "from files": FROM_FILES,
    "scaled from files": {**FROM_FILES, **SCALED},
}


def digest(run: Path) -> bytes:
    latest = max((run / "checkpoints").glob("epoch-*"))
    return (latest / "model.safetensors").read_bytes()


def float_copy(store: GraphStore, path: Path) -> GraphStore:
    """The same store with the values in place of small integers."""
    with StoreWriter(path) as writer:
        for name in store.columns:
            if not name.startswith("levels_"):
                levels = store.levels_of(name)
                column = store.column(name)
                writer.write(name, column if levels is None else levels.values(column))
        return GraphStore.open(writer.finish_like(store.metadata, {}))


@pytest.fixture(scope="module", params=list(BITS))
def stores(request, tmp_path_factory) -> tuple[GraphStore, GraphStore]:
    folder = tmp_path_factory.mktemp("small")
    small_random_store(folder / "g", NODES, 900, num_features=7, num_classes=3, dtype=request.param)
    partita.partition(folder / "g", folder / "parts", parts=2, algorithm="random")
    small = GraphStore.open(folder / "parts")
    assert small.levels_of("x").dtype == request.param
    return small, float_copy(small, folder / "copy")


@pytest.mark.parametrize("way", WAYS)
def test_the_same_bytes(stores, tmp_path, way) -> None:
    found = [
        partita.Trainer(store, out=tmp_path / store.path.name, **{**SETTINGS, **WAYS[way]}).fit() for store in stores
    ]
    assert digest(tmp_path / "parts") == digest(tmp_path / "copy")
    assert found[0].metrics == found[1].metrics


def test_on_two_workers(stores, tmp_path) -> None:
    strategies = ("gdp", "snp", "dnp", "gsplit", "nfp")
    for store in stores:
        runs = {tmp_path / f"{store.path.name}-{each}": {**SETTINGS, "strategy": each} for each in strategies}
        train_on_workers(store.path, 2, runs)
    for each in strategies:
        assert digest(tmp_path / f"parts-{each}") == digest(tmp_path / f"copy-{each}"), each


@pytest.mark.parametrize("normalize", [False, True])
def test_views(stores, normalize) -> None:
    found = [PartView.load(store, [0], "one-hop").inputs(normalize=normalize) for store in stores]
    ids = torch.arange(found[0].x.shape[0])
    assert torch.equal(found[0].read(ids), found[1].read(ids))


def test_views_of_shards(stores, tmp_path) -> None:
    small, copy = stores
    parts = [
        GraphStore.open(shard(store, tmp_path / store.path.name, host=0, hosts=2, hot_bytes=10**5).path)
        for store in (small, copy)
    ]
    found = [PartView.load(part, [0], "one-hop").inputs() for part in parts]
    ids = torch.arange(found[0].x.shape[0])
    assert torch.equal(found[0].read(ids), found[1].read(ids))
    assert found[0].x.dtype in (torch.int8, torch.uint8)


@pytest.mark.parametrize("way", ["plain", "one layer", "scaled"])
def test_predictions(stores, tmp_path, way) -> None:
    """On either store, whichever the run was trained on."""
    partita.Trainer(stores[0], out=tmp_path / "run", **{**SETTINGS, **WAYS[way]}).fit()
    wanted = {"logits": True, "embeddings": way != "one layer"}
    found = [partita.predict(tmp_path / "run", store=each.path, **wanted) for each in stores]
    assert np.array_equal(found[0].logits, found[1].logits)
    if wanted["embeddings"]:
        assert np.array_equal(found[0].embeddings, found[1].embeddings)
