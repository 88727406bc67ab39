"""What is printed: numbers people can read, bars that go away, lines for logs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from partita.core import progress
from partita.report import terminal
from partita.report.terminal import BarDisplay, LineDisplay, display, epoch_line, format_bytes, format_count, run_table


def console(is_terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=100)


def printed(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (5 * 2**30, "5.0 GiB"), (2**50, "1,024.0 TiB")],
)
def test_bytes(count, text) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(9, "9"), (9999, "9,999"), (12345, "12.3 k"), (2e6, "2 M"), (3.21e9, "3.21 G")]
)
def test_counts(count, text) -> None:
    assert format_count(count) == text


def test_bars_on_a_terminal_lines_elsewhere(monkeypatch) -> None:
    monkeypatch.setattr(terminal, "_PLAIN_SECONDS", 0.0)
    for is_terminal, kind in [(True, BarDisplay), (False, LineDisplay)]:
        shown = console(is_terminal)
        with display(shown) as bars, progress.shown_by(bars):
            assert isinstance(bars, kind)
            with progress.task("sort edges", total=2000, unit="edges") as task:
                task.advance(500)
        if not is_terminal:
            assert "sort edges: 500 edges" in printed(shown)
            assert "s left" in printed(shown)


def test_an_epoch_is_one_line() -> None:
    event = {
        "epoch": 4,
        "loss": 0.5,
        "val_loss": 0.4,
        "val_accuracy": 0.9,
        "val_macro_f1": 0.8,
        "seeds_per_second": 12345,
    }
    assert (
        epoch_line(event, 10, "accuracy")
        == "epoch  5/10  loss 0.5000  val loss 0.4000  val accuracy 0.9000  12.3 k seeds/s"
    )
    assert "val" not in epoch_line({"epoch": 0, "loss": 1.0, "seeds_per_second": 1}, 9, "accuracy")
    assert epoch_line(event, 10, "loss").count("val loss") == 1


def test_the_summary_of_a_run() -> None:
    record = {
        "status": "finished",
        "early_stopped": True,
        "best": {"metric": "macro_f1", "value": 0.5, "epoch": 3, "checkpoint": "x"},
        "metrics": {"test": {"macro_f1": 0.25}},
        "stage_seconds": {"forward": 1.25},
        "counts": {"sampled_edges": 1234, "input_rows_read": 10, "row_reads": 20},
        "peak_memory_bytes": 2**20,
    }
    shown = console(False)
    shown.print(run_table(record))
    for words in ("stopped early", "3 by macro f1 0.5000", "macro f1 0.2500", "1,234", "1.0 MiB"):
        assert words in printed(shown)
    shown.print(run_table({**record, "best": None, "counts": None, "metrics": {}}))
