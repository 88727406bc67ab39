"""Plans that were made here before are found again, and only those."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from partita.config import Config
from partita.core.machine import machine, now
from partita.core.plan import Candidate, Plan, Seconds
from partita.plan.kept import keep_plan, kept_plan, plan_file, same_plan
from partita.plan.links import STALE, Curve, Links
from partita.testing.graphs import small_random_store

FOR = {"store": "a", "workers": 2, "fanout": [3, 2]}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def plan(**changes) -> Plan:
    curve = {"same_host": Curve((1.0, 2.0), (1.0, 2.0))}
    links = Links(curve, curve, 1, 2, **{"machine": machine(), "date": now(), **changes})
    return Plan((Candidate("data,data", "gdp", Seconds(compute=1.0)),), {}, 10, 3, FOR, {}, links.to_json())


def test_it_is_found_again():
    keep_plan(plan(), FOR)
    found = kept_plan(dict(reversed(FOR.items())))
    assert found is not None
    assert found.best == plan().best
    assert [path.name for path in plan_file(FOR).parent.iterdir()] == [plan_file(FOR).name]


@pytest.mark.parametrize("other", [{"store": "b"}, {"workers": 4}, {"fanout": [3, 3]}, {"threads": 1}])
def test_a_plan_of_other_runs_is_none(other):
    keep_plan(plan(), FOR)
    assert kept_plan({**FOR, **other}) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": {**machine(), "cores": 1000}},
        {"machine": {**machine(), "versions": {}}},
        {"date": (datetime.now(UTC) - 2 * STALE).isoformat()},
    ],
    ids=["cores", "versions", "old"],
)
def test_a_plan_of_another_machine_is_none(changes):
    keep_plan(plan(**changes), FOR)
    assert kept_plan(FOR) is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", "not json"])
def test_a_damaged_file_is_none(text):
    keep_plan(plan(), FOR)
    plan_file(FOR).write_text(text)
    assert kept_plan(FOR) is None


def test_a_plan_that_names_code_is_none():
    named = replace(plan(), candidates=(Candidate("x", "module:Name", Seconds(compute=1.0)),))
    keep_plan(named, FOR)
    assert kept_plan(FOR) is None


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep_plan(plan(), FOR)
    assert kept_plan(FOR) is None


def test_the_file_is_a_plan_that_can_be_followed():
    keep_plan(plan(), FOR)
    assert json.loads(plan_file(FOR).read_text())["strategy"] == "gdp"


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"seed": 3, "lr": 0.1, "epochs": 99, "eval_every": 0, "schedule": "cosine", "strategy": "snp"}, True),
        ({"model": "gat", "attn_dropout": 0.5}, False),
        ({"model": "gat"}, False),
        ({"aggregator": "max"}, False),
        ({"edge_weights": True}, False),
        ({"replace": True}, False),
        ({"hidden": 8}, False),
        ({"threads": 1}, False),
        ({"memory_per_worker": "1GiB"}, False),
    ],
)
def test_a_plan_is_for_all_settings_that_a_strategy_may_depend_on(tmp_path, settings, same):
    """Attention dropout, for one, forbids some strategies: a plan made without it may name one of these."""
    store = small_random_store(tmp_path / "store", 30, 100)
    keys = [same_plan(FOR, Config.make(each, where="test"), store) for each in ({}, settings)]
    assert (plan_file(keys[0]) == plan_file(keys[1])) == same
