"""A worker of this machine as the process that started it sees it: what it does, and why it failed."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from partita.comm.errors import WorkerError, WorkerLost, unpack_error
from partita.comm.forkserver import Process
from partita.comm.pulse import read_signs
from partita.comm.signals import Stop
from partita.comm.silence import Sight
from partita.core.errors import PartitaError

POLL_SECONDS = 0.02
"""How often to look whether a process has ended."""
CAUSE_SECONDS = 2.0
"""How long to wait, once a worker has lost a peer, until the end of that peer shows."""
OUTPUT_LINES = 20
"""How much of a failed worker's output is shown."""


@dataclass(slots=True)
class LocalWorker:
    """A worker.

    Attributes:
        rank: its position.
        process: that it is.
        folder: private to the run, through which its workers and the process that started them see each other.
    """

    rank: int
    process: Process
    folder: Path

    @property
    def result(self) -> Path:
        """Where it writes what its function returns."""
        return self.folder / f"result-{self.rank}.json"

    @property
    def done(self) -> bool:
        """Whether it has ended, and its function has returned."""
        return self.process.poll() == 0 and self.result.exists()

    @property
    def report(self) -> dict[str, Any] | None:
        """The error that it wrote down before it ended."""
        try:
            return json.loads((self.folder / f"error-{self.rank}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def sight(self) -> Sight:
        """What it does, as far as one can see from outside."""
        signs = read_signs(self.folder / f"pulse-{self.rank}")
        if self.process.poll() is not None:
            return Sight(signs, ended=True)
        try:
            process = psutil.Process(self.process.pid)
            with process.oneshot():
                times, stopped = process.cpu_times(), process.status() == psutil.STATUS_STOPPED
            disk = process.io_counters() if hasattr(process, "io_counters") else None
        except psutil.Error:  # it has just ended
            return Sight(signs, ended=True)
        moved = 0 if disk is None else disk.read_bytes + disk.write_bytes
        return Sight(signs, times.user + times.system, moved, stopped)

    def output(self) -> str:
        """The end of what it has written, unless that was shown already."""
        try:
            text = (self.folder / f"output-{self.rank}.txt").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.strip().splitlines()[-OUTPUT_LINES:])


class Interrupted(Exception):
    """The workers ended because of a signal to this process: its argument."""


def cause_of(workers: Sequence[LocalWorker], stop: Stop) -> Exception:
    """Why the run failed: the first error that is not the consequence of another."""
    deadline = time.monotonic() + CAUSE_SECONDS
    consequence: dict[str, Any] | None = None
    while True:
        ended = [worker for worker in workers if worker.process.poll() is not None and not worker.done]
        reports = sorted(
            (report for worker in ended if (report := worker.report) is not None), key=lambda report: report["time"]
        )
        if stop.signal is not None and any(_followed(worker, stop) for worker in ended):
            return Interrupted(stop.signal)
        consequence = consequence or next((report for report in reports if report["consequence"]), None)
        for report in reports:
            if not report["consequence"]:
                return _reported(report, workers)
        for worker in ended:
            if worker.report is None:
                return _lost(worker)
        # Here every worker that has ended has lost a peer.
        if time.monotonic() > deadline or len(ended) == len(workers):
            assert consequence is not None
            return _reported(consequence, workers)
        time.sleep(POLL_SECONDS)


def _followed(worker: LocalWorker, stop: Stop) -> bool:
    """Whether a worker ended because of the signal that was passed on to it."""
    report = worker.report
    interrupted = report is not None and report["kind"] == "KeyboardInterrupt"
    return interrupted or worker.process.returncode == -(stop.signal or 0)


def _reported(report: dict[str, Any], workers: Sequence[LocalWorker]) -> Exception:
    rank = report["rank"]
    if report["kind"] == "KeyboardInterrupt":
        return WorkerLost(f"worker {rank} was interrupted (SIGINT)")
    error = unpack_error(report, alone=len(workers) == 1)
    if isinstance(error, WorkerError):
        _add_output(error, workers[rank])
    return error


def _lost(worker: LocalWorker) -> PartitaError:
    code = worker.process.returncode
    if code >= 0:
        error = WorkerLost(f"worker {worker.rank} exited with code {code} before its work was done")
    else:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        error = WorkerLost(
            f"worker {worker.rank} was killed by signal {-code} ({name})",
            fix="Probably out of memory: see the kernel's log, and use fewer workers" if code == -9 else None,
        )
    _add_output(error, worker)
    return error


def _add_output(error: Exception, worker: LocalWorker) -> None:
    output = worker.output()
    if output:
        error.add_note(f"Last output of worker {worker.rank}:\n{output}")


def stacks_of(running: Sequence[LocalWorker]) -> list[str]:
    """Where in its code each worker is, as far as it has begun to run."""
    files = {worker.rank: worker.folder / f"stacks-{worker.rank}.txt" for worker in running}
    for worker in running:
        if files[worker.rank].exists():
            worker.process.send_signal(signal.SIGUSR1)
    time.sleep(0.5)
    found = []
    for rank, file in files.items():
        with suppress(FileNotFoundError):
            if text := file.read_text(encoding="utf-8"):  # one that is stopped writes nothing
                found.append(f"Worker {rank} was at:\n{text}")
    return found
