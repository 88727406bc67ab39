"""Weights of nodes and edges by name: what a partition balances, and what it keeps together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Int64, UInt32

from partita.core.errors import ConfigError, nearest
from partita.graph.store import GraphStore
from partita.kernels.compile import compiled

NodeWeight = Int64[np.ndarray, "N"] | None
EdgeWeight = UInt32[np.ndarray, "E"] | None


def node_and_edge_weights(store: GraphStore, scheme: str) -> tuple[NodeWeight, EdgeWeight]:
    """Weights of nodes (int64 N, the load to be balanced) and edges (uint32 E, the price of a cut) by a name.

    ============= ================================= ====================
    scheme        a node weighs                     an edge weighs
    ============= ================================= ====================
    ``none``      the same                          the same
    ``presample`` visits as a destination, plus one its draws
    ``edges``     draws of its in-edges, plus one   its draws
    ``node``      visits as a destination, plus one the same
    ``degree``    in-degree plus one                the same
    ============= ================================= ====================

    ``presample`` is GSplit, ``node`` is its ablation; ``edges`` measures the load in sampled edges instead of rows.

    Returns:
        Node weights and edge weights; ``None`` where all weigh the same.

    Raises:
        ConfigError: no such scheme, or the store was not presampled.
    """
    if scheme not in SCHEMES:
        raise ConfigError(f"there is no weighting '{scheme}'", where="weights", fix=nearest(scheme, SCHEMES))
    return SCHEMES[scheme](store)


def _by_draws(store: GraphStore) -> tuple[NodeWeight, EdgeWeight]:
    _, edge = _presampled(store)
    node = np.ones(store.num_nodes, dtype=np.int64)
    _add_row_sums(store.indptr, edge, node)
    return node, edge


def _presampled(store: GraphStore) -> tuple[Int64[np.ndarray, "N"], UInt32[np.ndarray, "E"]]:
    node, edge = store.presample_node, store.presample_edge
    if node is None or edge is None:
        raise ConfigError(
            "these weights are counts of presampled mini-batches, and the store has none",
            where=str(store.path),
            fix=f"Count them with: partita presample {store.path} --fanout 15,10,5 (the fanout of your training runs)",
        )
    return node, edge


SCHEMES: dict[str, Callable[[GraphStore], tuple[NodeWeight, EdgeWeight]]] = {
    "none": lambda store: (None, None),
    "presample": _presampled,
    "edges": _by_draws,
    "node": lambda store: (_presampled(store)[0], None),
    "degree": lambda store: (store.in_degree() + 1, None),
}
"""Name -> weights of a store; the only place that knows these names."""


@compiled
def _add_row_sums(indptr, weight, sums):
    for v in range(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            sums[v] += weight[e]
