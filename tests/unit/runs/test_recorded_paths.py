"""What a run folder says of where things are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import partita
from partita.core.errors import StoreError
from partita.report.page import write_report
from partita.runs.folder import RunFolder, recorded_command, recorded_path
from partita.testing.graphs import small_random_store

SETTINGS = {"layers": 1, "hidden": 4, "fanout": "2", "epochs": 1, "threads": 1, "trace": True}


@pytest.mark.parametrize(
    ("path", "relative", "expected"),
    [
        ("/home/ann/graph", False, "/home/ann/graph"),
        ("/home/ann/graph", True, "../../graph"),
        ("/home/ann/runs/graph", True, "../graph"),
        ("/data/graph", True, "graph"),
    ],
)
def test_how_a_store_is_named(path: str, relative: bool, expected: str) -> None:
    assert recorded_path(Path(path), Path("/home/ann/runs/a"), relative=relative) == expected


def test_how_a_command_is_named() -> None:
    words = ["/home/ann/bin/partita", "train", "/home/ann/graph", "--out=/home/ann/run", "--cache", "4MiB", "a/b", "/"]
    assert recorded_command(words, relative=False) == ["partita", *words[1:]]
    assert recorded_command(words, relative=True) == [
        "partita", "train", "graph", "--out=run", "--cache", "4MiB", "a/b", "/"
    ]  # fmt: skip
    assert recorded_command([], relative=True) == []


def texts(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_no_absolute_path_is_in_a_run_or_its_report(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", [str(tmp_path / "bin" / "partita"), "train", str(tmp_path / "graph")])
    small_random_store(tmp_path / "graph", 60, 300, num_features=3)
    partita.Trainer(tmp_path / "graph", out=tmp_path / "run", relative_paths=True, **SETTINGS).fit()
    partita.evaluate(tmp_path / "run")
    write_report([tmp_path / "run"], tmp_path / "report.html")
    said = {**texts(tmp_path / "run"), "report": (tmp_path / "report.html").read_bytes()}
    assert {"run.json", "config.yaml", "metrics.jsonl", "trace.json", "analysis.json"} <= said.keys()
    for name, text in said.items():
        for path in (tmp_path, Path.home(), Path.cwd()):
            assert str(path).encode() not in text, name
    assert RunFolder.open(tmp_path / "run").read_record()["machine"]["command"] == ["partita", "train", "graph"]


def test_a_run_named_so_goes_on_wherever_both_are(tmp_path) -> None:
    small_random_store(tmp_path / "a" / "graph", 60, 300, num_features=3)
    partita.Trainer(tmp_path / "a" / "graph", out=tmp_path / "a" / "run", relative_paths=True, **SETTINGS).fit()
    shutil.move(tmp_path / "a", tmp_path / "b")
    partita.Trainer.resume(tmp_path / "b" / "run", epochs=2).fit()
    assert partita.evaluate(tmp_path / "b" / "run")
    os.rename(tmp_path / "b" / "graph", tmp_path / "graph")
    with pytest.raises(StoreError, match=r"b/run/\.\./graph"):
        partita.evaluate(tmp_path / "b" / "run")
    assert partita.evaluate(tmp_path / "b" / "run", store=tmp_path / "graph")
