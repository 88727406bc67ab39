"""The trainer: one visible loop over epochs and steps."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from partita import kernels
from partita.comm.context import Context
from partita.config import Config
from partita.core import progress
from partita.core.errors import ConfigError, RunError
from partita.core.locks import FolderLock
from partita.core.memory import keeping_freed
from partita.core.memory_need import MemoryNeed
from partita.core.plan import Plan, Seconds
from partita.core.profiling import named
from partita.core.progress import is_watched
from partita.core.records import Counts
from partita.graph.store import GraphStore
from partita.infer.analysis import Analysis
from partita.nn import matmul
from partita.nn.model import Model
from partita.parallel.engine import MiniBatch
from partita.runs.checkpoint import TrainState, load_model, share_checkpoint, share_model
from partita.runs.folder import RunFolder
from partita.runs.learnt_files import restore_learnt
from partita.runs.load import keep_age_unit, model_of, open_store_of, outputs_of, read_run
from partita.runs.summary import RunSummary
from partita.setup.learnt import learnt_note
from partita.setup.model import given_model, of_model, unreached, unread_columns
from partita.setup.runtime import threads
from partita.tasks.task import make_task
from partita.train.baseline import baseline_of, warnings_of
from partita.train.check import check_run
from partita.train.evaluation import Evaluation
from partita.train.interrupt import StopRequest, stop_requests
from partita.train.job import Job
from partita.train.links import with_held_out
from partita.train.matmul_backend import resolve_matmul
from partita.train.memory_need import require_training, training_need
from partita.train.parts import dealing_note, with_dealt_parts
from partita.train.phase import TrainPhase
from partita.train.pipeline import Pipeline
from partita.train.plan_monitor import PlanMonitor, stage_seconds
from partita.train.planning import resolve_strategy
from partita.train.purposes import PURPOSES
from partita.train.recorder import Callback, Event, Recorder
from partita.train.spans import TRAINER, Spans, chrome_trace
from partita.train.step import Stepper
from partita.train.team import StepTotals, join_team

# What may be changed when a run is resumed: nothing that a batch or a gradient depends on.
RESUMABLE = ("epochs", "threads", "prefetch", "trace", "memory_limit", "checkpoint_minutes", "checkpoint_steps",
    "copy_checkpoints", "keep_checkpoints", "workers", "strategy", "seed_split", "deal_parts", "topology",
    "cache", "cache_policy", "cache_layout", "feature_memory", "topology_memory", "look_ahead", "memory_per_worker",
    "compute_share", "device", "topology_cache", "matmul", "replan", "patience", "heartbeat",
)  # fmt: skip
STEP_EVENTS = 50
"""Steps from one event of ``metrics.jsonl`` about a step to the next."""


class Trainer:
    """Trains a model on a graph store into a run folder.

    Args:
        store: a store or its path.
        out: the run folder to make; it must not exist yet.
        config: all settings at once; or give them by name in ``settings``.
        model: the name of a layer or model, as in the settings; or a model of your own, which returns as many columns
            as there are classes: a :class:`partita.Model`, or a ``torch.nn.Module`` whose forward takes ``(blocks, x)``
            or ``(x, edge_index)`` (see "Custom models"). ``layers`` need not be given besides, where the model says.
        plan: of the strategy, where the settings leave that open (``strategy="auto"``); ``None``: the workers plan.
        callbacks: called with every event that goes to ``metrics.jsonl``, by the first worker.
        overwrite: delete a run that is in ``out`` already.
        context: of this worker, where the caller has made one; ``None``: that of the launcher (torchrun) which started
            this process, or else a single worker.
        settings: fields of :class:`partita.Config`, for instance ``epochs=20``.

    Attributes:
        job: what is trained.
        recorder: writes the run folder.
        notes: what to say when training begins; it goes to ``metrics.jsonl``.

    Raises:
        StoreError, ConfigError, RunError: the store, a setting or the run folder cannot be used.
        ResourceError: training would take more memory than this process may use.
    """

    def __init__(
        self,
        store: GraphStore | str | os.PathLike[str],
        *,
        out: str | os.PathLike[str],
        config: Config | None = None,
        model: nn.Module | str | None = None,
        plan: Plan | None = None,
        callbacks: Sequence[Callback] = (),
        overwrite: bool = False,
        context: Context | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(model, str):
            settings["model"], model = model, None
        if config is not None and settings:
            raise ConfigError("give either config= or single settings", fix="Make one with partita.Config.make")
        if model is not None:
            config = of_model(model, config, settings)
        whole = store if isinstance(store, GraphStore) else GraphStore.open(store)
        context, config = join_team(context, config or Config.make(settings, where="Trainer"))
        whole = with_held_out(whole, config, context)
        opened = with_dealt_parts(whole, config, context.mesh)
        if context.mesh.rank == 0 and (note := dealing_note(whole, opened)):
            progress.say(note)
        own = None if model is None else given_model(model, config, opened, make_task(config, opened).width)
        self._resolved = resolve_strategy(context, opened, config, own, plan)
        self.job = Job.prepare(self._resolved.config, opened, context, own)
        self._need = self._needed()
        self._state = TrainState(counts=Counts.zero(self.job.config.layers))
        self.notes = list[str]()
        self.recorder = Recorder.begin(RunFolder(out), self.job, callbacks, given=own is not None, overwrite=overwrite)

    @classmethod
    def resume(
        cls,
        run: str | os.PathLike[str],
        *,
        store: str | os.PathLike[str] | None = None,
        model: nn.Module | None = None,
        callbacks: Sequence[Callback] = (),
        trust: str | None = None,
        context: Context | None = None,
        **settings: Any,
    ) -> Trainer:
        """Go on with a run from its latest checkpoint, on exactly the batches that it would have seen.

        Args:
            run: the run folder.
            store: path of the graph store, if it has moved.
            model: for runs of a user's own model: one of the same shape.
            callbacks: called with every event that goes to ``metrics.jsonl``.
            trust: ``"imports"``: the run may name code to import, such as a model or a loss of one's own.
            context: see the class.
            settings: changes; only of ``epochs``, ``threads``, ``prefetch``, ``trace``, ``memory_limit``,
                ``heartbeat``, ``checkpoint_minutes``, ``checkpoint_steps``, ``copy_checkpoints``, ``keep_checkpoints``,
                ``workers``, ``strategy``, ``seed_split``, ``deal_parts``, ``topology``, ``cache``, ``cache_policy``,
                ``cache_layout``, ``feature_memory``, ``topology_memory``, ``look_ahead``, ``memory_per_worker``,
                ``compute_share``, ``device``, ``topology_cache``, ``matmul``, ``replan``, ``patience``. A run that has
                stopped early goes on where ``epochs`` or ``patience`` is among them, and then counts evaluations anew.

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
        found = context or Context.from_environment(purposes=PURPOSES) or Context.alone(purposes=PURPOSES)
        with _writing(found, run) as lock:
            self._load(found, run, store, model, callbacks, context, given, trust, lock)
        return self

    def _load(
        self,
        found: Context,
        run: str | os.PathLike[str],
        store: str | os.PathLike[str] | None,
        model: nn.Module | None,
        callbacks: Sequence[Callback],
        context: Context | None,
        given: dict[str, Any],
        trust: str | None,
        lock: FolderLock | None,
    ) -> None:
        """What :meth:`resume` does while the run is locked."""
        folder, record, config = read_run(found, run, given, trust=trust)
        if "matmul" in given:
            record.pop("matmul", None)
            record.pop("products", None)  # its name in older runs
        if context is None:
            found.beat(config.heartbeat)
        context = context or found.on(config.device, purposes=PURPOSES)
        context, config = join_team(context, config)
        opened = with_dealt_parts(open_store_of(folder, record, store), config, context.mesh)
        own: Model | None = None
        if model is not None:
            own = given_model(model, config, opened, outputs_of(record))
        elif record["model"].get("custom") or record["model"].get("given"):
            own = model_of(folder, record)
        self._resolved = resolve_strategy(context, opened, config, own)
        self.job = Job.prepare(self._resolved.config, opened, context, own)
        keep_age_unit(self.job.model, record)
        self._need = self._needed()
        saved = share_checkpoint(context, folder.checkpoints, self.job.model, self.job.optimizer, config.layers)
        self._state = TrainState(counts=Counts.zero(config.layers))
        if saved is not None:
            self._state, tensors = saved
            if self.job.learnt is not None:
                restore_learnt(context, folder.checkpoints / self._state.name, self.job.learnt)
            self.job.views.restore(self._state.views, tensors)
        going, said = _going_on(self._state, self.job, given)
        ended = record["status"] == "finished"  # otherwise its end is still to come, and then to be told
        self.notes = [] if said is None or (going is self._state and not ended) else [said]
        self._state = going
        self.recorder = Recorder.go_on(folder, record, self.job, callbacks, self._state, lock)

    @classmethod
    def launch(
        cls,
        store: str | os.PathLike[str],
        *,
        out: str | os.PathLike[str],
        config: Config | None = None,
        plan: Plan | None = None,
        overwrite: bool = False,
        **settings: Any,
    ) -> RunSummary:
        """Train on ``workers`` processes of this machine, which are started here, to the end.

        Models and callbacks of one's own are objects of this process; run a script that makes them with torchrun
        instead.

        Args:
            store: path of a store.
            out: the run folder to make.
            config: all settings at once; or give them by name in ``settings``.
            plan, overwrite: see the class.
            settings: fields of :class:`partita.Config`, for instance ``workers=2, strategy="gsplit"``.

        Raises:
            PartitaError: what a worker raised, or that one was killed; all others have ended then.
        """
        from partita.comm.launch import launch
        from partita.comm.local import workers_ready

        if config is not None and settings:
            raise ConfigError("give either config= or single settings", fix="Make one with partita.Config.make")
        config = config or Config.make(settings, where="Trainer.launch")
        arguments = {
            "store": os.fspath(store), "out": os.fspath(out), "config": config.model_dump(mode="json"),
            "plan": None if plan is None else plan.to_json(), "overwrite": overwrite,
        }  # fmt: skip
        with workers_ready("partita.train.trainer"):
            if config.workers > 1:
                check_run(store, out, config, overwrite=overwrite)  # complains before workers are started
            found = launch(
                "partita.train.trainer:fit_on_worker", config.workers, arguments=arguments, threads=config.threads,
                device=config.device, purposes=PURPOSES, heartbeat=config.heartbeat,
            )  # fmt: skip
        folder = RunFolder.open(out)
        return RunSummary(folder.path, found, folder.read_record())

    def _needed(self) -> MemoryNeed:
        """What this worker is going to take of memory.

        Raises:
            ResourceError: it may not take so much.
        """
        return require_training(training_need(self.job), self.job.team.size)

    @property
    def plan(self) -> Plan | None:
        """That the run's strategy is from, as it was before training; ``None`` where it was named."""
        return self._resolved.plan

    def fit(self, *, progress: bool | None = None) -> RunSummary:
        """Train to the end, or until Ctrl-C or SIGTERM, which save a checkpoint first.

        Args:
            progress: show what the command line shows: a bar, and a line an epoch; ``None``: on a terminal and in a
                notebook. Of several workers, the first one shows it.

        Returns:
            What ``run.json`` says; ``status`` is ``interrupted`` where the run was stopped.
        """
        if not self.job.team.leads or not (is_watched() if progress is None else progress):
            return self._fit()
        from partita.report.terminal import training_shown

        before = self.recorder.callbacks
        with training_shown(self.job.config.epochs, self.job.metric) as show:
            self.recorder.callbacks = (*before, show)
            try:
                return self._fit()
            finally:
                self.recorder.callbacks = before

    def _fit(self) -> RunSummary:
        config, job = self.job.config, self.job
        self._evaluation = Evaluation(job)
        self._spans = Spans(config.trace)
        self._stepper = Stepper(job, self._timer)
        self._following = None if self.plan is None else PlanMonitor(self.plan)
        self.recorder.start()
        self.recorder.show(self._need.text + (" for each worker" if job.team.size > 1 else ""))
        self.recorder.put(memory=self._need.to_json())
        if kernels.will_compile():
            self.recorder.show("compiling kernels for this processor, once: 10 to 20 s")
        self._stopping = self._late = False  # agreed by all workers
        try:
            with (
                keeping_freed(), self.recorder.memory.watching(), threads(config.threads),
                matmul.use(resolve_matmul(job, self.recorder, self._state, self._resolved.matmul)),
                stop_requests() as stop,
            ):  # fmt: skip
                if self._following is not None:
                    self.recorder.emit({"event": "plan", "text": self._following.text}, self._state)
                for text in self.notes:
                    self.recorder.emit({"event": "note", "text": text}, self._state)
                self._start_views()
                while self._goes_on:
                    self._train_epoch(stop)
                    if self._following is not None and self._goes_on and config.replan == "auto":
                        self._replan(self._following)
                status = "finished" if self._state.epoch >= config.epochs or self._state.stopped else "interrupted"
                # To save may be collective, so the first worker, which alone sees the folder, decides for all.
                if not job.team.agree(self.recorder.is_saved) or status == "interrupted":
                    self._save()
                    job.team.agree(self.recorder.is_saved)
                self.job.views.close()  # what they hold is not needed to evaluate
                metrics = self._final_metrics() if status == "finished" else {}
                if metrics:
                    self._compare(metrics)
                if metrics and self._evaluation.classes:
                    self.recorder.record["classes"] = {"names": job.task.class_names, **self._evaluation.classes}
        except BaseException as error:
            self.job.views.close()
            self.recorder.close(f"failed: {type(error).__name__}", {}, self._state)
            raise
        return self._close(status, metrics)

    @property
    def _goes_on(self) -> bool:
        return self._state.epoch < self.job.config.epochs and not self._state.stopped and not self._stopping

    def _start_views(self) -> None:
        """Make what is trained on ready."""
        with self.job.team.sending_for("start"):
            notes = list(self.job.views.start())
        job = self.job
        notes += unreached(job.store, job.task.requests(job.task.seeds("train")), job.config.layers)
        if job.learnt is not None:
            notes.append(learnt_note(job.config, job.learnt))
        notes += unread_columns(self.job.model, self.job.store, self.job.config)
        for note in notes:
            self.recorder.emit({"event": "note", "text": note}, self._state)

    def _replan(self, following: PlanMonitor) -> None:
        """Compare the last epoch with the plan, and go on with another strategy where that is clearly faster now."""
        found = self.job.team.agree(lambda: following.judge(self.job.config.epochs - self._state.epoch))
        if found["text"] is not None:
            self.recorder.emit({"event": "note", "text": found["text"]}, self._state)
        if found["strategy"] is None:
            return
        begun = time.perf_counter()
        self.job.views.close()
        self.job = self._evaluation.job = self.recorder.job = self.job.with_strategy(found["strategy"])
        self._stepper = Stepper(self.job, self._timer)
        self._start_views()
        self.recorder.put_job()
        self.recorder.emit(following.switch(self._state.epoch, time.perf_counter() - begun), self._state)

    def _train_epoch(self, stop: StopRequest) -> None:
        started, first = time.perf_counter(), self._state.seeds_done
        if self._following is not None:
            self._following.begin(self._seconds())
        views, steps = self.job.views, self.job.views.steps(self._state)
        description = f"epoch {self._state.epoch + 1}/{self.job.config.epochs}"
        with progress.task(description, total=self.job.num_seeds, unit="seeds") as task:
            task.advance(first)
            for phase in views.phases(self._state):
                self._train_phase(phase, task, stop)
                if self._stopping and self._state.step < steps:
                    return
        seconds = time.perf_counter() - started
        if self._following is not None and first == 0:
            self._following.note(seconds, self._seconds())
        self._end_epoch(seconds, (self._state.seeds_done - first) / seconds)

    def _train_phase(self, phase: Any, task: progress.Bar, stop: StopRequest) -> None:
        config, job = self.job.config, self.job
        with self._timer("wait_for_view"):
            train_phase = job.views.enter(phase, self._state)
        end, steps = train_phase.first + train_phase.steps, job.views.steps(self._state)
        done = self._state.step - train_phase.first
        pipeline = Pipeline(
            train_phase.stages(), done, train_phase.steps, config.prefetch, spans=self._spans,
            streams=train_phase.streams,
            failed=job.team.context.fail,
        )  # fmt: skip
        with pipeline, job.team.context.pulse.stepping():
            while self._state.step < end and not self._stopping:
                with self._timer("wait_for_batch"):
                    batch = pipeline.take(hold=True)
                settled = self._step(train_phase, batch, stop, pipeline.go_on)
                self._state = self._state.with_(step=self._state.step + 1)
                job.team.context.pulse.step()
                if settled is not None:
                    self._sync_stats(*settled, stop, task)
                if self._late and self._state.step < steps:
                    self._save()
        job.views.leave()

    def _step(
        self, train_phase: TrainPhase, batch: MiniBatch | None, stop: StopRequest, before_backward: Callable[[], None]
    ) -> tuple[StepTotals, int] | None:
        """One optimizer step; what workers have done since they last settled it, where they do so in this step."""
        late = self.recorder.count_step()
        return self._stepper.step(
            train_phase, self._state.step - train_phase.first, batch,
            stop=bool(stop), late=late, before_backward=before_backward,
        )  # fmt: skip

    def _fix_of_loss(self) -> str:
        if self.job.store.metadata.notes.get("allow_nan"):
            return "The store may hold NaN features (--allow-nan): ingest again with --missing zero, mean or drop"
        return "Lower --lr, or look for extreme values in the features"

    def _sync_stats(self, totals: StepTotals, seeds: int, stop: StopRequest, task: progress.Bar) -> None:
        """Note what all workers have done."""
        state = self._state
        if not math.isfinite(totals.loss_sum):
            raise RunError(
                f"the loss is {totals.loss_sum / seeds} in epoch {state.epoch + 1}, step {state.step}",
                where=str(self.recorder.folder.path),
                fix=self._fix_of_loss(),
            )
        state = state.with_(loss_sum=state.loss_sum + totals.loss_sum, seeds_done=state.seeds_done + seeds)
        self._state = state = state.adding(totals.counts, totals.traffic, totals.evaluation)
        task.advance(seeds)
        if state.step % STEP_EVENTS == 0:
            self.recorder.emit({"event": "step", "loss": totals.loss_sum / seeds}, state)
        event = self.job.views.observe(state.epoch, totals.covered)
        if event is not None:
            self.recorder.emit(event, state)
        # A worker alone need not wait for the next step to hear of its own request.
        self._stopping = totals.stop or (self.job.team.size == 1 and bool(stop))
        self._late = totals.late

    def _end_epoch(self, seconds: float, rate: float) -> None:
        """Log the epoch, evaluate if it is time to, save."""
        state = self._state
        evaluates = self._evaluation.due(state.epoch)
        wanted = evaluates or self._late or self._stopping or state.epoch + 1 == self.job.config.epochs
        with self._timer("join_models"):
            ended = self.job.views.end_epoch(state.epoch, model_wanted=wanted)
        event: Event = {
            "event": "epoch",
            "loss": state.loss_sum / max(1, state.seeds_done),
            "learning_rate": self.job.optimizer.param_groups[0]["lr"],
            "seconds": seconds,
            "seeds_per_second": rate,
            **ended.fields,
        }
        following = state.with_(epoch=state.epoch + 1, step=0, loss_sum=0.0, seeds_done=0)
        if evaluates:
            with self._timer("evaluate"), self.job.team.sending_for("evaluation"):
                metrics = self._evaluation.of("val")
            event |= {f"val_{name}": value for name, value in metrics.items()}
            following = self._evaluation.judge(following, metrics)
        self.recorder.emit(event, state)
        for other in ended.events:
            self.recorder.emit(other, state)
        self._state = following
        if ended.saves:
            self._save()

    def _final_metrics(self) -> dict[str, dict[str, float]]:
        """Metrics of the best weights on all splits but the training one."""

        def load() -> None:
            if self._state.best is not None:
                load_model(self.recorder.folder.checkpoints / self._state.best.checkpoint, self.job.model)

        with self._timer("evaluate"), self.job.team.sending_for("evaluation"):
            self.job.team.agree(load)  # by the leader, who has written it
            share_model(self.job.team.context, self.job.model)
            best = self._state.best
            if self.job.learnt is not None and best is not None:
                folder = self.recorder.folder.checkpoints / best.checkpoint
                restore_learnt(self.job.team.context, folder, self.job.learnt)
            analysis = Analysis(self.job.task, self._state.name if best is None else best.checkpoint)
            metrics = {name: self._evaluation.of(name, analysis) for name in self._evaluation.splits}
            if self.job.team.leads:
                analysis.write(self.recorder.folder.analysis)
            return metrics

    def _compare(self, metrics: dict[str, dict[str, float]]) -> None:
        """Put the metrics of a model that predicts the same for every node beside those of the run."""
        job, recorder = self.job, self.recorder
        baseline = job.team.agree(lambda: baseline_of(job.task, list(metrics)))
        if baseline is not None:
            recorder.record["baseline"] = baseline
            recorder.emit({"event": "baseline", **baseline}, self._state)
        weighted, classes = not isinstance(job.config.class_weights, str), self._evaluation.classes
        warnings = warnings_of(job.task, job.metric, metrics, baseline, classes, weighted=weighted)
        recorder.record["warnings"] = warnings
        for text in warnings:
            recorder.emit({"event": "warning", "text": text}, self._state)

    def _save(self) -> None:
        resting = self.job.team.context.pulse.resting()
        with resting, self._timer("checkpoint"), self.job.views.saving(self._state) as (values, tensors):
            self.recorder.save(self._state.with_(views=values), tensors)
        self._late = False

    def _seconds(self) -> Seconds:
        """What this worker has done so far, by what a planner estimates."""
        meter = self.job.team.context.meter
        return stage_seconds(self._spans.summary(), self._state.stage_seconds, meter.seconds())

    @contextmanager
    def _timer(self, stage: str) -> Iterator[None]:
        begun, step = time.perf_counter_ns(), self._state.step
        try:
            with named(stage):
                yield
        finally:
            ended, spent = time.perf_counter_ns(), self._state.stage_seconds
            spent[stage] = spent.get(stage, 0.0) + (ended - begun) / 1e9
            self._spans.add(stage, step, begun, ended, lane=TRAINER)

    def _close(self, status: str, metrics: dict[str, dict[str, float]]) -> RunSummary:
        team, recorder = self.job.team, self.recorder
        recorder.record |= self.job.views.record()
        recorder.record["pipeline"] = self._spans.summary()
        if self._following is not None:
            recorder.record["plan"] = self._following.record()
        if team.size > 1:
            # What was sent since the last step is in nobody's totals yet.
            last = team.begin_total(0.0, False, Counts.zero(self.job.config.layers))()
            self._state = self._state.adding(last.counts, last.traffic, last.evaluation)
            recorder.record["traffic_bytes"] = {**self._state.traffic, "evaluation": self._state.evaluation}
            recorder.record["workers"] = team.each()
        if self.job.config.trace:  # after the last bytes were counted
            recorder.write_trace(chrome_trace(team.group.gather(self._spans.events(team.context.mesh.rank))))
        return recorder.close(status, metrics, self._state)


