"""What a run says of itself in Python: a short repr, a table in notebooks, progress where somebody watches."""

from __future__ import annotations

from pathlib import Path

import pytest

import partita
from partita.core import progress
from partita.testing.graphs import small_random_store
from partita.train.recorder import RunSummary

SETTINGS = {"layers": 2, "hidden": 8, "fanout": "3", "epochs": 2}


def test_progress_is_shown_where_somebody_watches(tmp_path, capsys, monkeypatch) -> None:
    store = small_random_store(tmp_path / "g", 60, 300)
    seen: list[str] = []
    shown = [(None, False, False), (None, True, True), (True, False, True), (False, True, False)]
    for number, (asked, watched, expected) in enumerate(shown):
        monkeypatch.setattr("partita.train.trainer.is_watched", lambda watched=watched: watched)
        trainer = partita.Trainer(
            store, out=tmp_path / str(number), callbacks=[lambda event: seen.append(event["event"])], **SETTINGS
        )
        run = trainer.fit(progress=asked)
        err = capsys.readouterr().err
        assert ("epoch 2/2" in err) is expected, err
        assert len(trainer.recorder.callbacks) == 1
    assert seen.count("epoch") == 8
    assert len(repr(run)) < 300
    assert repr(run).startswith(f"RunSummary({str(run.path)!r}, finished: epochs 2; best accuracy ")
    assert f"in epoch {run.record['best']['epoch']}" in repr(run)
    assert run.record["best"]["epoch"] in (1, 2)
    assert "test" in run._repr_html_()


def test_nobody_watches_a_pipe(monkeypatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert not progress.is_watched()
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert progress.is_watched()


def test_a_summary_escapes_names() -> None:
    record = {"metrics": {"<b>": {"accuracy": 0.5}}, "best": None, "epoch": 1}
    shown = RunSummary(Path("<script>"), "finished", record)._repr_html_()
    assert "<script>" not in shown
    assert "<b>:" not in shown
    assert "&lt;script&gt;" in shown


@pytest.mark.parametrize("task", ["classes", "regression"])
def test_a_store_says_what_it_holds(tmp_path, task) -> None:
    small_random_store(tmp_path / "a&b", 60, 300, task=task, num_classes=4 if task == "classes" else 1)
    store = partita.open(tmp_path / "a&b")
    assert "60 nodes" in repr(store)
    assert "8 features" in repr(store)
    assert ("4 classes" if task == "classes" else "regression") in repr(store)
    assert "train 36" in repr(store)
    assert "a&amp;b" in store._repr_html_()
