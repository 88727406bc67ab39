"""Which nodes and edges of a store a view takes, found by reading the slices of its parts in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Int64, Integer

from partita.core import progress
from partita.core.errors import ConfigError, StoreError, nearest
from partita.core.node_types import NodeTypes
from partita.graph.store import GraphStore

EDGES_AT_ONCE = 1 << 18
"""Edges in a piece: some 10 MiB of buffers, whatever the size of the graph and of its longest row."""

Halo = Literal["none", "one-hop", "one-hop+edges"]
"""What a view has of the nodes around its parts.

``none``: nothing; edges from outside are left out. ``one-hop``: the nodes of other parts that have an edge into an
owned node, with that edge; they have no in-edges themselves. ``one-hop+edges``: the same nodes, and their in-edges from
owned nodes.
"""

HALOS: tuple[Halo, ...] = get_args(Halo)

At = slice | Int64[np.ndarray, "n"]
"""Where some edges are in the ``indices`` that a store holds."""


class Owned:
    """The nodes of some parts, numbered from 0 in ascending store ids.

    Args:
        part_offsets: int64 (P+1) of the store.
        parts: distinct parts, in any order.

    Attributes:
        parts: in ascending order.
        starts: int64 (I), first store id of each run of adjacent parts that are not empty.
        stops: int64 (I), one more than the last.
        bases: int64 (I), local id of the first.
        count: number of nodes.

    Raises:
        ConfigError: the store has no such part, or one is given twice.
    """

    def __init__(self, part_offsets: Int64[np.ndarray, "P_1"], parts: Sequence[int]) -> None:
        self.parts = tuple(sorted(int(part) for part in parts))
        num_parts = len(part_offsets) - 1
        if self.parts and not (self.parts[0] >= 0 and self.parts[-1] < num_parts):
            wrong = self.parts[0] if self.parts[0] < 0 else self.parts[-1]
            raise ConfigError(
                f"there is no part {wrong}, the store has {num_parts}",
                where="parts",
                fix=f"Give parts from 0 to {num_parts - 1}, or partition the store into more",
            )
        if len(set(self.parts)) < len(self.parts):
            raise ConfigError(
                f"a part is given twice: {', '.join(map(str, self.parts))}", where="parts", fix="Give each part once"
            )
        runs: list[list[int]] = []
        for part in self.parts:
            start, stop = int(part_offsets[part]), int(part_offsets[part + 1])
            if start == stop:
                continue
            if runs and runs[-1][1] == start:
                runs[-1][1] = stop
            else:
                runs.append([start, stop])
        self.starts = np.array([start for start, _ in runs], dtype=np.int64)
        self.stops = np.array([stop for _, stop in runs], dtype=np.int64)
        lengths = self.stops - self.starts
        self.bases = np.cumsum(lengths) - lengths
        self.count = int(lengths.sum())

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """First store id, one more than the last, and local id of the first, of every run."""
        yield from zip(self.starts.tolist(), self.stops.tolist(), self.bases.tolist())

    def local(self, ids: Integer[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Local ids of store ids; -1 for nodes of other parts."""
        from partita.isolated.subgraph_loops import number

        found = np.empty(len(ids), dtype=np.int64)
        number(ids, self.starts, self.stops, self.bases, found)
        return found


