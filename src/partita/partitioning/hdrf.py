"""HDRF: high degree replicated first.

Petroni et al., "HDRF: stream-based partitioning for power-law graphs", CIKM 2015.

An edge (u, v) goes to the part p of highest score

    gain_u [p holds u] + gain_v [p holds v] + (max - load_p) / (1 + max - min),     gain_u = 2 - d_u / (d_u + d_v)

with partial degrees d (edges seen so far, this one too), loads in edges, and ties to the lowest part: lambda = 1 and
epsilon = 1 of the paper. The paper's constraint on the balance holds, too: a part with ``1 + epsilon`` times the mean
number of edges (``epsilon`` of the task, tau - 1 of the paper) is full and gets no more. Without it a stream whose
neighboring edges share an end, such as a graph store's, can end in one part.

The balance term lies in [0, 1), the gains in (1, 2), and gain_u + gain_v = 3. So no part has to be scored but a few:
one that holds both ends beats all that do not, one that holds one end beats those that hold none, and among parts that
hold the same ends the least loaded wins. Only where u and v have parts, but none in common, do two scores have to be
compared.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Integer, Shaped

from partita.core.partitioning import PartitionTask, Requires
from partita.kernels.compile import compiled
from partita.partitioning.owners import EdgePartitioner, Owners, add_replica, close_row, edge_limit

# A part's rank is its load and, in the lowest bits, its number: the least rank is the least load, ties to the lowest
# part. 2^20 parts and 2^43 edges fit. The rank of a full part is _NO_RANK, so it is never the least.
_PART_BITS = 20
_PART_MASK = (1 << _PART_BITS) - 1
_NO_RANK = np.int64(2**63 - 1)

# The place of the only set bit of a word: the 6 highest bits of the word times a de Bruijn sequence tell it.
_DE_BRUIJN = 0x03F79D71B4CB0A89
_PLACE = np.zeros(64, dtype=np.int64)
_PLACE[[((_DE_BRUIJN << place) & (2**64 - 1)) >> 58 for place in range(64)]] = np.arange(64)


class Hdrf(EdgePartitioner):
    """Edges where their ends already are, the end of lower degree first; where they are nowhere, to the least load."""

    requires = Requires(passes=1, grouped=True, node_bytes=(28.0, 1 / 8), options=())
    edge_bound = staticmethod(edge_limit)

    def place(self, task: PartitionTask, sets: Shaped[np.ndarray, "N words"], owners: Owners) -> None:
        """See :meth:`partita.partitioning.owners.EdgePartitioner.place`."""
        place_by_replicas(task, sets, owners, np.zeros_like(task.surveyed().degree))


def place_by_replicas(
    task: PartitionTask, sets: Shaped[np.ndarray, "N words"], owners: Owners, degree: Integer[np.ndarray, "D"]
) -> None:
    """Place all edges by HDRF's scores, or by the greedy ones where both gains are 1.

    Args:
        task: what to partition.
        sets: learn of every edge.
        owners: likewise.
        degree: (N) zeros, to count partial degrees in; empty: all gains are 1.
    """
    ranks = np.arange(task.num_parts, dtype=np.int64)
    extremes = np.zeros(3, dtype=np.int64)
    limit = edge_limit(task)
    for edges in task.stream.edges("place edges"):
        _place_edges(edges.src, edges.dst, degree, sets, ranks, limit, extremes, owners)


@compiled
def _least_rank(word, first, ranks):
    """The least rank among the parts of the set bits of a word, whose lowest bit is part ``first``."""
    least = _NO_RANK
    while word != 0:
        lowest = word & (~word + np.uint64(1))
        word ^= lowest
        least = min(least, ranks[first + _PLACE[(lowest * np.uint64(_DE_BRUIJN)) >> np.uint64(58)]])
    return least


@compiled
def _place_edges(src, dst, degree, sets, ranks, limit, extremes, owners):
    """One batch; ``extremes`` are the least load, the greatest load, and the lowest part of least load.

    Parts with ``limit`` edges get no more.
    """
    num_parts, words = len(ranks), sets.shape[1]
    low, high, emptiest = extremes[0], extremes[1], extremes[2]
    parts, counts, directed = owners.parts, owners.counts, owners.directed
    row, last = owners.open_row[0], owners.open_row[1]
    for e in range(len(src)):
        u, v = src[e], dst[e]
        if v != row:
            close_row(row, last, owners)
            row, last = np.int64(v), -1
        if u == v:
            continue
        if len(degree) > 0:
            degree[u] += 1
            degree[v] += 1
        rank = _NO_RANK
        for w in range(words):
            shared = np.uint64(sets[u, w]) & np.uint64(sets[v, w])
            if shared != 0:
                rank = min(rank, _least_rank(shared, w << 6, ranks))
        if rank == _NO_RANK:
            rank_u = rank_v = _NO_RANK
            for w in range(words):
                rank_u = min(rank_u, _least_rank(np.uint64(sets[u, w]), w << 6, ranks))
                rank_v = min(rank_v, _least_rank(np.uint64(sets[v, w]), w << 6, ranks))
            rank = min(rank_u, rank_v)
            if rank == _NO_RANK:
                rank = low << _PART_BITS | emptiest
            elif len(degree) > 0 and rank_u != _NO_RANK and rank_v != _NO_RANK:
                degree_u, degree_v = np.int64(degree[u]), np.int64(degree[v])
                total, span = degree_u + degree_v, 1 + high - low
                score_u = 2.0 - degree_u / total + (high - (rank_u >> _PART_BITS)) / span
                score_v = 2.0 - degree_v / total + (high - (rank_v >> _PART_BITS)) / span
                if score_u != score_v:
                    rank = rank_u if score_u > score_v else rank_v
                elif rank_v & _PART_MASK < rank_u & _PART_MASK:
                    rank = rank_v
                else:
                    rank = rank_u
        part = rank & _PART_MASK
        add_replica(sets, u, part)
        add_replica(sets, v, part)
        load = (rank >> _PART_BITS) + 1
        ranks[part] = load << _PART_BITS | part if load < limit else _NO_RANK
        high = max(high, load)
        # Loads only grow, so no part before this one is as low; once all are full there is none to look for.
        while low < limit and ranks[emptiest] >> _PART_BITS > low:
            emptiest += 1
            if emptiest == num_parts:
                emptiest, low = 0, low + 1
        counts[part] += 1
        last = part
        if directed and parts[u] < 0:
            parts[u] = -2 - part
    extremes[0], extremes[1], extremes[2] = low, high, emptiest
    owners.open_row[0], owners.open_row[1] = row, last
