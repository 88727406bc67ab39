"""Accuracy on real graphs: quick guards of what docs/accuracy.md claims."""

from __future__ import annotations

import statistics

import pytest

import partita

GCN = {
    "model": "gcn", "layers": 2, "hidden": 16, "norm": "none", "fanout": -1, "batch_size": 10**9, "prefetch": 0,
    "dropout": 0.5, "input_dropout": 0.5, "normalize_features": True, "lr": 0.01, "weight_decay": 5e-4,
    "epochs": 200, "patience": 50,
}  # fmt: skip
GAT = GCN | {
    "model": "gat", "hidden": 64, "heads": 8, "activation": "elu", "dropout": 0.6, "input_dropout": 0.6,
    "attn_dropout": 0.6, "lr": 0.005, "epochs": 400, "patience": 100,
}  # fmt: skip


def accuracy(store, out, **settings) -> float:
    return partita.Trainer(store, out=out, **settings).fit().metrics["test"]["accuracy"]


@pytest.mark.data
def test_gcn_on_cora(tmp_path, data_folder) -> None:
    partita.ingest(data_folder / "cora.npz", tmp_path / "cora")
    assert accuracy(tmp_path / "cora", tmp_path / "run", **GCN) >= 0.79


@pytest.mark.data
def test_sampled_sage_uses_the_graph(tmp_path, data_folder) -> None:
    # A linear model on the features alone reaches 50.9 % on this graph's split, one on two hops of neighbors 68.4 %.
    partita.ingest(data_folder / "oewn2024.npz", tmp_path / "words", undirected=True)
    reached = accuracy(
        tmp_path / "words", tmp_path / "run", layers=2, hidden=128, fanout="10,10", epochs=8, batch_size=512, lr=0.005
    )
    assert reached >= 0.62


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("settings", "least"), [(GCN, 0.80), (GAT, 0.81)], ids=["gcn", "gat"])
def test_mean_of_five_seeds_on_cora(tmp_path, data_folder, settings, least) -> None:
    partita.ingest(data_folder / "cora.npz", tmp_path / "cora")
    found = [accuracy(tmp_path / "cora", tmp_path / f"run-{seed}", **settings, seed=seed) for seed in range(5)]
    assert statistics.mean(found) >= least
