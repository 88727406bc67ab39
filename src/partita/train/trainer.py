"""The trainer: one visible loop over epochs and steps."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from partita import kernels
from partita.config import Config
from partita.core import progress
from partita.core.errors import ConfigError, RunError
from partita.core.keys import StepKey
from partita.core.memory import PeakMemory
from partita.core.records import Counts
from partita.graph.store import GraphStore
from partita.infer.evaluate import evaluate_split
from partita.infer.metrics import as_target, better, loss_sum
from partita.nn.model import Model
from partita.parallel.engine import Batch
from partita.runs.checkpoint import (
    Best,
    TrainState,
    latest_checkpoint,
    load_model,
    load_optimizer,
    read_state,
    save_checkpoint,
)
from partita.runs.folder import MetricsLog, RunFolder, machine, now, write_text
from partita.runs.load import DTYPES, open_store_of
from partita.train.events import EventWriter
from partita.train.interrupt import StopRequest, stop_requests
from partita.train.job import Job
from partita.train.optimise import learning_rate
from partita.train.prefetch import prefetched

Event = dict[str, Any]
Callback = Callable[[Event], None]

# What may be changed when a run is resumed: nothing that a batch or a gradient depends on.
RESUMABLE = ("epochs", "threads", "prefetch", "memory_limit", "checkpoint_minutes")
_STEP_EVENTS = 50


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How a run ended.

    Attributes:
        path: the run folder.
        status: ``finished`` or ``interrupted``.
        record: the contents of ``run.json``.
    """

    path: Path
    status: str
    record: dict[str, Any]

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Metrics of the best checkpoint by split; empty for an interrupted run."""
        return self.record["metrics"]


class Trainer:
    """Trains a model on a graph store into a run folder.

    Args:
        store: a store or its path.
        out: the run folder to make; it must not exist yet.
        config: all settings at once; or give them by name in ``settings``.
        model: the name of a layer, as in the settings; or a model of your own, whose last layer must be as wide
            as there are classes.
        callbacks: called with every event that goes to ``metrics.jsonl``.
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
        **settings: Any,
    ) -> None:
        if isinstance(model, str):
            settings["model"], model = model, None
        if config is not None and settings:
            raise ConfigError("give either config= or single settings", fix="Make one with partita.Config.make")
        opened = store if isinstance(store, GraphStore) else GraphStore.open(store)
        self.callbacks = tuple(callbacks)
        self.job = Job.prepare(config or Config.make(settings, where="Trainer"), opened, model)
        self._state = TrainState(counts=Counts.zero(self.job.config.layers))
        self.folder = RunFolder.create(out)
        write_text(self.folder.config, self.job.config.to_yaml())
        self._record: dict[str, Any] = {
            "status": "running",
            "started": now(),
            "store": {**opened.summary(), "path": str(opened.path.resolve())},
            "model": {**self.job.model.describe(), "custom": model is not None},
            "machine": machine(),
            "resumed": [],
        }
        self.folder.write_record(self._record)

    @classmethod
    def resume(
        cls,
        run: str | os.PathLike[str],
        *,
        store: str | os.PathLike[str] | None = None,
        model: Model | None = None,
        callbacks: Sequence[Callback] = (),
        **settings: Any,
    ) -> Trainer:
        """Go on with a run from its latest checkpoint, on exactly the batches that it would have seen.

        Args:
            run: the run folder.
            store: where its store lies now, if it was moved.
            model: for runs of a user's own model: one of the same shape.
            callbacks: called with every event that goes to ``metrics.jsonl``.
            settings: changes; only of ``epochs``, ``threads``, ``prefetch``, ``memory_limit``,
                ``checkpoint_minutes``.

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
        self.folder = RunFolder.open(run)
        self._record = self.folder.read_record()
        if self._record["model"].get("custom") and model is None:
            raise RunError("was trained with a model of your own", where=str(run), fix="Pass the same model=")
        self.callbacks = tuple(callbacks)
        config = Config.load(self.folder.config, given)
        self.job = Job.prepare(config, open_store_of(self.folder, store), model)
        self._state = TrainState(counts=Counts.zero(config.layers))
        write_text(self.folder.config, config.to_yaml())
        latest = latest_checkpoint(self.folder.checkpoints)
        if latest is not None:
            self._state = read_state(latest)
            load_model(latest, self.job.model)
            load_optimizer(latest, self.job.model, self.job.optimizer)
        MetricsLog.cut(self.folder.metrics, self._state.epoch, self._state.step)
        self._record["resumed"].append({"at": now(), "epoch": self._state.epoch, "step": self._state.step})
        self._record["status"] = "running"
        self.folder.write_record(self._record)
        return self

    def fit(self) -> RunSummary:
        """Train to the end, or until Ctrl-C or SIGTERM, which save a checkpoint first.

        Returns:
            What ``run.json`` says; ``status`` is ``interrupted`` where the run was stopped.
        """
        config = self.job.config
        kernels.load()  # what the compiler itself takes is not the run's memory
        self._memory = PeakMemory()
        self._log = MetricsLog(self.folder.metrics)
        self._events = EventWriter(self.folder.events)
        self._saved_at = time.monotonic()
        try:
            with _threads(config.threads), stop_requests() as stop:
                while self._state.epoch < config.epochs and not self._state.stopped and not stop:
                    self._train_epoch(stop)
                status = "finished" if self._state.epoch >= config.epochs or self._state.stopped else "interrupted"
                if latest_checkpoint(self.folder.checkpoints) is None or status == "interrupted":
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
            closing(prefetched(self._sample, state.step, steps, config.prefetch)) as batches,
            progress.task(description, total=len(self.job.seed_order.seeds), unit="seeds") as task,
        ):
            task.advance(first)
            while batch := self._next(batches):
                loss = self._step(batch)
                size = len(batch.seeds)
                state = self._state
                self._state = state = state.with_(
                    step=state.step + 1,
                    loss_sum=state.loss_sum + loss * size,
                    seeds_done=state.seeds_done + size,
                    counts=state.counts + batch.counts if state.counts else batch.counts,
                )
                task.advance(size)
                self._memory.look()
                if state.step % _STEP_EVENTS == 0:
                    self._emit({"event": "step", "loss": loss})
                if stop and state.step < steps:
                    return
                if time.monotonic() - self._saved_at > 60 * config.checkpoint_minutes and state.step < steps:
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
            return job.engine.sample(job.seed_order.batch(epoch, step), StepKey(job.config.seed, epoch, step))

    def _step(self, batch: Batch) -> float:
        """One optimiser step; returns the batch's mean loss."""
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
            loss = loss_sum(job.task, output.to(DTYPES[config.precision]), y) / len(batch.seeds)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise RunError(
                f"the loss is {value} in epoch {key.epoch + 1}, step {key.step + 1}",
                where=str(self.folder.path),
                fix="Lower --lr, or look for extreme values in the features",
            )
        with _timer(self._add_seconds, "backward"):
            job.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        with _timer(self._add_seconds, "optimizer"):
            job.optimizer.step()
        return value

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
            with _timer(self._add_seconds, "evaluate"):
                metrics = self._evaluate("val")
            event |= {f"val_{name}": value for name, value in metrics.items()}
            following = self._judge(following, metrics)
        self._emit(event)
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
        job = self.job
        metrics = evaluate_split(
            job.model, job.store, job.topology, job.column, split, memory_limit=job.config.memory_limit
        )
        self._memory.look()
        return metrics

    def _final_metrics(self) -> dict[str, dict[str, float]]:
        """Metrics of the best weights on all splits but the training one."""
        if self._state.best is not None:
            load_model(self.folder.checkpoints / self._state.best.checkpoint, self.job.model)
        with _timer(self._add_seconds, "evaluate"):
            return {name: self._evaluate(name) for name in self.job.store.splits if name != "train"}

    def _save(self) -> None:
        with _timer(self._add_seconds, "checkpoint"):
            state = self._state.with_(peak_memory_bytes=max(self._state.peak_memory_bytes, self._memory.peak_bytes))
            save_checkpoint(self.folder.checkpoints, self.job.model, self.job.optimizer, state)
        self._saved_at = time.monotonic()

    def _emit(self, event: Event) -> None:
        """Send an event to metrics.jsonl, TensorBoard and the callbacks."""
        event = {"event": event.pop("event"), "epoch": self._state.epoch, "step": self._state.step, **event}
        self._log.write(event)
        self._events.write(event, self._state.epoch * self.job.seed_order.num_steps + self._state.step)
        for callback in self.callbacks:
            callback(dict(event))

    def _add_seconds(self, stage: str, seconds: float) -> None:
        spent = self._state.stage_seconds
        spent[stage] = spent.get(stage, 0.0) + seconds

    def _close(self, status: str, metrics: dict[str, dict[str, float]]) -> RunSummary:
        state = self._state
        self._log.close()
        self._events.close()
        self._record |= {
            "status": status,
            "ended": now(),
            "epoch": state.epoch,
            "step": state.step,
            "best": None if state.best is None else state.best.to_json(),
            "early_stopped": state.stopped,
            "metrics": metrics,
            "stage_seconds": state.stage_seconds,
            "counts": state.counts.to_json() if state.counts else None,
            "peak_memory_bytes": max(state.peak_memory_bytes, self._memory.peak_bytes),
        }
        self.folder.write_record(self._record)
        return RunSummary(self.folder.path, status, self._record)


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
