"""Neighborhoods of random walks: any strategy on any number of workers takes the very step that one process takes."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path

import pytest
import torch
from steps import Outcome, Step, difference, distributed, reference, run_worker

from partita.comm.context import Context
from partita.comm.group import Group
from partita.core.errors import ConfigError
from partita.core.protocols import Sampler
from partita.graph.store import GraphStore
from partita.sample.walks import WalkWise
from partita.testing.graphs import formula_store
from partita.testing.workers import run_workers
from partita.train.team import PURPOSES

NAMED = ("gdp", "nfp", "snp", "dnp", "gsplit")
MIXED = ("source,destination,data", "feature,source,destination", "by-owner,destination,data,source")
HIERARCHICAL = ("data@hosts+gsplit@workers", "snp@hosts+data@workers")
PARTS = {2: (0, 25, 60), 3: (0, 20, 20, 60), 4: (0, 10, 10, 37, 60)}
KINDS = ("sage", "sage-sum", "sage-max", "gin", "gat", "pyg-sage")


class WalkStep(Step):
    """A step on the nodes that walks visit."""

    def sampler(self, group: Group) -> Sampler:
        return WalkWise(self.fanouts, walks=5, length=3, restart=0.3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    """Re-ordered, with multi-edges, loops and nodes without neighbors."""
    path = tmp_path_factory.mktemp("walks") / "g"
    return formula_store(path, num_nodes=60, num_features=7, shuffle_seed=3, weighted=True)


@lru_cache(maxsize=64)
def in_one_process(step: Step) -> Outcome:
    return reference(step)


def step_of(store: GraphStore, kind: str, workers: int, *, split: bool, **options) -> Step:
    return WalkStep(store, kind, parts=PARTS[workers], split_topology=split, weighted=split, **options)


def check(step: Step, strategy: str, workers: int, hosts: int = 1) -> None:
    found = distributed(step, strategy, workers, hosts=hosts)
    wanted = in_one_process(replace(step, split_topology=False, parts=None))
    assert sorted(found.output) == sorted(wanted.output)
    worst = difference(found, wanted)
    assert worst < 1e-9, worst
    assert {kind: found.sent[kind] for kind in found.traffic.to_json()} == found.traffic.to_json()
    steps = sum(work.remote.steps for batch in found.batches for work in batch.works)
    assert (steps > 0) == step.split_topology


CASES = [
    (kind, strategy)
    for kind, strategy in product(KINDS, (*NAMED, *MIXED))
    if not kind.startswith("pyg") or strategy in ("gdp", "dnp", "gsplit")
]


@pytest.mark.parametrize(("kind", "strategy"), CASES)
def test_every_strategy_takes_the_same_step(store, kind, strategy) -> None:
    for workers, split in ((2, False), (3, True)):
        check(step_of(store, kind, workers, split=split, dropout=0.2), strategy, workers)


@pytest.mark.parametrize("strategy", HIERARCHICAL)
def test_two_hosts_take_the_same_step(store, strategy) -> None:
    for split in (False, True):
        check(step_of(store, "sage", 4, split=split), strategy, 4, hosts=2)


def test_workers_without_seeds_take_all_steps(store) -> None:
    for strategy in ("gdp", "gsplit"):
        check(step_of(store, "sage", 4, split=True, seeds=(7,)), strategy, 4)


def test_gcn_is_refused(store) -> None:
    with pytest.raises(ConfigError, match=r"layer 1 \(gcn\).*sage, gin or gat"):
        in_one_process(step_of(store, "gcn", 2, split=False))


def in_a_process(context: Context, path: str, strategies: list[str]) -> dict[str, float]:
    """The worst difference of every strategy, with gradients summed by the group."""
    found = {}
    torch.set_num_threads(1)
    for strategy, split in product(strategies, (False, True)):
        step = step_of(GraphStore.open(path), "sage", context.mesh.size, split=split)
        done = run_worker(context, step, strategy, "owner")
        context.group("all", "train").sum_([done.loss, *done.gradients.values()])
        found[f"{strategy} {split}"] = difference(done, reference(replace(step, split_topology=False, parts=None)))
    return found


def test_processes_take_the_same_step(tmp_path: Path) -> None:
    formula_store(tmp_path / "g", num_nodes=60, shuffle_seed=3, weighted=True)
    results = run_workers(
        in_a_process, 2, str(tmp_path / "g"), ["gdp", "dnp", "gsplit"], purposes=PURPOSES, timeout=120
    )  # fmt: skip
    for result in results:
        assert len(result) == 6
        assert max(result.values()) < 1e-9, result