@dataclass(frozen=True)
class Subgraph:
    """The nodes and edges of a view; n nodes, of which the first m are owned.

    Attributes:
        store: the graph, or a shard of it.
        owned: the nodes of the parts.
        halo: what is taken around them.
        halo_ids: ascending store ids of the halo nodes.
        degrees: int64 (n+1), running sums of the nodes' in-degrees in the whole graph.
        inside: int64 (m+1), running sums over owned nodes of their in-edges from owned nodes.
        indptr: int64 (n+1), rows of the view.
    """

    store: GraphStore
    owned: Owned
    halo: Halo
    halo_ids: Int64[np.ndarray, "H"]
    degrees: Int64[np.ndarray, "n_1"]
    inside: Int64[np.ndarray, "m_1"]
    indptr: Int64[np.ndarray, "n_1"]

    @classmethod
    def find(cls, store: GraphStore, parts: Sequence[int], halo: str) -> Subgraph:
        """Read the edges of the parts, and with ``one-hop+edges`` those of the halo, once.

        Memory: of the order of the view's nodes; the edges pass through in pieces.

        Raises:
            ConfigError: no such part, or no such halo.
            StoreError: the edges are in the shard of another host.
        """
        halo = checked_halo(halo)
        owned = Owned(store.part_offsets, parts)
        if owned.count:
            _require_edges(store, int(owned.starts[0]), int(owned.stops[-1]) - 1, owned.parts)
        degrees = np.zeros(owned.count + 1, dtype=np.int64)
        for start, stop, base in owned.runs():
            rows = store.indptr[start : stop + 1]
            np.subtract(rows[1:], rows[0] - degrees[base], out=degrees[base + 1 : base + 1 + stop - start])
        inside, outside = np.zeros_like(degrees), _IdSet(store.held("indices")[0].dtype)
        done = 0
        with progress.task("measure the view", total=int(degrees[-1]), unit="edges") as task:
            for begin, at in _pieces_of_runs(store, owned, degrees):
                src = store.held("indices")[0][at]
                store.require_nodes(src)
                is_inside = owned.local(src) >= 0
                done = _tally(degrees, begin, is_inside, done, inside)
                if halo != "none":
                    outside.add(src[~is_inside])
                task.advance(len(src))
        if halo == "none":
            return cls(store, owned, halo, np.empty(0, dtype=np.int64), degrees, inside, inside)
        halo_ids = outside.sorted()
        beyond = np.cumsum(store.in_degree(halo_ids)) + degrees[-1]
        rows = np.concatenate([degrees, np.full(len(halo_ids), degrees[-1])])
        found = cls(store, owned, halo, halo_ids, np.concatenate([degrees, beyond]), inside, rows)
        if halo == "one-hop+edges":
            found._count_rows_of_halo()
        return found

    def _count_rows_of_halo(self) -> None:
        if len(self.halo_ids):
            _require_edges(self.store, int(self.halo_ids[0]), int(self.halo_ids[-1]), self.owned.parts)
        done = int(self.indptr[-1])
        first, last = int(self.degrees[self.owned.count]), int(self.degrees[-1])
        with progress.task("measure the halo", total=last - first, unit="edges") as task:
            for begin, at in self._pieces_of_halo():
                src = self.store.held("indices")[0][at]
                self.store.require_nodes(src)
                done = _tally(self.degrees, begin, self.owned.local(src) >= 0, done, self.indptr)
                task.advance(len(src))

    @property
    def num_nodes(self) -> int:
        """Nodes, halo included."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Edges of the view."""
        return int(self.indptr[-1])

    @property
    def num_unseen(self) -> int:
        """In-edges of owned nodes that the view leaves out."""
        return int(self.degrees[self.owned.count] - self.indptr[self.owned.count])

    @cached_property
    def node_types(self) -> NodeTypes:
        """Which type every node of the view has, by its id there: first those of the parts, then those of the halo."""
        owned = sizes_by_type(self.store, self.owned.parts)
        around = np.diff(np.searchsorted(self.halo_ids, self.store.type_offsets)).reshape(-1, owned.shape[1])
        sizes = np.concatenate([owned, around[around.any(axis=1)]])
        return NodeTypes(np.concatenate([[0], np.cumsum(sizes)]), sizes.shape[1])

    def store_ids(self, ids: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Store ids of ids of the view."""
        owned, m = self.owned, self.owned.count
        found = np.empty(len(ids), dtype=np.int64)
        mine = ids < m
        run = np.searchsorted(owned.bases, ids[mine], side="right") - 1
        found[mine] = ids[mine] - owned.bases[run] + owned.starts[run]
        found[~mine] = self.halo_ids[ids[~mine] - m]
        return found

    @property
    def halo_by_type(self) -> Int64[np.ndarray, "T"]:
        """Halo nodes of each type."""
        return np.bincount(self.store.types(self.halo_ids), minlength=self.store.node_types.count)

    def edges(self) -> Iterator[tuple[Int64[np.ndarray, "k"], At, Bool[np.ndarray, "p"] | None]]:
        """All edges of the view in their order, in pieces.

        Yields:
            Local ids of their sources; where in the store's ``indices`` the piece was read; which edges of the piece
            were kept, ``None`` for all.
        """
        from partita.isolated.subgraph_loops import fill_ranks

        indices = self.store.held("indices")[0]
        # The rank of a halo node is found by its leading bits, and then by halving.
        shift = (self.store.num_nodes // max(1, len(self.halo_ids))).bit_length()  # as many buckets as nodes, or fewer
        buckets = np.arange((self.store.num_nodes >> shift) + 2, dtype=np.int64) << shift
        first = np.searchsorted(self.halo_ids, buckets)
        with progress.task("load the view", total=self.num_edges, unit="edges") as task:
            for _, at in _pieces_of_runs(self.store, self.owned, self.degrees):
                src, kept = indices[at], None
                local = self.owned.local(src)
                if self.halo == "none":
                    kept = local >= 0
                    local = local[kept]
                else:
                    fill_ranks(src, self.halo_ids, first, shift, self.owned.count, local)
                yield local, at, kept
                task.advance(len(local))
            for _, at in self._pieces_of_halo() if self.halo == "one-hop+edges" else ():
                local = self.owned.local(indices[at])
                kept = local >= 0
                local = local[kept]
                yield local, at, kept
                task.advance(len(local))

    def _pieces_of_halo(self) -> Iterator[tuple[int, At]]:
        """As :func:`_pieces_of_runs`, for the halo nodes, whose rows lie apart from each other."""
        first_edge, bounds = self.store.held("indices")[1], self.degrees[self.owned.count :]
        for begin in range(int(bounds[0]), int(bounds[-1]), EDGES_AT_ONCE):
            end = min(begin + EDGES_AT_ONCE, int(bounds[-1]))
            low = int(np.searchsorted(bounds, begin, side="right")) - 1
            high = int(np.searchsorted(bounds, end, side="left"))
            lengths = np.diff(np.clip(bounds[low : high + 1], begin, end))
            shift = self.store.indptr[self.halo_ids[low:high]] - first_edge - bounds[low:high]
            yield begin, np.arange(begin, end) + np.repeat(shift, lengths)


def sizes_by_type(store: GraphStore, parts: Sequence[int]) -> Int64[np.ndarray, "p T"]:
    """Nodes of each type in parts; an untyped graph has a single type."""
    return np.diff(store.type_offsets).reshape(store.num_parts, -1)[list(parts)]


def checked_halo(halo: str) -> Halo:
    """One of :data:`HALOS`.

    Raises:
        ConfigError: it is none.
    """
    for known in HALOS:
        if halo == known:
            return known
    raise ConfigError(f"'{halo}' is not a halo", where="halo", fix=nearest(halo, HALOS))


def _pieces_of_runs(store: GraphStore, owned: Owned, degrees: Int64[np.ndarray, "n_1"]) -> Iterator[tuple[int, At]]:
    """The edges into owned nodes, counted from 0 over all of them.

    Yields:
        Number of the first edge of a piece, and where the piece is in the store's ``indices``.
    """
    first_edge = store.held("indices")[1]
    for start, stop, base in owned.runs():
        first, last = int(store.indptr[start]), int(store.indptr[stop])
        for begin in range(first, last, EDGES_AT_ONCE):
            end = min(begin + EDGES_AT_ONCE, last)
            yield int(degrees[base]) + begin - first, slice(begin - first_edge, end - first_edge)


def _tally(
    bounds: Int64[np.ndarray, "n_1"], begin: int, kept: Bool[np.ndarray, "p"], done: int, out: Int64[np.ndarray, "n_1"]
) -> int:
    """Write the number of kept edges before the end of every row that ends in a piece.

    Args:
        bounds: running sums of the rows' lengths.
        begin: number of the first edge of the piece.
        kept: of the piece.
        done: kept edges before the piece.
        out: at ``v + 1``: kept edges up to the end of row v.

    Returns:
        Kept edges up to the end of the piece.
    """
    low, high = np.searchsorted(bounds, [begin, begin + len(kept)], side="right")
    sums = np.cumsum(kept)
    out[low:high] = done + sums[bounds[low:high] - begin - 1]
    return done + int(sums[-1])


def _require_edges(store: GraphStore, first: int, last: int, parts: Sequence[int]) -> None:
    """Refuse nodes whose edges are in the shard of another host."""
    here = store.nodes_with_edges
    if first >= here.start and last < here.stop:
        return
    raise StoreError(
        f"a view of part{'' if len(parts) == 1 else 's'} {', '.join(map(str, parts))} needs the edges of nodes "
        f"{first:,} to {last:,}, and {store.shard} has those of {here.start:,}:{here.stop:,}",
        where=str(store.path),
        fix="Give parts of this host and halo 'none' or 'one-hop', or use the whole store",
    )


class _IdSet:
    """A growing set of ids, in memory of its own order."""

    def __init__(self, dtype: np.dtype) -> None:
        self._ids = np.empty(0, dtype=dtype)
        self._new: list[np.ndarray] = []
        self._waiting = 0

    def add(self, ids: Integer[np.ndarray, "n"]) -> None:
        """Take ids, repeated or not."""
        self._new.append(_distinct(ids))
        self._waiting += len(self._new[-1])
        if self._waiting > max(len(self._ids), EDGES_AT_ONCE):  # so that every id is sorted a few times only
            self._merge()

    def sorted(self) -> Int64[np.ndarray, "n"]:
        """The ids, ascending."""
        self._merge()
        return self._ids.astype(np.int64)

    def _merge(self) -> None:
        self._ids = _distinct(np.concatenate([self._ids, *self._new]))
        self._new, self._waiting = [], 0


def _distinct(ids: Integer[np.ndarray, "n"]) -> Integer[np.ndarray, "m"]:
    """Ascending, each once. (``numpy.unique`` hashes first, which takes ten times as long.)"""
    ids = np.sort(ids)
    new = np.ones(len(ids), dtype=np.bool_)
    np.not_equal(ids[1:], ids[:-1], out=new[1:])
    return ids[new]
