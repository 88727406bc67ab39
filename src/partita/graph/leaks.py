"""Held-out edges along which messages go all the same, because they, or their reverses, are edges of the graph."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt

from partita.core import progress
from partita.core.options import Size, parse_bytes
from partita.graph.soundness import rows_of
from partita.graph.store import GraphStore

_EDGES = 1 << 20
_LEAST = 1 << 16
_BYTES = 256
"""Of memory for an edge that is looked for in the graph: its key, what sorts it, and copies of both."""


@dataclass(frozen=True, slots=True)
class Leak:
    """What is known to the graph of the held-out edges of a split and a relation.

    Attributes:
        split: ``"val"`` or ``"test"``.
        relation: as one word; ``None`` in an untyped graph.
        held_out: how many edges are held out.
        edges: how many of them are edges of the graph as well, of the same relation.
        reverses: how many of them have an edge of the graph the other way round: of the reverse relation, or where the
            relation joins nodes of one type, of the same one. Self loops are not counted.
    """

    split: str
    relation: str | None
    held_out: int
    edges: int
    reverses: int


def check_leaks(store: GraphStore | str | os.PathLike[str], *, memory_limit: Size = "1GiB") -> list[Leak]:
    """Count the held-out edges that are edges of the graph as well, or whose reverses are.

    A store that :func:`partita.split_links` wrote has none. Splits that came with a graph may have some: of WN18RR a
    third of the test edges have their reverse in the graph.

    The edges are read once; where the held-out ones do not fit into the memory limit (they take up to 768 bytes each),
    once for every piece of them.

    Args:
        store: a whole graph; without held-out edges there is nothing to count.
        memory_limit: bytes, or a text such as ``"1GiB"``.

    Returns:
        One record for each split and each of its relations, in order.

    Raises:
        StoreError: the store is a shard, or is damaged.
    """
    store = store if isinstance(store, GraphStore) else GraphStore.open(store)
    store.require_whole("counting leaks")
    limit = parse_bytes(memory_limit)
    assert isinstance(limit, int)
    store.require_edges()
    pieces = [_asked(store, split) for split in store.held_out]
    if not pieces:
        return []
    src, dst, kind = (np.concatenate([piece[at] for piece in pieces]) for at in range(3))
    typed = store.schema is not None
    found = found_among(src, dst, kind if typed else None, store.indptr, store.indices, store.edge_type, limit)
    leaks, begin = list[Leak](), 0
    for split, (_, _, kinds) in zip(store.held_out, pieces):
        hits = found[begin : begin + len(kinds)].reshape(3, -1)
        begin += len(kinds)
        of = kinds[: hits.shape[1]]
        for number in np.unique(of).tolist():
            mine = hits[:, of == number]
            name = None if store.schema is None else str(store.schema.relations[number])
            edges, reverses = int(mine[0].sum()), int((mine[1] | mine[2]).sum())
            leaks.append(Leak(split, name, mine.shape[1], edges, reverses))
    return leaks


def _asked(store: GraphStore, split: str) -> tuple[Int64[np.ndarray, "_"], ...]:
    """Edges to look for: those of a split, then their reverses of the same, and then of the reverse relation.

    Sources, destinations (-1 where there is no such edge to look for) and relations.
    """
    ends, kinds = store.held_out_edges(split)
    src, dst = np.asarray(ends[0], np.int64), np.asarray(ends[1], np.int64)
    kind = np.zeros(len(src), np.int64) if kinds is None else np.asarray(kinds, np.int64)
    turned, other = np.full(len(src), -1), np.where(src == dst, -1, src)
    if store.schema is None:
        same = other
    else:
        turned = store.schema.reverses[kind]
        is_one_type = store.schema.ends[kind, 0] == store.schema.ends[kind, 1]
        same = np.where(is_one_type, other, -1)
    by_reverse = np.where(turned < 0, -1, other)
    return (
        np.concatenate([src, dst, dst]),
        np.concatenate([dst, same, by_reverse]),
        np.concatenate([kind, kind, np.maximum(turned, 0)]),
    )


def found_among(
    src: Int64[np.ndarray, "n"],
    dst: Int64[np.ndarray, "n"],
    kind: Int64[np.ndarray, "n"] | None,
    indptr: Int64[np.ndarray, "N_1"],
    indices: Int[np.ndarray, "E"],
    edge_type: UInt[np.ndarray, "E"] | None,
    memory_limit: int,
) -> Bool[np.ndarray, "n"]:
    """Which edges are edges of a graph.

    The graph is read once for every piece of the edges that fits into the memory limit.

    Args:
        src: sources, store ids.
        dst: destinations; of -1 there are no edges.
        kind: relations, if the graph has some.
        indptr: of the graph, as are ``indices`` and ``edge_type``.
        indices: sources.
        edge_type: relations; ``None`` without ``kind``.
        memory_limit: bytes.
    """
    at_once, found = max(_LEAST, memory_limit // _BYTES), np.zeros(len(src), bool)
    for start in range(0, len(src), at_once):
        at = slice(start, start + at_once)
        mine = None if kind is None else kind[at]
        found[at] = _found_among(src[at], dst[at], mine, indptr, indices, edge_type)
    return found


def _found_among(
    src: Int64[np.ndarray, "n"],
    dst: Int64[np.ndarray, "n"],
    kind: Int64[np.ndarray, "n"] | None,
    indptr: Int64[np.ndarray, "N_1"],
    indices: Int[np.ndarray, "E"],
    edge_type: UInt[np.ndarray, "E"] | None,
) -> Bool[np.ndarray, "n"]:
    order = np.argsort(dst, kind="stable")
    order = order[np.searchsorted(dst[order], 0) :]
    dst, key = dst[order], _key(src[order], None if kind is None else kind[order])
    wanted, hit = np.zeros(len(indptr) - 1, bool), np.zeros(len(dst), bool)
    wanted[dst] = True
    with progress.task("compare held-out edges", total=len(indices), unit="edges") as task:
        for first in range(0, len(indices), _EDGES):
            stop = min(first + _EDGES, len(indices))
            rows = rows_of(indptr, first, stop)
            near = np.flatnonzero(wanted[rows])
            low, high = np.searchsorted(dst, [rows[0], rows[-1] + 1])
            if len(near) and high > low:
                of = None if edge_type is None else np.asarray(edge_type[first:stop], np.int64)[near]
                edges = _key(np.asarray(indices[first:stop], np.int64)[near], of)
                # Keys take up to 49 bits, so the rows that they are in are put before their numbers among the keys.
                _, number = np.unique(np.concatenate([key[low:high], edges]), return_inverse=True)
                number += (np.concatenate([dst[low:high], rows[near]]) - rows[0]) * len(number)
                hit[low:high] |= np.isin(number[: high - low], number[high - low :])
            task.advance(stop - first)
    found = np.zeros(len(src), bool)
    found[order] = hit
    return found


def _key(src: Int64[np.ndarray, "n"], kind: Int64[np.ndarray, "n"] | None) -> Int64[np.ndarray, "n"]:
    """One number for source and relation."""
    return src if kind is None else src << 16 | kind
