"""Runs on the shards of hosts that leave their strategy open: their workers plan, each host from what it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_machine import Machine
from safetensors.numpy import load_file
from typed_graphs import typed_store

import partita
from partita.comm.context import Context
from partita.config import Config
from partita.core import progress
from partita.graph.store import GraphStore
from partita.plan.candidates import candidates
from partita.plan.choose import hot_rows_of_hosts
from partita.plan.dryrun import DryRun
from partita.plan.estimates import make_estimates
from partita.testing.graphs import small_random_store
from partita.testing.workers import run_workers
from partita.train.planning import plan_run, resolve_strategy
from partita.train.team import PURPOSES

pytestmark = pytest.mark.usefixtures("libraries")

NODES, WIDTH = 300, 6
SETTINGS: dict[str, Any] = {
    "workers": 1, "layers": 2, "fanout": "6,5", "batch_size": 32, "hidden": 16, "eval_every": 0, "threads": 1,
    "precision": "float64", "epochs": 1,
}  # fmt: skip
STRATEGIES = ("gdp", "dnp", "snp", "gsplit")
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "no cache": ("", {}),
    "hot rows": ("hot", {}),
    "hot rows and a cache": ("hot", {"cache": 1500}),
    "rows that come and go": ("", {"cache": 9 * NODES + 1500, "cache_policy": "look-ahead", "look_ahead": 3}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in two parts, and its shards with and without hot rows, and with edges of their own nodes only."""
    found = tmp_path_factory.mktemp("stores")
    whole = small_random_store(found / "g", NODES, 3000, undirected=True, num_features=WIDTH)
    partita.partition(whole, found / "whole", parts=2, algorithm="random")
    for name, more in (
        ("", {"topology": "replicated"}),
        ("hot", {"topology": "replicated", "hot_bytes": 30 * 4 * WIDTH}),
        ("cut", {"topology": "partitioned"}),
    ):
        for host in range(2):
            partita.shard(found / "whole", found / f"shard{name}{host}", host=host, hosts=2, **more)
    return found


def foreseen_and_counted(context: Context, folder: str, out: str) -> dict[str, Any]:
    """Of every way and strategy what is foreseen from this host's shard, and what a run counts."""
    found = {}
    for way, (kind, more) in WAYS.items():
        store = GraphStore.open(Path(folder) / f"shard{kind}{context.mesh.host}")
        config, mesh = Config.make({**SETTINGS, **more}), context.mesh
        hot = hot_rows_of_hosts(context, store)
        assert sum(each is not None for each in hot) == (2 if kind == "hot" else 0)
        dry_run = DryRun(store, config, mesh, candidates(2, mesh), hot=hot)
        plan = make_estimates(dry_run, mesh, Machine().rates(), Machine().links(), seconds=1e3, memory=None)
        assert plan.sampled_steps == plan.steps > 3
        for strategy in STRATEGIES:
            estimate = next(each for of, each in plan.found.items() if of.name == strategy)
            run = Path(out) / f"{way} {strategy}"
            trainer = partita.Trainer(store, out=run, context=context, **SETTINGS, **more, strategy=strategy)
            record = trainer.fit().record
            if mesh.rank == 0:
                sent = {kind: record["traffic_bytes"][kind] for kind in ("ids", "features", "forward", "backward")}
                found[f"{way} {strategy}"] = {
                    "foreseen": [estimate.counts.to_json(), estimate.traffic.to_json()],
                    "counted": [record["counts"], sent],
                }
    return found


def test_each_host_foresees_what_all_will_count(folder, tmp_path) -> None:
    of_hosts = run_workers(foreseen_and_counted, 2, str(folder), str(tmp_path), hosts=2, purposes=PURPOSES, timeout=250)
    for way, found in of_hosts[0].items():
        assert found["foreseen"] == found["counted"], way
    features = {way: of_hosts[0][f"{way} gdp"]["counted"][1]["features"] for way in WAYS}
    assert 0 < features["hot rows and a cache"] < features["hot rows"] < features["no cache"]


def plan_and_train(context: Context, folder: str, out: str) -> dict[str, Any]:
    store = Path(folder) / f"shard{context.mesh.host}"
    plan, _ = plan_run(context, GraphStore.open(store), Config.make(SETTINGS), thorough=True)
    for name, more in (("auto", {"plan": plan}), ("named", {"strategy": "gdp"})):
        partita.Trainer(store, out=Path(out) / name, context=context, **SETTINGS, **more, replan="never").fit()
    return plan.to_json()


def test_a_run_follows_the_plan_of_its_own_workers(folder, tmp_path) -> None:
    """Strategies are tried out on the shards, and the model is that of any."""
    plan = run_workers(plan_and_train, 2, str(folder), str(tmp_path), hosts=2, purposes=PURPOSES, timeout=250)[0]
    assert plan["made_for"]["shards"]
    tried = [each for each in plan["candidates"] if each["tried_steps"]]
    assert tried
    gdp = next(each for each in plan["candidates"] if each["name"] == "gdp")
    assert gdp["epoch_rows"]["hosts"] > 0
    found, wanted = (
        load_file(sorted((tmp_path / name / "checkpoints").glob("[!.]*"))[-1] / "model.safetensors")
        for name in ("auto", "named")
    )
    for name, value in wanted.items():
        assert np.abs(found[name] - value).max() <= 1e-9 * np.abs(value).max(), name


class Said:
    """Hears what is said, and shows nothing."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def left_open(context: Context, folder: str, out: str, name: str) -> list[str]:
    ways: dict[str, dict[str, Any]] = {"shardcut": {"topology": "partitioned"}, "shard": {"feature_memory": 10**6}}
    said, more = Said(), ways.get(name, {})
    store = GraphStore.open(Path(folder) / f"{name}{context.mesh.host}")
    with progress.shown_by(said):  # type: ignore[arg-type]
        found = resolve_strategy(context, store, Config.make({**SETTINGS, **more}))
    return [found.config.strategy, *said.lines]


@pytest.mark.parametrize(
    ("kind", "why"), [("shardcut", "edges of their own nodes only"), ("typed", "a typed graph"), ("shard", "in files")]
)
def test_what_a_host_cannot_know_is_not_planned(folder, tmp_path, kind, why) -> None:
    if kind == "typed":
        typed_store(tmp_path / "typed", 240, parts=2)
        for host in range(2):
            partita.shard(tmp_path / "typed", folder / f"typed{host}", host=host, hosts=2, topology="replicated")
    first, second = run_workers(left_open, 2, str(folder), str(tmp_path), kind, hosts=2, purposes=PURPOSES, timeout=100)
    assert first[0] == "gdp"
    assert why in first[1]
    fix = "plan on the whole store with partita plan STORE --hosts 2 --shards --links FILE --out PLAN"
    assert (fix if kind != "shard" else "--strategy names another") in first[1]
    assert second == ["gdp"], "it is said once"
