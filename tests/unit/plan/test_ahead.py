"""Plans of runs whose rows come and go: what a run of the same batches then counts, and what files cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_up_machine import SETTINGS, Machine, best, planned
from on_workers import train_on_workers
from typed_graphs import typed_store

import partita
from partita.comm.context import Context
from partita.config import Config
from partita.core.errors import ConfigError, StoreError
from partita.core.mesh import Mesh
from partita.core.plan import Plan
from partita.graph.store import GraphStore
from partita.plan import dryrun, estimates
from partita.plan.candidates import candidates
from partita.plan.choose import made_for
from partita.plan.cost import Estimate
from partita.plan.dryrun import LEAST_AHEAD, DryRun
from partita.plan.estimates import Estimates
from partita.plan.trials import Trial
from partita.report.terminal import plan_tables
from partita.testing.graphs import small_random_store
from partita.testing.workers import run_workers
from partita.train.team import PURPOSES

pytestmark = pytest.mark.usefixtures("libraries")

N, WIDTH = 300, 6
ROW = 16 + 4 * WIDTH
FILES: dict[str, Any] = {"feature_memory": 9 * N + 40 * ROW}
AHEAD: dict[str, Any] = {"cache": 9 * N + 40 * ROW, "cache_policy": "look-ahead"}
RUN: dict[str, Any] = {**SETTINGS, "batch_size": 16, "epochs": 1, "eval_every": 0, "threads": 1}
NAMED = ("gdp", "dnp", "snp", "gsplit")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores in two and in three parts, and their shards."""
    found = tmp_path_factory.mktemp("stores")
    whole = small_random_store(found / "whole", N, 3000, undirected=True, num_features=WIDTH)
    for hosts in (2, 3):
        partita.partition(whole, found / f"{hosts}", parts=hosts, algorithm="random")
        for host in range(hosts):
            partita.shard(
                found / f"{hosts}", found / f"{hosts}-{host}", host=host, hosts=hosts, topology="replicated"
            )  # fmt: skip
    return found


def settings_of(way: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**RUN, **way}.items() if name not in ("epochs", "eval_every", "threads")}


def estimate_of(plan: Estimates, name: str) -> Estimate:
    return next(found for each, found in plan.found.items() if each.name == name)


def refusal_of(plan: Estimates, name: str) -> Exception:
    return next(error for each, error in plan.refused.items() if each.name == name)


def check(plan: Estimates, name: str, record: dict[str, Any]) -> Estimate:
    """What was foreseen of a strategy is what a run has counted."""
    found = estimate_of(plan, name)
    assert found.counts.to_json() == record["counts"], name
    sent = {kind: record["traffic_bytes"][kind] for kind in ("ids", "features", "forward", "backward")}
    assert found.traffic.to_json() == sent, name
    return found


@pytest.mark.parametrize("way", [{"look_ahead": 1}, {"look_ahead": 5}, {}, {"look_ahead": 3, "cache": 3000}])
def test_rows_from_files_are_those_that_a_run_reads(folder, tmp_path, way) -> None:
    plan = planned(GraphStore.open(folder / "2"), Machine(), **settings_of({**FILES, **way}))
    assert plan.sampled_steps == plan.steps > 6
    runs = {tmp_path / name: {**RUN, **FILES, **way, "strategy": name} for name in (*NAMED, "nfp")}
    records = train_on_workers(folder / "2", 2, runs)
    for name in (*NAMED, "nfp"):
        record = records[tmp_path / name]
        found, reads = check(plan, name, record), record["feature_reads"]
        assert found.files.rows == sum(each["asked"] - each["kept"] for each in reads) > 0
        width = 4 * WIDTH if name != "nfp" else 2 * WIDTH
        assert found.files.bytes == width * found.files.rows
        sources = found.row_sources
        assert sources["memory"] + sources["files"] == width * found.counts.input_rows_read
        assert sources["workers"] == width * record["counts"]["rows_from"]["peers"]
        assert sources["hosts"] == 0
    assert "exact" in " ".join(plan.notes)


def train_here(context: Context, folder: str, out: str, ways: dict[str, dict[str, Any]]) -> dict[str, Any]:
    store = Path(folder) / f"{context.mesh.hosts}-{context.mesh.host}"
    return {
        name: partita.Trainer(store, out=Path(out) / name, context=context, **way).fit().record
        for name, way in ways.items()
    }


