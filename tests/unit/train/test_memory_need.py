"""Input rows are in the estimate where they are copied before they are summed."""

from __future__ import annotations

import json

from partita.sample.samplers import NodeWise
from partita.testing.graphs import small_random_store
from partita.train.trainer import Trainer

NODES, COLUMNS = 300, 2000


def test_wide_rows_are_counted_where_all_neighbors_are_taken(tmp_path, monkeypatch) -> None:
    store = small_random_store(tmp_path / "g", NODES, 3000, num_features=COLUMNS, num_classes=2)

    def activations(name: str) -> int:
        settings = {"layers": 1, "fanout": "-1", "batch_size": 0, "epochs": 1, "threads": 1, "prefetch": 0}
        Trainer(store, out=tmp_path / name, **settings).fit()
        return json.loads((tmp_path / name / "run.json").read_text())["memory"]["parts"]["activations"]

    copied = activations("copied")
    monkeypatch.setattr(NodeWise, "takes_all", lambda self, layer: False)
    assert copied - activations("by_id") == 4 * NODES * COLUMNS
