"""Runs on shards that keep rows of other hosts by what is known ahead: the same model, fewer bytes, exact counts."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_bytes import digest
from rich.console import Console

import partita
from partita.comm.context import Context
from partita.core.errors import ConfigError
from partita.core.keys import StepKey
from partita.graph.store import GraphStore
from partita.report.page import write_report
from partita.report.terminal import run_table
from partita.testing.graphs import small_random_store
from partita.testing.workers import run_workers
from partita.train.team import PURPOSES

pytestmark = pytest.mark.usefixtures("libraries")

NODES, WIDTH = 240, 6
SETTINGS: dict[str, Any] = {
    "layers": 2, "hidden": 8, "fanout": (3, 2), "batch_size": 16, "epochs": 2, "seed": 4, "threads": 1,
    "strategy": "gdp", "seed_split": "even",
}  # fmt: skip
LISTS, ROW = 9 * NODES, 16 + 4 * WIDTH
AHEAD: dict[str, Any] = {"cache": LISTS + 20 * ROW, "cache_policy": "look-ahead"}
WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "near": {**AHEAD, "look_ahead": 1},
    "far": {**AHEAD, "look_ahead": 6},
    "farther than an epoch": {**AHEAD, "look_ahead": 100},
    "left open": AHEAD,
    "in sequence": {**AHEAD, "look_ahead": 6, "prefetch": 0},
    "many threads": {**AHEAD, "look_ahead": 6, "prefetch": 7},
    "everything": {"cache": 10**6, "cache_policy": "look-ahead", "look_ahead": 3},
    "static": {"cache": NODES // 4 + 20 * 4 * WIDTH},
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    small_random_store(folder / "source", num_nodes=NODES, num_edges=1500, num_features=WIDTH)
    partita.partition(folder / "source", folder / "whole", parts="2", algorithm="spring")
    for host in (0, 1):
        partita.shard(folder / "whole", folder / f"shard{host}", host=host, hosts=2, topology="replicated")
    return folder


def train_here(context: Context, folder: str, out: str, ways: dict[str, dict[str, Any]]) -> dict[str, Any]:
    store, records = Path(folder) / f"shard{context.mesh.host}", {}
    for name, way in ways.items():
        trainer = partita.Trainer(store, out=Path(out) / name, context=context, **{**SETTINGS, **way})
        records[name] = trainer.fit().record
        if name == "far":
            records["far rows"] = context.group("all", "train").gather(far_rows(trainer, store))
    return records


def far_rows(trainer: partita.Trainer, store: Path) -> list[list[list[int]]]:
    """Of every epoch and step the rows of the other host that this worker reads."""
    views, team = trainer.job.views, trainer.job.team
    nodes = GraphStore.open(store).shard.nodes
    found = []
    for epoch in range(SETTINGS["epochs"]):
        found.append([])
        for step in range(views.seed_order.num_steps):
            seeds = team.share(views.seed_order.batch(epoch, step))
            batch = views.engine.sample(seeds, StepKey(SETTINGS["seed"], epoch, step))
            found[-1].append([v for v in batch.inputs.reads.tolist() if v not in nodes])
    return found


@pytest.fixture(scope="module")
def records(graph, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("runs")
    found = run_workers(train_here, 2, str(graph), str(out), WAYS, hosts=2, purposes=PURPOSES, timeout=250)
    return out, found[0]


def test_the_same_bytes(records) -> None:
    out, _ = records
    assert len({digest(out / name) for name in WAYS}) == 1


def rows_of(record: dict[str, Any]) -> tuple[int, int]:
    """Rows from the cache, and from the other host."""
    rows = record["counts"]["rows_from"]
    return rows["cache"], rows["hosts"]


def test_a_row_that_is_kept_does_not_travel(records) -> None:
    _, found = records
    _, without = rows_of(found["none"])
    sent = {}
    for name in WAYS:
        cached, hosts = rows_of(found[name])
        assert cached + hosts == without, name
        sent[name] = hosts
        if "look-ahead" in WAYS[name].values():
            reads = found[name]["feature_reads"]
            assert sum(each["kept"] for each in reads) == cached
            assert sum(each["asked"] for each in reads) == without
            assert {each["source"] for each in reads} == {"hosts"}
        for kind, size in (("features", 4 * WIDTH), ("ids", 8)):
            links = [worker["traffic_bytes"]["training"].get(kind, {}) for worker in found[name]["workers"]]
            assert sum(link.get("other_host", 0) for link in links) == size * hosts, (name, kind)
    assert sent["farther than an epoch"] <= sent["far"] <= sent["near"] < sent["none"]
    assert sent["far"] < sent["static"]
    assert sent["everything"] <= 2 * NODES  # each worker once
    assert sent["far"] == sent["in sequence"] == sent["many threads"]


def test_shown(records) -> None:
    out, found = records
    (page,) = [write_report([out / "far"], out / "far.html").read_text()]
    assert "Feature rows of other hosts" in page
    reads = found["far"]["feature_reads"]
    asked, kept, lru = (sum(each[name] for each in reads) for name in ("asked", "kept", "lru_kept"))
    assert 0 < lru < kept
    shown = io.StringIO()
    Console(file=shown, width=200).print(run_table(found["far"]))
    said = f"{kept / asked:.0%} of feature rows were in memory (least recently used: {lru / asked:.0%})"
    assert said in shown.getvalue()


def furthest_next_use(steps: Iterable[list[int]], ahead: int, room: int, kept: set[int]) -> tuple[int, set[int]]:
    """Rows that are not kept when they are read, where those stay that the next batches use first."""
    steps, missed = [set(step) for step in steps], 0
    for number, step in enumerate(steps):
        missed += len(step - kept)
        known = steps[number + 1 : number + 1 + ahead]
        uses = {row: next((n for n, later in enumerate(known) if row in later), None) for row in kept | step}
        soon = sorted((row for row, use in uses.items() if use is not None), key=lambda row: uses[row])
        kept = set(soon[:room])
    return missed, kept


def test_no_fewer_rows_could_travel(records) -> None:
    """Where the whole epoch is known, as many rows travel in it as if the best were kept at every step."""
    _, found = records
    for epochs in found["far rows"]:
        assert sum(len(step) for step in epochs[0]) > 100
    wanted = sum(furthest_next_use(epochs[0], 100, 20, set())[0] for epochs in found["far rows"])
    first = sum(sum(map(len, epochs[0])) for epochs in found["far rows"])
    second = sum(sum(map(len, epochs[1])) for epochs in found["far rows"])
    least = wanted + sum(furthest_next_use(epochs[1], 100, 20, set(range(NODES)))[0] for epochs in found["far rows"])
    most = wanted + sum(furthest_next_use(epochs[1], 100, 20, set())[0] for epochs in found["far rows"])
    assert least <= rows_of(found["farther than an epoch"])[1] <= most < first + second


def refuse_here(context: Context, folder: str, out: str) -> list[str]:
    said = []
    for more in ({"cache_layout": "partitioned"}, {"feature_memory": 10**5}, {"cache": 1000}):
        with pytest.raises(ConfigError) as error:
            partita.Trainer(
                Path(folder) / f"shard{context.mesh.host}", out=out, context=context, **{**SETTINGS, **AHEAD, **more}
            )  # fmt: skip
        said.append(str(error.value))
    return said


def test_what_cannot_be_is_refused(graph, tmp_path) -> None:
    said = run_workers(refuse_here, 2, str(graph), str(tmp_path / "run"), hosts=2, purposes=PURPOSES, timeout=120)
    for layout, files, room in said:
        assert "with cache_policy look-ahead every worker keeps rows of its own batches" in layout
        assert "rows that are read from files cannot be kept for them" in files
        assert "a cache of 1,000 bytes has no room for a row: to know where rows are takes 2,160" in room
    with pytest.raises(ConfigError, match="this host has the rows of all nodes"):
        partita.Trainer(graph / "whole", out=tmp_path / "run", **SETTINGS, **AHEAD)
    with pytest.raises(ConfigError, match="cache_policy look-ahead has no cache to keep rows in"):
        partita.Trainer(graph / "whole", out=tmp_path / "run", **SETTINGS, cache_policy="look-ahead")
    with pytest.raises(ConfigError, match="Give feature_memory, embed_memory, or a cache and cache_policy look-ahead"):
        partita.Trainer(graph / "whole", out=tmp_path / "run", **SETTINGS, look_ahead=3)
    assert not (tmp_path / "run").exists()