def _going_on(state: TrainState, job: Job, given: Mapping[str, Any]) -> tuple[TrainState, str | None]:
    """Where a run goes on that is resumed with some settings, and what to say of it where it had ended."""
    epochs, patience, best = job.config.epochs, job.config.patience, state.best
    if not state.stopped:
        done = f"all {epochs} epochs are done; to train longer, give a larger number of epochs"
        return state, done if state.epoch >= epochs else None
    waited = state.evaluations_since_best
    evaluations = f"{waited} evaluation{'' if waited == 1 else 's'}"
    said = f"stopped early after epoch {state.epoch}: no better {job.metric.replace('_', ' ')} in {evaluations}"
    if best is not None:
        said += f" since epoch {best.epoch}"
    if state.epoch >= epochs or not given.keys() & {"epochs", "patience"}:
        return state, f"{said}; to go on, give a number of epochs above {state.epoch}, or patience"
    until = f"until {patience} evaluations in a row are no better" if patience else "without early stopping"
    going = state.with_(stopped=False, evaluations_since_best=0)
    return going, f"{said}; goes on to epoch {epochs}, {until}"


@contextmanager
def _writing(context: Context, run: str | os.PathLike[str]) -> Iterator[FolderLock | None]:
    """Lock a run on the first worker, and let go of it if the block fails. All workers call this."""
    held: list[FolderLock] = []

    def lock() -> None:
        held.append(RunFolder.open(run).lock())

    context.agree(lock)
    try:
        yield held[0] if held else None
    except BaseException:
        for each in held:
            each.release()
        raise


def fit_on_worker(
    context: Context, store: str, out: str, config: dict[str, Any], plan: dict[str, Any] | None, overwrite: bool
) -> str:
    """What every worker of :meth:`Trainer.launch` runs; returns the status."""
    made = None if plan is None else Plan.from_json(plan)
    parsed = Config.make(config)
    return Trainer(store, out=out, config=parsed, plan=made, overwrite=overwrite, context=context).fit().status
