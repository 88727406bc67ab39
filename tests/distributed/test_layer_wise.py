"""Layer-wise sampling: any strategy on any number of workers takes the very step that one process takes."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from steps import Outcome, ShareOutcome, Step, difference, distributed, reference, run_worker

from partita.comm.context import Context
from partita.core.records import RemoteDraws, Traffic
from partita.features.tiers import CacheSettings
from partita.graph.store import GraphStore
from partita.parallel.strategies import parse_strategy
from partita.sample.samplers import LayerWise
from partita.testing.graphs import formula_store
from partita.testing.workers import run_workers
from partita.train.team import PURPOSES

NAMED = ("gdp", "nfp", "snp", "dnp", "gsplit")
MIXED = ("source,destination,data", "feature,source,destination", "by-owner,destination,data,source")
HIERARCHICAL = ("data@hosts+gsplit@workers", "snp@hosts+data@workers", "nfp@workers+gdp@hosts")
PARTS = {2: (0, 25, 60), 3: (0, 20, 20, 60), 4: (0, 10, 10, 37, 60)}
BUDGETS = (50, 30, 20)
KINDS = ("sage", "sage-sum", "sage-max", "gcn", "gin", "gat")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    """Re-ordered, with multi-edges, loops and nodes without neighbors."""
    path = tmp_path_factory.mktemp("layer-wise") / "g"
    return formula_store(path, num_nodes=60, num_features=7, shuffle_seed=3, weighted=True)


@lru_cache(maxsize=64)
def in_one_process(step: Step) -> Outcome:
    return reference(step)


def check(step: Step, strategy: str, workers: int, hosts: int = 1, **options: Any) -> Outcome:
    found = distributed(step, strategy, workers, hosts=hosts, **options)
    wanted = in_one_process(replace(step, cache=Step.cache, split_topology=False, parts=None))
    assert sorted(found.output) == sorted(wanted.output)
    worst = difference(found, wanted)
    assert worst < 1e-9, worst
    assert {kind: found.sent[kind] for kind in found.traffic.to_json()} == found.traffic.to_json()
    # Every worker sends its times to every other one, once for each layer, whatever else it does.
    for budget, remote in zip(step.budgets, found.remote, strict=True):
        assert remote.times == (budget + 1) * workers * (workers - 1)
    return found


def step_of(store: GraphStore, kind: str, workers: int, number: int, **options: Any) -> Step:
    """Another way for every number: with or without replacement and weights, over parts or all of the edges."""
    return Step(
        store, kind, budgets=BUDGETS, parts=PARTS[workers], replace=number % 2 == 1, weighted=number % 3 == 1,
        split_topology=number % 4 < 2, **options,
    )  # fmt: skip


@pytest.mark.parametrize("strategy", NAMED)
@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_take_the_same_step(store, kind, strategy) -> None:
    number = KINDS.index(kind) + NAMED.index(strategy)
    for topology in (0, 2):
        check(step_of(store, kind, 2, number + topology), strategy, 2, seed_split=("owner", "even")[number % 2])


@pytest.mark.parametrize("strategy", [*NAMED, *MIXED])
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_more_workers_take_the_same_step(store, kind, strategy) -> None:
    for number, workers in ((0, 3), (1, 4)):
        check(
            step_of(store, kind, workers, number, dropout=0.3, input_dropout=0.2), strategy, workers, seed_split="even"
        )


@pytest.mark.parametrize("strategy", HIERARCHICAL)
@pytest.mark.parametrize("number", [0, 3])
def test_two_hosts_take_the_same_step(store, strategy, number) -> None:
    for kind in ("sage", "gin"):
        check(step_of(store, kind, 4, number), strategy, 4, hosts=2)


@pytest.mark.parametrize("strategy", NAMED)
def test_workers_without_seeds_and_budgets_that_take_all(store, strategy) -> None:
    for seeds in ((7,), (3, 58)):
        check(replace(step_of(store, "sage", 4, 0), seeds=seeds, budgets=(2000, 5, 2)), strategy, 4, seed_split="even")


@pytest.mark.parametrize("strategy", NAMED)
def test_the_cache_is_chosen_by_what_is_really_drawn(store, strategy) -> None:
    """The dry run of the policies draws with the sampler of the run."""
    for policy in ("presample", "strategy"):
        cache = CacheSettings(12 + 8 * 7 * 9, policy, "own")
        found = check(replace(step_of(store, "sage", 3, 0), cache=cache), strategy, 3)
        assert sum(counts.rows_from[0] for counts in found.counts) > 0


def test_the_budget_holds_for_all_workers_together(store) -> None:
    step = step_of(store, "sage", 4, 0, seeds=tuple(range(40)))
    found, alone = distributed(step, "gsplit", 4), in_one_process(replace(step, split_topology=False, parts=None))
    assert alone.counts[0].sampled_edges == sum(BUDGETS)
    assert sum(counts.sampled_edges for counts in found.counts) == sum(BUDGETS)


def test_it_notices_budgets_of_single_workers(store, monkeypatch) -> None:
    step = step_of(store, "sage", 3, 0)
    check(step, "gdp", 3)
    monkeypatch.setattr(LayerWise, "agree", lambda self, times: times[None])
    found = distributed(step, "gdp", 3)
    assert difference(found, in_one_process(replace(step, split_topology=False, parts=None))) > 1e-4


def test_traffic_of_a_planned_step(store) -> None:
    """A planner knows the rows that travel without drawing anything."""
    step = step_of(store, "sage", 3, 2)
    found = distributed(step, "gdp", 3)
    assert parse_strategy("gdp", 3).placements == ("data",) * 3
    assert found.remote == [RemoteDraws(times=(budget + 1) * 3 * 2) for budget in BUDGETS]
    assert found.messages[: 1 + 3] == [Traffic()] * 4
    assert found.traffic.ids == 8 * 6 * (sum(BUDGETS) + 3)


def in_a_process(context: Context, path: str, strategies: list[str]) -> dict[str, float]:
    """The worst difference of every strategy, with gradients summed by the group."""
    found = {}
    torch.set_num_threads(1)
    for number, strategy in enumerate(strategies):
        step = step_of(GraphStore.open(path), "gcn", context.mesh.size, number)
        done: ShareOutcome = run_worker(context, step, strategy, "owner")
        context.group("all", "train").sum_([done.loss, *done.gradients.values()])
        found[strategy] = difference(done, reference(replace(step, split_topology=False, parts=None)))
    return found


def test_processes_take_the_same_step(tmp_path: Path) -> None:
    formula_store(tmp_path / "g", num_nodes=60, shuffle_seed=3, weighted=True)
    results = run_workers(
        in_a_process, 2, str(tmp_path / "g"), list(NAMED), purposes=PURPOSES, timeout=120
    )  # fmt: skip
    for result in results:
        assert max(result.values()) < 1e-9, result
