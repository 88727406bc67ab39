"""METIS, in memory: the whole graph, or a graph of clusters."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int32, Int64

from partita.core import progress
from partita.core.errors import ConfigError, ResourceError
from partita.core.partitioning import PartitionTask, Requires
from partita.partitioning.coarsen import ClusterGraph, contract
from partita.partitioning.loads import Unbounded, spread_rest

BYTES_PER_LINK = 96
"""Private bytes at the peak for every undirected edge given to METIS (pymetis' wheels have 64-bit ids; measured)."""
BYTES_PER_NODE = 128
"""The same for every node."""
_MOST_BISECTED = 8
_BALLAST_PER_PART = 8


class Metis(Unbounded):
    """METIS's multilevel k-way partitioning (Karypis and Kumar, 1998) of the undirected graph, edges counted together.

    Needs the whole graph in memory. Direction is forgotten, repeated edges add up, self loops are left out.

    Up to 8 parts are made by recursive bisection, more by k-way partitioning, as pymetis does by default. METIS aims at
    ``epsilon`` and may miss it.

    Options (``task.options``): ``cuts``, how many partitions METIS makes to choose the best from (1).
    """

    requires = Requires(passes=1, in_memory=True, node_bytes=(16.0, 0.0), budget=True, options=("cuts",))
    order_independent = True

    def partition(self, task: PartitionTask) -> Int32[np.ndarray, "N"]:
        """See :class:`~partita.core.partitioning.Partitioner`.

        Raises:
            ResourceError: the graph does not fit into ``task.memory_limit``.
            ConfigError: pymetis is not installed.
        """
        load_metis()
        survey = task.surveyed()
        ids = np.int32 if task.num_nodes < 2**31 else np.int64
        everyone = np.arange(task.num_nodes, dtype=ids)
        everyone[np.equal(survey.degree, 0)] = -1
        links = (task.memory_limit - BYTES_PER_NODE * task.num_nodes) // BYTES_PER_LINK
        graph = None
        if links > 0:
            graph, _ = contract(task.stream, survey.degree, everyone, task.num_nodes, most_links=links)
        if graph is None:
            edges = survey.volume // 2
            raise ResourceError(
                f"METIS holds the graph in memory: {task.num_nodes:,} nodes and up to {edges:,} undirected edges need "
                f"about {BYTES_PER_NODE * task.num_nodes + BYTES_PER_LINK * edges:,} bytes, "
                f"{task.memory_limit:,} are allowed",
                fix="Use --algorithm spring+ (METIS on clusters, in bounded memory), or raise --memory-limit",
            )
        parts = cut(graph, task.num_parts, task.weights(), task)
        parts[np.equal(survey.degree, 0)] = -1
        spread_rest(parts, task.num_parts, task.weights())
        return parts


def load_metis() -> None:
    """Raise a :class:`ConfigError` where pymetis is not installed."""
    try:
        import pymetis  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "METIS is not installed",
            where="algorithm",
            fix="Install it with: pip install 'partita[metis]' (without a wheel for this platform, "
            "that needs a C++ compiler), or use --algorithm spring, which needs no extra",
        ) from error


def cut(
    graph: ClusterGraph, num_parts: int, node_weight: Int64[np.ndarray, "W"], task: PartitionTask
) -> Int32[np.ndarray, "C"]:
    """Let METIS cut an undirected graph.

    Args:
        graph: of nodes or clusters.
        num_parts: P.
        node_weight: positive load of every node of the graph, or empty.
        task: ``epsilon`` becomes METIS's imbalance, ``seed`` its seed.

    Returns:
        The part of every node of the graph.
    """
    import pymetis

    count = len(graph.indptr) - 1
    if num_parts == 1 or count == 0:
        return np.zeros(count, dtype=np.int32)
    if not len(graph.indices):  # METIS fails on graphs without edges
        return np.full(count, -1, dtype=np.int32)
    # Nodes outside the graph will fill parts up. METIS must know, so it gets them as a few nodes without edges.
    inside = int(node_weight.sum()) if len(node_weight) else count
    total = int(task.weights().sum()) if task.node_weight is not None else task.num_nodes
    indptr = graph.indptr
    if total > inside:
        ballast = np.full(min(_BALLAST_PER_PART * num_parts, total - inside), 1, dtype=np.int64)
        ballast *= -(-(total - inside) // len(ballast))
        node_weight = np.concatenate([node_weight if len(node_weight) else np.ones(count, dtype=np.int64), ballast])
        indptr = np.concatenate([indptr, np.full(len(ballast), indptr[-1])])
    recursive = num_parts <= _MOST_BISECTED
    slack = 1 + task.epsilon
    if recursive:  # the imbalances of all levels of bisection multiply
        slack **= 1 / math.ceil(math.log2(num_parts))
    cuts = max(1, int(task.options.get("cuts", 1)))
    options = pymetis.Options(seed=task.seed % 2**31, ufactor=max(1, round(1000 * (slack - 1))), ncuts=cuts)
    with progress.task("METIS"):
        _, parts = pymetis.part_graph(
            num_parts,
            pymetis.CSRAdjacency(indptr, graph.indices),
            eweights=graph.edge_weight,
            vweights=node_weight if len(node_weight) else None,
            recursive=recursive,
            options=options,
        )
    return np.asarray(parts, dtype=np.int32)[:count]
