"""Links: what a held-out edge is held out with. And the choice of some of them by keys, out of core.

A *link* is all edges between two nodes of one relation and of its reverse: parallel ones, and where the relation joins
nodes of one type, those in either direction. A self loop is none. Whoever predicts one of these edges would know the
answer if another one carried messages, so a link is held out as a whole.

The key of a link is a hash of the seed, the relation and the original indices of its ends. The links of a relation
with the smallest keys are taken, so an edge is known to be one of theirs by its own key: no list is searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64, Integer, Shaped, UInt64

from partita.core import progress
from partita.core.keys import Purpose, fold
from partita.graph.hashing import fold_arrays
from partita.graph.soundness import rows_of
from partita.graph.spill import Spill
from partita.graph.store import GraphStore

EDGES_AT_ONCE = 1 << 18
"""Of a pass over the edges; a multiple of 8."""
_LINK = np.dtype([("key", "<u8"), ("low", "<i8"), ("high", "<i8"), ("relation", "<u2"), ("way", "u1")])
_LINK_BYTES = 128
"""Of memory for a link while it is compared with others: itself, what sorts it, and copies of both."""
_MOST_FILES = 4096
_FORWARD, _BACKWARD = 1, 2

Links = Shaped[np.ndarray, "_"]
"""Records of ``key``, ``low`` and ``high`` (original indices of the ends), ``relation``, and ``way``: in which
directions there are edges, from low to high (1), from high to low (2)."""


@dataclass(frozen=True)
class Linking:
    """Which links the edges of a graph are of.

    Attributes:
        store: the graph, a whole one.
        relation_of: int64 (R), the relation whose links the edges of each relation are: itself, or the one that it is
            the reverse of; -1: their links are of no interest. An untyped graph has one relation.
        seed: of the keys.
    """

    store: GraphStore
    relation_of: Int64[np.ndarray, "R"]
    seed: int

    def batches(self, description: str) -> Iterator[tuple[int, Links, Int64[np.ndarray, "m"]]]:
        """All edges in pieces: the number of the first, links of those that have one, and which of the piece these are.

        The task advances by edges.
        """
        store, indptr = self.store, self.store.indptr
        with progress.task(description, total=store.num_edges, unit="edges") as task:
            for first in range(0, store.num_edges, EDGES_AT_ONCE):
                stop = min(first + EDGES_AT_ONCE, store.num_edges)
                src, dst = np.asarray(store.indices[first:stop], np.int64), rows_of(indptr, first, stop)
                kind = np.zeros(stop - first, np.int64)
                if store.edge_type is not None:
                    kind = np.asarray(store.edge_type[first:stop], np.int64)
                at = np.flatnonzero((self.relation_of[kind] >= 0) & (src != dst))
                yield first, self.of(src[at], dst[at], kind[at]), at
                task.advance(stop - first)

    def of(self, src: Int64[np.ndarray, "n"], dst: Int64[np.ndarray, "n"], kind: Int64[np.ndarray, "n"]) -> Links:
        """The links of edges that have one, given by store ids and relations."""
        links = np.empty(len(src), _LINK)
        relation = self.relation_of[kind]
        turned = relation != kind  # an edge of the reverse relation
        low, high = (self.store.to_original(ends) for ends in (np.where(turned, dst, src), np.where(turned, src, dst)))
        swapped = self.either_way[relation] & (low > high)
        links["low"], links["high"] = np.where(swapped, high, low), np.where(swapped, low, high)
        links["relation"], links["way"] = relation, np.where(swapped, _BACKWARD, _FORWARD)
        links["key"] = fold_arrays(fold_arrays(self._keys[relation], links["low"]), links["high"])
        return links

    def ends(self, links: Links) -> Int64[np.ndarray, "n 2"]:
        """Store ids of source and destination of one edge of each link: in the direction of its relation.

        Where there are edges in both, it is from the lower original index to the higher.
        """
        ends = np.stack([links["low"], links["high"]], axis=1)
        backward = links["way"] == _BACKWARD
        ends[backward] = ends[backward, ::-1]
        original = self.store.original_index
        if original is None:
            return ends
        store_ids = np.empty(len(original), np.int64)
        store_ids[original] = np.arange(len(original))
        return store_ids[ends]

    @property
    def either_way(self) -> Bool[np.ndarray, "R"]:
        """Whether the edges of a relation in both directions are one link: its ends are of one type."""
        schema = self.store.schema
        return np.ones(1, bool) if schema is None else schema.ends[:, 0] == schema.ends[:, 1]

    @property
    def _keys(self) -> UInt64[np.ndarray, "R"]:
        key = fold(int(Purpose.LINK_SPLIT), self.seed)
        return np.array([fold(key, number) for number in range(len(self.relation_of))], np.uint64)


@dataclass(frozen=True)
class Chosen:
    """The links of each relation with the smallest keys.

    Attributes:
        counts: int64 (R), how many links there are.
        links: those that were chosen, in order of their keys.
        rank: int64 (n), how many of the same relation come before each.
    """

    counts: Int64[np.ndarray, "R"]
    links: Links
    rank: Int64[np.ndarray, "n"]

    def has(self, links: Links) -> Bool[np.ndarray, "m"]:
        """Which links are among the chosen."""
        found = np.zeros(len(links), bool)
        relations, last = np.unique(self.links["relation"][::-1], return_index=True)
        ends = self.links[len(self.links) - 1 - last]  # the last one of each relation
        place = np.full(len(self.counts), -1)
        place[relations] = np.arange(len(relations))
        at = place[links["relation"]]
        mine = np.flatnonzero(at >= 0)
        mine = mine[links["key"][mine] <= ends["key"][at[mine]]]
        found[mine] = ~_after(links[mine], ends[at[mine]])
        return found


def choose(linking: Linking, share: Fraction, scratch: Path, memory_limit: int) -> Chosen:
    """Count the links of every relation, and choose a share of them, rounded down, by their keys.

    Every edge is written to one of several files by the key of its link, which the edges of a link share; of each file,
    the links are told apart in memory.

    Args:
        linking: of the graph.
        share: from 0 to 1.
        scratch: a folder for the files: 27 bytes for each edge.
        memory_limit: bytes, besides the links that are chosen.
    """
    bits = 0
    while linking.store.num_edges * _LINK_BYTES >> bits > memory_limit and 1 << bits < _MOST_FILES:
        bits += 1
    room = max(1, memory_limit // 4 // _LINK.itemsize >> bits)
    files = [Spill(scratch / f"links-{number}", _LINK, room) for number in range(1 << bits)]
    edges = np.zeros(len(linking.relation_of), np.int64)
    for _, links, _ in linking.batches("find links"):
        edges += np.bincount(links["relation"], minlength=len(edges))
        number = np.zeros(len(links), np.uint16)  # numpy sorts integers of 16 bits by radix, in linear time
        if bits:
            number[:] = links["key"] >> np.uint64(64 - bits)
        order = np.argsort(number, kind="stable")
        bounds = np.searchsorted(number[order], np.arange(len(files) + 1))
        for at in np.flatnonzero(np.diff(bounds)).tolist():
            mine = links[order[bounds[at] : bounds[at + 1]]]
            files[at].append({name: mine[name] for name in _LINK.names or ()})
    most = np.array([int(share * count) for count in edges.tolist()])  # links are fewer than edges
    counts, kept, ranks = np.zeros(len(edges), np.int64), list[Links](), list[Int64[np.ndarray, "n"]]()
    with progress.task("choose links", total=int(edges.sum()), unit="edges") as task:
        for file in files:
            task.advance(len(file))
            links = _distinct(_read(file, room))
            file.discard()
            rank = counts[links["relation"]] + _ranks(links["relation"])
            counts += np.bincount(links["relation"], minlength=len(counts))
            near = rank < most[links["relation"]]
            kept.append(links[near])
            ranks.append(rank[near])
    links, rank = np.concatenate(kept), np.concatenate(ranks)
    chosen = np.array([int(share * count) for count in counts.tolist()])
    among = rank < chosen[links["relation"]]
    return Chosen(counts, links[among], rank[among])


def _read(file: Spill, at_once: int) -> Links:
    links, done = np.empty(len(file), _LINK), 0
    for part in file.chunks(at_once):
        links[done : done + len(part)] = part
        done += len(part)
    return links


def _distinct(links: Links) -> Links:
    """Each link once, with all the ways that it goes, in order of keys."""
    links = links[np.argsort(links["key"])]
    same = links["key"][1:] == links["key"][:-1]
    if any((same & (links[name][1:] != links[name][:-1])).any() for name in ("relation", "low", "high")):
        links = links[np.lexsort([links[name] for name in ("high", "low", "relation", "key")])]
    names = ("key", "relation", "low", "high")
    new = np.ones(len(links), bool)
    new[1:] = np.any([links[name][1:] != links[name][:-1] for name in names], axis=0)
    first = np.flatnonzero(new)
    found = links[first]
    if len(first):
        found["way"] = np.bitwise_or.reduceat(links["way"], first)
    return found


def _ranks(values: Integer[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """How many equal values come before each."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values)) - np.searchsorted(ascending, ascending)
    return ranks


def _after(links: Links, others: Links) -> Bool[np.ndarray, "_"]:
    """Whether each link comes after another one of its relation."""
    found, equal = np.zeros(len(links), bool), np.ones(len(links), bool)
    for name in ("key", "low", "high"):
        found |= equal & (links[name] > others[name])
        equal &= links[name] == others[name]
    return found
