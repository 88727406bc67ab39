"""What a partitioning is going to take, before it runs."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from partita.core.partitioning import checked_parts
from partita.partitioning.edge_streams import StoreStream
from partita.partitioning.job import PartitionJob
from partita.partitioning.refine import refine
from partita.partitioning.reorder import require_convertible
from partita.partitioning.stream_stats import survey


@dataclass(frozen=True, slots=True)
class PartitionEstimate:
    """What a partitioning is expected to take.

    Attributes:
        memory_bytes: private memory at the peak.
        disk_bytes: of the new store.
        free_disk_bytes: where it would be written; ``None`` if that is not known.
        seconds: of partitioning, without writing; from a trial on the first edges.
        trial_edges: edges of that trial.
    """

    memory_bytes: int
    disk_bytes: int
    free_disk_bytes: int | None
    seconds: float
    trial_edges: int

    def to_json(self) -> dict[str, Any]:
        """As values that JSON can hold."""
        return {**asdict(self), "seconds": round(self.seconds, 2)}


_TRIAL_EDGES = 1 << 20


def estimate(job: PartitionJob, out: Path | None, feature_dtype: str | None = None) -> PartitionEstimate:
    """Say what :func:`partition` would take: formulas for memory and disk, a short trial for time."""
    task, store = job.task, job.store
    num_edges = task.stream.num_edges or 0
    disk = 0
    if store is not None:
        records = store.metadata.columns
        disk = sum(record.bytes for record in records.values()) + 8 * task.num_nodes * ("original_index" not in records)
        require_convertible(store, feature_dtype)
        if feature_dtype is not None and store.x is not None:
            disk += (np.dtype(feature_dtype).itemsize - store.x.itemsize) * store.x.size
    free = None
    if out is not None:
        folder = next(parent for parent in Path(os.path.abspath(out)).parents if parent.is_dir())
        free = shutil.disk_usage(folder).free
    seconds, edges = _trial(job)
    return PartitionEstimate(job.memory_bytes, disk, free, seconds * max(1.0, num_edges / max(edges, 1)), edges)


def _trial(job: PartitionJob) -> tuple[float, int]:
    """Seconds of partitioning the first edges, kernels loaded, and their number."""
    task, store = job.task, job.store
    if store is None or store.num_edges == 0:
        return 0.0, 0
    for num_edges in (1, _TRIAL_EDGES):  # the first loads what has to be loaded
        stream = StoreStream(store).prefix(num_edges)
        trial = replace(task, stream=stream, notes=[], survey=None, node_weight=None, classes=None)
        began = time.perf_counter()
        trial.survey = survey(stream)
        parts = checked_parts(job.partitioner.partition(trial), task.num_nodes, task.num_parts, job.algorithm)
        if job.refine:
            refine(trial, parts, job.refine)
        seconds = time.perf_counter() - began
    return seconds, stream.num_edges
