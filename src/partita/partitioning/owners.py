"""From edges in parts to nodes in parts: which part owns a node, decided while the edges are placed.

Edge partitioners (HDRF, greedy, DBH, 2PS-L) give every *edge* a part. Training needs an owner for every *node*. A
stream that is grouped by destination lets the owner of a node be known when its row ends, from one counter per part:
nothing is kept per edge, and no pass is repeated. A loop that places edges looks like this::

    parts, counts, directed = owners.parts, owners.counts, owners.directed
    row, last = owners.open_row[0], owners.open_row[1]
    for e in range(len(src)):
        if dst[e] != row:
            close_row(row, last, owners)
            row, last = dst[e], -1
        ...  # choose the part of the edge; self loops are left out
        counts[part] += 1
        last = part
        if directed and parts[src[e]] < 0:
            parts[src[e]] = -2 - part
    owners.open_row[0], owners.open_row[1] = row, last

Those lines stand in every such loop as they are: as a function they would take as long as the rest of the loop.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, Shaped, UInt

from partita.core.errors import ConfigError, nearest
from partita.core.partitioning import EdgeStream, PartitionTask
from partita.kernels.compile import compiled
from partita.partitioning.edge_streams import not_grouped
from partita.partitioning.loads import Unbounded, spread_rest

OWNER_RULES = ("majority", "last")
"""How a node's owner follows from the parts of its in-edges: the part of most of them, or of the last one."""

_WORD_BITS = 64


class Owners(NamedTuple):
    """What is known about owners while edges are placed; passed to compiled loops.

    Attributes:
        parts: (N) the owner; -1: none yet; ``-2 - p``: none yet, and the last out-edge is in part p.
        counts: (P) in-edges of the open row in every part.
        owned: (P) load of the nodes that have an owner.
        weights: (N) load of every node, or empty: every node weighs 1.
        open_row: (2) the row that is being read, and the part of its last in-edge; -1: none yet.
        directed: the out-edges of nodes without in-edges must be looked at; an undirected graph has no such nodes.
        last_decides: the part of the last in-edge is the owner, not that of most.
    """

    parts: Int32[np.ndarray, "N"]
    counts: Int64[np.ndarray, "P"]
    owned: Int64[np.ndarray, "P"]
    weights: Int64[np.ndarray, "W"]
    open_row: Int64[np.ndarray, "2"]
    directed: bool
    last_decides: bool


def open_owners(task: PartitionTask, rule: str) -> Owners:
    """Owners of no node yet. Memory: 4 bytes per node, the result itself.

    Args:
        task: with a survey.
        rule: one of :data:`OWNER_RULES`.

    Raises:
        InputError: the stream is not grouped by destination.
    """
    if not task.stream.grouped:
        raise not_grouped()
    return Owners(
        parts=np.full(task.num_nodes, -1, dtype=np.int32),
        counts=np.zeros(task.num_parts, dtype=np.int64),
        owned=np.zeros(task.num_parts, dtype=np.int64),
        weights=task.weights(),
        open_row=np.array([-1, -1], dtype=np.int64),
        directed=not task.surveyed().symmetric,
        last_decides=rule == "last",
    )


@compiled
def close_row(row, last, owners):
    """Give the node ``row`` to the part of most of its in-edges; ``last`` is the part of the last one, or -1.

    Ties go to the part that owns the least load so far, then to the lowest part. A row without in-edges is left alone.
    """
    if last < 0:
        return
    counts, owned = owners.counts, owners.owned
    best = last
    if not owners.last_decides:
        best = 0
        for part in range(1, len(counts)):
            if counts[part] > counts[best] or (counts[part] == counts[best] and owned[part] < owned[best]):
                best = part
    counts[:] = 0
    owners.parts[row] = best
    owned[best] += owners.weights[row] if len(owners.weights) > 0 else 1


@compiled
def _close_all(owners):
    close_row(owners.open_row[0], owners.open_row[1], owners)
    parts = owners.parts
    for v in range(len(parts)):
        if parts[v] < -1:
            parts[v] = -2 - parts[v]