@pytest.mark.parametrize("hosts", [2, 3])
def test_rows_of_other_hosts_are_those_that_a_run_on_shards_asks_for(folder, tmp_path, hosts) -> None:
    store = GraphStore.open(folder / f"{hosts}")
    windows = {"near": {"look_ahead": 1}, "far": {"look_ahead": 6}, "left open": {}}
    ways = {
        f"{name}-{window}": {**RUN, **AHEAD, **more, "workers": 1, "strategy": name}
        for window, more in windows.items()
        for name in (NAMED if window == "far" else ("gdp", "dnp"))
    }
    records = run_workers(
        train_here, hosts, str(folder), str(tmp_path), ways, hosts=hosts, purposes=PURPOSES, timeout=250
    )[0]
    for window, more in windows.items():
        plan = planned(store, Machine(), hosts=hosts, **settings_of({**AHEAD, **more, "workers": 1}))
        assert plan.sampled_steps == plan.steps > 6
        for name in NAMED if window == "far" else ("gdp", "dnp"):
            found = check(plan, name, records[f"{name}-{window}"])
            rows = records[f"{name}-{window}"]["counts"]["rows_from"]
            assert found.row_sources["hosts"] == 4 * WIDTH * rows["hosts"]
            if name in ("gdp", "dnp"):
                assert rows["cache"] > 0 < rows["hosts"]
        of = [Config.make({**RUN, **AHEAD, **more, "workers": 1}, where="test"), Mesh.of(0, hosts, 1)]
        assert made_for(store, *of) == made_for(GraphStore.open(folder / f"{hosts}-1"), *of)
        assert plan.notes[-1] == "hosts hold shards without hot rows, as partita shard makes them"


CACHES: dict[str, dict[str, Any]] = {
    "none": {},
    "in-degree": {"cache": 1500},
    "presample": {"cache": 1500, "cache_policy": "presample"},
    "strategy": {"cache": 2500, "cache_policy": "strategy"},
    "edges are dealt too": {"cache": 1500, "topology": "partitioned"},
}


@pytest.mark.parametrize(("hosts", "caches"), [(2, tuple(CACHES)), (3, ("in-degree", "edges are dealt too"))])
def test_rows_and_bytes_of_hosts_with_shards_are_those_that_a_run_counts(folder, tmp_path, hosts, caches) -> None:
    """Without a cache, and with those that are filled before the first step; beside whole stores it is less."""
    store = GraphStore.open(folder / f"{hosts}")
    ways = {
        f"{name} {cache}": {**RUN, **CACHES[cache], "workers": 1, "strategy": name}
        for cache in caches
        for name in NAMED
    }
    records = run_workers(
        train_here, hosts, str(folder), str(tmp_path), ways, hosts=hosts, purposes=PURPOSES, timeout=250
    )[0]
    for cache in caches:
        given = settings_of({**CACHES[cache], "workers": 1})
        plan, whole = (planned(store, Machine(), hosts=hosts, shards=shards, **given) for shards in (True, False))
        assert "every host holds the feature rows of its own nodes only" in str(refusal_of(plan, "nfp"))
        for name in NAMED:
            found = check(plan, name, records[f"{name} {cache}"])
            rows = records[f"{name} {cache}"]["counts"]["rows_from"]
            if name in ("gdp", "dnp"):  # the others read a row where it is
                assert rows["hosts"] > 0
                assert rows["cache"] > 0 or cache == "none"
                assert estimate_of(whole, name).traffic.features < found.traffic.features
        assert plan.notes == ["hosts hold shards without hot rows, as partita shard makes them"]


def test_a_plan_for_shards_is_for_runs_on_shards(folder) -> None:
    config, mesh = Config.make({**RUN, "workers": 1}), Mesh.of(0, 2, 1)
    whole, shard = GraphStore.open(folder / "2"), GraphStore.open(folder / "2-1")
    links = Machine().links()
    plan = partita.make_plan(whole.path, config, hosts=2, links=links, shards=True)
    plan.check(made_for(shard, config, mesh))
    with pytest.raises(ConfigError, match="was made for shards True, this run has False"):
        plan.check(made_for(whole, config, mesh))
    with pytest.raises(ConfigError, match="shards: a single host has the feature rows of all nodes"):
        partita.make_plan(whole.path, config, shards=True)


def test_of_typed_graphs(tmp_path) -> None:
    """Types share the memory by the bytes of their rows."""
    store = typed_store(tmp_path / "two", 240, parts=2)
    typed = {"model": "rgcn", "layers": 2, "fanout": "cites=3,2 *=2,2", "batch_size": 20, "hidden": 8}
    way = {**typed, "feature_memory": 9 * 240 + 1500, "look_ahead": 4}
    plan = planned(store, Machine(), **way)
    more = {"epochs": 1, "eval_every": 0, "threads": 1}
    records = train_on_workers(store.path, 2, {tmp_path / name: {**way, **more, "strategy": name} for name in NAMED})
    for name in NAMED:
        record = records[tmp_path / name]
        found = check(plan, name, record)
        assert found.files.rows == sum(each["asked"] - each["kept"] for each in record["feature_reads"]) > 0


