"""Queries for one end of links, and which answers to them are known already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64
from torch import Tensor

from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.nn.decoders import Side

_CHUNK = 1 << 22
"""Edges that are looked at together."""


@dataclass(frozen=True, eq=False)
class LinkQueries:
    """Who is at one end of a link, where the other end and the relation are given?

    Attributes:
        side: the end that is asked for.
        given: store ids of the other ends.
        relations: numbers of the relations; 0 in an untyped graph.
        true: store ids of the answers; -1 where none is known.
        types: numbers of the node type of the answers.
    """

    side: Side
    given: Int64[np.ndarray, "n"]
    relations: Int64[np.ndarray, "n"]
    true: Int64[np.ndarray, "n"]
    types: Int64[np.ndarray, "n"]

    def __len__(self) -> int:
        return len(self.given)

    @classmethod
    def of(cls, store: GraphStore, links: Int64[Tensor, "Q ends"], side: Side) -> LinkQueries:
        """The queries that links answer.

        Args:
            store: the graph.
            links: rows ``[source, destination]``, or ``[source, destination, relation]`` in a typed graph; store ids.
            side: which end is asked for.
        """
        ends, column = links.numpy(), 1 if side == "tail" else 0
        none = np.zeros(len(ends), np.int64)
        relations = none if store.schema is None else ends[:, 2]
        types = none if store.schema is None else store.schema.ends[relations, column]
        return cls(side, ends[:, 1 - column], relations, ends[:, column], types)

    @classmethod
    def for_nodes(cls, store: GraphStore, nodes: Int64[np.ndarray, "n"], side: Side, relation: int = 0) -> LinkQueries:
        """Queries for new links of nodes.

        Args:
            store: the graph.
            nodes: store ids of the given ends.
            side: the other end.
            relation: number of the relation; 0 in an untyped graph.

        Raises:
            ConfigError: in a typed graph, a node is not of the type that the relation has at that end.
        """
        column, like = 1 if side == "tail" else 0, np.zeros(len(nodes), np.int64)
        types = like
        if store.schema is not None:
            own, wanted = store.schema.ends[relation, [1 - column, column]].tolist()
            if (strange := store.types(nodes) != own).any():
                raise ConfigError(
                    f"node {store.names(nodes[strange][:1])[0]} is not of type '{store.schema.node_types[own]}', which "
                    f"relation '{store.schema.relations[relation]}' has at that end",
                    where="nodes",
                    fix="Give nodes of this type, or another relation",
                )
            types = like + wanted
        return cls(side, nodes, like + relation, like - 1, types)


@dataclass(frozen=True, eq=False)
class KnownAnswers:
    """Which answers to queries are known. Queries that ask the same share one list.

    Attributes:
        num_nodes: N.
        question: of every query, the number of what it asks.
        pairs: ``question * N + answer`` of all known answers, ascending, each once.
    """

    num_nodes: int
    question: Int64[np.ndarray, "n"]
    pairs: Int64[np.ndarray, "m"]

    def within(
        self, queries: Int64[np.ndarray, "k"], first: int, last: int
    ) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
        """Known answers to some queries among the ids from ``first`` to ``last - 1``.

        Returns:
            the place of the query among them, and the id of the answer, of each.
        """
        base = self.question[queries] * self.num_nodes
        begin, end = np.searchsorted(self.pairs, base + first), np.searchsorted(self.pairs, base + last)
        counts = end - begin
        places = np.repeat(np.arange(len(counts)), counts)
        at = np.arange(len(places)) + np.repeat(begin - (np.cumsum(counts) - counts), counts)
        return places, self.pairs[at] - base[places]

    def counts(self) -> Int64[np.ndarray, "n"]:
        """How many answers are known to each query."""
        first = self.question * self.num_nodes
        return np.searchsorted(self.pairs, first + self.num_nodes) - np.searchsorted(self.pairs, first)

    def has(self, queries: Int64[np.ndarray, "k"], nodes: Int64[np.ndarray, "k"]) -> Bool[np.ndarray, "k"]:
        """Which nodes are known answers, each to a query."""
        wanted = self.question[queries] * self.num_nodes + nodes
        at = np.searchsorted(self.pairs, wanted)
        found = np.zeros(len(wanted), np.bool_)
        inside = at < len(self.pairs)
        found[inside] = self.pairs[at[inside]] == wanted[inside]
        return found


def known_answers(
    store: GraphStore, queries: LinkQueries, *, held_out: bool = True, both_ways: bool = False
) -> KnownAnswers:
    """Answers to queries that are edges of a store, or held-out ones, in one pass over all edges.

    It takes O(E log Q) time, and memory for the answers, a byte per node and a piece of the edges.

    Args:
        store: the graph; of a shard that has only the edges into its host's nodes, these are looked at.
        queries: of which answers are wanted.
        held_out: also those of the splits that are held out.
        both_ways: an edge answers in both directions, as in an undirected graph.

    Raises:
        StoreError: the store is damaged.
    """
    store.require_rows()
    relations = 1 if store.schema is None else len(store.schema.relations)
    asked, question = np.unique(queries.given * relations + queries.relations, return_inverse=True)
    is_given = np.zeros(store.num_nodes, np.bool_)
    is_given[queries.given] = True
    sides: tuple[Side, ...] = ("tail", "head") if both_ways else (queries.side,)
    found = [
        _answers(asked, is_given, relations, side, *edges)
        for edges in _edges(store, held_out=held_out)
        for side in sides
    ]
    pairs = np.unique(np.concatenate([np.empty(0, np.int64), *(at * store.num_nodes + ids for at, ids in found)]))
    return KnownAnswers(store.num_nodes, question.reshape(-1), pairs)


def _answers(
    asked: Int64[np.ndarray, "k"],
    is_given: Bool[np.ndarray, "N"],
    relations: int,
    side: Side,
    sources: Int64[np.ndarray, "n"],
    targets: Int64[np.ndarray, "n"],
    kinds: Int64[np.ndarray, "n"],
) -> tuple[Int64[np.ndarray, "m"], Int64[np.ndarray, "m"]]:
    """Which questions edges answer, ascending, and with whom."""
    given, answers = (sources, targets) if side == "tail" else (targets, sources)
    chosen = np.flatnonzero(is_given[given])
    given, answers, kinds = given[chosen], answers[chosen], kinds[chosen]
    keys = given * relations + kinds
    at = np.searchsorted(asked, keys)
    hit = asked[np.minimum(at, len(asked) - 1)] == keys
    return at[hit], answers[hit]


def _edges(
    store: GraphStore, *, held_out: bool
) -> Iterator[tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]]:
    """Sources, destinations and relations, piece by piece."""
    indices, first = store.held("indices")
    kinds = store.held("edge_type")[0] if store.has("edge_type") else None
    indptr = store.indptr
    for low in range(0, len(indices), _CHUNK):
        high = min(low + _CHUNK, len(indices))
        rows = np.searchsorted(indptr, [first + low, first + high - 1], side="right") - 1
        bounds = np.clip(indptr[rows[0] : rows[1] + 2], first + low, first + high)
        targets = np.repeat(np.arange(rows[0], rows[1] + 1), np.diff(bounds))
        sources = indices[low:high].astype(np.int64)
        store.require_nodes(sources)
        yield sources, targets, _numbers(kinds if kinds is None else kinds[low:high], high - low)
    for split in store.held_out if held_out else ():
        ends, of = store.held_out_edges(split)
        for low in range(0, ends.shape[1], _CHUNK):
            piece = slice(low, low + _CHUNK)
            sources, targets = ends[:, piece].astype(np.int64)
            yield sources, targets, _numbers(of if of is None else of[piece], len(sources))


def _numbers(kinds: np.ndarray | None, count: int) -> Int64[np.ndarray, "n"]:
    return np.zeros(count, np.int64) if kinds is None else kinds.astype(np.int64)
