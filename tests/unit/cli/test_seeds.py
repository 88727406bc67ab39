"""``train --seeds``: a run per seed, and what they come to together."""

from __future__ import annotations

import json
import statistics

import pytest

import partita
from partita.cli.main import main
from partita.testing.graphs import small_random_store

SMALL = ["--layers", "1", "--hidden", "4", "--fanout", "3", "--epochs", "2"]


def call(capsys, *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_runs_are_those_of_single_seeds(tmp_path, capsys) -> None:
    store = small_random_store(tmp_path / "g", 60, 300)
    out = tmp_path / "runs"
    code, said, _ = call(capsys, "train", tmp_path / "g", "--out", out, "--seeds", "3,5", "--json", *SMALL)
    assert code == 0
    summary = json.loads((out / "summary.json").read_text())
    assert json.loads(said) == {"out": str(out), **summary}
    alone = partita.Trainer(store, out=tmp_path / "alone", seed=5, layers=1, hidden=4, fanout=3, epochs=2).fit()
    assert summary["runs"][1]["metrics"] == alone.metrics
    values = [run["metrics"]["test"]["accuracy"] for run in summary["runs"]]
    found = summary["metrics"]["test"]["accuracy"]
    assert found == {"mean": statistics.fmean(values), "deviation": statistics.stdev(values), "runs": 2}
    code, said, error = call(capsys, "train", tmp_path / "g", "--out", out, "--seeds", "5,7", *SMALL)
    assert code == 2
    assert "seed-5: already exists" in error
    assert not (out / "seed-7").exists()
    code, said, _ = call(capsys, "train", tmp_path / "g", "--out", out, "--seeds", "5", "--overwrite", *SMALL)
    assert code == 0
    lines = said.splitlines()
    assert lines[1].split()[:3] == ["run", "best", "epoch"]
    assert [line.split()[0] for line in lines[2:5]] == ["seed-5", "mean", "deviation"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seeds", "1,1"], "occurs twice"),
        (["--seeds", "one"], "not a list of whole numbers"),
        (["--seeds", "1", "--seed", "2"], "exclude each other"),
        (["--seeds", "1", "--resume", "run"], "starts new runs"),
    ],
)
def test_what_excludes_it_is_refused(tmp_path, capsys, options, message) -> None:
    out = [] if "--resume" in options else ["--out", str(tmp_path / "out")]
    code, _, error = call(capsys, "train", tmp_path / "g", *out, *options)
    assert code == 2
    assert message in error


def test_seeds_and_torchrun_are_refused(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    code, _, error = call(capsys, "train", tmp_path / "g", "--out", tmp_path / "o", "--seeds", "1,2")
    assert (code, "torchrun" in error) == (2, True)
