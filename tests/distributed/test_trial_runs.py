"""Trials by workers that are not equally far when a trial ends."""

from __future__ import annotations

import time

import pytest

from partita.comm.context import Context
from partita.testing.workers import run_workers
from partita.train.pipeline import Pipeline, PipelineStage
from partita.train.trial_run import _largest

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