def test_files_have_a_price(folder) -> None:
    """Of a step the slowest worker's reads; more memory makes an epoch cheaper."""
    store, seconds = GraphStore.open(folder / "2"), []
    nothing = {"send": 0.0, "compute": 0.0, "edge": 0.0}
    for rows in (10, 100, N):
        way = {"feature_memory": 9 * N + rows * ROW, "look_ahead": 8}
        plan = planned(store, Machine(**nothing, file_byte=1e-9), **settings_of(way))
        found = estimate_of(plan, "gdp")
        assert found.seconds.total == found.seconds.load
        assert 1e-9 * found.files.cost / 2 <= found.seconds.load <= 1e-9 * found.files.cost
        assert found.files.cost >= found.files.bytes
        assert found.memory_bytes > way["feature_memory"]
        seconds.append(found.seconds.load)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] < seconds[0]


def test_of_how_many_steps_it_is_exact_is_said(folder) -> None:
    store = GraphStore.open(folder / "2")
    config, mesh = Config.make(settings_of({**FILES, "look_ahead": 4}), where="test"), Mesh.of(0, 2, 2)
    dry_run = DryRun(store, config, mesh, candidates(2, mesh)[:2])
    assert len(list(dry_run.steps(seconds=0.0))) == LEAST_AHEAD < dry_run.num_steps
    exact = f"from the first {LEAST_AHEAD} of {dry_run.num_steps} steps, exact for {LEAST_AHEAD - 4} of them"
    assert exact in dry_run.notes[0]


def test_steps_that_begin_without_kept_rows_do_not_stand_for_an_epoch(folder) -> None:
    """Later epochs begin with the rows of the one before: seconds are of the second epoch, bytes of the first."""
    plan = planned(GraphStore.open(folder / "2"), Machine(file_byte=1e-6), **settings_of({**FILES, "look_ahead": 3}))
    strategy = next(each for each in plan.found if each.name == "gdp")
    loads = [seconds.load for seconds, _ in plan.found[strategy].taken]
    assert len(loads) == 2 * plan.steps > 12
    first, second = loads[: plan.steps], loads[plan.steps :]
    assert plan.foreseen(strategy).load == pytest.approx(sum(second))
    assert sum(second) != pytest.approx(sum(first), rel=1e-3)
    assert plan._share(strategy) == 1
    assert 1e-6 * plan.found[strategy].files.cost / 2 <= sum(first) <= 1e-6 * plan.found[strategy].files.cost


def test_of_part_of_an_epoch_the_last_two_thirds_count(folder, monkeypatch) -> None:
    monkeypatch.setattr(dryrun, "LEAST_AHEAD", 6)
    plan = planned(
        GraphStore.open(folder / "2"),
        Machine(file_byte=1e-6),
        few_steps=True,
        **settings_of({**FILES, "look_ahead": 3}),
    )
    strategy = next(each for each in plan.found if each.name == "gdp")
    loads = [seconds.load for seconds, _ in plan.found[strategy].taken]
    assert len(loads) == 6 < plan.steps
    assert plan.foreseen(strategy).load == pytest.approx(plan.steps * sum(loads[2:]) / 4)


def test_a_trial_is_compared_with_the_steps_that_it_took(folder) -> None:
    """It begins with no rows kept, so its steps take more than those of an epoch do."""
    plan = planned(GraphStore.open(folder / "2"), Machine(file_byte=1e-6), **settings_of({**FILES, "look_ahead": 3}))
    strategy = next(each for each in plan.found if each.name == "gdp")
    steps = [seconds.total for seconds, _ in plan.found[strategy].taken]
    assert sum(steps[:4]) / 4 != pytest.approx(plan.foreseen(strategy).total / plan.steps, rel=0.02)
    epoch = plan.foreseen(strategy).total
    for first, count, times in ((0, 4, 1), (2, 3, 1), (1, 4, 2)):
        foreseen = sum(steps[first : first + count]) / count
        for took, wanted in (
            (foreseen / 2, epoch / 2),
            (foreseen, epoch),
            (3 * foreseen, epoch + 2 * plan.steps * foreseen),
        ):
            trial = Trial(count * times, plan.steps, 0.0, took, times=times, first=first)
            assert plan.took(strategy, trial) == pytest.approx(wanted)
            plan.trials = {strategy: trial}
            assert plan.epochs()[strategy].total == pytest.approx(wanted)
            ((estimated, _, shown),) = plan._shown()
            assert shown / estimated.total == pytest.approx(took / foreseen)


