"""Plans where rows are learnt: what a run then counts, what owners do, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_machine import Machine, best, planned, require_counted
from on_workers import train_on_workers
from typed_graphs import typed_store

import partita
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.mesh import Mesh
from partita.graph.store import GraphStore
from partita.plan.candidates import candidates
from partita.plan.cost import Cost
from partita.plan.dryrun import DryRun
from partita.plan.rates import PerRow
from partita.testing.graphs import small_random_store

NAMED = ("gdp", "dnp", "snp", "gsplit")
COMMON = {"layers": 2, "batch_size": 30, "hidden": 8, "precision": "float64"}
SETTINGS = {
    "typed": {**COMMON, "model": "rgcn", "fanout": "cites=3,2 *=2,2", "embed": "author=5 place=8"},
    "plain": {**COMMON, "model": "sage", "fanout": "3,2", "embed": 8},
    "links": {**COMMON, "model": "sage", "fanout": "3,2", "embed": 8, "task": "links", "negatives": 3},
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GraphStore]:
    folder = tmp_path_factory.mktemp("learnt")
    small_random_store(folder / "whole", 240, 1400, undirected=True)
    partita.partition(folder / "whole", folder / "plain", parts=2, algorithm="random")
    partita.split_links(folder / "plain", folder / "links")
    of_links, plain = partita.open(folder / "links"), partita.open(folder / "plain")
    return {"typed": typed_store(folder / "typed", 240, parts=2), "plain": plain, "links": of_links}


@pytest.mark.parametrize("graph", SETTINGS)
def test_a_plan_says_what_a_run_then_counts(stores, tmp_path, graph) -> None:
    plan = planned(stores[graph], Machine(), **SETTINGS[graph])
    assert {each.name for each in plan.found} >= set(NAMED)
    assert plan.sampled_steps == plan.steps
    more = {"epochs": 1, "eval_every": 0}
    runs = {tmp_path / name: {**SETTINGS[graph], **more, "strategy": name} for name in NAMED}
    records = train_on_workers(stores[graph].path, 2, runs)
    for name in NAMED:
        require_counted(plan, name, records[tmp_path / name])


def test_where_sending_is_slow_the_strategy_wins_that_sends_least(stores) -> None:
    """With gdp every learnt row of another worker travels, and its gradient; so it need not be that."""
    plan = planned(stores["plain"], Machine(send=1e-3), **{**SETTINGS["plain"], "embed": 400, "hidden": 4})
    sent = {each: found.traffic.total for each, found in plan.found.items()}
    assert sent[best(plan)] == min(sent.values()) < sent[next(each for each in sent if each.name == "gdp")]


def dry_run_of(store: GraphStore, settings: dict) -> DryRun:
    mesh = Mesh.of(0, 2, 2)
    return DryRun(store, Config.make({**settings, "workers": 2}, where="test"), mesh, candidates(2, mesh))


def test_owners_take_time_to_give_and_to_move_rows(stores) -> None:
    """Papers have none, authors and places do; two workers want some of them both."""
    dry_run, machine = dry_run_of(stores["typed"], SETTINGS["typed"]), Machine()
    of_types = PerRow(1.0, give=9.0, move=9.0), PerRow(1.0, give=2.0, move=30.0), PerRow(1.0, move=5.0)
    rates = replace(machine.rates(), inputs=of_types)
    free = replace(rates, inputs=(PerRow(1.0),) * 3)
    wanted_by_both = 0
    for strategy, shares in next(dry_run.steps(seconds=0.0)).items():
        with_rows, without = (
            Cost(dry_run.engines[strategy], strategy.axis, Mesh.of(0, 2, 2), each, machine.links(), parameter_bytes=0,
                 row_bytes=dry_run.row_bytes, ahead=0, held=0).of_step(shares).workers
            for each in (rates, free)
        )  # fmt: skip
        for share, seconds, less in zip(shares, with_rows, without, strict=True):
            assert share.given[0] == share.moved[0] == 0
            assert (share.given >= share.moved).all()
            assert seconds.compute - less.compute == pytest.approx(share.given @ [0, 2, 0] + share.moved @ [0, 30, 5])
            wanted_by_both += int(sum(share.given - share.moved))
        asked = np.sum([share.taken for share in shares], axis=0)
        assert (np.sum([share.given for share in shares], axis=0)[1:] == asked[1:]).all()  # who asks is given
    assert wanted_by_both > 0


def test_tables_are_part_of_the_memory(stores) -> None:
    """Of Adam: a row, and as much twice over; as float64. The parts are as large as can be."""
    bounds = stores["plain"].part_offsets
    need = [
        dry_run_of(stores["plain"], {**SETTINGS["plain"], "embed_optimizer": name}).learnt_bytes
        for name in ("adam", "sgd")
    ]
    rows = int(np.diff(bounds).max())
    assert need[0] >= 3 * 8 * 8 * rows
    assert need[1] == 8 * 8 * rows
    assert dry_run_of(stores["plain"], {**SETTINGS["plain"], "embed": None}).learnt_bytes == 0


def test_rows_in_files_are_refused_in_words(stores) -> None:
    with pytest.raises(ConfigError, match="does not price learnt rows in files"):
        dry_run_of(stores["plain"], {**SETTINGS["plain"], "embed_memory": 0})


def test_rows_without_layers_leave_nothing_to_choose(stores, tmp_path) -> None:
    settings = {"task": "links", "model": "none", "embed": 8, "hidden": 8, "workers": 2, "epochs": 1}
    with pytest.raises(ConfigError, match="no strategy to choose"):
        partita.make_plan(stores["links"].path, Config.make(settings))
    run = partita.Trainer.launch(stores["links"].path, out=tmp_path / "run", **settings)
    assert "plan" not in run.record


def test_a_plan_is_made_and_followed(stores, tmp_path: Path) -> None:
    """Tried out on tables that the run does not see: what it learns is what it learns without a plan."""
    settings = {**SETTINGS["plain"], "epochs": 2, "workers": 2}
    plan = partita.make_plan(stores["plain"].path, Config.make(settings))
    assert any(each.tried_steps for each in plan.candidates)
    rates = plan.rates["inputs"] if plan.rates else []
    assert all(each["give"] > 0 and each["move"] > 0 for each in rates)
    losses = []
    for how in ({"plan": plan}, {"strategy": "gdp"}):
        run = partita.Trainer.launch(stores["plain"].path, out=tmp_path / next(iter(how)), **settings, **how)
        losses.append(run.metrics["test"]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_a_plan_for_links_is_for_the_store_that_a_run_trains_on(tmp_path) -> None:
    """One with some of them held out, which the plan makes beside where there is none; a run finds it there."""
    partita.partition(small_random_store(tmp_path / "whole", 120, 700, undirected=True).path, tmp_path / "g", parts=2)
    settings = {**SETTINGS["links"], "epochs": 1, "workers": 2}
    plan = partita.make_plan(tmp_path / "g", Config.make(settings))
    run = partita.Trainer.launch(tmp_path / "g", out=tmp_path / "run", plan=plan, **settings)
    assert 0 <= run.metrics["test"]["auc"] <= 1
