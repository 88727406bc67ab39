"""Plans for typed graphs: what a run then counts, and rows that cost by type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_machine import Machine, best, planned, require_counted
from on_workers import train_on_workers
from safetensors.numpy import load_file
from typed_graphs import typed_store

import partita
from partita.config import Config
from partita.core.mesh import Mesh
from partita.graph.store import GraphStore
from partita.plan.candidates import candidates
from partita.plan.cost import Cost
from partita.plan.dryrun import DryRun
from partita.plan.rates import PerRow
from partita.plan.trials import Trial

TYPED = {"model": "rgcn", "layers": 2, "fanout": "cites=3,2 *=2,2", "batch_size": 30, "hidden": 8}
NAMED = ("gdp", "dnp", "snp", "gsplit")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return typed_store(tmp_path_factory.mktemp("typed") / "two", 240, parts=2)


def test_all_strategies_but_those_that_slice_columns_come_into_question(store) -> None:
    plan = planned(store, Machine(), **TYPED)
    assert {each.name for each in plan.found} >= set(NAMED)
    assert not any("feature" in each.placements for each in plan.found)
    refused = {str(each): str(error) for each, error in plan.refused.items()}
    assert all("feature" in name or "columns" in name for name in refused)
    assert all("other ones of" in error for error in refused.values())


def test_nothing_is_sent_where_sending_is_slow_and_nothing_computed_twice_where_it_is_free(store) -> None:
    assert best(planned(store, Machine(send=1e-3), **TYPED)).name == "gdp"
    plan = planned(store, Machine(send=0.0, compute=1e-3, edge=0.0), **TYPED)
    counts = {each.name: sum(found.counts.computed_destinations) for each, found in plan.found.items()}
    assert counts[best(plan).name] == min(counts.values()) < counts["gdp"]


@pytest.mark.parametrize(
    "cache",
    [
        {},
        {"cache": 600, "cache_policy": "in-degree"},
        {"cache": 900, "cache_policy": "strategy", "cache_layout": "partitioned"},
    ],
)
def test_a_plan_says_what_a_run_then_counts(store, tmp_path, cache) -> None:
    """Over a whole epoch, of every strategy with a name; the contract tests do it for all, in a step."""
    plan = planned(store, Machine(), **TYPED, **cache)
    assert plan.sampled_steps == plan.steps
    more = {"epochs": 1, "eval_every": 0}
    records = train_on_workers(
        store.path, 2, {tmp_path / name: {**TYPED, **cache, **more, "strategy": name} for name in NAMED}
    )  # fmt: skip
    for name in NAMED:
        estimate = require_counted(plan, name, records[tmp_path / name])
        assert (estimate.counts.rows_from[0] > 0) == bool(cache), name


def test_rows_cost_what_those_of_their_type_cost(store) -> None:
    """Papers have five float32 columns, authors three, places none."""
    config, mesh = Config.make({**TYPED, "workers": 2}, where="test"), Mesh.of(0, 2, 2)
    dry_run = DryRun(store, config, mesh, candidates(2, mesh))
    assert dry_run.row_bytes == [20, 12, 0]
    rates = replace(Machine().rates(), inputs=(PerRow(1.0, 10.0, 100.0), PerRow(2.0, 20.0, 7.0), PerRow(4.0, 50.0)))
    free = replace(rates, inputs=(PerRow(0.0),) * 3)
    for strategy, shares in next(dry_run.steps(seconds=0.0)).items():
        found = [
            Cost(dry_run.engines[strategy], strategy.axis, mesh, each, Machine().links(), parameter_bytes=0,
                 row_bytes=dry_run.row_bytes, ahead=0, held=0)
            for each in (rates, free)
        ]  # fmt: skip
        of_step = [cost.of_step(shares).workers for cost in found]
        for share, seconds, without in zip(shares, *of_step, strict=True):
            assert share.read[2] == 0 < share.taken[2] + sum(share.taken)
            assert sum(share.read) == share.counts.input_rows_read
            assert seconds.load == pytest.approx(share.read @ [1, 2, 4])
            assert seconds.compute - without.compute == pytest.approx(share.taken @ [10, 20, 50])
            kept = found[0].memory(share) - found[1].memory(share)
            assert kept == pytest.approx(share.taken @ [100, 7, 0], abs=1)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_chosen_is_as_fast_as_what_trying_all_would_choose(store, seed) -> None:
    """Where estimates are off by up to a tenth, each strategy by another part."""
    plan = planned(store, Machine(send=1e-7, latency=1e-5), **TYPED)
    different = list(plan.epochs())  # of those that come to the same thing, one
    wrong = np.random.default_rng(seed).uniform(0.9, 1.1, len(different)).tolist()
    takes = {each: part * plan.foreseen(each).total for each, part in zip(different, wrong, strict=True)}
    while (strategy := plan.next_to_try()) is not None:
        plan.add(strategy, Trial(4, plan.steps, 0.0, takes[strategy] / plan.steps))
    assert takes[best(plan)] == pytest.approx(min(takes.values()), rel=0.01)


@pytest.mark.usefixtures("libraries")
def test_workers_plan_with_what_they_measure_and_train_the_same_model(store, tmp_path) -> None:
    settings = {**TYPED, "epochs": 1, "precision": "float64"}
    plan = partita.make_plan(store.path, Config.make({**settings, "workers": 2}, where="test"))
    assert {each.name for each in plan.candidates} >= {"gdp", "dnp"}
    assert plan.best.tried_steps > 0
    totals = [each.epoch.total for each in plan.candidates]
    assert totals[0] > 0
    assert totals[1:] == sorted(totals[1:])  # the first may be another that is as fast and sends less
    assert "need at least 4 partitions" in plan.refused["grappa"]
    rates = plan.rates["inputs"]
    assert len(rates) == 3
    assert all(each["encode"] > 0 for each in rates)
    assert [each["read"] > 0 for each in rates] == [True, True, False]
    partita.Trainer.launch(store.path, out=tmp_path / "planned", plan=plan, workers=2, replan="never", **settings)
    partita.Trainer.launch(store.path, out=tmp_path / "auto", strategy="auto", workers=2, **settings)
    partita.Trainer(store, out=tmp_path / "one", **settings).fit()
    one, *others = (weights(tmp_path / name) for name in ("one", "planned", "auto"))
    for other in others:
        for name, value in one.items():
            assert np.abs(other[name] - value).max() <= 1e-9 * np.abs(value).max(), name


def weights(run: Path) -> dict[str, np.ndarray]:
    return load_file(max((run / "checkpoints").glob("epoch-*")) / "model.safetensors")
