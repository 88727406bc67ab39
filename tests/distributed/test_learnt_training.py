"""Whole runs with learnt rows: every row is that of one worker, whatever the strategy; killed, resumed, evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from on_workers import resume_on_workers, train_on_workers
from safetensors.numpy import load_file
from typed_graphs import typed_store

import partita
from partita.comm.context import Context
from partita.testing.graphs import small_random_store
from partita.testing.workers import run_workers
from partita.train.team import PURPOSES

pytestmark = pytest.mark.usefixtures("libraries")

SETTINGS = {
    "layers": 2, "hidden": 8, "fanout": "3,2", "batch_size": 30, "epochs": 3, "precision": "float64", "lr": 0.01,
    "input_dropout": 0.1,
}  # fmt: skip
TYPED = {
    "rgcn-adam": {"model": "rgcn", "embed": "author=5 place=8"},
    "hgt-adagrad": {"model": "hgt", "embed": "author=6 paper=3", "embed_optimizer": "adagrad", "schedule": "cosine"},
    "sage-sgd": {"model": "sage", "embed": "*=4", "embed_optimizer": "sgd", "embed_lr": 0.1, "clip_norm": 0.1},
}
PLAIN = {
    "gat-adam": {"model": "gat", "embed": 8},
    "gcn-adagrad": {"model": "gcn", "embed": 8, "embed_optimizer": "adagrad"},
}
STRATEGIES = {2: ("gdp", "snp", "dnp"), 3: ("gsplit", "data,source")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learnt")
    whole = small_random_store(folder / "plain.whole", 240, 1400)
    for parts in (2, 3):
        typed_store(folder / f"typed{parts}", 240, parts=parts)
        partita.partition(whole, folder / f"plain{parts}", parts=parts, algorithm="random")
    for graph, kinds in (("typed", TYPED), ("plain", PLAIN)):
        for name, more in kinds.items():
            store = folder / "typed2.whole" if graph == "typed" else whole
            partita.Trainer(store, out=folder / name, **SETTINGS, **more).fit()
    return folder


def last(run: Path) -> Path:
    return max((run / "checkpoints").glob("epoch-*"))


def by_original(folder: Path, store: str, run: Path) -> dict[str, np.ndarray]:
    """Model and learnt rows, these in the order of original indices: stores of other parts hold them in others."""
    opened, found = partita.open(folder / store), load_file(last(run) / "model.safetensors")
    for name, rows in load_file(last(run) / "learnt.safetensors").items():
        kind = name.partition("/")[2]
        if kind:
            ids = np.arange(opened.num_nodes) if opened.schema is None else opened.nodes_of(kind)
            rows = rows[np.argsort(opened.to_original(ids))]
        found[f"learnt {name}"] = rows
    return found


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    assert any(name.startswith("learnt rows") for name in found)
    for name, value in expected.items():
        assert np.abs(found[name] - value).max() <= 1e-9 * np.abs(value).max(), name


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("graph", ["typed", "plain"])
def test_every_row_is_that_of_one_worker(folder, tmp_path, graph, workers) -> None:
    """And so are the parameters, and what the optimizers remember; bytes of rows and gradients are counted."""
    kinds = TYPED if graph == "typed" else PLAIN
    cases = {tmp_path / f"{s}-{name}": (s, name) for s in STRATEGIES[workers] for name in kinds}
    runs = {run: {**SETTINGS, "strategy": strategy, **kinds[name]} for run, (strategy, name) in cases.items()}
    train_on_workers(folder / f"{graph}{workers}", workers, runs)
    for run, (strategy, name) in cases.items():
        found = by_original(folder, f"{graph}{workers}", run)
        assert_same(found, by_original(folder, f"{graph}{'2' if graph == 'typed' else ''}.whole", folder / name))
        record = json.loads((run / "run.json").read_text())
        travels = strategy != "snp"  # where owners of sources aggregate, they read what they own
        assert (record["traffic_bytes"]["features"] > 0) == travels, strategy
        alone = json.loads((folder / name / "run.json").read_text())["metrics"]["test"]
        assert record["metrics"]["test"]["loss"] == pytest.approx(alone["loss"], rel=1e-9)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("graph", ["typed", "plain"])
def test_rows_in_files_are_the_same(folder, tmp_path, graph, workers) -> None:
    """Whatever is kept of them, and however far it is looked ahead; what travels is counted as before."""
    kinds = TYPED if graph == "typed" else PLAIN
    memory = {"none": {"embed_memory": 0}, "some": {"embed_memory": "2KB", "look_ahead": 7}}
    cases = {
        tmp_path / f"{strategy}-{name}-{held}": (strategy, name, held)
        for strategy in STRATEGIES[workers]
        for name, held in zip(kinds, (*memory, "some"), strict=False)
    }
    runs = {
        run: {**SETTINGS, "strategy": strategy, **kinds[name], **memory[held]}
        for run, (strategy, name, held) in cases.items()
    }
    train_on_workers(folder / f"{graph}{workers}", workers, runs)
    for run, (strategy, name, held) in cases.items():
        found = by_original(folder, f"{graph}{workers}", run)
        assert_same(found, by_original(folder, f"{graph}{'2' if graph == 'typed' else ''}.whole", folder / name))
        record = json.loads((run / "run.json").read_text())
        assert (record["traffic_bytes"]["features"] > 0) == (strategy != "snp"), strategy
        reads = record["learnt_reads"]
        assert len(reads) == workers
        assert sum(each["rows"] for each in reads) > 0
        assert (sum(each["kept"] for each in reads) > 0) == (held == "some")


def test_other_numbers_of_workers_go_on_and_evaluate(folder, tmp_path) -> None:
    """An epoch by one worker, one by two, one by three: the rows of one worker throughout."""
    store, run = folder / "typed2", tmp_path / "run"
    more = {**SETTINGS, **TYPED["rgcn-adam"]}
    partita.Trainer(store, out=tmp_path / "alone", **more).fit()
    partita.Trainer(store, out=run, **{**more, "epochs": 1}).fit()
    resume_on_workers(2, {run: {"epochs": 2, "strategy": "snp"}})
    resume_on_workers(3, {run: {"epochs": 3, "strategy": "gdp"}})
    assert_same(by_original(folder, "typed2", run), by_original(folder, "typed2", tmp_path / "alone"))
    expected = partita.evaluate(run, split="test")
    found = partita.evaluate(run, split="test", workers=2)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-9)


def test_a_run_that_ends_within_an_epoch_goes_on_to_the_same_bytes(folder, tmp_path) -> None:
    settings = {**SETTINGS, **TYPED["hgt-adagrad"], "checkpoint_steps": 1, "strategy": "gsplit", "batch_size": 20}
    train_on_workers(folder / "typed2", 2, {tmp_path / "whole": settings, tmp_path / "cut": settings})
    # As if it had been killed in its last step.
    latest = last(tmp_path / "cut")
    for path in latest.iterdir():
        path.unlink()
    latest.rmdir()
    resume_on_workers(2, {tmp_path / "cut": {}})
    for name in ("model.safetensors", "optimizer.safetensors", "learnt.safetensors"):
        assert (last(tmp_path / "cut") / name).read_bytes() == (last(tmp_path / "whole") / name).read_bytes(), name


def train_on_shards(context: Context, folder: str, out: str, ways: dict[str, dict[str, Any]]) -> list[float]:
    """Train and evaluate on this host's share of the graph."""
    found, store = [], Path(folder) / f"shard{context.mesh.host}"
    for name, way in ways.items():
        run = Path(out) / name
        partita.Trainer(store, out=run, context=context, **{**SETTINGS, "topology": "partitioned", **way}).fit()
        found.append(partita.evaluate(run, split="test", store=store, context=context)["loss"])
    return found


