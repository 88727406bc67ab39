"""SPRING+: METIS's quality in bounded memory: a sampled graph of clusters, cut by METIS, annealed by restreaming."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int32, Integer

from partita.core.errors import ResourceError
from partita.core.partitioning import PartitionTask, Requires
from partita.partitioning.anneal import anneal, cost
from partita.partitioning.clusters import Clusters
from partita.partitioning.coarsen import ClusterGraph, contract
from partita.partitioning.core_first import core_first
from partita.partitioning.edge_streams import not_grouped
from partita.partitioning.loads import Unbounded, part_loads, spread_rest
from partita.partitioning.metis import BYTES_PER_LINK, BYTES_PER_NODE, cut, load_metis
from partita.partitioning.near import counters
from partita.partitioning.refine import refine

_OPTIONS = ("sample", "links", "settle", "anneal", "refine", "cuts")
_FEWEST_LINKS = 1 << 12
_PASSES_PER_DOUBLING = 30  # of annealing: the more parts, the more offers a node needs
_FIRST_PASSES = 2  # of refinement before annealing: most of what greedy moves gain
_LARGEST_CAP = 0.1  # SPRING's own cap, as a share of the volume of a part


class SpringPlus(Unbounded):
    """What METIS would cut if the graph fitted into memory, made smaller until it does.

    1. Of every node's edges a few are kept, those of nodes with few edges all (:func:`.contract`'s sample). Where
       that does not fit into the budget, SPRING's streaming clusters take the place of nodes, with a volume cap that
       is doubled until their graph fits.
    2. METIS cuts that graph. Loads of clusters are those of their nodes; METIS may miss ``epsilon`` on them.
    3. Nodes move in passes over the rows: greedily (:func:`.refine`), then also at a loss (:func:`.anneal`), then
       greedily again. Where parts by degree (:func:`.core_first`) cost less than METIS's, annealing starts from these.
       Loads within ``epsilon`` stay within.

    Memory: O(nodes), and ``task.memory_limit`` for the graph that METIS cuts; then for the counters of replicas,
    ``N x parts / 2`` bytes, or without these, where there is no room, cut edges count in place of replicas.

    Options (``task.options``): ``sample``, the fewest edges kept per node before clusters are used (4); ``links``, the
    most links of the graph that METIS cuts (from the memory limit); ``settle``, passes in which clusters settle (3);
    ``anneal``, passes of annealing (30 for every doubling of the number of parts; 0: none); ``refine``, the most
    refinement passes (10); ``cuts``, see :class:`~partita.partitioning.metis.Metis`.
    """

    requires = Requires(passes=4, grouped=True, node_bytes=(40.0, 0.5), budget=True, options=_OPTIONS)
    order_independent = False

    def partition(self, task: PartitionTask) -> Int32[np.ndarray, "N"]:
        """See :class:`~partita.core.partitioning.Partitioner`.

        Raises:
            ResourceError: ``task.memory_limit`` has no room for the smallest graph.
            ConfigError: pymetis is not installed.
            InputError: the stream has no rows.
        """
        if not task.stream.grouped:
            raise not_grouped()
        load_metis()
        clusters, graph = _shrink(task)
        weights = task.weights()
        size = part_loads(clusters, len(graph.indptr) - 1, weights)
        part_of = cut(graph, task.num_parts, size, task)
        del graph
        parts = np.append(part_of, np.int32(-1))[clusters]  # -1, no cluster, finds the last one
        del clusters
        spread_rest(parts, task.num_parts, weights)
        greedy = int(task.options.get("refine", 10))
        passes = int(task.options.get("anneal", _PASSES_PER_DOUBLING * math.log2(task.num_parts)))
        if passes:
            refine(task, parts, min(greedy, _FIRST_PASSES))
            parts = _better_start(task, parts)
            anneal(task, parts, passes)
        refine(task, parts, greedy)
        return parts


def _better_start(task: PartitionTask, parts: Int32[np.ndarray, "N"]) -> Int32[np.ndarray, "N"]:
    """``parts``, or those of :func:`.core_first` where they cost less; loads do not count, they are made even later."""
    other = core_first(task)
    spread_rest(other, task.num_parts, task.weights())
    near = counters(task)
    return other if cost(task, other, near)[1] < cost(task, parts, near)[1] else parts


def _shrink(task: PartitionTask) -> tuple[Integer[np.ndarray, "N"], ClusterGraph]:
    """The cluster of every node (-1: none), and the finest graph of clusters that fits into the budget."""
    survey = task.surveyed()
    links = int(task.options.get("links", task.memory_limit // (BYTES_PER_LINK + BYTES_PER_NODE // 4)))
    if links < _FEWEST_LINKS and "links" not in task.options:
        raise ResourceError(
            f"a memory limit of {task.memory_limit:,} bytes has room for {max(links, 0):,} links between clusters, "
            f"fewer than {_FEWEST_LINKS:,}",
            fix="Raise --memory-limit, or use --algorithm spring",
        )
    clusters = Clusters(task, richest=False)
    connected = max(1, int(np.count_nonzero(survey.degree)))
    fewest = task.options.get("sample", 4.0)
    settle = int(task.options.get("settle", 3))
    cap, largest_cap = 0.0, _LARGEST_CAP * survey.volume / task.num_parts
    sample = 0.0 if survey.volume // 2 <= links else max(fewest, 0.9 * links / connected)
    while True:
        numbers = clusters.of.copy()
        count = clusters.number(numbers)
        graph, read = contract(task.stream, survey.degree, numbers, count, most_links=links, sample=sample)
        if graph is not None:
            task.notes.append(
                f"METIS cut a graph of {count:,} clusters and {len(graph.indices) // 2:,} links"
                + (f", with at most about {sample:.3g} edges kept per node" if sample else "")
            )
            return numbers, graph
        if sample == 0.0 or sample > fewest:
            sample = fewest
        elif cap < largest_cap:
            if cap == 0.0:
                cap = survey.volume / connected * max(2.0, fewest * connected / links)
            else:
                # The earlier in the pass the room was used up, the larger the clusters must get.
                cap *= min(4.0, max(2.0, survey.num_edges / max(read, 1)))
            cap = min(largest_cap, cap)
            clusters.grow(cap)
            clusters.settle(2 * cap, settle)
        elif sample > 1e-3:
            sample /= 2
        else:
            raise ResourceError(f"{count:,} clusters do not fit into {links:,} links", fix="Raise --memory-limit")
