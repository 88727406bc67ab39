"""One optimizer step, on the share of a batch that this worker has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from torch import Tensor

from partita.comm.device import to_host
from partita.core.records import Counts
from partita.isolated.coverage import NO_BATCHES
from partita.parallel.engine import MiniBatch
from partita.setup.inputs import DTYPES
from partita.setup.learnt import clip_gradients, row_rate
from partita.setup.optim import learning_rate
from partita.setup.runtime import precision
from partita.train.job import Job
from partita.train.phase import TrainPhase
from partita.train.team import StepTotals, Tally


class Stepper:
    """Takes the steps of a job, and settles with the other workers what has been done.

    Args:
        job: what is trained.
        timer: a block whose time is noted under a name.
    """

    def __init__(self, job: Job, timer: Callable[[str], AbstractContextManager[None]]) -> None:
        self._job, self._timer = job, timer
        self._parameters = list(job.model.parameters())  # to find them takes a visit of every module
        self._tally = Tally(Counts.zero(job.config.layers))

    def step(
        self,
        train_phase: TrainPhase,
        step: int,
        batch: MiniBatch | None,
        *,
        stop: bool = False,
        late: bool = False,
        before_backward: Callable[[], None] = lambda: None,
    ) -> tuple[StepTotals, int] | None:
        """Compute, sum gradients, and move the model. All workers call this.

        Args:
            train_phase: what is trained on.
            step: of ``train_phase``.
            batch: this worker's share; ``None`` where it has none.
            stop: this worker was asked to stop.
            late: it is time for a checkpoint, by the clock of this worker.
            before_backward: called once, before gradients are computed or where there are none.

        Returns:
            Where workers settle in this step: what all of them have done since the last time, and on how many seeds.
        """
        job, timer, finish, covered = self._job, self._timer, None, NO_BATCHES
        size = train_phase.size(step)
        self._tally.seeds += size
        targets, waits = None if batch is None else train_phase.targets(batch), False
        weight = None if train_phase.divisor is None else train_phase.divisor(step, targets)
        if batch is not None and targets is not None:
            rate = learning_rate(job.config, *train_phase.progress(step), train_phase.reductions)
            for group in job.optimizer.param_groups:
                group["lr"] = rate
            if not job.model.training:  # which is a visit of every module
                job.model.train()
            with timer("forward"):
                with precision(job.config, job.team.context.device):
                    output = job.task.outputs(train_phase.engine.forward(batch), batch.seeds)
                # The sum over the seeds divided by the size of the global batch: right for any division of the seeds.
                summed = job.task.loss_sum(output.to(DTYPES[job.config.precision]), targets)
                seeds = size if train_phase.joint else len(batch.seeds)
                loss = summed / (seeds if weight is None else weight)
            covered = train_phase.covered(batch) if train_phase.covered is not None else NO_BATCHES
            loss_sum, waits = to_host(summed.detach()), summed.device.type == "cuda"
        before_backward()
        if waits:  # a device goes backward while the host waits for what it has summed
            self._backward(loss)
        if batch is not None:
            # What is logged is a mean over seeds, of the mean loss of each step.
            self._tally.add(loss_sum() * (1 if weight is None else seeds / weight), batch.counts, covered)
        if train_phase.syncs_stats_at(step):
            tally = self._tally
            seen = None if train_phase.covered is None else tally.covered
            # On its way beside backward.
            finish = job.team.begin_total(tally.loss_sum, stop, tally.counts, seen, late=late)
        if batch is not None:
            if not waits:
                self._backward(loss)
            with timer("sum_gradients"):
                # Of this step: a worker that settles in every step has one batch in its sums.
                job.views.sync.join_gradients(self._parameters, covered.factor, job.team.group)
                if job.learnt is not None:
                    job.learnt.collect()
        settled = None
        if finish is not None:
            with timer("settle"):
                settled = finish(), self._tally.seeds
            self._tally = Tally(Counts.zero(job.config.layers))
        if batch is not None:
            with timer("optimizer"):
                factor = 1.0
                if job.config.clip_norm:
                    # Every worker has the gradient of the whole batch, so all scale it alike.
                    factor = clip_gradients(self._parameters, job.config.clip_norm, job.learnt)
                job.optimizer.step()
                if job.learnt is not None:
                    job.learnt.update(row_rate(job.config, rate), factor)
        return settled

    def _backward(self, loss: Tensor) -> None:
        with self._timer("backward"):
            self._job.optimizer.zero_grad(set_to_none=True)
            loss.backward()
