"""What a run leaves in its folder: settings, ``run.json``, metrics, events, checkpoints. The first worker writes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from partita.core.files import write_text
from partita.core.locks import FolderLock
from partita.core.machine import machine, now
from partita.core.memory import PeakMemory
from partita.nn.modules import can_be_made_again
from partita.runs.checkpoint import TrainState, latest_checkpoint, take_snapshot, write_learnt_aside
from partita.runs.checkpoint_writer import CheckpointWriter
from partita.runs.folder import MetricsLog, RunFolder, recorded_command, recorded_path
from partita.runs.other_store import kept
from partita.runs.summary import RunSummary
from partita.setup.learnt import describe_learnt
from partita.tasks.task import task_name
from partita.train.copies import HostCopies
from partita.train.events import EventWriter
from partita.train.job import Job

Event = dict[str, Any]
Callback = Callable[[Event], None]


class Recorder:
    """Writes a run's folder, on the first worker; on the others nothing.

    Make one with :meth:`begin` or :meth:`go_on`, then :meth:`start` it.

    Args:
        folder: the run's.
        record: contents of ``run.json`` so far.
        job: what is trained.
        callbacks: called with every event.
    """

    def __init__(self, folder: RunFolder, record: dict[str, Any], job: Job, callbacks: Sequence[Callback]) -> None:
        self.folder = folder
        self.record = record
        self.callbacks = tuple(callbacks)
        self.job = job
        self._lock: FolderLock | None = None

    @classmethod
    def begin(
        cls, folder: RunFolder, job: Job, callbacks: Sequence[Callback], *, given: bool, overwrite: bool = False
    ) -> Recorder:
        """Make the folder of a new run; with ``given`` the model is an object of a user's. All workers call this.

        Raises:
            RunError: the folder cannot be made, or is there already; on all workers.
        """
        config, facts = job.config, machine()
        where = recorded_path(job.store.path, folder.path, relative=config.relative_paths)
        record: dict[str, Any] = {
            "status": "running",
            "started": now(),
            "store": {**job.store.summary(), "path": where, **kept(job.store.metadata)},
            "task": task_name(job.config, job.store),
            "outputs": job.task.width,
            "model": {
                **job.model.describe(),
                **({} if job.model.decoder is None else {"decoder": job.model.decoder.describe()}),
                "custom": given and not can_be_made_again(job.model),
                **({"given": True} if given else {}),
            },
            "machine": {**facts, "command": recorded_command(facts["command"], relative=config.relative_paths)},
            "device": job.team.context.device.type,
            "resumed": [],
            **({} if job.learnt is None else {"learnt": describe_learnt(config, job.learnt)}),
            **_placed(job),
        }
        recorder = cls(folder, record, job, callbacks)

        def make() -> None:
            recorder._lock = RunFolder.create(folder.path, overwrite=overwrite)[1]
            recorder._write()

        job.team.agree(make)
        return recorder

    @classmethod
    def go_on(
        cls,
        folder: RunFolder,
        record: dict[str, Any],
        job: Job,
        callbacks: Sequence[Callback],
        state: TrainState,
        lock: FolderLock | None,
    ) -> Recorder:
        """Prepare the folder of a run that goes on from a checkpoint. All workers call this, when all have read it.

        Args:
            folder, record, job, callbacks: see the class.
            state: the position.
            lock: of the folder, on the first worker.
        """
        record["resumed"].append({"at": now(), "epoch": state.epoch, "step": state.step})
        record |= {"status": "running", **_placed(job), "device": job.team.context.device.type}
        recorder = cls(folder, record, job, callbacks)
        recorder._lock = lock

        def reopen() -> None:
            MetricsLog.cut(folder.metrics, state.epoch, state.step)
            recorder._write()

        job.team.agree(reopen)
        return recorder

    def _write(self) -> None:
        write_text(self.folder.config, self.job.config.to_yaml())
        self.folder.write_record(self.record)

    def start(self) -> None:
        """Open the logs, and begin to measure memory. All workers call this.

        Raises:
            RunError: on all workers: a host has something else where its copy of the run is to be.
        """
        self.memory = PeakMemory()
        self._saved_at, self._steps = time.monotonic(), 0
        config, context = self.job.config, self.job.team.context
        self._copies: HostCopies | None = None
        if config.copy_checkpoints and context.mesh.hosts > 1:
            if context.mesh.worker == 0:
                self._copies = HostCopies(context, self.folder, config.keep_checkpoints)
            with context.together("make a copy of the run"):
                if self._copies is not None:
                    self._copies.open()
        if self.job.team.leads:
            self._writer = CheckpointWriter(self.folder.checkpoints, self.job.config.keep_checkpoints)
            self._log = MetricsLog(self.folder.metrics)
            self._events = EventWriter(self.folder.events)

    def put(self, **facts: Any) -> None:
        """Write facts to ``run.json`` that hold from now on."""
        changed = {**self.record, **facts} != self.record
        self.record |= facts
        if changed and self.job.team.leads:
            self.folder.write_record(self.record)

    def put_job(self) -> None:
        """Write settings and strategy as they are from now on."""
        self.record |= _placed(self.job)
        if self.job.team.leads:
            self._write()

    def emit(self, event: Event, state: TrainState) -> None:
        """Send an event to ``metrics.jsonl``, TensorBoard and the callbacks."""
        if not self.job.team.leads:
            return
        if self._lock is not None:
            self._lock.require_here()
        event = {"event": event.pop("event"), "epoch": state.epoch, "step": state.step, **event}
        self._log.write(event)
        self._events.write(event, state.epoch * self.job.views.steps(state) + state.step)
        for callback in self.callbacks:
            callback(dict(event))

    def show(self, text: str) -> None:
        """Show a note to who follows the run here, without keeping it: it is of this process, not of the run."""
        if self.job.team.leads:
            for callback in self.callbacks:
                callback({"event": "note", "text": text})

    def count_step(self) -> bool:
        """Note that a step begins.

        Returns:
            Whether a checkpoint is due after it, by the time and the steps since the last one of this process.

        Raises:
            ResourceError, OSError: the last checkpoint could not be written.
        """
        if self.job.team.leads:
            self._writer.check()
        if self._copies is not None:
            self._copies.check()
        self._steps += 1
        config = self.job.config
        late = time.monotonic() - self._saved_at > 60 * config.checkpoint_minutes
        return late or 0 < config.checkpoint_steps <= self._steps

    def save(self, state: TrainState, members: Mapping[str, Tensor]) -> None:
        """Begin to write a checkpoint, with the models of views where they have their own.

        All is copied before this returns. The writing is done in a thread. All workers call this.

        Raises:
            ResourceError, OSError: the one before could not be written.
        """
        snapshot, rows, leads = None, None, self.job.team.leads
        if leads:
            if self._lock is not None:
                self._lock.require_here()
            self._writer.wait()  # so that no third copy is held
        if self.job.learnt is not None:
            with self.job.team.sending_for("start"):  # no part of a step
                rows = write_learnt_aside(self.folder.checkpoints, state, self.job.learnt, leads=leads)
        if leads:
            state = state.with_(peak_memory_bytes=self._peak(state))
            snapshot = take_snapshot(self.job.model, self.job.optimizer, state, members, rows)
            self._writer.write(snapshot)
        if self._copies is not None:
            self._copies.send(snapshot)
        self._saved_at, self._steps = time.monotonic(), 0

    def is_saved(self) -> bool:
        """Whether the run has a checkpoint, when all that were begun are written; on the first worker.

        Raises:
            ResourceError, OSError: a checkpoint could not be written.
        """
        self._writer.wait()
        return latest_checkpoint(self.folder.checkpoints) is not None

    def write_trace(self, trace: dict[str, Any]) -> None:
        """Write what threads did when."""
        if self.job.team.leads:
            write_text(self.folder.path / "trace.json", json.dumps(trace))

    def close(self, status: str, metrics: dict[str, dict[str, float]], state: TrainState) -> RunSummary:
        """Write ``run.json`` and close the logs.

        Args:
            status: ``finished``, ``interrupted``, or ``failed: ...``.
            metrics: of the best checkpoint, by split.
            state: how far the run has come.
        """
        if self._copies is not None:
            self._copies.close()
        if self.job.team.leads:
            self._writer.close()
            self._log.close()
            self._events.close()
            self.record |= {
                "status": status,
                "ended": now(),
                "epoch": state.epoch,
                "step": state.step,
                "best": None if state.best is None else asdict(state.best),
                "early_stopped": state.stopped,
                "metrics": metrics,
                "learning_rate": self.job.optimizer.param_groups[0]["lr"],
                "stage_seconds": state.stage_seconds,
                "counts": state.counts.to_json() if state.counts else None,
                "peak_memory_bytes": self._peak(state),
            }
            try:
                if self._lock is None or self._lock.is_here:  # else it is another one's, or nobody's
                    self.folder.write_record(self.record)
            finally:
                if self._lock is not None:
                    self._lock.release()
        return RunSummary(self.folder.path, status, self.record)

    def _peak(self, state: TrainState) -> int:
        return max(state.peak_memory_bytes, self.memory.peak_bytes)


def _placed(job: Job) -> dict[str, Any]:
    """Who computes what: as a strategy is written, and in sentences."""
    return {"placements": str(job.strategy), "placement_sentences": job.strategy.sentences}
