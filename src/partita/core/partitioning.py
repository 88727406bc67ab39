"""The words of partitioning: streams of edges, what a partitioner asks for, and the protocol it follows.

Apart from :mod:`partita.core.protocols` because partitioning needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt16

from partita.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Edges:
    """Some consecutive edges of a stream. The arrays are valid until the next batch.

    Attributes:
        src: (n) node ids, int32 or int64.
        dst: (n) node ids, of the same dtype.
        weight: (n) integers >= 0, or empty where the stream has no weights (every edge then weighs 1).
    """

    src: Integer[np.ndarray, "n"]
    dst: Integer[np.ndarray, "n"]
    weight: Integer[np.ndarray, "w"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some consecutive nodes with all their in-edges.

    Attributes:
        first: the first node.
        indptr: int64 (rows + 1); the in-edges of node ``first + i`` are ``indptr[i]-indptr[0]:indptr[i+1]-indptr[0]``.
        src: their sources, int32 or int64.
        weight: integers >= 0 of the same length, or empty.
    """

    first: int
    indptr: Int64[np.ndarray, "rows_1"]
    src: Integer[np.ndarray, "n"]
    weight: Integer[np.ndarray, "w"]


@runtime_checkable
class EdgeStream(Protocol):
    """Directed edges in a fixed order, to be read any number of times. An undirected graph streams both directions.

    Attributes:
        num_nodes: N; node ids lie in [0, N).
        grouped: edges come grouped by destination, destinations ascending, so that :meth:`rows` works.
        weighted: batches carry weights.
    """

    num_nodes: int
    grouped: bool
    weighted: bool

    @property
    def num_edges(self) -> int | None:
        """E; ``None`` where it is known only after a pass."""
        ...

    def edges(self, doing: str) -> Iterator[Edges]:
        """One pass over all edges, in batches; ``doing`` names it where progress is shown."""
        ...

    def rows(self, doing: str) -> Iterator[Rows]:
        """One pass over all nodes, ascending, each with its whole row. Only where ``grouped``."""
        ...


@dataclass(frozen=True, slots=True)
class StreamStats:
    """What the first pass over a stream finds out. Self loops count nowhere but in ``num_edges`` and ``num_loops``.

    Attributes:
        degree: (N) ends of edges at every node, int32 or, from 2^30 edges on, int64. Where the stream is symmetric
            every edge counts once, so this is the degree of the undirected graph; else in-degree plus out-degree.
            Where the stream is weighted, int64 sums of the weights of all edges at the node, both directions.
        volume: the sum of ``degree``.
        num_edges: E, with self loops.
        num_loops: self loops.
        symmetric: every edge comes in both directions, equally often (found by comparing 64-bit hash sums).
    """

    degree: Integer[np.ndarray, "N"]
    volume: int
    num_edges: int
    num_loops: int
    symmetric: bool


@dataclass(frozen=True, slots=True)
class Requires:
    """What a partitioner needs.

    Attributes:
        passes: over the edges, the first one (:class:`StreamStats`) not counted.
        survey: whether it needs the first pass at all.
        grouped: it needs the store's row order (edges grouped by destination).
        in_memory: it holds the whole graph, O(edges), in memory.
        node_bytes: private bytes per node at the peak, as a function of the number of parts: ``a + b * parts``.
        budget: besides, it uses what ``memory_limit`` allows, or what the graph takes if that is less.
        options: names of the numbers in :attr:`PartitionTask.options` that it knows, none of them negative; ``None``:
            any.
    """

    passes: int
    survey: bool = True
    grouped: bool = False
    in_memory: bool = False
    node_bytes: tuple[float, float] = (16.0, 0.0)
    budget: bool = False
    options: tuple[str, ...] | None = None


@dataclass(slots=True)
class PartitionTask:
    """Everything a partitioner is given.

    Attributes:
        stream: the edges.
        num_parts: P >= 1.
        survey: of the stream, where the partitioner requires it.
        seed: of everything random.
        node_weight: (N) positive int64 load of every node, to be balanced; ``None``: every node weighs 1.
        classes: (N) uint16 class of every node, where the load of each class is to be balanced by itself; ``None``: all
            nodes are alike. Refinement keeps to it; what a partitioner makes otherwise is evened out afterwards.
        epsilon: wanted balance: the heaviest part at most ``1 + epsilon`` times the mean, where an algorithm can.
        memory_limit: private bytes that may be used besides O(nodes) state.
        options: of the algorithm, by name.
        source: what the stream was made of: a graph store, for partitioners that read files about its nodes.
        notes: what the partitioner wants to tell the user; it appends.
    """

    stream: EdgeStream
    num_parts: int
    survey: StreamStats | None = None
    seed: int = 0
    node_weight: Int64[np.ndarray, "N"] | None = None
    classes: UInt16[np.ndarray, "N"] | None = None
    epsilon: float = 0.05
    memory_limit: int = 1 << 30
    options: dict[str, float] = field(default_factory=dict)
    source: Any = None
    notes: list[str] = field(default_factory=list)

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.stream.num_nodes

    def surveyed(self) -> StreamStats:
        """The survey, which is there when ``requires.survey`` is true."""
        if self.survey is None:
            raise ValueError("this partitioner needs a survey of the stream")
        return self.survey

    def weights(self) -> Int64[np.ndarray, "W"]:
        """``node_weight`` for kernels: empty where every node weighs 1."""
        return np.empty(0, dtype=np.int64) if self.node_weight is None else self.node_weight

    def class_of(self) -> UInt16[np.ndarray, "C"]:
        """``classes`` for kernels: empty where all nodes are alike."""
        return np.empty(0, dtype=np.uint16) if self.classes is None else self.classes


@runtime_checkable
class Partitioner(Protocol):
    """Divides the nodes among parts.

    Attributes:
        requires: what it needs.
        order_independent: the result does not depend on the order of the edges within a row.
    """

    requires: Requires
    order_independent: bool

    def bound(self, task: PartitionTask) -> float | None:
        """The largest load (node weight) that a part may get, or ``None`` where no bound is promised."""
        ...

    def partition(self, task: PartitionTask) -> Int32[np.ndarray, "N"]:
        """The part of every node, int32 in [0, P); deterministic."""
        ...


def checked_parts(parts: Any, num_nodes: int, num_parts: int, where: str) -> Int32[np.ndarray, "N"]:
    """Parts as int32, after every check.

    Raises:
        InputError: another length than N, no integers, or a part outside [0, P); the message names the first node.
    """
    parts = np.asarray(parts)
    if parts.shape != (num_nodes,) or parts.dtype.kind not in "iu":
        raise InputError(
            f"an assignment of {parts.dtype.name} {parts.shape} does not fit {num_nodes:,} nodes",
            where=where,
            fix="Give one integer part for every node",
        )
    wrong = (parts < 0) | (parts >= num_parts)
    if wrong.any():
        node = int(np.argmax(wrong))
        raise InputError(
            f"node {node:,} has part {parts[node]}, outside [0, {num_parts})",
            where=where,
            fix="Number the parts from 0, or give the right number of parts",
        )
    return parts.astype(np.int32, copy=False)
