"""Sees that no link is told by its reverse: an edge of a reverse relation that is there before the edge itself."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.tasks.links.edges import RELATION, SOURCE, TARGET, TIME


def require_late_reverses(store: GraphStore, links: Int64[np.ndarray, "S 4"], *, undirected: bool) -> None:
    """See that at the time at which a link is asked about its reverse relation has no more edges between its ends than
    its relation.

    Args:
        store: the graph, whose edges have times.
        links: rows ``[source, destination, relation, time]``.
        undirected: of an untyped graph, every edge has its reverse.

    Raises:
        ConfigError: it has.
    """
    schema, edge_time = store.schema, store.column("edge_time")
    sources = store.indices.astype(np.int64)
    targets = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    kinds = np.zeros(len(sources), np.uint8) if store.edge_type is None else store.edge_type
    for relation in np.unique(links[:, RELATION]).tolist():
        reverse = int(schema.reverses[relation]) if schema is not None else (0 if undirected else -1)
        if reverse < 0:
            continue
        mine = links[links[:, RELATION] == relation]
        own, other = kinds == relation, kinds == reverse
        n = store.num_nodes
        asked = mine[:, SOURCE] * n + mine[:, TARGET], mine[:, TIME]
        forward = _until(sources[own] * n + targets[own], edge_time[own], *asked)
        backward = _until(targets[other] * n + sources[other], edge_time[other], *asked)
        if early := int((backward > forward).sum()):
            name = "" if schema is None else f" of relation '{schema.relations[relation]}'"
            raise ConfigError(
                f"{early:,} edges{name} have a reverse that is there before them, which would tell them",
                where=str(store.path),
                fix="Give the edges of both directions the same times, or leave the reverse ones out",
            )


def _until(
    pairs: Int64[np.ndarray, "E"],
    times: Int64[np.ndarray, "E"],
    wanted: Int64[np.ndarray, "S"],
    until: Int64[np.ndarray, "S"],
) -> Int64[np.ndarray, "S"]:
    """How many edges between two ends are there at a time."""
    order = np.lexsort((times, pairs))
    pairs, times = pairs[order], times[order]
    first, last = (np.searchsorted(pairs, wanted, side) for side in ("left", "right"))
    low, high = first.copy(), last  # of each the first edge that is later, by halves
    while (open_ := low < high).any():
        middle = np.where(open_, (low + high) // 2, 0)
        there = open_ & (times[middle] <= until)
        low, high = np.where(there, middle + 1, low), np.where(open_ & ~there, middle, high)
    return low - first
