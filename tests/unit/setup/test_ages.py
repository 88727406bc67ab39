"""Which types of a store have times, and the unit in which the ages of their rows are measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import partita
from partita.config import Config
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.nn.encoder import Encoder
from partita.nn.layers import LAYERS
from partita.nn.model import Model
from partita.setup.ages import age_unit, attach_times, check_ages, dated_types, reads_ages

ALWAYS, NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def store_of(folder: Path, times: list[int], seeds: list[int], **more: np.ndarray) -> GraphStore:
    """Users, as many as ``seeds``, then events of ``times`` that point to the first one."""
    users, nodes = len(seeds), len(seeds) + len(times)
    arrays: dict[str, np.ndarray] = {
        "edge_index": np.stack([users + np.arange(len(times)), np.zeros(len(times), int)]),
        "node_time": np.array([ALWAYS] * users + times),
        "seed_time": np.array(seeds + [ALWAYS] * len(times)),
        "node_type": (np.arange(nodes) >= users).astype(int),
        "edge_type": np.zeros(len(times), int),
        "node_type_names": np.array(["user", "event"]),
        "edge_type_names": np.array(["of"]),
        "y": np.array([0, 1] * users)[:users].tolist() + [-1] * len(times),
        "train_mask": np.arange(nodes) < users - 1,
        "val_mask": np.arange(nodes) == users - 1,
        "x_user": np.ones((users, 2), np.float32),
        "x_event": np.ones((len(times), 3), np.float32),
    }
    np.savez(folder / "g.npz", **{**arrays, **more})
    partita.ingest(folder / "g.npz", folder / "g")
    return GraphStore.open(folder / "g")


@pytest.mark.parametrize(
    ("times", "seeds", "unit"),
    [
        ([10, 40, 45, 49], [50, 30, 999], 7.5),  # of rows at 50, the last time of a seed for training
        ([10, 40, 60, 70], [50, 30, 999], 25.0),  # those that are there by then
        ([10, 40, ALWAYS, NEVER], [50, 30, 999], 25.0),
        ([50, 50, 50, 50, 20], [50, 30, 999], 30.0),  # more than half are new
        ([50, 50], [50, 30, 999], 1.0),
        ([80, 90], [50, 30, 999], 1.0),
        ([ALWAYS, ALWAYS], [50, 30, 999], 1.0),
        ([10, 20, 60], [ALWAYS, ALWAYS, 999], 40.0),  # no seed has a time: at the time of the last row
    ],
)
def test_the_unit_is_the_median_age(tmp_path, times, seeds, unit) -> None:
    store = store_of(tmp_path, times, seeds)
    assert age_unit(store) == unit
    assert dated_types(store) == (("event",) if times[0] != ALWAYS else ())


def test_the_unit_does_not_depend_on_the_order_of_nodes(tmp_path) -> None:
    generator = np.random.default_rng(0)
    store = store_of(tmp_path, generator.integers(0, 10**16, 50).tolist(), [10**16, 5, 7])
    partita.partition(store.path, tmp_path / "two", parts=2, algorithm="random")
    two = GraphStore.open(tmp_path / "two")
    assert two.node_types.offsets.tolist() != store.node_types.offsets.tolist()
    assert age_unit(two) == age_unit(store)
    assert dated_types(two) == ("event",)


def test_times_at_which_all_is_known(tmp_path) -> None:
    model = Model.from_layers(
        [LAYERS.find("sage")(4, 2)], encoder=Encoder((2, 3), 4, ("user", "event"), dated=["event"])
    )
    assert model.encoder is not None
    assert model.encoder.ages is not None
    for times, seeds, latest in (
        ([10, 20], [5, 6, 7], 20),
        ([10, NEVER], [50, 6, 7], 50),
        ([10, 20], [ALWAYS] * 3, 20),
    ):
        folder = tmp_path / str(latest) / str(len(set(seeds)))
        folder.mkdir(parents=True)
        attach_times(model, store_of(folder, times, seeds))
        assert model.encoder.ages.source is not None
        assert model.encoder.ages.source.latest == latest


def test_where_ages_are_read(tmp_path) -> None:
    store = store_of(tmp_path, [10, 20], [50, 30, 40])
    assert reads_ages(Config.make({}), store)
    assert not reads_ages(Config.make({"time_encoding": "none"}), store)
    assert not reads_ages(Config.make({"temporal_strategy": "none"}), store)
    encoder = Encoder((2, 3), 4, ("user", "event"), dated=["event"])
    model = Model.from_layers([LAYERS.find("sage")(4, 2)], encoder=encoder)
    check_ages(Config.make({}), store, model)
    with pytest.raises(ConfigError, match="neighbors are not sampled by time"):
        check_ages(Config.make({"temporal_strategy": "none"}), store, model)
    with pytest.raises(ConfigError, match="neighbors are not sampled by time"):
        reads_ages(Config.make({"temporal_strategy": "none", "time_encoding": "age"}), store)
