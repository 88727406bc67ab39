"""Trials by workers that are not equally far when a trial ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import partita
from partita import kernels
from partita.comm.context import Context
from partita.config import Config
from partita.graph.store import GraphStore
from partita.testing.graphs import small_random_store
from partita.testing.workers import run_workers
from partita.train.job import Job
from partita.train.pipeline import Pipeline, PipelineStage
from partita.train.step import Stepper
from partita.train.team import PURPOSES
from partita.train.trial_run import _largest, trial_run

pytestmark = pytest.mark.usefixtures("libraries")


def made_beside_a_late_worker(context: Context) -> list[int]:
    """What a stage that exchanges makes where the workers that follow the first one's order begin each step later."""
    made, of_others = list[int](), Pipeline._limit

    def limit(pipeline: Pipeline, number: int) -> int:
        return of_others(pipeline, number) - (context.mesh.rank > 0 and not pipeline._leaving)

    def make(step: int, _: object) -> int:
        made.extend(context.group("all", "sample").gather(step)[:1])
        return step

    Pipeline._limit = limit  # type: ignore[method-assign]
    stage = PipelineStage("sample", make, in_order=True)
    with Pipeline([stage], 0, 100, 3, settle=lambda begun: _largest(context, begun)) as pipeline:
        for step in range(4):
            assert pipeline.take() == step
        while pipeline._begun[0] < pipeline._limit(0):
            time.sleep(0.01)
    return made


def test_workers_settle_where_they_end_while_one_waits_for_others_to_begin_a_step() -> None:
    """All start their exchanges in one order, so what they tell each other then must not wait for that step's."""
    found = run_workers(made_beside_a_late_worker, 2, purposes=("train", "sample"), timeout=30)
    assert found[0] == found[1] == list(range(len(found[0])))
    assert len(found[0]) > 4


def tried_while_one_compiles(context: Context, folder: str) -> dict[str, float]:
    """A trial where the second worker compiles for long in its first step."""
    take, taken = Stepper.step, list[float]()

    def slow(*args: Any, **more: Any) -> Any:
        if context.mesh.rank == 1 and not taken:
            time.sleep(1.0)
        taken.append(time.perf_counter())
        return take(*args, **more)

    Stepper.step = slow  # type: ignore[method-assign]
    kernels.compilations = lambda: min(len(taken), 1) * context.mesh.rank  # type: ignore[assignment]
    store, settings = GraphStore.open(Path(folder)), {"workers": 2, "layers": 2, "fanout": "4,3", "batch_size": 4}
    config = Config.make({**settings, "hidden": 8, "eval_every": 0, "threads": 1, "strategy": "gdp"})
    trial = trial_run(lambda: Job.prepare(config, store, context), 0.1)
    return {"first": trial.begin + trial.step, "steps": trial.first + trial.steps, "taken": len(taken)}


def test_what_is_compiled_once_is_not_taken_for_what_a_strategy_takes(tmp_path) -> None:
    """Batches that were made meanwhile would be there when steps are timed, so these are taken once more."""
    store = small_random_store(tmp_path / "g", 400, 3000, undirected=True, num_features=6)
    partita.partition(store, tmp_path / "parts", parts=2, algorithm="random")
    for found in run_workers(tried_while_one_compiles, 2, str(tmp_path / "parts"), purposes=PURPOSES):
        assert found["first"] < 1.0
        assert found["taken"] >= found["steps"] + 7  # as many as a trial takes at least