@pytest.mark.parametrize("graph", ["typed", "plain"])
def test_hosts_with_a_share_of_the_graph_learn_the_same_rows(folder, tmp_path, graph) -> None:
    whole = folder / ("typed2.whole" if graph == "typed" else "plain.whole")
    partita.partition(whole, tmp_path / "parts", parts="2x2", algorithm="random")
    for host in (0, 1):
        partita.shard(tmp_path / "parts", tmp_path / f"shard{host}", host=host, hosts=2, hot_bytes=320)
    name, more = ("rgcn-adam", TYPED["rgcn-adam"]) if graph == "typed" else ("gat-adam", PLAIN["gat-adam"])
    ways = {strategy: {"strategy": strategy, **more} for strategy in ("gdp", "snp", "data@hosts+gsplit@workers")}
    given = (str(tmp_path), str(tmp_path), ways)
    losses = run_workers(train_on_shards, 4, *given, hosts=2, purposes=PURPOSES, timeout=280)[0]
    expected = json.loads((folder / name / "run.json").read_text())["metrics"]["test"]["loss"]
    assert losses == pytest.approx([expected] * 3, rel=1e-9)
    for strategy in ways:
        found = by_original(tmp_path / "parts", "", tmp_path / strategy)
        assert_same(found, by_original(whole, "", folder / name))