def test_steps_that_were_not_foreseen_are_as_later_ones(folder) -> None:
    plan = planned(GraphStore.open(folder / "2"), Machine(file_byte=1e-6), **settings_of({**FILES, "look_ahead": 3}))
    estimate = next(estimate for each, estimate in plan.found.items() if each.name == "gdp")
    steps, later = [seconds.total for seconds, _ in estimate.taken], estimate.step[0].total
    assert estimate.between(0, len(steps))[0].total == pytest.approx(sum(steps) / len(steps))
    assert estimate.between(len(steps) - 2, len(steps) + 3)[0].total == pytest.approx((sum(steps[-2:]) + 3 * later) / 5)
    assert estimate.between(len(steps), len(steps) + 1)[0].total == pytest.approx(later)


def test_before_a_run_few_strategies_are_followed_to_see_what_they_keep(folder, monkeypatch) -> None:
    """Those with a name, and those that a step without kept rows and one with all of them speak for; the others have
    the estimate of the first step."""
    monkeypatch.setattr(estimates, "MOST_FOLLOWED", 2)
    store, given = GraphStore.open(folder / "2"), settings_of({**AHEAD, "workers": 1})
    quick, whole = (planned(store, Machine(far=1e-6), hosts=2, precise=each, **given) for each in (True, False))
    steps = {strategy: found.steps for strategy, found in quick.found.items()}
    assert set(steps.values()) == {1, 2 * quick.steps}
    assert all(steps[each] == 2 * quick.steps for each in steps if each.is_named)
    assert best(quick) == best(whole)
    for strategy, found in quick.found.items():
        if found.steps > 1:
            assert quick.foreseen(strategy).total == pytest.approx(whole.foreseen(strategy).total)
        else:
            assert found.taken == whole.found[strategy].taken[:1]


def test_a_plan_says_where_rows_are_read(folder) -> None:
    plan = planned(GraphStore.open(folder / "2"), Machine(), hosts=2, **settings_of({**AHEAD, "workers": 1})).plan({})
    assert plan.best.epoch_rows["hosts"] > 0 == plan.best.epoch_rows["files"]
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert (again.candidates, again.notes) == (plan.candidates, plan.notes)
    (table, *_) = plan_tables(plan, 1)
    assert [str(column.header) for column in table.columns if "from" in str(column.header)] == [
        "from memory", "from files", "from hosts",
    ]  # fmt: skip
    assert plan.notes[0] in str(table.caption)


@pytest.mark.parametrize(
    ("more", "hosts", "message"),
    [
        (AHEAD, 1, "keeps rows of other hosts, and this host has the rows of all nodes"),
        ({**AHEAD, "feature_memory": 10**5}, 2, "rows that are read from files cannot be kept for them"),
        ({**AHEAD, "cache": 0}, 2, "has no cache to keep rows in"),
        (AHEAD, 3, "2 parts cannot be divided among 3 hosts evenly"),
    ],
)
def test_what_a_run_would_refuse_is_refused(folder, more, hosts, message) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(GraphStore.open(folder / "2"), Machine(), hosts=hosts, **settings_of(more))


def test_what_reading_files_takes_is_measured(folder) -> None:
    settings = {**RUN, **FILES}
    plan = partita.make_plan(folder / "2", Config.make(settings, where="test"))
    assert plan.rates is not None
    assert plan.rates["file_byte"] > plan.rates["file_idle"] >= 0
    assert plan.best.epoch_rows["files"] > 0


def test_a_shard_says_what_it_cannot_plan(folder) -> None:
    """Another number of hosts; what it can plan is planned as from the whole store."""
    shard = GraphStore.open(folder / "2-1")
    with pytest.raises(StoreError, match="is the shard of host 1 of 2"):
        planned(shard, Machine(), **settings_of({"workers": 1}))
    given = settings_of({"workers": 1, "cache": 1500})
    found, wanted = (
        planned(store, Machine(), hosts=2, shards=True, **given) for store in (shard, GraphStore.open(folder / "2"))
    )
    assert {each.name: of.traffic for each, of in found.found.items()} == {
        each.name: of.traffic for each, of in wanted.found.items()
    }
    assert found.notes == wanted.notes
