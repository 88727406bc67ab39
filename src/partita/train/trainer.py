"""The trainer: one visible loop over epochs and steps."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import torch

from partita import kernels
from partita.comm.context import Context
from partita.config import Config
from partita.core import progress
from partita.core.errors import ConfigError, RunError
from partita.core.keys import StepKey
from partita.core.protocols import Topology
from partita.core.records import Counts
from partita.graph.store import GraphStore
from partita.infer.evaluate import evaluate_split
from partita.infer.metrics import as_target, better, loss_sum
from partita.infer.run import open_inference
from partita.infer.table import RowTable
from partita.nn.model import Model
from partita.parallel.engine import Batch
from partita.runs.checkpoint import (
    Best,
    TrainState,
    latest_checkpoint,
    load_model,
    share_checkpoint,
    share_model,
)
from partita.runs.folder import RunFolder
from partita.runs.load import DTYPES, open_store_of, read_run
from partita.train.interrupt import StopRequest, stop_requests
from partita.train.job import Job
from partita.train.optimise import learning_rate
from partita.train.prefetch import prefetched
from partita.train.recorder import Callback, Event, Recorder, RunSummary
from partita.train.team import PURPOSES, StepTotals, join_team

# What may be changed when a run is resumed: nothing that a batch or a gradient depends on.
RESUMABLE = ("epochs", "threads", "prefetch", "memory_limit", "checkpoint_minutes", "workers", "strategy", "deal",
    "topology", "cache", "cache_policy", "cache_layout",
)  # fmt: skip
_STEP_EVENTS = 50


class Trainer:
    """Trains a model on a graph store into a run folder.

    Args:
        store: a store or its path.
        out: the run folder to make; it must not exist yet.
        config: all settings at once; or give them by name in ``settings``.
        model: the name of a layer, as in the settings; or a model of your own, whose last layer must be as wide
            as there are classes.
        callbacks: called with every event that goes to ``metrics.jsonl``, by the first worker.
        context: of this worker, where the caller has made one; ``None``: that of the launcher (torchrun) which started
            this process, or else a single worker.
        settings: fields of :class:`partita.Config`, for instance ``epochs=20``.

    Raises:
        StoreError, ConfigError, RunError: the store, a setting or the run folder cannot be used.
    """

    def __init__(
        self,
        store: GraphStore | str | os.PathLike[str],
        *,
        out: str | os.PathLike[str],
        config: Config | None = None,
        model: Model | str | None = None,
        callbacks: Sequence[Callback] = (),
        context: Context | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(model, str):
            settings["model"], model = model, None
        if config is not None and settings:
            raise ConfigError("give either config= or single settings", fix="Make one with partita.Config.make")
        opened = store if isinstance(store, GraphStore) else GraphStore.open(store)
        context, config = join_team(context, config or Config.make(settings, where="Trainer"))
        self.job = Job.prepare(config, opened, context, model)
        self._state = TrainState(counts=Counts.zero(self.job.config.layers))
        self.recorder = Recorder.begin(RunFolder(out), self.job, callbacks, custom=model is not None)

    @classmethod
    def resume(
        cls,
        run: str | os.PathLike[str],
        *,
        store: str | os.PathLike[str] | None = None,
        model: Model | None = None,
        callbacks: Sequence[Callback] = (),
        context: Context | None = None,
        **settings: Any,
    ) -> Trainer:
        """Go on with a run from its latest checkpoint, on exactly the batches that it would have seen.

        Args:
            run: the run folder.
            store: where its store lies now, if it was moved.
            model: for runs of a user's own model: one of the same shape.
            callbacks: called with every event that goes to ``metrics.jsonl``.
            context: see the class.
            settings: changes; only of ``epochs``, ``threads``, ``prefetch``, ``memory_limit``, ``checkpoint_minutes``,
                ``workers``, ``strategy``, ``deal``, ``topology``, ``cache``, ``cache_policy``, ``cache_layout``.

        Raises:
            RunError, StoreError, ConfigError: the run cannot be resumed, or a setting must not change.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        for name in given:
            if name not in RESUMABLE:
                raise ConfigError(
                    f"'{name}' cannot change when a run is resumed",
                    where=str(run),
                    fix=f"Leave it out (only {', '.join(RESUMABLE)} may change), or start a new run",
                )
        self = cls.__new__(cls)
        context = context or Context.from_environment(purposes=PURPOSES) or Context.alone(purposes=PURPOSES)
        folder, record, config = read_run(context, run, given)
        if record["model"].get("custom") and model is None:
            raise RunError("was trained with a model of your own", where=str(run), fix="Pass the same model=")
        context, config = join_team(context, config)
        self.job = Job.prepare(config, open_store_of(folder, record, store), context, model)
        saved = share_checkpoint(context, folder.checkpoints, self.job.model, self.job.optimizer)
        self._state = saved or TrainState(counts=Counts.zero(config.layers))
        self.recorder = Recorder.go_on(folder, record, self.job, callbacks, self._state)
        return self

    @classmethod
    def launch(
        cls,
        store: str | os.PathLike[str],
        *,
        out: str | os.PathLike[str],
        config: Config | None = None,
        **settings: Any,
    ) -> RunSummary:
        """Train on ``workers`` processes of this machine, which are started here, to the end.

        Models and callbacks of one's own are objects of this process; run a script that makes them with torchrun
        instead.

        Args:
            store: path of a store.
            out: the run folder to make.
            config: all settings at once; or give them by name in ``settings``.
            settings: fields of :class:`partita.Config`, for instance ``workers=2, strategy="gsplit"``.

        Raises:
            PartitaError: what a worker raised, or that one was killed; all others have ended then.
        """
        from partita.comm.launch import launch

        if config is not None and settings:
            raise ConfigError("give either config= or single settings", fix="Make one with partita.Config.make")
        config = config or Config.make(settings, where="Trainer.launch")
        arguments = {"store": os.fspath(store), "out": os.fspath(out), "config": config.model_dump(mode="json")}
        found = launch(
            "partita.train.trainer:fit_on_worker", config.workers, arguments=arguments, threads=config.threads,
            purposes=PURPOSES,
        )  # fmt: skip
        folder = RunFolder.open(out)
        return RunSummary(folder.path, found, folder.read_record())

    def fit(self) -> RunSummary:
        """Train to the end, or until Ctrl-C or SIGTERM, which save a checkpoint first.

        Returns:
            What ``run.json`` says; ``status`` is ``interrupted`` where the run was stopped.
        """
        config = self.job.config
        kernels.load()  # what the compiler itself takes is not the run's memory
        self._full_graph: tuple[Topology, RowTable] | None = None  # what evaluation reads
        self.recorder.start()
        self._stopping = False  # agreed by all workers
        try:
            with _threads(config.threads), stop_requests() as stop:
                with self.job.team.sending_for("start"):
                    self.job.fill_caches()
                while self._state.epoch < config.epochs and not self._state.stopped and not self._stopping:
                    self._train_epoch(stop)
                status = "finished" if self._state.epoch >= config.epochs or self._state.stopped else "interrupted"
                if latest_checkpoint(self.recorder.folder.checkpoints) is None or status == "interrupted":
                    self._save()
                metrics = self._final_metrics() if status == "finished" else {}
        except BaseException as error:
            self._close(f"failed: {type(error).__name__}", {})
            raise
        return self._close(status, metrics)

    def _train_epoch(self, stop: StopRequest) -> None:
        config, state = self.job.config, self._state
        started = time.perf_counter()
        steps = self.job.seed_order.num_steps
        description = f"epoch {state.epoch + 1}/{config.epochs}"
        first = state.seeds_done
        with (
            closing(
                prefetched(self._sample, state.step, steps, config.prefetch, in_order=self.job.in_order)
            ) as batches,
            progress.task(description, total=len(self.job.seed_order.seeds), unit="seeds") as task,
        ):
            task.advance(first)
            while batch := self._next(batches):
                size = self.job.seed_order.size(self._state.step)
                totals = self._step(batch, size, stop)
                state = self._state
                self._state = state = state.with_(
                    step=state.step + 1,
                    loss_sum=state.loss_sum + totals.loss_sum,
                    seeds_done=state.seeds_done + size,
                ).adding(totals.counts, totals.traffic, totals.evaluation)
                task.advance(size)
                self.recorder.memory.look()
                if state.step % _STEP_EVENTS == 0:
                    self.recorder.emit({"event": "step", "loss": totals.loss_sum / size}, state)
                # A worker alone need not wait for the next step to hear of its own request.
                self._stopping = totals.stop or (self.job.team.size == 1 and bool(stop))
                if self._stopping and state.step < steps:
                    return
                if self.recorder.minutes_since_save > config.checkpoint_minutes and state.step < steps:
                    self._save()
        seconds = time.perf_counter() - started
        self._end_epoch(seconds, (state.seeds_done - first) / seconds)

    def _next(self, batches: Iterator[Batch]) -> Batch | None:
        with _timer(self._add_seconds, "wait_for_batch"):
            return next(batches, None)

    def _sample(self, step: int) -> Batch:
        job, epoch = self.job, self._state.epoch
        # Several steps are sampled side by side, so each of them needs no further threads.
        with kernels.limited(1):
            seeds = job.team.share(job.seed_order.batch(epoch, step))
            return job.engine.sample(seeds, StepKey(job.config.seed, epoch, step))

    def _step(self, batch: Batch, size: int, stop: StopRequest) -> StepTotals:
        """One optimiser step on a global batch of ``size`` seeds, of which ``batch`` has this worker's."""
        job, config, key = self.job, self.job.config, batch.key
        steps = job.seed_order.num_steps
        for group in job.optimizer.param_groups:
            group["lr"] = learning_rate(config, key.epoch * steps + key.step, config.epochs * steps)
        job.model.train()
        with _timer(self._add_seconds, "forward"):
            with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"):
                output = job.engine.forward(batch)
            y = as_target(job.task, job.y[batch.seeds.long()])
            # The sum over the seeds divided by the size of the global batch: right for any division of the seeds.
            summed = loss_sum(job.task, output.to(DTYPES[config.precision]), y)
            loss = summed / size
        totals = job.team.total(float(summed.detach()), bool(stop), batch.counts)
        if not math.isfinite(totals.loss_sum):
            raise RunError(
                f"the loss is {totals.loss_sum / size} in epoch {key.epoch + 1}, step {key.step + 1}",
                where=str(self.recorder.folder.path),
                fix="Lower --lr, or look for extreme values in the features",
            )
        with _timer(self._add_seconds, "backward"):
            job.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        if job.team.size > 1:
            with _timer(self._add_seconds, "sum_gradients"):
                job.team.sum_gradients(job.model.parameters())
        with _timer(self._add_seconds, "optimizer"):
            job.optimizer.step()
        return totals

    def _end_epoch(self, seconds: float, rate: float) -> None:
        """Log the epoch, evaluate if it is time to, save."""
        config, state = self.job.config, self._state
        event: Event = {
            "event": "epoch",
            "loss": state.loss_sum / max(1, state.seeds_done),
            "learning_rate": self.job.optimizer.param_groups[0]["lr"],
            "seconds": seconds,
            "seeds_per_second": rate,
        }
        done = state.epoch + 1
        following = state.with_(epoch=done, step=0, loss_sum=0.0, seeds_done=0)
        is_last = done == config.epochs
        if "val" in self.job.store.splits and config.eval_every and (done % config.eval_every == 0 or is_last):
            with _timer(self._add_seconds, "evaluate"), self.job.team.sending_for("evaluation"):
                metrics = self._evaluate("val")
            event |= {f"val_{name}": value for name, value in metrics.items()}
            following = self._judge(following, metrics)
        self.recorder.emit(event, state)
        self._state = following
        self._save()

    def _judge(self, state: TrainState, metrics: dict[str, float]) -> TrainState:
        """Compare an evaluation with the best so far."""
        value = metrics.get(self.job.metric)
        if value is None:
            raise ConfigError(
                f"metric '{self.job.metric}' does not exist for this validation split",
                where=str(self.job.store.path),
                fix=f"Choose another: --metric {'|'.join(metrics)}",
            )
        if state.best is None or better(self.job.metric, value, state.best.value):
            return state.with_(best=Best(self.job.metric, value, state.epoch, state.name), evaluations_since_best=0)
        waited = state.evaluations_since_best + 1
        return state.with_(evaluations_since_best=waited, stopped=0 < self.job.config.patience <= waited)

    def _evaluate(self, split: str) -> dict[str, float]:
        job, context = self.job, self.job.team.context
        if self._full_graph is None:
            self._full_graph = open_inference(job.store, job.config, context.mesh)
        topology, inputs = self._full_graph
        metrics = evaluate_split(
            job.model, job.store, topology, inputs, split, memory_limit=job.config.memory_limit, context=context
        )
        self.recorder.memory.look()
        return metrics

    def _final_metrics(self) -> dict[str, dict[str, float]]:
        """Metrics of the best weights on all splits but the training one."""

        def load() -> None:
            if self._state.best is not None:
                load_model(self.recorder.folder.checkpoints / self._state.best.checkpoint, self.job.model)

        with _timer(self._add_seconds, "evaluate"), self.job.team.sending_for("evaluation"):
            self.job.team.agree(load)  # by the leader, who has written it
            share_model(self.job.team.context, self.job.model)
            return {name: self._evaluate(name) for name in self.job.store.splits if name != "train"}

    def _save(self) -> None:
        with _timer(self._add_seconds, "checkpoint"):
            self.recorder.save(self._state)

    def _add_seconds(self, stage: str, seconds: float) -> None:
        spent = self._state.stage_seconds
        spent[stage] = spent.get(stage, 0.0) + seconds

    def _close(self, status: str, metrics: dict[str, dict[str, float]]) -> RunSummary:
        team, recorder = self.job.team, self.recorder
        if status in ("finished", "interrupted") and team.size > 1:
            # What was sent since the last step is in nobody's totals yet.
            last = team.total(0.0, False, Counts.zero(self.job.config.layers))
            self._state = self._state.adding(last.counts, last.traffic, last.evaluation)
            recorder.record["traffic_bytes"] = {**self._state.traffic, "evaluation": self._state.evaluation}
            recorder.record["workers"] = team.each()
        return recorder.close(status, metrics, self._state)


def fit_on_worker(context: Context, store: str, out: str, config: dict[str, Any]) -> str:
    """What every worker of :meth:`Trainer.launch` runs; returns the status."""
    return Trainer(store, out=out, config=Config.make(config), context=context).fit().status


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Use so many CPU threads (0: leave it), and put it back afterwards."""
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    kernels.set_threads(torch.get_num_threads())
    try:
        yield
    finally:
        torch.set_num_threads(before)
        kernels.set_threads(None)


@contextmanager
def _timer(add: Callable[[str, float], None], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        add(stage, time.perf_counter() - started)
