"""Which negatives are edges of the graph, and whether a graph has any that are not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int64
from torch import Tensor

from partita import kernels
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.nn.decoders import Side
from partita.sample.topology import as_tensor
from partita.tasks.links.edges import COLUMN

_CHUNK = 1 << 22
"""Edges that are looked at together."""


def true_edges(
    store: GraphStore, batch: Int64[Tensor, "B ends"], candidates: Int64[Tensor, "B K"], side: Side
) -> Bool[Tensor, "B K"]:
    """Which candidates make a link that is an edge of the store, of the link's relation.

    Args:
        store: the graph, with all its edges.
        batch: links, as for :meth:`Negatives.candidates`.
        candidates: of each, in the place of one end.
        side: of this end.

    Raises:
        StoreError: the store is a shard without the edges of other hosts' nodes, or damaged.
    """
    store.require_rows()
    kinds = store.edge_type
    return kernels.find_links(
        as_tensor(store.indptr),
        as_tensor(store.indices),
        None if kinds is None else as_tensor(kinds),
        batch[:, 1 - COLUMN[side]],
        None if kinds is None else batch[:, 2],
        candidates,
        tails=side == "tail",
    )


def require_negatives(store: GraphStore, relations: Sequence[int] | None = None) -> None:
    """See that links have negatives that are no edges, for who leaves out those that are.

    Args:
        store: the graph, with all its edges.
        relations: numbers of those that links have; ``None``: all.

    Raises:
        ConfigError: in a relation every source is linked with every destination.
        StoreError: the store is a shard without the edges of other hosts' nodes.
    """
    schema = store.schema
    if schema is None:
        _require_incomplete(store, None, (store.num_nodes, store.num_nodes), store.num_edges, loops=True)
        return
    for number in range(len(schema.relations)) if relations is None else relations:
        source, target = schema.ends[number].tolist()
        sizes = (schema.num_nodes[source], schema.num_nodes[target])
        _require_incomplete(store, number, sizes, schema.num_edges[number], loops=source == target)


def _require_incomplete(
    store: GraphStore, relation: int | None, sizes: tuple[int, int], num_edges: int, *, loops: bool
) -> None:
    pairs = sizes[0] * sizes[1] - (sizes[0] if loops else 0)
    if num_edges < pairs or _distinct_pairs(store, relation) < pairs:
        return
    what = "" if relation is None or store.schema is None else f" of relation '{store.schema.relations[relation]}'"
    raise ConfigError(
        f"every source{what} is linked with every destination, so there are no negatives that are not true",
        where=str(store.path),
        fix="Let true edges be negatives, or train on other relations",
    )


def _distinct_pairs(store: GraphStore, relation: int | None) -> int:
    """Pairs of different nodes that a relation links."""
    indptr, indices, kinds, found = store.indptr, store.indices, store.edge_type, 0
    begin = 0
    while begin < store.num_nodes:
        end = max(begin + 1, int(np.searchsorted(indptr, indptr[begin] + _CHUNK, side="right")) - 1)
        edges = slice(int(indptr[begin]), int(indptr[end]))
        targets = np.repeat(np.arange(begin, end), np.diff(indptr[begin : end + 1]))
        sources = indices[edges].astype(np.int64)
        chosen = sources != targets
        if relation is not None and kinds is not None:
            chosen &= kinds[edges] == relation
        found += len(np.unique(targets[chosen] * store.num_nodes + sources[chosen]))
        begin = end
    return found
