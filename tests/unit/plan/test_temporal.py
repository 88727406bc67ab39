"""Plans for runs that sample not later than the times of seeds: what a run then counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_up_machine import Machine, best, planned, require_counted
from on_workers import train_on_workers
from timed_stores import WIDTH, N, stored_with_times

import partita
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.mesh import Mesh
from partita.graph.store import GraphStore
from partita.nn.model import build_model
from partita.plan.candidates import candidates
from partita.plan.choose import made_for
from partita.plan.described import described_rates
from partita.plan.dryrun import DryRun
from partita.plan.machine import Machine as Described

MACHINE = Path(__file__).parents[3] / "examples" / "machines" / "g4dn.metal.yaml"
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
    "one time": {"time_cutoff": "batch"},
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
        found = require_counted(plan, name, record)
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


def test_machines_that_are_not_here(store) -> None:
    """They read a row once, and write it again for each time at which it is asked for."""
    config, mesh = Config.make({**RUN, "workers": 2}, where="test"), Mesh.of(0, 2, 2)
    machine = Described.load(MACHINE)
    plan = partita.make_plan(store.path, config, machine=machine)
    assert {each.name for each in plan.candidates} >= {*NAMED, "nfp"}
    assert "by time on CPUs only" in " ".join(plan.notes)
    model = build_model("sage", in_width=WIDTH, hidden=8, out_width=2, layers=2)
    one, other = (described_rates(machine, config, model, mesh, by_time=each) for each in (True, False))
    byte = 1 / machine.processor.memory_bandwidth.value
    assert one.stages[0].source - other.stages[0].source == pytest.approx((8 + 2 * 4 * WIDTH) * byte)
    assert one.stages[1] == other.stages[1]


SPLIT = {"split_times": "50,58"}
LINKS: dict[str, dict[str, Any]] = {
    "edges": {},
    "one time": {"time_cutoff": "batch", "negative_sampler": "degree"},
    "learnt rows": {"embed": 4, "topology": "partitioned"},
}


@pytest.mark.parametrize("way", LINKS)
def test_links_at_times(store, tmp_path, way) -> None:
    """Edges, each with its negatives, at times of their own, or all of a batch at one."""
    check(store, tmp_path, {**RUN, "task": "links", **SPLIT, "negatives": 3, "batch_size": 60, **LINKS[way]}, NAMED)


def test_workers_measure_and_try_out_links_at_times(store) -> None:
    settings = {**RUN, "task": "links", **SPLIT, "negatives": 3, "workers": 2, "threads": 1, "epochs": 1}
    plan = partita.make_plan(store.path, Config.make(settings, where="test"))
    assert {each.name for each in plan.candidates} >= set(NAMED)
    assert any(each.tried_steps for each in plan.candidates)
