"""Runs on a device against runs on the host: the same picks, the same model up to rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import partita
from partita.core.keys import fold
from partita.graph.store import GraphStore
from partita.parallel.on_device import place
from partita.runs.checkpoint import latest_checkpoint
from partita.runs.load import open_rows, open_topology
from partita.sample.device import edge_bytes, on_device
from partita.sample.topology import LocalTopology
from partita.testing.graphs import small_random_store

SETTINGS = {"layers": 2, "hidden": 16, "fanout": "4,3", "batch_size": 200, "epochs": 2, "seed": 5,
    "precision": "float64"}  # fmt: skip
MODELS = [
    {},
    {"aggregator": "max", "input_dropout": 0.2},
    {"model": "gcn", "cache": "64KiB", "normalize_features": True},
    {"model": "gat", "heads": 4, "attn_dropout": 0.3, "topology_cache": "16KiB"},
    {"model": "gin", "optimizer": "sgd", "lr": 0.001, "prefetch": 0},
]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    return small_random_store(tmp_path_factory.mktemp("stores") / "g", 2000, 12000)


def weights(run: Path) -> dict[str, torch.Tensor]:
    latest = latest_checkpoint(run / "checkpoints")
    assert latest is not None
    return load_file(latest / "model.safetensors")


def same(run: Path, other: Path) -> None:
    found = weights(run)
    for name, value in weights(other).items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("more", MODELS, ids=lambda more: more.get("model", "sage"))
def test_a_run_on_the_device_is_that_of_the_host(tmp_path, store, device, more) -> None:
    host = {name: value for name, value in more.items() if name != "topology_cache"}
    partita.Trainer(store, out=tmp_path / "host", **SETTINGS, **host).fit()
    partita.Trainer(store, out=tmp_path / "device", device=device, **SETTINGS, **more).fit()
    same(tmp_path / "device", tmp_path / "host")


def test_bf16_trains(tmp_path, store, device) -> None:
    settings = {**SETTINGS, "precision": "bf16"}
    summary = partita.Trainer(store, out=tmp_path / "run", device=device, **settings).fit()
    assert summary.status == "finished"


@pytest.mark.parametrize("strategy", ["gdp", "nfp"])
def test_two_workers(tmp_path, store, device, strategy) -> None:
    partita.Trainer(store, out=tmp_path / "host", **SETTINGS).fit()
    partita.Trainer.launch(
        store.path, out=tmp_path / "device", device=device, workers=2, strategy=strategy, **SETTINGS
    )  # fmt: skip
    same(tmp_path / "device", tmp_path / "host")


@pytest.mark.parametrize("pin", [True, False])
@pytest.mark.parametrize("share", [0, 3, 1])
def test_edges_in_two_places(store, device, share, pin) -> None:
    local, there = LocalTopology(store), torch.device(device, 0)
    found = on_device(local, there, edge_bytes(local) // share if share else 0, pin=pin)
    dst = torch.randperm(store.num_nodes)[:500].to(local.id_dtype)
    wanted, drawn = local.sample(dst, fold(1, 2), 4), found.sample(dst.to(there), fold(1, 2), 4)
    assert torch.equal(drawn.indptr.cpu(), wanted.indptr)
    assert torch.equal(drawn.indices.cpu(), wanted.indices)


def test_rows_are_pinned_where_they_fit(store, device) -> None:
    config = partita.Config.make(SETTINGS)
    placed = place(
        open_topology(store, config), open_rows(store, config), torch.device(device, 0), workers=1, edges=None, cache=0
    )
    assert placed.rows.home.x.is_pinned()
    assert not placed.notes
