"""The comparison with peers: its configurations and its tables, without any peer."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

PEERS = Path(__file__).parents[3] / "bench" / "peers"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A file of the benchmark, which is no package."""
    spec = importlib.util.spec_from_file_location(f"peers_{name}", PEERS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, found)  # dataclasses look there
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("tables", monkeypatch)


@pytest.fixture
def configurations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("configurations", monkeypatch)


@pytest.fixture
def profiles(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("profiles", monkeypatch)


def row(tables: ModuleType, contender: str, seconds: float | str, **values: Any) -> dict[str, Any]:
    given = {"configuration": "default", "stage": "epoch", "contender": contender, "seconds": seconds, **values}
    return {**dict.fromkeys(tables.FIELDS, ""), **given}


def test_repetitions_become_their_median(tables) -> None:
    rows = [row(tables, "Partita", seconds, repetition=number) for number, seconds in enumerate((3.0, 1.0, 2.0))]
    (found,) = tables.medians(rows)
    assert found["seconds"] == 2.0
    assert found["repetitions"] == 3


def test_a_failed_repetition_does_not_count_where_others_went_well(tables) -> None:
    rows = [row(tables, "DGL", "", error="out of memory"), row(tables, "DGL", 2.0), row(tables, "DGL", 4.0)]
    (found,) = tables.medians(rows)
    assert found["seconds"] == 3.0
    assert found["error"] == ""


def test_ratios_are_to_the_fastest_variant_of_any_peer(tables) -> None:
    amount = {"amount": 1e6}
    rows = [
        row(tables, "Partita", 2.0, **amount),
        row(tables, "PyG", 8.0, variant="plain", **amount),
        row(tables, "PyG", 6.0, variant="trimmed", **amount),
        row(tables, "DGL", 5.0, variant="loader", **amount),
    ]
    documented = {("PyG", "epoch"): "plain", ("DGL", "epoch"): "loader"}
    lines = tables.stage_table("epoch", tables.medians(rows), ["PyG", "DGL"], documented).splitlines()
    cells = [cell.strip() for cell in lines[4].strip("|").split("|")]
    assert cells[2].startswith("2.00 s")
    assert cells[3].startswith("8.00 s")
    assert cells[4].startswith("6.00 s")
    assert "trimmed" in cells[4]
    assert cells[5].startswith("5.00 s")
    assert cells[-1] == "2.50"


def test_a_peer_that_fails_is_shown_with_what_it_said(tables) -> None:
    rows = [row(tables, "Partita", 2.0, amount=1e6), row(tables, "DGL", "", variant="loader", error="no such kernel")]
    text = tables.stage_table("epoch", tables.medians(rows), ["DGL"], {("DGL", "epoch"): "loader"})
    assert "fails: no such kernel" in text


def test_limits_are_shown_where_a_stage_has_one(tables) -> None:
    values = {"stage": "gather", "case": "rows of 64 bytes", "amount": 1e9, "limit_seconds": 0.1}
    text = tables.stage_table("gather", tables.medians([row(tables, "Partita", 0.2, **values)]), [], {})
    assert "| 5.00 GB/s |" in text
    assert "| 10.00 GB/s | 50% |" in text


def test_what_learns_nothing_is_called_so(tables) -> None:
    own = {"first_loss": 3.0, "last_loss": 2.0}
    assert tables.verdict(own, {"first_loss": 3.1, "last_loss": 2.05}) == "alike"
    assert tables.verdict(own, {"first_loss": 3.1, "last_loss": 2.6}) == "**+30%**"
    assert tables.verdict(own, {"first_loss": 3.0, "last_loss": 3.0}) == "**learns nothing**"


def test_all_tables_of_a_whole_comparison(tables) -> None:
    values = {"amount": 1e6, "peak_private_bytes": 2**20, "first_loss": 3.0, "last_loss": 2.0}
    rows = [row(tables, name, 1.0, stage=stage, **values) for stage in tables.STAGES for name in ("Partita", "DGL")]
    text = tables.tables(rows, ["DGL"], {})
    assert text.count("### ") == len(tables.STAGES) + 2


def test_configurations_by_name_and_by_settings(configurations) -> None:
    known = configurations.known()
    assert known["default"] == configurations.DEFAULT
    for name, configuration in known.items():
        assert configurations.parse(name) == {name: configuration}
    assert configurations.parse("all") == known
    (own,) = configurations.parse("hidden=64 fanout=5,5").values()
    assert own == {**configurations.DEFAULT, "hidden": 64, "fanout": [5, 5]}
    with pytest.raises(ValueError, match="hiden"):
        configurations.parse("hiden=64")


def test_the_widths_of_layers(configurations) -> None:
    rows = [(500, 900, 2500), (100, 500, 1000)]
    found = configurations.cases("dense", configurations.DEFAULT, rows, classes=32)
    assert [case["shape"] for case in found] == [[500, 128, 256], [100, 256, 32]]
    assert [case["input_gradient"] for case in found] == [False, True]


def test_what_a_profile_says(profiles) -> None:
    functions = [(f"f{number}", 0.003, 10) for number in range(27)]
    found = {"seconds": 0.1, "functions": functions, "busy": [0.08, 0.02]}
    lines = profiles.section("epoch", found, "a.json.gz", steps=5, usual_seconds=0.05).splitlines()
    assert lines[2].startswith("0.1 s for 5 steps, 20 ms each; 0.05 s without the profiler.")
    assert "80%, 20%" in lines[2]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert table[2] == ["`f0`", "0.6", "3.7%", "2", "300"]
    assert table[-1] == ["2 more", "1.2", "7.4%", "4", "300"]
    assert len(table) == 2 + 26


@pytest.mark.usefixtures("all_threads")
def test_a_profile_is_of_the_steady_part_in_all_threads(profiles, tmp_path) -> None:
    def multiply(size: int) -> None:
        torch.mm(torch.ones(size, size), torch.ones(size, size))

    profile = profiles.Profile(tmp_path / "trace.json.gz")
    multiply(2)
    with profile.steady(), ThreadPoolExecutor(1) as pool:
        multiply(2)
        pool.submit(multiply, 2).result()
    found = profile.found()
    assert {name: calls for name, _, calls in found["functions"]}["aten::mm"] == 2
    assert len(found["busy"]) == 2
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert names.count("aten::mm") == 2
    assert profiles.stem("model=gat heads=4", "epoch") == "model-gat-heads-4-epoch"


def test_a_stage_without_a_steady_part_has_no_profile(profiles, tmp_path) -> None:
    with pytest.raises(RuntimeError, match="no steady part"):
        profiles.Profile(tmp_path / "trace.json.gz").found()
