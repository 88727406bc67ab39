"""Writes checkpoints in a thread beside training."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from partita.runs.checkpoint import Snapshot, write_checkpoint


class CheckpointWriter:
    """Writes the checkpoints of a run in their order, in a thread.

    One is written at a time, so at most one copy of model and optimizer is held besides those that are trained.

    Args:
        checkpoints: folder of the run.
        keep: how many of the latest checkpoints stay; the best one stays besides.
    """

    def __init__(self, checkpoints: Path, keep: int) -> None:
        self._checkpoints, self._keep = checkpoints, keep
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="partita-checkpoint")
        self._pending: Future[Path] | None = None

    def write(self, snapshot: Snapshot) -> None:
        """Begin to write a checkpoint. Waits for the one before; :meth:`wait` does so before a snapshot is taken.

        Raises:
            ResourceError, OSError: the checkpoint before could not be written.
        """
        self.wait()
        self._pending = self._thread.submit(write_checkpoint, self._checkpoints, snapshot, keep=self._keep)

    def check(self) -> None:
        """Raise what the thread has met, if it has ended; never waits.

        Raises:
            ResourceError, OSError: the checkpoint could not be written.
        """
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until everything is written.

        Raises:
            ResourceError, OSError: the checkpoint could not be written.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait for the thread, and end it. What it has met is not raised."""
        self._thread.shutdown()
