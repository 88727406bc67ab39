"""``partita plan`` and ``partita measure`` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from commands import as_json, partita

from partita.testing.graphs import small_random_store

pytestmark = pytest.mark.usefixtures("libraries")

SETTINGS = ["--workers", "2", "--layers", "2", "--hidden", "16", "--fanout", "5,5", "--batch-size", "64"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    small_random_store(folder / "whole", 400, 3000, undirected=True)
    as_json("partition", folder / "whole", folder / "two", "--parts", "2")
    return folder / "two"


def test_measured_once_planned_then_trained(store, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert as_json("measure", "--workers", "2")["workers"] == 2
    kept = json.loads((tmp_path / "partita" / "links-1x2.json").read_text())

    done = partita("plan", store, *SETTINGS, "--out", tmp_path / "plan.json")
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["links"] == kept
    assert plan["sampled_steps"] == plan["steps"]
    best = plan["candidates"][0]
    assert best["epoch"]["total"] <= 1.1 * min(each["epoch"]["total"] for each in plan["candidates"])
    assert best["tried_steps"] > 0
    for shown in ("gdp", "dnp", "gsplit", "nfp", "ms", f"--strategy {best['name']}"):
        assert shown in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [best["name"]] in [row[:1] for row in rows]  # whole, however long: nothing is wrapped in a pipe
    assert not any(line != line.rstrip() for line in done.stdout.splitlines())

    followed = ["--plan", tmp_path / "plan.json", "--replan", "never"]
    record = as_json("train", store, "--out", tmp_path / "run", *SETTINGS, *followed)
    assert record["plan"]["strategy"] == plan["strategy"]
    assert record["plan"]["estimated_epoch_seconds"] == best["epoch"]
    assert record["plan"]["measured_epoch_seconds"].keys() == best["epoch"].keys()
    other = [*SETTINGS[:-1], "32", "--plan", tmp_path / "plan.json"]
    assert "made for batch size 64" in partita("train", store, "--out", tmp_path / "no", *other, code=2).stderr
    named = [*SETTINGS, "--strategy", "gdp", "--plan", tmp_path / "plan.json"]
    assert "leave out one" in partita("train", store, "--out", tmp_path / "no", *named, code=2).stderr.lower()
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("how", [[], ["--strategy", "auto"], ["--preset", "apt"]])
def test_the_strategy_is_chosen_before_training(store, tmp_path, how):
    done = partita("train", store, "--out", tmp_path / "run", *SETTINGS, *how, "--epochs", "2", "--eval-every", "0")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["plan"]["strategy"] == "gdp"
    assert "strategy gdp, about" in done.stderr
    assert "too short" in done.stderr
    assert "epoch (gdp)" in done.stdout
    assert record["plan"]["measured_epoch_seconds"]["total"] > 0
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["strategy"] != "auto"


def test_a_run_that_takes_long_is_planned(store, tmp_path):
    """Long as it is foreseen: it stops early, because what it learns from does not get better for ever."""
    long = ["--preset", "apt", "--epochs", "20000", "--patience", "1", "--replan", "never"]
    done = partita("train", store, "--out", tmp_path / "run", *SETTINGS, *long)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["early_stopped"]
    assert "too short" not in done.stderr
    assert f"strategy {record['plan']['strategy']}, about" in done.stderr
    assert set(record["plan"]["estimated_epoch_seconds"]) > {"sample", "exchange", "compute", "total"}


def test_one_worker_needs_no_plan(store, tmp_path):
    record = as_json("train", store, "--out", tmp_path / "run", *SETTINGS[2:], "--strategy", "auto", "--epochs", "1")
    assert "plan" not in record


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--links", "nothing.json"], "there is no such file"),
        (["--machine", "nothing.yaml"], "nothing.yaml: there is no such file"),
        (["--hosts", "2"], "there are no measurements of the links between 2 hosts"),
        (["--out", "nowhere/plan.json"], "there is no such directory"),
        (["--preset", "grappa"], "No such option"),
    ],
)
def test_bad_input_gets_a_message(store, options, message):
    done = partita("plan", store, *SETTINGS, *options, code=2)
    assert message in done.stderr
    assert done.stdout == ""


MACHINES = Path(__file__).parents[2] / "examples" / "machines"


def test_a_machine_that_is_not_here(store, tmp_path):
    """Nothing is measured, and the plan says where the values are from; what is wrong with a file ends with code 2."""
    machine = MACHINES / "p3.8xlarge.yaml"
    plan = as_json("plan", store, *SETTINGS, "--machine", machine, "--out", tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text()) == plan
    assert plan["machine"]["values"]["processor.memory"] == {
        "value": 16e9, "unit": "B", "given": "16 GB", "source": "GSplit, section 6.1: 16 GB",
    }  # fmt: skip
    assert all(each["tried_steps"] == 0 for each in plan["candidates"])
    assert plan["notes"][0].startswith(f"nothing was measured: rates follow from what {machine} says")

    done = partita("plan", store, *SETTINGS, "--machine", machine)
    for shown in ("nothing was measured", "processor.sampling", "data sheet: 900 GB/s", "gdp", "gsplit"):
        assert shown in done.stdout
    assert "Next:" not in done.stdout

    text = machine.read_text()
    for old, new, message in (
        ("  layer_time:", "  layer_times:", "processor.layer_times: unknown key. Did you mean 'layer_time'?"),
        ("value: 16 GB,", "value: 16 GB/s,", "processor.memory: '16 GB/s' is not in B"),
        ("processors: 4", "processors: 1", "processors: 2 workers on a host, and it has 1"),
    ):
        (tmp_path / "bad.yaml").write_text(text.replace(old, new))
        done = partita("plan", store, *SETTINGS, "--machine", tmp_path / "bad.yaml", code=2)
        assert f"{tmp_path / 'bad.yaml'}, {message}" in done.stderr
        assert done.stdout == ""
    links = ["--links", tmp_path / "plan.json"]
    assert partita("plan", store, *SETTINGS, "--machine", machine, *links, code=2).stdout == ""
