"""Runs that read feature rows from disk: the bytes of a run on mapped rows, whatever is known ahead and kept."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from checkpoint_bytes import digest
from on_workers import train_on_workers
from rich.console import Console
from typed_graphs import typed_store

import partita
from partita.core.errors import ConfigError
from partita.report.page import write_report
from partita.report.terminal import run_table
from partita.testing.graphs import formula_store

pytestmark = pytest.mark.usefixtures("libraries")

SETTINGS = {"layers": 2, "hidden": 8, "fanout": (3, 2), "batch_size": 40, "epochs": 3, "threads": 1}
NODES = 240
FEW = 9 * NODES + 30 * (24 + 16)
"""Bytes that have room for thirty rows."""
WAYS = {
    "few": {"feature_memory": FEW, "look_ahead": 1},
    "far": {"feature_memory": FEW, "look_ahead": 5},
    "farther than an epoch": {"feature_memory": FEW, "look_ahead": 50},
    "everything": {"feature_memory": 10**6},
    "in sequence": {"feature_memory": FEW, "look_ahead": 3, "prefetch": 0},
    "cached": {"feature_memory": FEW, "cache": "3000", "look_ahead": 2},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ahead")
    formula_store(folder / "g", num_nodes=NODES, num_features=6, num_parts=2)
    return folder / "g"


@pytest.fixture(scope="module")
def mapped(store, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("mapped") / "run"
    partita.Trainer(store, out=path, **SETTINGS).fit()
    return digest(path)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_bytes(store, mapped, tmp_path, way) -> None:
    partita.Trainer(store, out=tmp_path / "run", **SETTINGS, **WAYS[way]).fit()
    assert digest(tmp_path / "run") == mapped
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    (reads,) = record["feature_reads"]
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    epochs = [line["feature_reads"] for line in lines if line["event"] == "epoch"]
    assert len(epochs) == 3
    for name in ("asked", "kept", "lru_kept", "rows", "reads", "bytes"):
        assert sum(epoch[name] for epoch in epochs) == reads[name]
    aside = record["counts"]["rows_from"]["cache"] > 0  # rows that were read once, to be cached
    assert reads["rows"] >= reads["asked"] - reads["kept"] if aside else reads["rows"] == reads["asked"] - reads["kept"]
    assert reads["asked"] == record["counts"]["rows_from"]["host"]
    assert 0 < reads["kept"] < reads["asked"]
    assert reads["lru_kept"] <= reads["kept"] or reads["look_ahead"] < 5
    assert reads["look_ahead"] == WAYS[way].get("look_ahead", reads["look_ahead"])
    if way == "everything":
        assert reads["rows"] <= NODES
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "Feature rows from disk" in page
    assert f"{reads['asked']:,}" in page
    shown = io.StringIO()
    Console(file=shown, width=200).print(run_table(record))
    assert f"{reads['kept'] / reads['asked']:.0%} of feature rows were in memory" in shown.getvalue()


def test_what_is_kept_does_not_depend_on_threads(store, tmp_path) -> None:
    """In epochs of many more batches than the look ahead, whose threads are ahead by more with more to prefetch."""
    found = []
    for number, prefetch in enumerate((0, 2, 7)):
        settings = {**SETTINGS, "feature_memory": FEW, "look_ahead": 2, "batch_size": 8, "prefetch": prefetch}
        record = partita.Trainer(store, out=tmp_path / str(number), **settings).fit().record
        found.append([record["feature_reads"][0][name] for name in ("asked", "kept", "rows", "reads", "bytes")])
    assert found[0] == found[1] == found[2]


def test_on_two_workers(store, tmp_path) -> None:
    ways = {"mapped": {}, "few": WAYS["few"], "far": WAYS["far"]}
    strategies = ["gdp", "snp", "gsplit", "nfp"]
    runs = {
        tmp_path / f"{strategy}-{name}": {**SETTINGS, "strategy": strategy, **way}
        for strategy in strategies
        for name, way in ways.items()
    }
    train_on_workers(store, 2, runs)
    for strategy in strategies:
        assert len({digest(tmp_path / f"{strategy}-{name}") for name in ways}) == 1


def test_typed_graphs(tmp_path) -> None:
    """Types share the memory by the bytes of their rows; one has no features."""
    store = typed_store(tmp_path / "g")
    settings = {**SETTINGS, "model": "rgcn", "batch_size": 8}
    found = set()
    for name, way in {"mapped": {}, "few": {"feature_memory": 900, "look_ahead": 2}}.items():
        partita.Trainer(store, out=tmp_path / name, **settings, **way).fit()
        found.add(digest(tmp_path / name))
    assert len(found) == 1


def test_it_can_be_resumed_in_either_way(store, mapped, tmp_path) -> None:
    for name, before, after in (("on", {}, WAYS["far"]), ("off", WAYS["far"], {"feature_memory": 10**5})):
        partita.Trainer(store, out=tmp_path / name, **{**SETTINGS, "epochs": 1}, **before).fit()
        partita.Trainer.resume(tmp_path / name, **{**after, "epochs": 3}).fit()
        assert digest(tmp_path / name) == mapped


def test_what_cannot_be_is_refused(store, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"feature_memory: 1,900 bytes have no room for a row"):
        partita.Trainer(store, out=tmp_path / "run", **SETTINGS, feature_memory=1900)
    with pytest.raises(ConfigError, match="feature_memory is for the CPU and for training on the whole graph"):
        partita.Trainer(store, out=tmp_path / "run", **SETTINGS, feature_memory=10**6, views="cyclic")
    with pytest.raises(ConfigError, match="look_ahead: feature rows are mapped into memory"):
        partita.Trainer(store, out=tmp_path / "run", **SETTINGS, look_ahead=5)
    with pytest.raises(ConfigError, match="there are no learnt rows, so nothing is looked ahead for"):
        partita.Trainer(store, out=tmp_path / "run", **SETTINGS, embed_memory=0, look_ahead=5)
    with pytest.raises(ConfigError, match="look_ahead: all learnt rows fit into embed_memory, so nothing is looked"):
        partita.Trainer(store, out=tmp_path / "run", **SETTINGS, embed="4", embed_memory=10**9, look_ahead=5)
    bare = tmp_path / "bare"
    partita.generate_rmat(bare, scale=7, num_features=0, num_classes=3)
    with pytest.raises(ConfigError, match="feature_memory: the graph has no feature rows that could be read"):
        partita.Trainer(bare, out=tmp_path / "run", **SETTINGS, embed="4", feature_memory=10**6)
    assert not (tmp_path / "run").exists()


def test_rows_that_do_not_fit_are_told(store, tmp_path, monkeypatch) -> None:
    def notes(name: str, **settings: object) -> list[str]:
        partita.Trainer(store, out=tmp_path / name, **{**SETTINGS, "epochs": 1}, **settings).fit()
        lines = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        return [line["text"] for line in lines if line["event"] == "note" and "--feature-memory" in line["text"]]

    assert notes("fits") == []
    monkeypatch.setattr("partita.setup.tiers.bytes_for_files", lambda: 4000)
    (said,) = notes("does not")
    assert "feature rows take 5.6 KiB, and 3.9 KiB of memory are available" in said
    assert notes("is read", feature_memory=10**5) == []
