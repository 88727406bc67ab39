"""Runs that leave their strategy open: workers plan before they train, and again when a plan was wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file
from timed_stores import stored_with_times

import partita
from partita.comm.launch import launch
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.plan import STAGES, Plan
from partita.parallel.strategies import STRATEGIES
from partita.plan.links import Curve, Links
from partita.testing.graphs import small_random_store
from partita.train.team import PURPOSES

pytestmark = pytest.mark.usefixtures("libraries")

SETTINGS = {
    "layers": 2, "hidden": 16, "fanout": (4, 3), "batch_size": 40, "epochs": 4, "precision": "float64", "dropout": 0.5,
    "eval_every": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    small_random_store(folder / "whole", 300, 2500, undirected=True, num_features=7)
    partita.partition(folder / "whole", folder / "two", parts=2)
    return folder / "two"


@pytest.fixture(scope="module")
def runs(store, tmp_path_factory) -> tuple[Path, Plan, dict, dict]:
    out = tmp_path_factory.mktemp("runs")
    found = launch(
        "planned:train_planned", 2, arguments={"store": str(store), "out": str(out), "settings": SETTINGS},
        purposes=PURPOSES,
    )  # fmt: skip
    assert found["own_model_is_as_it_was"]
    return out, Plan.from_json(found["plan"]), found["records"], found["approximate"]


def model_of(run: Path) -> dict[str, np.ndarray]:
    latest = sorted(path for path in (run / "checkpoints").iterdir() if not path.name.startswith("."))[-1]
    return load_file(latest / "model.safetensors")


def test_all_strategies_come_into_question(runs):
    plan = runs[1]
    assert {each.name for each in plan.candidates} >= set(STRATEGIES)
    assert plan.best.tried_steps > 0
    totals = [each.epoch.total for each in plan.candidates]
    assert totals == sorted(totals)
    assert min(totals) > 0


def test_of_planning_nothing_is_left(runs):
    """The same bytes as a run that names the strategy: trials draw nothing, and change no model."""
    out, _, records, _ = runs
    planned, named = model_of(out / "planned"), model_of(out / "named")
    assert all(np.array_equal(planned[name], named[name]) for name in named)
    assert records["planned"]["counts"] == records["named"]["counts"]
    sent = [{**records[run]["traffic_bytes"], "metadata": 0} for run in ("planned", "named")]
    assert sent[0] == sent[1]
    assert "plan" not in records["named"]


def test_estimated_beside_measured(runs):
    out, plan, records, _ = runs
    kept = records["planned"]["plan"]
    assert kept["strategy"] in {each.name for each in plan.candidates}
    for name in ("estimated_epoch_seconds", "measured_epoch_seconds"):
        assert set(kept[name]) == {*STAGES, "total"}
    for name in ("sample", "compute", "total"):
        assert kept["measured_epoch_seconds"][name] > 0
    events = [json.loads(line) for line in (out / "planned" / "metrics.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "plan"


def test_a_wrong_plan_is_made_again(runs):
    """The strategy changes between two epochs; the model is that of one strategy all the time."""
    out, _, records, _ = runs
    switches = records["auto"]["plan"]["switches"]
    assert switches[0]["from"] == "gdp"
    assert switches[0]["to"] == "dnp"
    events = [json.loads(line) for line in (out / "auto" / "metrics.jsonl").read_text().splitlines()]
    said = [event["text"] for event in events if event["event"] == "note"]
    assert "instead of" in said[0]
    changed = [event for event in events if event["event"] == "strategy"]
    assert [event["to"] for event in changed] == [switch["to"] for switch in switches]
    config = yaml.safe_load((out / "auto" / "config.yaml").read_text())
    assert config["strategy"] == switches[-1]["to"]
    found, expected = model_of(out / "auto"), model_of(out / "named")
    for name, value in expected.items():
        assert np.abs(found[name] - value).max() <= 1e-9 * np.abs(value).max(), name


def test_a_wrong_plan_is_followed_if_asked_for(runs):
    assert "switches" not in runs[2]["never"]["plan"]
    assert runs[2]["never"]["placements"] == "direct,data,data"


def test_isolated_training_is_chosen_if_that_is_allowed(runs):
    """There are two parts for two workers: grappa needs four, sdt-gnn does with two."""
    approximate = Plan.from_json(runs[3])
    assert {each.name for each in approximate.candidates if not each.exact} == {"sdt-gnn"}
    assert "parts" in approximate.refused["grappa"]
    assert not approximate.approximate
    record = runs[2]["approximate"]
    assert ("views" in record) == (not approximate.best.exact)
    assert record["plan"]["strategy"] in {each.name for each in approximate.candidates}
    assert all(each.exact for each in runs[1].candidates)


def test_a_plan_in_a_file(runs, store, tmp_path):
    plan = runs[1]
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    assert Plan.load(tmp_path / "plan.json") == plan
    (tmp_path / "older.json").write_text((tmp_path / "plan.json").read_text().replace('"seed_split"', '"deal"'))
    assert '"deal"' in (tmp_path / "older.json").read_text()
    assert Plan.load(tmp_path / "older.json") == plan
    plan.check(plan.made_for)
    with pytest.raises(ConfigError, match="made for allow exact, this run has approximate"):
        plan.check({**plan.made_for, "allow": "approximate"})
    summary = partita.Trainer.launch(
        store, out=tmp_path / "followed", plan=plan, workers=2, replan="never", **{**SETTINGS, "epochs": 1}
    )  # fmt: skip
    assert summary.record["plan"]["strategy"] == plan.best.name
    with pytest.raises(ConfigError, match="made for workers 2, this run has 1"):
        partita.Trainer(store, out=tmp_path / "run", plan=plan, **SETTINGS)
    with pytest.raises(ConfigError, match="and a plan are both given"):
        partita.Trainer(store, out=tmp_path / "run", plan=plan, strategy="gdp", **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_a_plan_for_hosts_that_are_elsewhere(store, tmp_path):
    partita.partition(store, tmp_path / "four", parts="2x2")
    curves = {link: Curve((1e3, 1e6), (1e-5, 1e-2)) for link in ("same_host", "other_host")}
    links = Links(curves, curves, 2, 2, {}, "2026-01-01T00:00:00+00:00")
    config = Config.make({**SETTINGS, "workers": 2}, where="test")
    plan = partita.make_plan(tmp_path / "four", config, hosts=2, links=links)
    assert plan.made_for["workers"] == 4
    assert {"gdp", "dnp", "dnp@workers+data@hosts"} <= {each.name for each in plan.candidates}
    assert not any(each.tried_steps for each in plan.candidates)
    with pytest.raises(ConfigError, match="links between 2 hosts"):
        partita.make_plan(tmp_path / "four", config, hosts=2)


def test_one_worker_plans_nothing(store, tmp_path):
    trainer = partita.Trainer(store, out=tmp_path / "run", **SETTINGS)
    assert trainer.plan is None
    assert str(trainer.job.strategy) == "direct,data,data"


@pytest.mark.parametrize("typed", [False, True])
def test_graphs_with_times(tmp_path, typed):
    """Strategies are chosen among as in other graphs, and changed; losses stay what they are."""
    store = stored_with_times(tmp_path, typed=typed)
    settings = {**SETTINGS, "epochs": 3, "threads": 1, **({"model": "rgcn"} if typed else {})}
    found = launch(
        "planned:train_at_times", 2, purposes=PURPOSES,
        arguments={"store": str(store.path), "out": str(tmp_path), "settings": settings},
    )  # fmt: skip
    plan, records = Plan.from_json(found["plan"]), found["records"]
    assert {each.name for each in plan.candidates} >= {"gdp", "dnp"}
    assert plan.best.tried_steps > 0
    assert plan.made_for["temporal_strategy"] == "auto"
    assert records["planned"]["plan"]["strategy"] in {each.name for each in plan.candidates}
    assert records["wrong"]["plan"]["switches"][0]["to"] == "dnp"
    wanted = losses_of(tmp_path / "gdp")
    for name in ("planned", "wrong"):
        assert losses_of(tmp_path / name) == pytest.approx(wanted, rel=1e-9)


def losses_of(run: Path) -> list[float]:
    events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event["event"] == "epoch"]
