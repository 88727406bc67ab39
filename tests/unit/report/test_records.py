"""What runs have left is read, and what is wrong with it is said."""

from __future__ import annotations

import json
import shutil

import pytest

from partita.core.errors import ConfigError, RunError
from partita.report.page import write_report
from partita.report.records import read_run, read_runs
from partita.runs.folder import RunFolder


def test_all_of_a_run_is_read(run) -> None:
    found = read_run(run)
    assert found.name == "run"
    assert [epoch["epoch"] for epoch in found.epochs] == [0, 1, 2]
    assert found.metrics[0] == "accuracy"
    assert found.task == "classes"
    assert found.settings["hidden"] == 8
    assert {event["ph"] for event in found.trace} >= {"M", "X"}


def test_a_line_half_written_is_left_out(run) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"event": "epoch", "epo')
    assert len(read_run(run).epochs) == 3


def test_a_damaged_line_is_named(run) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([lines[0], "[]", *lines[1:]]))
    with pytest.raises(RunError, match=r"metrics.jsonl, line 2"):
        read_run(run)


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.json"])
def test_a_folder_without_a_run_or_metrics(run, name) -> None:
    (run / name).unlink()
    said = "is not a run folder" if name == "run.json" else "no epoch of it has ended"
    with pytest.raises(RunError, match=said):
        read_run(run)


@pytest.mark.parametrize("text", ["{", "[]", "\udcff"])
def test_a_damaged_record(run, text) -> None:
    (run / "run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match=r"run\.json"):
        read_run(run)


def test_another_format(run, change) -> None:
    change(run, format=99)
    with pytest.raises(RunError, match="run format 99"):
        read_run(run)


@pytest.mark.parametrize("damaged", [b"a: [", b"a: \xff", b"a: " + 10_000 * b"["], ids=["open", "not UTF-8", "deep"])
def test_damaged_settings(run, damaged) -> None:
    (run / "config.yaml").write_bytes(damaged)
    with pytest.raises(RunError, match=r"config\.yaml: cannot be read"):
        read_run(run)


WRONG = {
    "status": 3,
    "started": None,
    "store": {"path": "graph"},
    "model": [],
    "resumed": {},
    "best": {"metric": "accuracy"},
    "metrics": {"test": {"accuracy": "much"}},
    "classes": {"names": 7},
    "epoch": "two",
    "outputs": [3],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_field_of_another_type_is_named(run, change, name) -> None:
    change(run, **{name: WRONG[name]})
    with pytest.raises(RunError, match=rf"run\.json: is damaged: {name}"):
        read_run(run)
    with pytest.raises(RunError, match=rf"run\.json: is damaged: {name}"):
        RunFolder.open(run)


@pytest.mark.parametrize("what", ["a key is missing", "a list is empty", "a number is a text"])
def test_an_analysis_that_does_not_fit(run, what) -> None:
    file = run / "analysis.json"
    analysis = json.loads(file.read_text())
    found = analysis["splits"]["test"]["confusion"]
    if what == "a key is missing":
        del found["counts"]
    elif what == "a list is empty":
        found["classes"] = []
    else:
        found["counts"][0][0] = "many"
    file.write_text(json.dumps(analysis))
    with pytest.raises(RunError, match="what it says does not fit together"):
        write_report([run], run.parent / "report.html")
    assert not (run.parent / "report.html").exists()


def test_runs_are_told_apart_by_their_paths(run, tmp_path) -> None:
    others = [shutil.copytree(run, tmp_path / name / "run") for name in ("a", "b")]
    assert [each.name for each in read_runs(others)] == ["a/run", "b/run"]
    assert [each.name for each in read_runs([run])] == ["run"]


def test_the_same_run_twice(run) -> None:
    with pytest.raises(ConfigError, match="the same run twice"):
        read_runs([run, run.parent / "." / "run"])


def test_runs_of_different_tasks(run, tmp_path, change) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    change(other, task="regression")
    with pytest.raises(ConfigError, match="run has the task classes, run other regression"):
        read_runs([run, other])
