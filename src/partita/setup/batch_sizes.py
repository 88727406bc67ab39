"""How large the blocks of a batch are, from the settings and the degrees of a graph.

Sizes are bounds. Neighbors are counted as if every node reached over an edge had the mean degree of such nodes, which
is not below the mean of what a fanout leaves of degrees; sources as if all nodes were equally likely to be drawn, which
finds the most distinct ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partita.config import Config
from partita.graph.store import GraphStore
from partita.setup.sampler import lone_sampler

EDGE_BYTES, ROW_BYTES = 24, 32
"""Of an edge and of a node of a block: ids, offsets, weights, and the edges by source that backward wants."""
_DEGREES = 1 << 16
"""Nodes whose degrees are looked at."""


@dataclass(frozen=True)
class LayerSizes:
    """A bound of a batch's block.

    Attributes:
        destinations, sources, edges: numbers of each.
    """

    destinations: int
    sources: int
    edges: int


def batch_sizes(config: Config, store: GraphStore, seeds: int, workers: int) -> list[LayerSizes]:
    """Blocks of a batch of so many seeds, layer 1 (input side) first."""
    sampler = lone_sampler(config, store.schema)
    degree = mean_degree(store)
    nodes, found, destinations = store.num_nodes, list[LayerSizes](), min(seeds, store.num_nodes)
    for layer in range(config.layers, 0, -1):
        edges = math.ceil(sampler.expected_edges(layer, destinations, degree, workers))
        edges = edges if config.replace else min(edges, store.num_edges)
        distinct = nodes * -math.expm1(-edges / max(1, nodes))
        sources = min(nodes, destinations + math.ceil(distinct))
        found.insert(0, LayerSizes(destinations, sources, edges))
        destinations = sources
    return found


def mean_degree(store: GraphStore) -> float:
    """Mean in-degree of nodes that are reached over edges, from evenly spaced ones; that of all nodes if it is more."""
    starts = np.linspace(0, store.num_nodes - 1, min(store.num_nodes, _DEGREES)).astype(np.int64)
    degrees = (store.indptr[starts + 1] - store.indptr[starts]).astype(np.float64)
    total = degrees.sum()
    return max(store.num_edges / max(1, store.num_nodes), (degrees**2).sum() / total if total else 0.0)


def blocks_bytes(sizes: Sequence[LayerSizes], edge_bytes: Sequence[int] = ()) -> int:
    """Bytes of a batch's blocks, without rows of nodes.

    Args:
        sizes: of the blocks.
        edge_bytes: of what comes with an edge of each; nothing by default.
    """
    edges = edge_bytes or (0,) * len(sizes)
    return sum(
        (EDGE_BYTES + more) * each.edges + ROW_BYTES * (each.destinations + each.sources)
        for more, each in zip(edges, sizes, strict=True)
    )
