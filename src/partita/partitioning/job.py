"""From a graph and the name of an algorithm to a store in partition order."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Int32

from partita.core import progress
from partita.core.errors import ConfigError, InputError, nearest
from partita.core.memory import PeakMemory, available_bytes
from partita.core.memory_need import MemoryNeed
from partita.core.options import Size, size_of, takes
from partita.core.partitioning import EdgeStream, Partitioner, PartitionTask
from partita.graph.metadata import is_store
from partita.graph.store import GraphStore
from partita.graph.writer import StoreWriter
from partita.partitioning.assignment import SUFFIXES, check_assignment_path, write_assignment
from partita.partitioning.balance import even_out, node_classes
from partita.partitioning.edge_streams import StoreStream, Watched
from partita.partitioning.metis import BYTES_PER_LINK, BYTES_PER_NODE
from partita.partitioning.options import PartitionOptions
from partita.partitioning.partitioners import PARTITIONERS, checked_parts, find_partitioner
from partita.partitioning.quality import Quality, quality, types_of
from partita.partitioning.refine import refine as refine_parts
from partita.partitioning.reorder import reorder, require_convertible
from partita.partitioning.stream_stats import survey
from partita.partitioning.weights import node_and_edge_weights

_BUFFERS = 64 << 20
"""Of streams of edges, and of writing."""
_THREADS = 8
"""Of libraries that compute and read files."""
_KEPT = "parts"
_DEFAULT_LIMIT = 1 << 30
_LARGEST_PARTS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """What was done.

    Attributes:
        path: of the new store or assignment; ``None`` if nothing was written.
        algorithm: as given.
        num_parts: P.
        levels: for instance (hosts, workers), whose product is P.
        seconds: by stage: survey, partition, refine, balance, quality, write.
        peak_memory_bytes: the most private memory seen between the stages, above that at the start.
        moved: nodes that refinement and balancing moved.
        quality: of the partition; ``None`` where the source is a raw edge list.
        notes: what the user should know.
    """

    path: str | None
    algorithm: str
    num_parts: int
    levels: tuple[int, ...]
    seconds: dict[str, float]
    peak_memory_bytes: int
    moved: int
    quality: Quality | None
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As values that JSON can hold."""
        seconds = {name: round(value, 3) for name, value in self.seconds.items()}
        quality = None if self.quality is None else self.quality.to_json()
        return {**asdict(self), "levels": list(self.levels), "seconds": seconds, "quality": quality}


@takes(PartitionOptions)
def partition(
    source: GraphStore | EdgeStream | str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    options: PartitionOptions,
) -> PartitionSummary:
    """Divide the nodes of a graph among parts, and write a store in which every part owns one range of ids.

    Killed or interrupted while writing, the same call continues where it was.

    Args:
        source: a graph store; or a stream of edges, or a file of edges between nodes numbered from 0, of which an
            assignment can be made, but no store.
        out: of the new store; a file that ends in ``.npy``, ``.csv`` or ``.parquet`` receives the assignment only;
            ``None``: nothing is written.
        options: see :class:`~partita.partitioning.options.PartitionOptions`. ``parts`` is P, or levels such as
            ``"2x4"``: hosts x workers, contiguous at both levels. ``algorithm`` is a name (see
            :data:`~partita.partitioning.partitioners.PARTITIONERS`), a registered name, ``"package.module:Name"``, the
            path of an assignment file, a :class:`~partita.core.partitioning.Partitioner`, or a function
            ``(stream, num_parts) -> parts``. ``weights`` say what is balanced and cut: ``"none"``: nodes and edges;
            ``"presample"``, ``"edges"``, ``"node"``: presampled loads (see
            :func:`~partita.partitioning.weights.node_and_edge_weights`); ``"degree"``: in-degrees. The heaviest part is
            to be at most ``1 + epsilon`` times the mean; with ``balance`` ``"type"`` or ``"train"`` that holds for each
            class of nodes, whatever the algorithm (see :func:`~partita.partitioning.balance.node_classes`). The memory
            limit is besides O(nodes); ``None``: 1 GiB, or what is free for algorithms that hold the graph in memory.
            What spring+ makes of a graph depends on it.

    Returns:
        What was done, with the quality of the partition.

    Raises:
        ConfigError: an argument is not one of its choices, or arguments exclude each other.
        InputError: edges, assignment or weights cannot be used; the edges changed between passes.
        StoreError: no usable store there, or something is at ``out`` already.
        ResourceError: memory limit or disk do not suffice.
    """
    job = prepare(source, options)
    job.require_memory()
    path = None if out is None else Path(out)
    if path is None or path.suffix in SUFFIXES:
        if options.feature_dtype is not None:
            raise ConfigError("an assignment has no features", where="feature_dtype", fix="Leave it out")
        if path is not None:
            check_assignment_path(path)
        found = job.assign()
        if path is not None:
            with job.timed("write"):
                write_assignment(path, found, job.store)
        return job.summary(path)
    if job.store is None:
        fix = f"Name a file that ends in {', '.join(SUFFIXES)}, or make a store with: partita ingest"
        raise ConfigError("only a graph store can be re-ordered, and the source is a list of edges", fix=fix)
    require_convertible(job.store, options.feature_dtype)
    with StoreWriter(path, overwrite=options.overwrite, resume_key=job.key(options.feature_dtype)) as writer:
        found = job.assign(writer)
        with job.timed("write"):
            reorder(
                job.store, found, writer, num_parts=job.task.num_parts, levels=job.levels,
                feature_dtype=options.feature_dtype, memory_limit=job.task.memory_limit,
                notes={"partition": job.description()},
            )  # fmt: skip
    return job.summary(path)


