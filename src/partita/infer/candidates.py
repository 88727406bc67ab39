"""Candidates that ends of links are ranked among where these are not all nodes: which they are, and who scores higher.

They are a function of the link and the side, in original indices: the same nodes for every run on a store, however it
is partitioned and whoever compares them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt64
from torch import Tensor

from partita import kernels
from partita.core.keys import Purpose, fold
from partita.graph.hashing import fold_arrays
from partita.graph.store import GraphStore
from partita.infer.known_answers import KnownAnswers, LinkQueries
from partita.nn.decoders import Decoder
from partita.tasks.links.in_time import NodesInTime
from partita.tasks.links.metrics import compared

Pairs = tuple[Int64[np.ndarray, "m"], Int64[np.ndarray, "m"]]
"""Places of queries, ascending, and for each a candidate: a store id."""

_PAIR_BYTES = 64
"""Of memory for a candidate while it is chosen."""
_SEED = 0x43414E44
"""The same for every run."""


def sampled(
    store: GraphStore,
    queries: LinkQueries,
    known: KnownAnswers,
    number: int,
    memory_limit: int,
    *,
    there: NodesInTime | None = None,
    times: Int64[np.ndarray, "n"] | None = None,
) -> Iterator[Pairs]:
    """Sampled candidates of all queries, piece by piece.

    Each query has ``number`` different nodes of the type of its answer that are no known answers, all alike likely; or
    all such nodes, where there are fewer. Queries that are asked at times have nodes that are there then, the same ones
    wherever they ask the same.

    Args:
        store: the graph.
        queries: with true answers.
        known: answers that are no candidates, besides the true ones.
        number: of candidates.
        memory_limit: bytes for a piece, about.
        there: which nodes are there when.
        times: of queries.
    """
    of_types = np.array([store.num_nodes] if store.schema is None else store.schema.num_nodes)
    starts, order = np.cumsum(of_types) - of_types, store.ingest_order()
    sizes = of_types[queries.types]
    if there is not None and times is not None:
        sizes = there.counts(queries.types, times)
        order = None if there.order is None else there.order.numpy()
    keys, answers = _keys(store, queries, times), known.counts()
    taken = np.minimum(sizes, number + answers + 1)  # so many are enough, whichever of them are known
    bounds = np.cumsum(taken)
    begin = 0
    while begin < len(queries):
        room = max(1, memory_limit // _PAIR_BYTES) + bounds[begin] - taken[begin]
        end = max(begin + 1, int(np.searchsorted(bounds, room, side="right")))
        some = np.arange(begin, end)
        places = np.repeat(some, taken[some])
        drawn = [
            kernels.keyed_permutation(0, count, size, key).numpy()
            for count, size, key in zip(taken[some].tolist(), sizes[some].tolist(), keys[some].tolist(), strict=True)
        ]
        nodes = np.concatenate(drawn) + starts[queries.types[places]]
        nodes = nodes if order is None else order[nodes]
        allowed = (nodes != queries.true[places]) & ~known.has(places, nodes)
        yield _first(places, nodes, allowed, number)
        begin = end


def _keys(store: GraphStore, queries: LinkQueries, times: Int64[np.ndarray, "n"] | None) -> UInt64[np.ndarray, "n"]:
    key = fold(fold(int(Purpose.NEGATIVE), _SEED), 0 if queries.side == "head" else 1)
    keys = np.full(len(queries), key, np.uint64)
    which = store.to_original(queries.true) if times is None else times
    for column in (store.to_original(queries.given), which, queries.relations):
        keys = fold_arrays(keys, column)
    return keys


def _first(
    places: Int64[np.ndarray, "k"], nodes: Int64[np.ndarray, "k"], allowed: Bool[np.ndarray, "k"], number: int
) -> Pairs:
    """The first candidates of each query that are allowed."""
    places, nodes = places[allowed], nodes[allowed]
    fresh = np.flatnonzero(np.diff(places, prepend=-1))
    rank = np.arange(len(places)) - np.repeat(fresh, np.diff(fresh, append=len(places)))
    return places[rank < number], nodes[rank < number]


@torch.no_grad()
def count_among(
    decoder: Decoder,
    queries: LinkQueries,
    given: Float[Tensor, "n d"],
    true_scores: Float[Tensor, "n"],
    rows: Float[Tensor, "m d"],
    first: int,
    candidates: Iterator[Pairs],
    *,
    memory_limit: int,
) -> Int64[Tensor, "2 n"]:
    """How many of the candidates that a worker has score higher than the true end, and how many the same.

    Counts of several ranges of nodes add up to those of all; see :func:`partita.infer.ranking.count_better`.

    Args:
        decoder: gives the scores.
        queries: the queries.
        given: rows of the given ends.
        true_scores: scores of the links.
        rows: of the nodes with the store ids ``first`` to ``first + m - 1``.
        first: store id of the first one.
        candidates: of the queries.
        memory_limit: bytes for the rows of pairs, about.
    """
    counts = torch.zeros((2, len(queries)), dtype=torch.int64)
    relations = torch.from_numpy(queries.relations)
    together = max(1, memory_limit // (4 * given.element_size() * max(1, given.shape[1])))
    for places, nodes in candidates:
        own = (nodes >= first) & (nodes < first + len(rows))
        for some, others in zip(
            *(torch.from_numpy(each[own]).split(together) for each in (places, nodes - first)), strict=True
        ):
            ends = given.index_select(0, some), rows.index_select(0, others).to(given)
            ends = ends if queries.side == "tail" else ends[::-1]
            scores = decoder.toward(queries.side, *ends, relations[some])
            for count, found in zip(counts, compared(true_scores[some], scores.unsqueeze(1)), strict=True):
                count += torch.bincount(some, weights=found.squeeze(1).double(), minlength=len(queries)).long()
    return counts
