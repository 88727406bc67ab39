"""Plans for runs that sample not later than the times of seeds: what a run then counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_up_machine import Machine, best, planned
from on_workers import train_on_workers
from timed_stores import N, stored_with_times

from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.mesh import Mesh
from partita.graph.store import GraphStore
from partita.plan.candidates import candidates
from partita.plan.choose import made_for
from partita.plan.dryrun import DryRun

NAMED = ("gdp", "dnp", "snp", "gsplit")
RUN: dict[str, Any] = {"layers": 2, "fanout": "4,3", "batch_size": 48, "hidden": 8, "dropout": 0.0}
TYPED: dict[str, Any] = {**RUN, "model": "rgcn", "fanout": "3,3"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return stored_with_times(tmp_path_factory.mktemp("times"), typed=False)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return stored_with_times(tmp_path_factory.mktemp("typed"), typed=True)


WAYS: dict[str, dict[str, Any]] = {
    "last": {"temporal_strategy": "last", "topology": "partitioned"},
    "window": {"time_window": "20", "cache": 1500, "cache_policy": "in-degree"},
    "presampled": {"cache": 1500, "cache_policy": "presample", "cache_layout": "partitioned"},
    "files": {"feature_memory": 9 * N + 1600, "look_ahead": 3},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_plan_says_what_a_run_then_counts(store, tmp_path, way) -> None:
    check(store, tmp_path, {**RUN, **WAYS[way]}, (*NAMED, "nfp"))


@pytest.mark.parametrize("way", ["last", "presampled"])
def test_of_typed_graphs(typed, tmp_path, way) -> None:
    check(typed, tmp_path, {**TYPED, **WAYS[way]}, NAMED)


def check(store: GraphStore, folder: Path, settings: dict[str, Any], names: tuple[str, ...]) -> None:
    """Over a whole epoch, of every strategy with a name; the contract tests do it for all, in a step."""
    plan = planned(store, Machine(), **settings)
    assert plan.sampled_steps == plan.steps > 1
    more = {"epochs": 1, "eval_every": 0, "threads": 1}
    records = train_on_workers(store.path, 2, {folder / name: {**settings, **more, "strategy": name} for name in names})
    for name in names:
        record = records[folder / name]
        found = next(found for each, found in plan.found.items() if each.name == name)
        assert found.counts.to_json() == record["counts"], name
        sent = {kind: record["traffic_bytes"][kind] for kind in ("ids", "features", "forward", "backward")}
        assert found.traffic.to_json() == sent, name
        assert found.gradient_bytes == record["traffic_bytes"]["gradients"], name
        if "feature_memory" in settings:
            assert found.files.rows == sum(each["asked"] - each["kept"] for each in record["feature_reads"]) > 0


def test_times_make_a_difference(store) -> None:
    """The same node at two times is computed twice, and its input row is read once."""
    timed, plain = (planned(store, Machine(), **RUN, temporal_strategy=each) for each in ("auto", "none"))
    one, other = (next(found for each, found in plan.found.items() if each.name == "gdp") for plan in (timed, plain))
    assert one.counts.computed_destinations[0] > other.counts.computed_destinations[0]
    assert one.counts.input_rows_read <= 2 * timed.steps * N
    assert best(planned(store, Machine(send=1e-3), **RUN)).name == "gdp"


def test_what_is_not_priced_is_refused(store) -> None:
    for settings, hosts, message in (
        ({"cache": 20_000, "cache_policy": "look-ahead"}, 2, "shards are not sampled by time"),
        ({"model": "gcn"}, 1, "weighs edges by the degrees"),
        ({"sampler": "labor"}, 1, "does not draw by time"),
        ({"device": "cpu", "topology_memory": 10**6}, 1, "read from files"),
    ):
        config = Config.make({**RUN, **settings, "workers": 2 // hosts}, where="test")
        mesh = Mesh.of(0, 2, 2 // hosts)
        with pytest.raises(ConfigError, match=message):
            DryRun(store, config, mesh, candidates(2, mesh))


def test_a_plan_is_for_runs_that_sample_likewise(store) -> None:
    mesh = Mesh.of(0, 2, 2)
    one, other = (made_for(store, Config.make({**RUN, "time_window": each}, where="test"), mesh) for each in ("5", "6"))
    assert one != other
