"""What workers would refuse is refused before they are started."""

from __future__ import annotations

from typing import Any

import pytest

import partita
from partita.comm import local
from partita.config import Config
from partita.core.errors import ConfigError, PartitaError, RunError, StoreError
from partita.graph.store import GraphStore
from partita.testing.graphs import small_random_store
from partita.train.check import check_run


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    return small_random_store(tmp_path_factory.mktemp("stores") / "g", 60, 300)


WRONG = [
    ({"strategy": "gslit"}, "Did you mean 'gsplit'"),
    ({"strategy": "nfp", "model": "gat", "seed_split": "owner"}, "store has 1 part"),
    ({"strategy": "data,data"}, "layers|entries|placements"),
    ({"seed_split": "owner"}, "store has 1 part"),
    ({"preset": "dsp", "cache": "1MiB"}, "store has 1 part"),
    ({"views": "cyclic"}, "store has 1 part, fewer than the 2 workers"),
    ({"norm": "batch"}, "batch normalization"),
    ({"embed": 4, "embed_memory": 10**9, "look_ahead": 5}, "all learnt rows fit into embed_memory"),
    ({"metric": "acuracy"}, "accuracy"),
    ({"model": "pyg:GCN", "model_options": {"dropout": 0.5}}, "the module drops out"),
    ({"model": "pyg:GCN", "strategy": "gsplit", "dropout": 0.0}, "layers of a torch.nn.Module are not known"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=lambda each: str(each)[:40])
def test_a_setting_that_does_not_fit_is_refused_at_once(tmp_path, store, settings, message, monkeypatch) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr(local, "_start", started)
    with pytest.raises(PartitaError, match=message) as error:
        partita.Trainer.launch(store.path, out=tmp_path / "run", workers=2, **settings)
    assert not getattr(error.value, "__notes__", [])  # such as "In worker 0"
    assert not (tmp_path / "run").exists()


def test_store_and_folder_are_looked_at(tmp_path, store) -> None:
    config = Config.make({"workers": 2})
    with pytest.raises(StoreError):
        check_run(tmp_path / "none", tmp_path / "run", config)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(RunError, match="already exists"):
        check_run(store.path, tmp_path / "full", config)
    bare = small_random_store(tmp_path / "bare", 30, 60, num_features=0)
    with pytest.raises(ConfigError, match="no features"):
        check_run(bare.path, tmp_path / "run", config)


@pytest.mark.parametrize("settings", [{}, {"strategy": "gsplit"}, {"views": "cyclic"}, {"strategy": "dnp"}])
def test_what_can_be_trained_passes(tmp_path, store, settings) -> None:
    partita.partition(store, tmp_path / "parts", parts=2, algorithm="random")
    check_run(tmp_path / "parts", tmp_path / "run", Config.make({"workers": 2, **settings}))
    if "views" not in settings:
        check_run(store.path, tmp_path / "run", Config.make({"workers": 2, **settings}))
