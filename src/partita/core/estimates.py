"""Records of what all workers will do in a step, found out by one process that only samples.

A *mask* says who has to do with a row: bit r stands for worker r, of up to 64. Masks are aligned with the distinct
nodes that anybody asks for at a level, whoever it is: these are the same for every strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int, Int64, UInt64
from torch import Tensor

from partita.core.adding import Adding
from partita.core.records import ID_BYTES, TIERS, Block, Traffic

PerWorker = Int64[np.ndarray, "W"]


@dataclass(frozen=True)
class SampledLayer:
    """What is drawn for all the nodes that anybody asks for at one layer: a block, its sources de-duplicated.

    Attributes:
        block: on the CPU.
        slots: of what is asked for, see :class:`~partita.core.protocols.Topology`.
    """

    block: Block
    slots: int = 1

    @property
    def dst(self) -> Int[Tensor, "D"]:
        """Store ids of the destinations, which are the first of the sources."""
        return self.block.dst

    @property
    def src(self) -> Int[Tensor, "S"]:
        """Store ids of the sources."""
        assert self.block.src is not None
        return self.block.src

    @cached_property
    def nodes(self) -> tuple[Int[Tensor, "n"], Int64[np.ndarray, "S"] | None]:
        """The distinct nodes among the sources, and which of them each source is about; ``None``: they are nodes."""
        if self.slots == 1:
            return self.src, None
        nodes, places = np.unique(self.src.numpy() // self.slots, return_inverse=True)
        return torch.from_numpy(nodes), places

    @cached_property
    def indptr(self) -> Int64[np.ndarray, "D_1"]:
        """Where the edges of each destination begin."""
        return self.block.indptr.numpy()

    @cached_property
    def indices(self) -> Int[np.ndarray, "E"]:
        """The source of each edge."""
        return self.block.indices.numpy()

    @cached_property
    def degrees(self) -> Int64[np.ndarray, "D"]:
        """Sampled edges of each destination."""
        return np.diff(self.indptr)


@dataclass(frozen=True)
class LayerEstimate:
    """What one layer will be for each worker; see the fields of :class:`~partita.core.protocols.Work`.

    Attributes:
        traffic: (W) bytes for the requests of each worker, without those of sampling.
        far: (W) what of these goes from one host to another; ``None``: they go to all workers of the group alike.
        drawing: (D) who draws the neighbors of each destination.
        computed: (W) rows computed.
        blocks: (W, 3) destinations, sources and edges of the blocks that a worker computes with.
        below: (S) who needs each source's row of the layer below.
        accesses: (W) accesses to rows of the layer below where these are summed by id; ``None``: each row once.
        columns: which part of the input columns these blocks have.
        way: how they are computed: as a ``whole``, or from parts: by the ``states`` of the sources' owners, by the
            ``rows`` that these project, or by ``slices`` of input columns.
    """

    traffic: Sequence[Traffic]
    drawing: UInt64[np.ndarray, "D"]
    computed: PerWorker
    blocks: Int64[np.ndarray, "W 3"]
    below: UInt64[np.ndarray, "S"]
    accesses: PerWorker | None = None
    columns: float = 1.0
    far: Sequence[Traffic] | None = None
    way: str = "whole"


@dataclass(frozen=True, slots=True)
class AskedRows:
    """Input rows that workers ask for in a step.

    Attributes:
        ids: distinct store ids; in the tiers of a node type numbers among its rows.
        by: who asks for each.
        begins: an epoch begins with this step: its batches are known ahead when those of the one before are read.
    """

    ids: Int[Tensor, "n"]
    by: UInt64[np.ndarray, "n"]
    begins: bool = False


@dataclass(frozen=True, slots=True)
class FileReads(Adding):
    """What a worker reads of rows that are in files and not kept in memory. Adds up with ``+``.

    Attributes:
        rows: that are read.
        bytes: of these rows.
        cost: bytes that reading them takes, with those between rows that are read together, and with each read of a
            file as :data:`~partita.files.row_file.GAP_BYTES`.
    """

    rows: int = 0
    bytes: int = 0
    cost: int = 0


@dataclass(frozen=True)
class ReadEstimate:
    """What input rows will be for each worker; see :class:`~partita.core.protocols.TierWork`.

    Attributes:
        hits: (W, tiers) rows that each of :data:`~partita.core.records.TIERS` gives.
        remote: (W) rows from other workers.
        reads: (S) who looks each row up in its own tiers.
        files: of each worker, what of its host's rows it reads from files; empty where they are in memory.
    """

    hits: Int64[np.ndarray, "W tiers"]
    remote: PerWorker
    reads: UInt64[np.ndarray, "S"]
    files: tuple[FileReads, ...] = ()


@dataclass(frozen=True)
class LearntReads:
    """What becomes of learnt rows in a step.

    Attributes:
        given: (W, T) rows of each node type that each worker gives, to itself and to others, whose gradients come back.
        moved: (W, T) the same, each row once.
        far: of each worker, what of the rows that it reads, and of their gradients, goes from one host to another.
    """

    given: Int64[np.ndarray, "W T"]
    moved: Int64[np.ndarray, "W T"]
    far: list[Traffic]


@dataclass(frozen=True)
class InputEstimate:
    """What the input placement will do for each worker in a step; see :class:`~partita.core.protocols.InputWork`.

    Attributes:
        hits: (W, tiers) rows that each of :data:`~partita.core.records.TIERS` gives.
        bytes: (W, tiers) of these rows, as they are stored.
        reads: (S) who looks each row up in its own tiers.
        traffic: of each worker.
        files: of each worker, what it reads from files; empty where rows are in memory.
        types: (W, T) rows that each worker reads itself, by node type; ``None``: all are of one.
        learnt: of rows that are learnt; ``None``: there are none.
    """

    hits: Int64[np.ndarray, "W tiers"]
    bytes: Int64[np.ndarray, "W tiers"]
    reads: UInt64[np.ndarray, "S"]
    traffic: list[Traffic]
    files: tuple[FileReads, ...] = ()
    types: Int64[np.ndarray, "W T"] | None = None
    learnt: LearntReads | None = None

    @property
    def far(self) -> list[Traffic]:
        """Of each worker, what of its traffic goes from one host to another."""
        tier = TIERS.index("hosts")
        pairs = zip(self.hits[:, tier].tolist(), self.bytes[:, tier].tolist(), strict=True)
        stored = [Traffic(ids=ID_BYTES * rows, features=num_bytes) for rows, num_bytes in pairs]
        return stored if self.learnt is None else [a + b for a, b in zip(stored, self.learnt.far, strict=True)]

    @property
    def read(self) -> Int64[np.ndarray, "W T"]:
        """Rows of each node type that each worker reads itself, for itself or for others."""
        here = [TIERS.index(tier) for tier in ("cache", "host")]
        return self.hits[:, here].sum(1, keepdims=True) if self.types is None else self.types


def traffic_by_worker(price: Callable[..., Traffic], *numbers: PerWorker) -> list[Traffic]:
    """For each worker the bytes that follow from its numbers."""
    return [price(*map(int, of_worker)) for of_worker in zip(*numbers, strict=True)]
