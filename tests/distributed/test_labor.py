"""Neighbors that destinations share: any strategy on any number of workers takes the step that one process takes."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from steps import Outcome, ShareOutcome, Step, difference, distributed, reference, run_worker

from partita.comm.context import Context
from partita.features.tiers import CacheSettings
from partita.graph.store import GraphStore
from partita.testing.graphs import formula_store
from partita.testing.workers import run_workers
from partita.train.team import PURPOSES

NAMED = ("gdp", "nfp", "snp", "dnp", "gsplit")
PARTS = {1: (0, 60), 2: (0, 25, 60), 3: (0, 20, 20, 60), 4: (0, 10, 10, 37, 60)}
WAYS = ((1, False), (1, True), (5, False), (5, True))
"""See :attr:`steps.Step.labor`; step 3 of 5 is one whose draws turn."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    """Re-ordered, with multi-edges, loops and nodes without neighbors."""
    path = tmp_path_factory.mktemp("labor") / "g"
    return formula_store(path, num_nodes=60, num_features=7, shuffle_seed=3, weighted=True)


@lru_cache(maxsize=64)
def in_one_process(step: Step) -> Outcome:
    return reference(step)


def step_of(store: GraphStore, kind: str, workers: int, number: int) -> Step:
    """Another way for every number: with or without weights, edges left out, over parts or all of the edges."""
    return Step(
        store, kind, parts=PARTS[workers], weighted=number % 3 == 1, split_topology=number % 4 < 2,
        lost=3 * (number % 2), labor=WAYS[number % 4],
    )  # fmt: skip


def check(step: Step, strategy: str, workers: int, hosts: int = 1) -> Outcome:
    found = distributed(step, strategy, workers, hosts=hosts)
    wanted = in_one_process(replace(step, cache=Step.cache, split_topology=False, parts=None))
    assert sorted(found.output) == sorted(wanted.output)
    worst = difference(found, wanted)
    assert worst < 1e-9, worst
    if not step.lost:  # of such steps owners also say what nodes lose, which no layer's traffic counts
        assert {kind: found.sent[kind] for kind in found.traffic.to_json()} == found.traffic.to_json()
    return found


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("strategy", NAMED)
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_workers_take_the_same_step(store, kind, strategy, workers) -> None:
    number = workers + NAMED.index(strategy)
    for more in (0, 2):
        check(step_of(store, kind, workers, number + more), strategy, workers)


def test_two_hosts_take_the_same_step(store) -> None:
    check(step_of(store, "sage", 4, 1), "data@hosts+gsplit@workers", 4, hosts=2)


@pytest.mark.parametrize("way", range(4))
def test_another_dependency_is_another_step(store, way) -> None:
    """The settings reach the draws of a step."""
    steps = [step_of(store, "sage", 1, number) for number in range(4)]
    found = [in_one_process(replace(step, weighted=False, lost=0, parts=None)) for step in steps]
    assert all(difference(found[way], found[other]) > 1e-4 for other in range(4) if other != way)


@pytest.mark.parametrize("policy", ["presample", "strategy"])
def test_the_cache_is_chosen_by_what_is_really_drawn(store, policy) -> None:
    cache = CacheSettings(12 + 8 * 7 * 9, policy, "own")
    found = check(replace(step_of(store, "sage", 3, 3), cache=cache), "gdp", 3)
    assert sum(counts.rows_from[0] for counts in found.counts) > 0


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
    for result in run_workers(
        in_a_process, 2, str(tmp_path / "g"), list(NAMED), purposes=PURPOSES, timeout=120
    ):  # fmt: skip
        assert max(result.values()) < 1e-9, result
