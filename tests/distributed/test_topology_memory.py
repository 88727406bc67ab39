"""Runs that read edges from disk: the bytes of a run on mapped edges, whatever is kept of them in memory."""

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

NODES = 240
SETTINGS = {"layers": 2, "hidden": 8, "fanout": (3, 2), "batch_size": 40, "epochs": 2, "threads": 1}
FEW = 4 * NODES + 2000
"""Bytes that have room for the edges of some nodes."""
WAYS = {
    "none": {"topology_memory": 0},
    "few": {"topology_memory": FEW},
    "all": {"topology_memory": 10**7},
    "features too": {"topology_memory": FEW, "feature_memory": 9 * NODES + 1200, "look_ahead": 3},
}
SAMPLERS = {
    "with replacement": {"replace": True},
    "by weight": {"weighted": True},
    "all neighbors": {"fanout": -1},
    "labor": {"sampler": "labor"},
    "layer": {"sampler": "layer", "layer_budget": (60, 40), "fanout": ()},
    "walk": {"sampler": "walk", "fanout": 3, "walks": 4, "walk_length": 2},
    "edge weights": {"model": "gcn", "edge_weights": True},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edges")
    formula_store(folder / "g", num_nodes=NODES, num_features=6, num_parts=2, weighted=True)
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
    (reads,) = record["edge_reads"]
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    epochs = [line["edge_reads"] for line in lines if line["event"] == "epoch"]
    for name in ("asked", "kept", "rows", "reads", "bytes"):
        assert sum(epoch[name] for epoch in epochs) == reads[name]
    assert reads["rows"] == reads["asked"] - reads["kept"]
    assert reads["kept"] == {"none": 0, "all": reads["asked"]}.get(way, reads["kept"])
    assert way in ("none", "all") or 0 < reads["kept"] < reads["asked"]
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "Edges from disk" in page
    assert f"{reads['asked']:,}" in page
    shown = io.StringIO()
    Console(file=shown, width=200).print(run_table(record))
    assert f"{reads['kept'] / reads['asked']:.0%} of those looked at were in memory" in shown.getvalue()


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler(store, tmp_path, name) -> None:
    for run, way in (("mapped", {}), ("few", WAYS["few"])):
        partita.Trainer(store, out=tmp_path / run, **{**SETTINGS, **SAMPLERS[name], "epochs": 1}, **way).fit()
    assert digest(tmp_path / "mapped") == digest(tmp_path / "few")


def test_on_two_workers(store, tmp_path) -> None:
    """Who hold all edges, or only those of the nodes that they own."""
    ways = {"mapped": {}, "few": WAYS["few"], "own": {**WAYS["few"], "topology": "partitioned"}}
    strategies = ["gdp", "snp", "gsplit"]
    runs = {
        tmp_path / f"{strategy}-{name}": {**SETTINGS, "strategy": strategy, **way}
        for strategy in strategies
        for name, way in ways.items()
    }
    train_on_workers(store, 2, runs)
    for strategy in strategies:
        assert len({digest(tmp_path / f"{strategy}-{name}") for name in ways}) == 1
        assert len(json.loads((tmp_path / f"{strategy}-few" / "run.json").read_text())["edge_reads"]) == 2


def test_typed_graphs(tmp_path) -> None:
    store = typed_store(tmp_path / "g")
    for name, way in {"mapped": {}, "few": {"topology_memory": 1000}}.items():
        partita.Trainer(store, out=tmp_path / name, **{**SETTINGS, "model": "rgcn", "batch_size": 8}, **way).fit()
    assert digest(tmp_path / "mapped") == digest(tmp_path / "few")


def test_links_whose_edges_are_left_out(store, tmp_path) -> None:
    links = tmp_path / "links"
    partita.split_links(store, links, val=0.05, test=0.1)
    for name, way in {"mapped": {}, "few": WAYS["few"]}.items():
        partita.Trainer(links, out=tmp_path / name, task="links", **SETTINGS, **way).fit()
    assert digest(tmp_path / "mapped") == digest(tmp_path / "few")


def test_it_can_be_resumed_in_either_way(store, mapped, tmp_path) -> None:
    for name, before, after in (("on", {}, WAYS["few"]), ("off", WAYS["few"], {"topology_memory": None})):
        partita.Trainer(store, out=tmp_path / name, **{**SETTINGS, "epochs": 1}, **before).fit()
        partita.Trainer.resume(tmp_path / name, **{**after, "epochs": 2}).fit()
        assert digest(tmp_path / name) == mapped


def test_what_cannot_be_is_refused(store, tmp_path) -> None:
    with pytest.raises(ConfigError, match="topology_memory is for the CPU and for training on the whole graph"):
        partita.Trainer(store, out=tmp_path / "run", **SETTINGS, topology_memory=10**6, views="cyclic")
    assert not (tmp_path / "run").exists()


def test_edges_that_do_not_fit_are_told(store, tmp_path, monkeypatch) -> None:
    def notes(name: str, **settings: object) -> list[str]:
        partita.Trainer(store, out=tmp_path / name, **{**SETTINGS, "epochs": 1}, **settings).fit()
        lines = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        return [line["text"] for line in lines if line["event"] == "note" and "--topology-memory" in line["text"]]

    assert notes("fits") == []
    monkeypatch.setattr("partita.setup.topology.bytes_for_files", lambda: 1000)
    (said,) = notes("does not")
    assert "and 1,000 B of memory are available" in said
    assert notes("is read", topology_memory=10**5) == []
