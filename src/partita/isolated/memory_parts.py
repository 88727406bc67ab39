"""Partition a graph into as many parts as make each fit a worker's memory (SDT-GNN, section III-C)."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from partita.core.errors import ConfigError, PartitaError, ResourceError
from partita.core.options import fields_of, size_of, takes
from partita.graph.column_specs import is_features
from partita.graph.journal import lock_directory
from partita.graph.store import GraphStore
from partita.graph.writer import check_target, install
from partita.isolated.parts_budget import PartsPlan, parts_for
from partita.isolated.subgraph import checked_halo
from partita.isolated.views import WEIGHTS, PartView
from partita.partitioning.assignment import SUFFIXES
from partita.partitioning.job import PartitionSummary, partition, prepare
from partita.partitioning.options import MemoryPartitionOptions, PartitionOptions

ROUNDS = 5
"""So many partitions are tried."""

_ESTIMATE = 2.0
_LEFT_OUT = (WEIGHTS,)
"""A run that samples by weights does not multiply by them: a view holds those of one column, or the other."""
_FIX = (
    "Give workers more memory (--memory-per-worker) or computing a smaller share of it (--compute-share), take less "
    "halo (--halo none), or name an algorithm that replicates less"
)


@dataclass(frozen=True, slots=True)
class MemoryPartition:
    """What :func:`partition_for_memory` did.

    Attributes:
        partition: of the store that was written.
        plan: its number of parts, with what was measured.
        rounds: the plans of all partitions that were made, as measured; the last is ``plan``.
    """

    partition: PartitionSummary
    plan: PartsPlan
    rounds: tuple[PartsPlan, ...]

    def to_json(self) -> dict[str, Any]:
        """The summary of the partition, and ``plan`` and ``rounds``, as values that JSON can hold."""
        rounds = [plan.to_json() for plan in self.rounds]
        return {**self.partition.to_json(), "plan": self.plan.to_json(), "rounds": rounds}


@takes(MemoryPartitionOptions)
def plan_for_memory(
    source: GraphStore | str | os.PathLike[str], out: str | os.PathLike[str], options: MemoryPartitionOptions
) -> PartsPlan:
    """The number of parts that :func:`partition_for_memory` tries first; arguments and errors as there.

    The replication factor is taken to be 2, and 1 without a halo. Reads no edges.
    """
    if Path(out).suffix in SUFFIXES:
        raise ConfigError(
            "--parts auto measures the parts of a store, but OUT is an assignment file",
            where=str(out),
            fix="Name a store to make, or give a number of parts",
        )
    memory = size_of(options.memory_per_worker, "memory_per_worker")
    replication = 1.0 if checked_halo(options.halo) == "none" else _ESTIMATE
    store = _store(source, PartitionOptions(parts=1, algorithm="random"))
    size = PartView.bound(store, range(store.num_parts), "none", without=_LEFT_OUT).bytes
    for name in filter(is_features, store.columns) if options.feature_dtype is not None else ():
        x = store.column(name)
        with suppress(TypeError):  # no dtype at all: partition says so
            size += (np.dtype(options.feature_dtype).itemsize - x.itemsize) * x.size
    return parts_for(size, memory, options.workers, replication=replication, share=options.compute_share)


@takes(MemoryPartitionOptions)
def partition_for_memory(
    source: GraphStore | str | os.PathLike[str], out: str | os.PathLike[str], options: MemoryPartitionOptions
) -> MemoryPartition:
    """Write a store with as many parts as make the largest fit a worker's memory, one part at a time.

    The first number of parts is estimated. When the graph has been partitioned, the largest part is measured as a
    worker will hold it: its halo, features, and weights and features of edges (where the store has them) included. If
    it does not fit, the graph is partitioned again into more parts, up to :data:`ROUNDS` times in all.

    Nothing is at ``out``, or what was there before stays, until a partition fits. Killed or interrupted while a store
    is written, the same call repeats the rounds before it and continues with that store.

    Args:
        source: a graph store.
        out: path of the new store.
        options: see :class:`~partita.partitioning.options.MemoryPartitionOptions`; without ``say``, those that
            :func:`partita.partition` has are meant for it. With more parts than workers, a worker takes several in
            turn.

    Returns:
        What was written, and the plan it fits.

    Raises:
        ConfigError: an argument is not one of its choices, or the memory leaves no room at all; ``out`` names a file
            of an assignment, or the source is no store.
        ResourceError: no number of parts that was tried is enough; or disk or memory do not suffice to partition.
        InputError, StoreError: see :func:`partita.partition`.
    """
    tell = options.say or (lambda sentence: None)
    shared = fields_of(PartitionOptions).keys() - {"parts", "overwrite"}
    common = {name: getattr(options, name) for name in shared}
    store = _store(source, PartitionOptions(parts=1, **common))
    plan = plan_for_memory(store, out, **vars(options))
    tell(plan.explain())
    path, made = Path(os.path.abspath(out)), list[PartsPlan]()
    with _folder(path, options.overwrite) as folder:
        while len(made) < ROUNDS and plan.parts <= max(1, store.num_nodes):
            candidate = folder / str(plan.parts)
            with _named(candidate, path):
                summary = partition(store, candidate, parts=plan.parts, **common)
            assert summary.quality is not None
            replication = 1.0 if options.halo == "none" else summary.quality.replication_factor
            plan = plan.recheck(replication, _largest(GraphStore.open(candidate), options.halo))
            made.append(plan)
            if plan.fits:
                install(candidate, path, overwrite=options.overwrite)
                return MemoryPartition(replace(summary, path=str(out)), plan, tuple(made))
            shutil.rmtree(candidate)
            tell(plan.explain())
            plan = _next(made, store.num_nodes)
            if len(made) < ROUNDS and plan.parts <= store.num_nodes:
                tell(f"Partition {len(made) + 1} of at most {ROUNDS}: {plan.parts:,} parts")
    raise _too_large(store, made, plan)


def _store(source: GraphStore | str | os.PathLike[str], options: PartitionOptions) -> GraphStore:
    """The store, with all options of a partition looked at."""
    store = prepare(source, options).store
    if store is None:
        raise ConfigError(
            "--parts auto needs a graph store, but the source is a list of edges",
            where="source",
            fix="Make a store with: partita ingest, or give a number of parts",
        )
    return store


def _largest(store: GraphStore, halo: str) -> int:
    """Bytes of the largest part as a view; parts are read only where bounds do not tell."""
    parts = range(store.num_parts)
    bounds = [(PartView.bound(store, [part], halo, without=_LEFT_OUT).bytes, part) for part in parts]
    largest = 0
    for bound, part in sorted(bounds, reverse=True):
        if bound <= largest:
            break
        largest = max(largest, PartView.measure(store, [part], halo, without=_LEFT_OUT).bytes)
    return largest


def _next(made: list[PartsPlan], num_nodes: int) -> PartsPlan:
    """A plan for more parts, after partitions that did not fit.

    Parts shrink more slowly than their number grows, for replication grows with it. How slowly, two partitions tell.
    """
    plan = made[-1].again()
    if len(made) > 1:
        before, last = made[-2], made[-1]
        slope = math.log(before.part_bytes / last.part_bytes) / math.log(last.parts / before.parts)
        if slope > 0:
            # Not more than twice as many as replication by itself would ask for: two points are no law.
            wanted = last.parts * min((last.part_bytes / last.room) ** (1 / slope), 2 * plan.parts / last.parts)
            plan = replace(plan, parts=max(plan.parts, min(math.ceil(wanted), num_nodes)))
    return plan


def _too_large(store: GraphStore, made: list[PartsPlan], plan: PartsPlan) -> ResourceError:
    """Why no partition fits; ``plan`` is the one that was not tried."""
    beyond = f"{plan.parts:,} parts are more than the {store.num_nodes:,} nodes"
    if not made:
        fix = "Name fewer workers" if plan.parts == plan.workers else _FIX
        return ResourceError(f"{plan.explain()}, but {beyond}", where=str(store.path), fix=fix)
    last = made[-1]
    tried = f"parts tried: {', '.join(f'{each.parts:,}' for each in made)}; replication {last.replication:.3g}"
    if len(made) < ROUNDS:
        tried += f"; {beyond}"
    return ResourceError(
        f"the largest part needs {last.part_bytes:,} bytes, and a worker has {last.room:,} of {last.memory:,} for it "
        f"({tried})",
        where=str(store.path),
        fix=_FIX,
    )


@contextmanager
def _folder(path: Path, overwrite: bool) -> Iterator[Path]:
    """A hidden folder beside a store for what is not yet known to fit. It stays where a partition can be continued.

    It is named and locked as the temporary directories of :class:`~partita.graph.writer.StoreWriter` are, so the next
    writer of the store removes what a killed process has left.
    """
    check_target(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.parent / f".{path.name}.partial-auto"
    with _named(folder, path):
        lock = lock_directory(folder)
    keep = False
    try:
        for left in folder.glob("[!.]*"):  # whole stores of a killed process
            if left.is_dir():
                shutil.rmtree(left)
        yield folder
    except KeyboardInterrupt as interrupt:
        keep = bool(getattr(interrupt, "__notes__", []))  # the writer of the store says that it can be continued
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def _named(temporary: Path, path: Path) -> Iterator[None]:
    """Errors name the store that is being made, not where it is being made."""
    try:
        yield
    except PartitaError as error:
        error.rename(str(temporary), str(path))
        error.rename(str(temporary.parent), str(path.parent))
        raise