def replica_sets(num_nodes: int, num_parts: int) -> UInt[np.ndarray, "N words"]:
    """For every node the empty set of parts: bits in one word of 8 to 64 bits, or in as many 64-bit words as needed."""
    if num_parts > _WORD_BITS:
        return np.zeros((num_nodes, -(-num_parts // _WORD_BITS)), dtype=np.uint64)
    return np.zeros((num_nodes, 1), dtype=f"u{next(size for size in (1, 2, 4, 8) if 8 * size >= num_parts)}")


@compiled
def has_replica(sets, node, part):
    """Whether ``part`` is in the set of ``node``."""
    return (np.uint64(sets[node, part >> 6]) >> np.uint64(part & 63)) & np.uint64(1) != 0


@compiled
def add_replica(sets, node, part):
    """Put ``part`` in the set of ``node``."""
    sets[node, part >> 6] |= np.uint64(1) << np.uint64(part & 63)


def edge_limit(task: PartitionTask) -> int:
    """The most edges that a part may get: ``1 + epsilon`` times the mean, and at least what an even division asks for.

    Args:
        task: with a survey. Self loops, which are not placed, do not count.
    """
    edges = task.surveyed().num_edges - task.surveyed().num_loops
    return max(int((1 + task.epsilon) * edges / task.num_parts), -(-edges // task.num_parts))


class EdgePartitioner(Unbounded):
    """What the edge partitioners share: the rule for owners. Edges are balanced, the nodes that follow are not.

    A node without in-edges goes where its last out-edge lies; an isolated node to the part with the least load.

    Args:
        owner: ``"majority"``, or ``"last"`` as in the published code of SDT-GNN, where the last in-edge decides.

    Raises:
        ConfigError: there is no such rule.
    """

    order_independent = False

    def __init__(self, owner: str = "majority") -> None:
        if owner not in OWNER_RULES:
            raise ConfigError(f"there is no rule '{owner}'", where="owner", fix=nearest(owner, OWNER_RULES))
        self.owner = owner

    def partition(self, task: PartitionTask) -> Int32[np.ndarray, "N"]:
        """The owner of every node.

        Raises:
            InputError: the stream is not grouped by destination.
        """
        return self.partition_edges(task)[0]

    def partition_edges(self, task: PartitionTask) -> tuple[Int32[np.ndarray, "N"], Shaped[np.ndarray, "N words"]]:
        """Place all edges.

        Returns:
            The owner of every node, and for every node the set of parts that hold an edge of it
            (see :func:`replica_sets`).

        Raises:
            InputError: the stream is not grouped by destination.
        """
        sets = replica_sets(task.num_nodes, task.num_parts)
        return self._owners(task, sets), sets

    def _owners(self, task: PartitionTask, sets: Shaped[np.ndarray, "n words"]) -> Int32[np.ndarray, "N"]:
        owners = open_owners(task, self.owner)
        self.place(task, sets, owners)
        _close_all(owners)
        spread_rest(owners.parts, task.num_parts, owners.weights)
        return owners.parts

    @staticmethod
    def edge_bound(task: PartitionTask) -> int | None:
        """The most edges, self loops aside, that any part gets; ``None`` where no bound is promised."""
        return None

    def place(self, task: PartitionTask, sets: Shaped[np.ndarray, "n words"], owners: Owners) -> None:
        """Place all edges, and add them to ``sets`` and ``owners``, which know of none yet."""
        raise NotImplementedError


def published_replication(
    stream: EdgeStream, owners: Int32[np.ndarray, "N"], sets: Shaped[np.ndarray, "N words"]
) -> float:
    """The replication factor as SDT-GNN's code counts it for edge partitioners.

    There a part's file holds its edges *and* all in-edges of the nodes it owns; the factor is the number of distinct
    nodes per file, summed over the parts, over all nodes, isolated ones too. Memory: a copy of ``sets``.

    Args:
        stream: of the edges.
        owners: of every node.
        sets: for every node the parts that hold an edge of it, as :meth:`EdgePartitioner.partition_edges` gives them.
    """
    union = sets.copy()
    for edges in stream.edges("count replicas"):
        _add_in_edges(edges.src, edges.dst, owners, union)
    return int(_count_bits(union)) / stream.num_nodes


@compiled
def _add_in_edges(src, dst, owners, sets):
    for e in range(len(src)):
        u, v = src[e], dst[e]
        if u != v:
            add_replica(sets, u, owners[v])
            add_replica(sets, v, owners[v])


@compiled
def _count_bits(sets):
    total = 0
    for v in range(sets.shape[0]):
        for w in range(sets.shape[1]):
            rest = np.uint64(sets[v, w])
            while rest != 0:
                rest &= rest - np.uint64(1)
                total += 1
    return total
