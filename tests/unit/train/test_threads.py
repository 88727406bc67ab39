"""A run learns the same on any number of threads."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import partita
from partita.graph.store import GraphStore
from partita.kernels import threads


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    path = partita.generate_rmat(
        tmp_path_factory.mktemp("stores") / "g", scale=11, edge_factor=8, undirected=True, num_features=64,
        num_classes=5, split=(0.5, 0.25, 0.25),
    )  # fmt: skip
    return partita.open(str(path))


@pytest.mark.parametrize("model", ["sage", "gcn", "gat"])
def test_losses_do_not_depend_on_the_number_of_threads(tmp_path, store, model, monkeypatch) -> None:
    ranges: list[int] = []

    def run(kernel, bounds):
        ranges.append(len(bounds) - 1)
        undisturbed(kernel, bounds)

    undisturbed = threads.run
    monkeypatch.setattr(threads, "run", run)
    before, found = torch.get_num_threads(), []
    for count in (1, 2, 4):
        ranges.clear()
        out = tmp_path / str(count)
        partita.Trainer(
            store, out=out, model=model, layers=2, hidden=64, fanout="10,10", batch_size=512, epochs=2,
            precision="float64", threads=count,
        ).fit()  # fmt: skip
        assert max(ranges) == count
        events = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        found.append([(event["loss"], event["val_loss"]) for event in events if event["event"] == "epoch"])
    assert torch.get_num_threads() == before
    assert len(found[0]) == 2
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-9, atol=1e-9)
