"""Run folders: made once, never overwritten, read back with clear errors."""

from __future__ import annotations

import json

import pytest

from partita.core.errors import RunError
from partita.core.files import RUN_FORMAT, write_text
from partita.runs.folder import MetricsLog, RunFolder


def test_an_existing_folder_is_never_overwritten(tmp_path) -> None:
    RunFolder.create(tmp_path / "run")[0].write_record({"status": "running"})
    with pytest.raises(RunError, match=r"not empty.*--resume"):
        RunFolder.create(tmp_path / "run")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError):
        RunFolder.create(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_record_round_trip(tmp_path) -> None:
    store = {"path": "graph", "fingerprint": "0", "features": 3, "classes": 2}
    record = {"status": "finished", "started": "2026-01-01", "store": store, "model": {}, "machine": {}, "resumed": []}
    RunFolder.create(tmp_path / "run")[0].write_record(record)
    assert RunFolder.open(tmp_path / "run").read_record() == {"format": RUN_FORMAT, **record}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "not a run folder"),
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        (json.dumps({"format": RUN_FORMAT + 1}), "Upgrade"),
        (json.dumps({}), "Train again"),
    ],
)
def test_what_is_no_run_folder_says_so(tmp_path, content, words) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunError, match=words):
        RunFolder.open(tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path) -> None:
    write_text(tmp_path / "a.json", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.json", "\ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


def test_cutting_the_log_drops_what_comes_later_and_a_broken_line(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for epoch, step in [(0, 5), (0, 10), (1, 5), (1, 10)]:
        log.write({"event": "step", "epoch": epoch, "step": step})
    for event in ("baseline", "warning", "note"):
        log.write({"event": event, "epoch": 1, "step": 5})
    log.close()
    with path.open("a") as file:
        file.write('{"event": "st')
    MetricsLog.cut(path, 1, 5)
    kept = [(*event.values(),) for event in map(json.loads, path.read_text().splitlines())]
    assert kept == [("step", 0, 5), ("step", 0, 10), ("step", 1, 5), ("note", 1, 5)]
