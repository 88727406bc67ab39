"""2PS-L: cluster nodes first, then place edges by the clusters of their ends, in time that does not depend on P.

Mayer, Orujzade and Jacobsen, "Out-of-core edge partitioning at linear run-time", ICDE 2022. Four passes: degrees (the
survey), clusters, the edges inside a part, and the others. Like the authors' program, a cluster volume counts for the
part of an end only if the part already holds that end. Unlike there, each direction of an undirected edge is placed.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Integer, Shaped

from partita.core.partitioning import PartitionTask, Requires
from partita.kernels.compile import compiled
from partita.partitioning.loads import deal_out
from partita.partitioning.owners import EdgePartitioner, Owners, add_replica, close_row, edge_limit, has_replica
from partita.partitioning.random import hashed_part, partition_key


class TwoPhase(EdgePartitioner):
    """Edges to the part of their ends' clusters; parts with ``1 + epsilon`` times the mean number of edges are full."""

    requires = Requires(passes=3, grouped=True, node_bytes=(48.0, 1 / 8), options=())
    edge_bound = staticmethod(edge_limit)

    def place(self, task: PartitionTask, sets: Shaped[np.ndarray, "N words"], owners: Owners) -> None:
        """See :meth:`partita.partitioning.owners.EdgePartitioner.place`."""
        survey, stream, num_parts = task.surveyed(), task.stream, task.num_parts
        home, volume = _homes(task)
        limit = edge_limit(task)
        fixed = survey.degree, home, limit, partition_key(task.seed)
        loads = np.zeros(num_parts, dtype=np.int64)
        for edges in stream.edges("place edges inside parts"):
            _place_inner(edges.src, edges.dst, *fixed, sets, loads)
        again = np.zeros(num_parts, dtype=np.int64)
        for edges in stream.edges("place edges between parts"):
            _place_others(edges.src, edges.dst, *fixed, volume, sets, loads, again, owners)


def _homes(task: PartitionTask) -> tuple[Int32[np.ndarray, "N"], Integer[np.ndarray, "N"]]:
    """The part of every node's cluster, and the volume of that cluster."""
    survey = task.surveyed()
    cluster = np.arange(task.num_nodes, dtype=np.int32 if task.num_nodes <= 2**31 else np.int64)
    volume = survey.degree.copy()
    cap = survey.volume // task.num_parts
    for edges in task.stream.edges("cluster nodes"):
        _cluster_edges(edges.src, edges.dst, survey.degree, survey.symmetric, cap, cluster, volume)
    # Clusters with a volume, largest first, ties to the larger id.
    order = np.flatnonzero(volume).astype(cluster.dtype, copy=False)
    order = order[np.argsort(volume[order], kind="stable")[::-1]]
    # A cluster without volume has no edges, or only edges of weight 0, which may go anywhere.
    part = (np.arange(task.num_nodes) % task.num_parts).astype(np.int32)
    deal_out(order, volume, part, task.num_parts)
    del order
    return part[cluster], volume[cluster]


@compiled
def _cluster_edges(src, dst, degree, once, cap, cluster, volume):
    """One batch of the clustering: of two ends the one with the smaller cluster (without itself) joins the other's.

    ``once``: the edges with src > dst are left out, as each comes in the other direction too.
    """
    for e in range(len(src)):
        u, v = src[e], dst[e]
        if u == v or (once and u > v):
            continue
        cluster_u, cluster_v = cluster[u], cluster[v]
        if cluster_u == cluster_v:
            continue
        volume_u, volume_v = np.int64(volume[cluster_u]), np.int64(volume[cluster_v])
        if volume_u > cap or volume_v > cap:
            continue
        degree_u, degree_v = np.int64(degree[u]), np.int64(degree[v])
        if volume_u - degree_u <= volume_v - degree_v:
            if volume_v + degree_u <= cap:
                volume[cluster_u] -= degree_u
                volume[cluster_v] += degree_u
                cluster[u] = cluster_v
        elif volume_u + degree_v <= cap:
            volume[cluster_v] -= degree_v
            volume[cluster_u] += degree_v
            cluster[v] = cluster_u


@compiled
def _overflow(hub, limit, key, loads):
    """Where to put an edge when a part it should go to is full.

    That is the hashed part of its end of higher degree, ``hub``, or the least loaded part where that is full too.
    """
    part = hashed_part(hub, key, len(loads))
    if loads[part] >= limit:
        part = 0
        for other in range(1, len(loads)):
            if loads[other] < loads[part]:
                part = other
    return part


@compiled
def _place_inner(src, dst, degree, home, limit, key, sets, loads):
    """One batch of the pass that places the edges whose ends have the same home."""
    for e in range(len(src)):
        u, v = src[e], dst[e]
        if u == v or home[u] != home[v]:
            continue
        part = np.int64(home[v])
        if loads[part] >= limit:
            part = _overflow(u if degree[u] > degree[v] else v, limit, key, loads)
        loads[part] += 1
        add_replica(sets, u, part)
        add_replica(sets, v, part)


@compiled
def _place_others(src, dst, degree, home, limit, key, volume, sets, loads, again, owners):
    """One batch of the last pass, which places the edges between homes, and counts all edges for the owners.

    ``again`` starts at 0 and repeats the loads of the pass before, so that the edges placed there are found there.
    """
    parts, counts, directed = owners.parts, owners.counts, owners.directed
    row, last = owners.open_row[0], owners.open_row[1]
    for e in range(len(src)):
        u, v = src[e], dst[e]
        if v != row:
            close_row(row, last, owners)
            row, last = np.int64(v), -1
        if u == v:
            continue
        home_u, home_v = np.int64(home[u]), np.int64(home[v])
        if home_u == home_v:
            part = home_v
            if again[part] >= limit:
                part = _overflow(u if degree[u] > degree[v] else v, limit, key, again)
            again[part] += 1
        else:
            if loads[home_u] >= limit or loads[home_v] >= limit:
                part = _overflow(u if degree[u] > degree[v] else v, limit, key, loads)
            else:
                degrees = np.int64(degree[u]), np.int64(degree[v])
                volumes = np.int64(volume[u]), np.int64(volume[v])
                part = _better_home(u, v, home_u, home_v, *degrees, *volumes, sets)
            loads[part] += 1
            add_replica(sets, u, part)
            add_replica(sets, v, part)
        counts[part] += 1
        last = part
        if directed and parts[u] < 0:
            parts[u] = -2 - part
    owners.open_row[0], owners.open_row[1] = row, last


@compiled
def _better_home(u, v, home_u, home_v, degree_u, degree_v, volume_u, volume_v, sets):
    """The home of u or of v, whichever has the higher score; v's where scores are equal."""
    degrees, volumes = max(1, degree_u + degree_v), max(1, volume_u + volume_v)  # 0 if all edges have weight 0
    gain_u, gain_v = 2.0 - degree_u / degrees, 2.0 - degree_v / degrees
    score_u = gain_v if has_replica(sets, v, home_u) else 0.0
    if has_replica(sets, u, home_u):
        score_u = gain_u + score_u + volume_u / volumes
    score_v = gain_u if has_replica(sets, u, home_v) else 0.0
    if has_replica(sets, v, home_v):
        score_v = score_v + gain_v + volume_v / volumes
    return home_v if score_v >= score_u else home_u