@dataclass
class PartitionJob:
    """One partitioning, with everything looked up and checked that can be without reading edges."""

    store: GraphStore | None
    partitioner: Partitioner
    algorithm: str
    task: PartitionTask
    levels: tuple[int, ...]
    weights: str
    balance: str
    refine: int
    known: bool
    seconds: dict[str, float] = field(default_factory=dict)
    quality: Quality | None = None
    moved: int = 0
    _memory: PeakMemory = field(default_factory=PeakMemory)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """A ``with`` block whose seconds count for a stage."""
        began = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - began
        self._memory.look()

    def description(self) -> dict[str, Any]:
        """What decides the partition, for the metadata of the new store."""
        task = self.task
        return {
            "algorithm": self.algorithm,
            "weights": self.weights,
            "balance": self.balance,
            "seed": task.seed,
            "epsilon": task.epsilon,
            "refine": self.refine,
            "options": dict(task.options),
        }

    @property
    def memory_bytes(self) -> int:
        """Private memory at the peak, by formulas."""
        task, requires = self.task, self.partitioner.requires
        per_node, per_part = requires.node_bytes
        found = _BUFFERS + int((per_node + per_part * task.num_parts) * task.num_nodes)
        found += 0 if task.classes is None else task.classes.nbytes
        found += (-(-task.num_parts // 8) + 4) * task.num_nodes  # measuring: the parts, and which node is where
        if requires.budget:
            links = BYTES_PER_LINK * (task.stream.num_edges or 0)
            found += min(task.memory_limit, BYTES_PER_NODE * task.num_nodes + links)
        return found

    def require_memory(self) -> None:
        """Say what is going to be taken of memory.

        Raises:
            ResourceError: this process may not take so much.
        """
        need = MemoryNeed.of({"partitioning": self.memory_bytes}, threads=_THREADS)
        progress.say(need.text)
        need.require(
            "partitioning", "Give a lower --memory-limit, choose --algorithm spring or random, or raise the limit"
        )

    def key(self, feature_dtype: str | None) -> str:
        """Of everything that decides the new store. What a user's own code does is not known, so it has no equal."""
        store = self.store
        assert store is not None
        once = None if self.known else time.time_ns()
        limit = None if self.partitioner.requires.in_memory else self.task.memory_limit
        content = [
            store.metadata.to_json(), self.description(), self.task.num_parts, limit, feature_dtype, once,
        ]  # fmt: skip
        return xxhash.xxh3_64_hexdigest(json.dumps(content, sort_keys=True).encode())

    def assign(self, writer: StoreWriter | None = None) -> Int32[np.ndarray, "N"]:
        """The part of every node, measured; from an interrupted run with the same writer if that came so far."""
        if self.store is not None:
            self.store.require_sound()  # what is copied would be sound for ever after
        kept = None if writer is None else writer.kept(_KEPT)
        if kept is not None:
            self.task.notes.append("continued what was begun before: the assignment was there")
            parts = np.array(kept, dtype=np.int32)
        else:
            parts = self._partition()
            if writer is not None:
                writer.keep(_KEPT, parts)
        if self.task.stream.grouped:
            with self.timed("quality"):
                self.quality = self._measure(parts)
            if self.quality.empty_parts:
                self.task.notes.append(
                    f"{self.quality.empty_parts} of {self.task.num_parts} parts are empty, and a worker of an empty "
                    "part has nothing to train on. Use another --algorithm, for instance spring, or fewer --parts"
                )
        return parts

    def _partition(self) -> Int32[np.ndarray, "N"]:
        task, requires = self.task, self.partitioner.requires
        if requires.survey:
            with self.timed("survey"):
                task.survey = survey(task.stream)
        with self.timed("partition"):
            found = self.partitioner.partition(task)
            parts = checked_parts(found, task.num_nodes, task.num_parts, self.algorithm)
        task.survey = None
        if self.refine:
            with self.timed("refine"):
                self.moved = refine_parts(task, parts, self.refine)
        if task.classes is not None:
            with self.timed("balance"):
                self.moved += even_out(task, parts)
        return parts

    def _measure(self, parts: Int32[np.ndarray, "N"]) -> Quality:
        task, store = self.task, self.store
        if store is None:
            return quality(task.stream, parts, task.num_parts, node_weight=task.node_weight)
        return quality(
            StoreStream(store), parts, task.num_parts, train=store.splits.get("train"),
            node_weight=store.presample_node if task.node_weight is None else task.node_weight,
            edge_weight=store.presample_edge, types=types_of(store),
        )  # fmt: skip

    def summary(self, path: Path | None) -> PartitionSummary:
        """What was done so far."""
        self._memory.look()
        return PartitionSummary(
            path=None if path is None else str(path),
            algorithm=self.algorithm,
            num_parts=self.task.num_parts,
            levels=self.levels,
            seconds=dict(self.seconds),
            peak_memory_bytes=self._memory.peak_bytes,
            moved=self.moved,
            quality=self.quality,
            notes=list(self.task.notes),
        )


def _check_options(partitioner: Partitioner, given: Mapping[str, float]) -> None:
    """Refuse options that the algorithm does not have.

    Raises:
        ConfigError: an option is not one of its own, or negative.
    """
    known = partitioner.requires.options
    if known is None:
        return
    for name, value in given.items():
        if name not in known:
            fix = nearest(name, known) if known else "It has none"
            raise ConfigError(f"the algorithm has no option '{name}'", where="options", fix=fix)
        if not 0 <= value < math.inf:
            raise ConfigError(f"{value} is not a number from 0", where=f"options, {name}", fix="Give 0 or more")


def prepare(source: GraphStore | EdgeStream | str | os.PathLike[str], options: PartitionOptions) -> PartitionJob:
    """Check the arguments of :func:`partition`, open what they name, and do nothing else.

    Raises:
        ConfigError, InputError, StoreError: see :func:`partition`.
    """
    levels, num_parts = parse_parts(options.parts)
    store, stream = _open(source, options)
    algorithm, weights = options.algorithm, options.weights
    partitioner = find_partitioner(algorithm)
    _check_options(partitioner, options.options or {})
    if num_parts > max(1, stream.num_nodes):
        raise InputError(
            f"{num_parts:,} parts are more than the {stream.num_nodes:,} nodes", where="parts", fix="Ask for fewer"
        )
    node_weight, classes = None, None
    if options.balance != "none" and store is None:
        raise ConfigError(
            "node types and training nodes are those of a graph store", where="balance", fix="Partition a store"
        )
    if weights != "none" and store is None:
        raise ConfigError("weights are columns of a graph store", where="weights", fix="Partition a store")
    if store is not None:
        node_weight, edge_weight = node_and_edge_weights(store, weights)
        classes = node_classes(store, options.balance)
        stream = StoreStream(store, edge_weight)
    task = PartitionTask(
        Watched(stream),
        num_parts,
        seed=options.seed,
        node_weight=node_weight,
        classes=classes,
        epsilon=options.epsilon,
        memory_limit=_limit(options.memory_limit, partitioner),
        options=dict(options.options or {}),
        source=store,
    )
    name = algorithm if isinstance(algorithm, str) else getattr(algorithm, "__name__", type(algorithm).__name__)
    return PartitionJob(
        store, partitioner, name, task, levels, weights, options.balance, options.refine,
        known=name in PARTITIONERS.own,
    )  # fmt: skip


def _open(
    source: GraphStore | EdgeStream | str | os.PathLike[str], options: PartitionOptions
) -> tuple[GraphStore | None, EdgeStream]:
    edges = {name: getattr(options, name) for name in ("source_column", "target_column", "undirected")}
    if isinstance(source, GraphStore):
        store: GraphStore | None = source
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        if not is_store(path) and (path.is_file() or any(path.glob("*.parquet"))):
            from partita.partitioning.files import FileStream

            return None, FileStream(path, **edges)
        store = GraphStore.open(path)
    else:
        return None, source
    if any(value is not None and value is not False for value in edges.values()):
        what = "columns and direction are only for files of edges, and the source is a graph store"
        raise ConfigError(what, fix="Leave them out: a store holds its own edges")
    assert store is not None
    return store, StoreStream(store)


def parse_parts(parts: int | str) -> tuple[tuple[int, ...], int]:
    """``4`` -> ((), 4); ``"2x4"`` -> ((2, 4), 8).

    Raises:
        ConfigError: no such number.
    """
    text = str(parts)
    try:
        levels = tuple(int(level) for level in text.lower().split("x"))
    except ValueError:
        levels = ()
    if not levels or min(levels) < 1 or math.prod(levels) > _LARGEST_PARTS:
        raise ConfigError(
            f"invalid number of parts: '{text}'", where="parts", fix="Write a number >= 1, or levels such as 2x4"
        )
    return (levels if len(levels) > 1 else ()), math.prod(levels)


def _limit(memory_limit: Size | None, partitioner: Partitioner) -> int:
    if memory_limit is None:  # where the result depends on the limit, it must not depend on the moment
        return available_bytes() if partitioner.requires.in_memory else _DEFAULT_LIMIT
    return size_of(memory_limit, "memory_limit")
