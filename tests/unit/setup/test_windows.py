"""How old edges may be: spans as settings have them, and of which relations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import partita
from partita.config import Config
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.sample.temporal import TemporalTopology, Windows
from partita.sample.topology import LocalTopology
from partita.setup.temporal import is_temporal, seed_times, with_times
from partita.setup.windows import windows_of

ALWAYS, NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
DAY = 86_400_000_000


def store_of(path: Path, times: list[Any], *, typed: bool = True) -> GraphStore:
    """Four nodes; edges of the relations a, b and c in turn."""
    count = len(times)
    dates = isinstance(times[0], str)
    arrays: dict[str, Any] = {
        "edge_index": np.stack([np.arange(count) % 4, np.zeros(count, int)]),
        "edge_time": np.array(times, "datetime64[us]" if dates else np.int64),
        "seed_time": np.array(["2026-03-01"] * 4, "datetime64[us]") if dates else np.array([50, 9, NEVER, ALWAYS]),
        "y": np.array([0, 1, 0, 1]),
    }
    if typed:
        arrays |= {"node_type": np.zeros(4, int), "edge_type": np.arange(count) % 3}
        arrays |= {"node_type_names": np.array(["n"]), "edge_type_names": np.array(["a", "b", "c"])}
    np.savez(path.with_suffix(".npz"), **arrays, **{"x_n" if typed else "x": np.ones((4, 2), np.float32)})
    partita.ingest(path.with_suffix(".npz"), path, split=(0.5, 0.25, 0.25))
    return GraphStore.open(path)


def widths(window: Any, store: GraphStore) -> list[int]:
    found = windows_of(Config.make({"time_window": window}), store)
    assert found is not None
    return found.of_relations.tolist()


def test_windows_of_relations(tmp_path) -> None:
    store = store_of(tmp_path / "g", [1, ALWAYS, 3, 4, ALWAYS, NEVER])
    assert windows_of(Config.make({}), store) is None
    assert widths("*=7", store) == [7, -1, 7]  # those of b have no times
    with pytest.raises(ConfigError, match=r"several relations have times.*as 'a=7'; or '\*=7' for all"):
        widths("7", store)
    assert widths("a=7", store) == [7, -1, -1]
    assert widths("n:a:n=0 *=9", store) == [0, -1, 9]
    assert widths({"a": 7, "c": "8"}, store) == [7, -1, 8]
    found = windows_of(Config.make({"time_window": "a=7"}), store)
    assert found is not None
    assert found.latest == 50  # no time is later, but for those that stand for never
    with pytest.raises(ConfigError, match="the edges of 'n:b:n' have no times"):
        widths("b=7", store)
    single = store_of(tmp_path / "single", [1, ALWAYS, ALWAYS])
    assert widths(7, single) == [7, -1, -1]
    with pytest.raises(ConfigError, match="no relation 'd'"):
        widths("d=7", store)
    with pytest.raises(ConfigError, match="30d is a span of dates"):
        widths("a=30d", store)


def test_windows_of_untyped_graphs(tmp_path) -> None:
    store = store_of(tmp_path / "g", [1, ALWAYS, 60], typed=False)
    assert widths(7, store) == [7]
    with pytest.raises(ConfigError, match="the graph has none"):
        widths("a=7", store)
    with pytest.raises(ConfigError, match="no edge is too old"):
        is_temporal(Config.make({"time_window": 7, "temporal_strategy": "none"}), store)


def test_spans_of_dates(tmp_path) -> None:
    store = store_of(tmp_path / "g", ["2026-01-01", "2026-02-01", "NaT"])
    for text, wanted in (("30d", 30 * DAY), ("12h", DAY // 2), ("2w", 14 * DAY), ("5m", DAY // 288), ("10s", 10**7)):
        assert widths(f"*={text}", store) == [wanted, wanted, -1]
    assert widths({"a": DAY}, store) == [DAY, -1, -1]
    partita.partition(store.path, tmp_path / "two", parts=2, algorithm="random")
    assert widths("*=1d", GraphStore.open(tmp_path / "two")) == [DAY, DAY, -1]


@pytest.mark.parametrize(
    "window",
    ["", "d", "-1", "1.5d", "30 days", "1y", 1.5, True, "9" * 19, "9" * 18 + "w", "a=", "=3d", "a=1 a=2", {"a": "x"}],
)
def test_what_is_no_window_is_refused(window) -> None:
    with pytest.raises(ConfigError, match="time_window"):
        Config.make({"time_window": window})


def test_settings_are_written_and_read(tmp_path) -> None:
    for window in ("30d", "100", "a=30d *=2w"):
        config = Config.make({"time_window": window})
        (tmp_path / "run.yaml").write_text(config.to_yaml())
        assert Config.load(tmp_path / "run.yaml") == config


def test_times_at_the_ends_of_64_bits() -> None:
    windows = Windows(torch.tensor([0, 2**60]), 100)
    edge_time = torch.tensor([ALWAYS, ALWAYS + 1, ALWAYS + 5, -7, 0, 100, NEVER])
    bounds = torch.tensor([[0, 7]] * 6)
    times = torch.tensor([ALWAYS, ALWAYS + 1, 0, 100, NEVER, NEVER])
    found = windows.begins(edge_time, bounds, times, torch.tensor([0, 1, 0, 1, 0, 1]), 0)
    assert found.tolist() == [1, 1, 4, 3, 5, 3]


def test_seeds_without_a_time_do_not_see_what_is_never_there(tmp_path) -> None:
    store = store_of(tmp_path / "g", [1, NEVER, 3, NEVER - 1])
    times = seed_times(Config.make({}), store)
    assert times is not None
    topology = with_times(LocalTopology(store, types=True), Config.make({}), store)
    assert isinstance(topology, TemporalTopology)
    at = times.of(torch.arange(4))
    assert (times.of_nodes[torch.from_numpy(store.seed_time == ALWAYS)] == NEVER - 1).all()
    requests = torch.arange(4) * times.slots + int(torch.searchsorted(at, NEVER - 1))
    assert len(topology.at_times(at).sample(requests, 1, -1).indices) == 3
