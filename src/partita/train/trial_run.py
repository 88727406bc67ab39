"""Some steps of a run, to see what they take; nothing is left of them."""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing, nullcontext

from partita import kernels
from partita.comm.context import Context
from partita.comm.group import Group
from partita.core.memory import PeakMemory, keeping_freed
from partita.core.records import Counts
from partita.plan.trials import Trial
from partita.runs.checkpoint import TrainState
from partita.train.job import Job
from partita.train.phase import TrainPhase
from partita.train.pipeline import Pipeline
from partita.train.step import Stepper

WARM_UP = 3
"""Steps that are not timed: they touch memory for the first time, compile, and take longer than others, as long as the
stages are not as far ahead as they will be. Where batches are known ahead, as many more."""
LEAST, LEAST_LONG, MOST = 4, 2, 20
"""So many steps are timed, at least, at least of those that take longer than is wanted of all, and at most."""
LONG_BEGIN = 0.1
"""Where the first step took more than this part of an epoch besides what steps take, it is taken once more: later
epochs begin with memory that was touched before, and with rows that are kept."""


def trial_run(prepare: Callable[[], Job], seconds: float, held: int = 0) -> Trial:
    """Take some steps of the first epoch, as a run does. All workers call this.

    Args:
        prepare: makes a job that nobody uses afterwards; its model is changed.
        seconds: steps are timed for about so long.
        held: bytes of memory that the job needs and ``prepare`` does not take, as there are there already.
    """
    kernels.load()  # what the compiler itself takes is not the strategy's memory
    memory = PeakMemory()
    # At the end of the block memory goes back to the system, so that the next trial shows what that one needs.
    with keeping_freed():
        with memory.watching():
            group, first, steps, epoch_steps, begin, step = _timed(prepare(), seconds)
        gc.collect()  # a job is full of cycles
    begins, takes, peaks = zip(*group.gather([begin, step, memory.peak_bytes]), strict=True)
    return Trial(steps, epoch_steps, statistics.fmean(begins), statistics.fmean(takes), max(peaks) + held, first=first)


def _timed(job: Job, wanted: float) -> tuple[Group, int, int, int, float, float]:
    """The workers; the first step that was timed, how many were, and how many an epoch has; seconds that an epoch takes
    more than its steps, and that a step takes."""
    state = TrainState(counts=Counts.zero(job.config.layers))
    with closing(job.views):
        with job.team.sending_for("start"):
            job.views.start()
        train_phase = job.views.enter(next(iter(job.views.phases(state))), state)
        # Of workers who know so many batches ahead that few steps are like others, all steps are timed: the last steps
        # of an epoch take less, as no more batches are made.
        ahead = max(job.team.group.gather(train_phase.engine.inputs.look_ahead))
        warm_up = WARM_UP + ahead
        if ahead and train_phase.steps <= 2 * warm_up:
            warm_up = 0
        before = kernels.compilations()
        ends, epoch_steps = _ends(job, train_phase, wanted, warm_up), job.views.steps(state)
        # That is done once on a machine, and what other threads made meanwhile was there when steps were timed.
        if max(job.team.group.gather(kernels.compilations() - before)):
            ends = _ends(job, train_phase, wanted, warm_up)
        first = min(warm_up, len(ends) - 1)
        step = (ends[-1] - (ends[first - 1] if first else 0.0)) / (len(ends) - first)
        # What an epoch takes more than its steps do is what the first one took more, until the stages were at work.
        begin = max(0.0, ends[0] - step) if warm_up else 0.0
        if max(job.team.group.gather(begin / (epoch_steps * step))) > LONG_BEGIN:
            begin = min(begin, max(0.0, _ends(job, train_phase, wanted, warm_up, most=1)[0] - step))
        job.views.leave()
    return job.team.group, first, len(ends) - first, epoch_steps, begin, step


def _ends(job: Job, train_phase: TrainPhase, wanted: float, warm_up: int, most: int = sys.maxsize) -> list[float]:
    """When each of the first steps was done, in seconds since all workers began; without a warm-up of all steps."""
    stepper = Stepper(job, lambda _: nullcontext())
    # The stages are to be at work to the end, so they are told of all steps of the epoch.
    pipeline = Pipeline(
        train_phase.stages(), 0, train_phase.steps, job.config.prefetch, streams=train_phase.streams,
        failed=job.team.context.fail, settle=lambda begun: _largest(job.team.context, begun),
    )  # fmt: skip
    job.team.group.gather(0)
    begun, ends = time.perf_counter(), list[float]()
    steps = min(warm_up or train_phase.steps, train_phase.steps, most)
    with pipeline:
        while len(ends) < steps:
            stepper.step(train_phase, len(ends), pipeline.take(hold=True), before_backward=pipeline.go_on)
            ends.append(time.perf_counter() - begun)
            if len(ends) == warm_up:
                seconds = max(job.team.group.gather(ends[-1] - ends[-2]))
                more = min(MOST, max(LEAST if seconds < wanted else LEAST_LONG, math.ceil(wanted / seconds)))
                steps = min(train_phase.steps, most, warm_up + more)
    return ends


def _largest(context: Context, values: list[int]) -> list[int]:
    """Position by position the largest of all workers, some of whose stages may wait for those of others."""
    return [max(each) for each in zip(*context.gather(values), strict=True)]
