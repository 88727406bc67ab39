"""What is printed: numbers people can read, bars that go away, lines for logs."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from partita.core import progress
from partita.core.plan import Candidate, Plan, Seconds
from partita.report import terminal
from partita.report.terminal import (
    BarDisplay,
    LineDisplay,
    RunDisplay,
    display,
    epoch_line,
    format_bytes,
    format_count,
    plan_tables,
    run_table,
)


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


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.1, "seeds/s"), (2, "16 s left"), (10, "1.3 min left"), (1800, "4.0 h left")]
)
def test_how_long_the_other_epochs_take(seconds, said) -> None:
    event = {"epoch": 1, "loss": 1.0, "seeds_per_second": 1, "seconds": seconds}
    assert epoch_line(event, 10, "accuracy").endswith(said)
    assert epoch_line({**event, "epoch": 9}, 10, "accuracy").endswith("seeds/s")


def test_a_table_grows_on_a_terminal() -> None:
    shown = console(True)
    display = RunDisplay(shown, 3, "accuracy")
    event = {"event": "epoch", "epoch": 0, "loss": 1.0, "seeds_per_second": 1000, "seconds": 40.0}
    display.show(event)
    display.show({**event, "epoch": 1, "val_loss": 0.5, "val_accuracy": 0.75})
    display.show({**event, "epoch": 2})
    display.show({"event": "note", "text": "something"})
    display.show({"event": "step", "loss": 1.0})
    lines = [" ".join(line.split()) for line in re.sub(r"\x1b\[[0-9;]*m", "", printed(shown)).splitlines()]
    assert lines == [
        "epoch loss seeds/s left",
        "1/3 1.0000 1,000 1.3 min",
        "epoch loss val loss val accuracy seeds/s left",
        "2/3 1.0000 0.5000 0.7500 1,000 40 s",
        "3/3 1.0000 - - 1,000",
        "something",
    ]


def test_a_log_has_lines() -> None:
    shown = console(False)
    display = RunDisplay(shown, 3, "accuracy")
    display.show({"event": "epoch", "epoch": 0, "loss": 1.0, "seeds_per_second": 1000, "seconds": 40.0})
    assert printed(shown) == "epoch 1/3  loss 1.0000  1,000 seeds/s  1.3 min left\n"


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
    for words in (
        "stopped early",
        "3 (validation macro-F1 0.5000)",
        "macro-F1 0.2500",
        "forward 1.2",
        "1,234",
        "1.0 MiB",
    ):
        assert words in printed(shown)
    shown.print(run_table({**record, "best": None, "counts": None, "metrics": {}}))


def tables_of(plan: Plan, most: int) -> str:
    shown = console(False)
    for table in plan_tables(plan, most):
        shown.print(table)
    return printed(shown)


def plan_of(*candidates: Candidate, **more) -> Plan:
    return Plan(candidates, {}, 10, 5, {}, **more)


def test_a_plan_in_milliseconds():
    gdp = Candidate("direct,data", "gdp", Seconds(compute=0.25), {"gradients": 2048}, tried_steps=7, memory_bytes=2**20)
    text = tables_of(plan_of(gdp), 12)
    assert "ms" in text
    for shown in ("250.0", "2.0 KiB", "1.0 MiB", "7"):
        assert shown in text
    assert "to hosts" not in text
    assert "*" not in text


def test_a_plan_for_hosts_and_isolated_training():
    links = {"same_host": 100, "other_host": 3072}
    gdp = Candidate("direct,data", "gdp", Seconds(compute=2.5), {"gradients": 2048}, links)
    other = Candidate("x", "data,source,data", Seconds(compute=9.0))
    grappa = Candidate("grappa", "grappa", Seconds(compute=1.5), settings={"views": "tournament"})
    plan = plan_of(gdp, other, approximate=(grappa,))
    text = tables_of(plan, 1)
    for shown in (
        "seconds",
        "2.50",
        "to hosts",
        "3.0 KiB",
        "grappa *",
        "1.50",
        "1 slower strategies",
        "--allow approximate",
    ):
        assert shown in text
    assert "trial steps" not in text
    assert "data,source,data" not in text


def test_strategies_that_are_refused_for_one_reason_are_one_line():
    gdp = Candidate("direct,data", "gdp", Seconds(compute=2.5))
    plan = Plan((gdp,), {"a": "too few parts", "b": "too few parts", "c": "no memory"}, 10, 5, {})
    text = tables_of(plan, 12)
    assert text.count("too few parts") == 1
    assert "2 strategies" in text
    assert "no memory" in text


def test_relations_that_are_many_are_cut() -> None:
    found = {f"[r{at}]": {"edges": 1000 - at, "mrr": at / 100, "hits@1": 0.0} for at in range(23)}
    console = Console(file=io.StringIO(), width=80)
    console.print(terminal.relations_table(found))
    lines = console.file.getvalue().splitlines()
    assert lines[0].split() == ["relation", "edges", "MRR", "Hits@1"]
    assert lines[1].split() == ["[r0]", "1,000", "0.0000", "0.0000"]
    assert "[r19]" in lines[20]
    assert "3 more with fewer edges" in lines[21]
