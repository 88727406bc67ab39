"""Builds the topology of a graph store from edges in any order, out of core.

The method is a distribution sort by destination (Vitter, "External memory algorithms and data structures", 2001,
section 5): edges are kept as they come, destinations are counted, ranges of destinations are chosen whose rows fit
into memory together, edges are distributed to one region per range, and each range is put into rows by counting.
Every pass is stable, so neighbors stay in input order whatever the memory limit.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Float32, Int, Int64, Integer, Shaped, UInt

from partita.core import progress
from partita.core.errors import ConfigError, InputError
from partita.core.files import map_array
from partita.graph import build_loops as kernels
from partita.graph import weight_sums
from partita.graph.columns import ColumnStream
from partita.graph.files import allocate_file, write_all
from partita.graph.metadata import index_dtype
from partita.graph.spill import Spill, read_records
from partita.graph.times import ALWAYS
from partita.graph.writer import StoreWriter

SelfLoops = Literal["keep", "drop", "add"]

_ROW_BYTES = 24  # of a row while its range is being sorted: its length, its cursor and what computes that
_MOST_RANGES = 30_000  # so that a range's number fits into 16 bits (twice as many ranges at worst)
_LARGEST_INT32 = 2**31 - 1
_CHECKED_AT_ONCE = 1 << 20
_FEWEST_EDGES_AT_ONCE = 256
_NO_KINDS = np.empty(0, dtype=np.uint8)
_NO_NUMBERS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class EdgeTimes:
    """When edges are there: from the later of their own time and that of their source on.

    Attributes:
        by_number: int64, time of each numbered edge; ``None``: edges have none of their own.
        of_nodes: int64 (N), time of each node by its final id; ``None``: nodes were always there.
    """

    by_number: Int64[np.ndarray, "n"] | None = None
    of_nodes: Int64[np.ndarray, "N"] | None = None

    def of(self, src: Int[np.ndarray, "n"], number: Int64[np.ndarray, "p"]) -> Int64[np.ndarray, "n"]:
        """Times of edges; those that were added, whose number is -1, have that of their source."""
        found = np.full(len(src), ALWAYS)
        if self.by_number is not None and len(number):
            own = number >= 0
            found[own] = self.by_number[number[own]]
        return found if self.of_nodes is None else np.maximum(found, self.of_nodes[src])


@dataclass(frozen=True, slots=True)
class TopologySummary:
    """What was built.

    Attributes:
        num_edges: E, directed edges in the store.
        self_loops: edges from a node to itself in the store.
        repeats: directed edges that repeat an earlier one, whether they were dropped or not.
        duplicates_dropped: directed edges that were dropped because they repeat an earlier one.
        loops_dropped: self loops of the input that were left out.
        loops_added: self loops that were not in the input.
        num_added: edges of the input.
        left_out: edges of the input with an end that is no node of the graph.
        both_directions: the input has every edge in both directions, equally often; ``False`` where all are loops.
        mirrored: edges in the other direction were added.
    """

    num_edges: int
    self_loops: int
    repeats: int
    duplicates_dropped: int
    loops_dropped: int
    loops_added: int
    num_added: int
    both_directions: bool
    mirrored: bool
    left_out: int = 0


class TopologyBuilder:
    """Sorts edges into the columns ``indptr``, ``indices``, ``edge_type``, ``edge_weight``, ``edge_attr`` and others.

    Private memory stays below ``memory_limit`` plus O(nodes): 8 bytes per node for ``indptr``, 4 each for counting
    self loops, for the largest weight of each row and for de-duplication, 2 while edges are distributed;
    with types, 1 or 2 more for de-duplication; 16 for sums of weights.
    On disk it takes, at most, twice the size of the edges (8 or 16 bytes each, weights 4 more, types 1 or 2, numbers
    8).

    Where edges have times, those of one type in a row are in order of time, of equal times in input order.

    Args:
        writer: of the store.
        memory_limit: bytes; one row of edges with times is sorted in memory, whatever its size.
        weighted: every edge has a weight.
        edge_dtype: every edge has a type of this dtype, by which rows are sorted; ``None``: there are none.
        numbered: every edge has a number, by which its features are found.
        undirected: every edge (u, v) stands for u -> v and then v -> u; a self loop for one edge.
        unless_both: not where the input has both directions of every edge, equally often.
        deduplicate: of edges with the same source, destination and type only the first stays, with its weight.
        self_loops: ``"keep"`` them, ``"drop"`` them, or ``"add"``: drop them, then give every node exactly one,
            with weight 1, as the last of its row; not where edges have types.
    """

    def __init__(
        self,
        writer: StoreWriter,
        *,
        memory_limit: int,
        weighted: bool = False,
        edge_dtype: np.dtype[Any] | None = None,
        numbered: bool = False,
        undirected: bool = False,
        unless_both: bool = False,
        deduplicate: bool = False,
        self_loops: str = "keep",
    ) -> None:
        if self_loops not in get_args(SelfLoops):
            raise ConfigError(f"invalid self_loops: '{self_loops}'", fix="Choose keep, drop or add")
        if edge_dtype is not None and (undirected or self_loops == "add"):
            raise ValueError("which type would the edges have that are added?")
        self._writer = writer
        self._edge_dtype = edge_dtype
        self._memory_limit = max(1, int(memory_limit))
        self._weighted, self._numbered = weighted, numbered
        self._undirected = undirected
        self._unless_both = unless_both
        self._deduplicate = deduplicate
        self._drop_loops = self_loops != "keep"
        self._add_loops = self_loops == "add"
        self._direction_sum, self._any_straight = 0, False
        self._spills = [self._new_spill(np.dtype(np.int32))]

    # First pass: keep the edges as they come

    def add(
        self,
        src: Integer[np.ndarray, "n"],
        dst: Integer[np.ndarray, "n"],
        weight: Float[np.ndarray, "n"] | None = None,
        kind: Integer[np.ndarray, "n"] | None = None,
        number: Integer[np.ndarray, "n"] | None = None,
    ) -> None:
        """Add edges, in order.

        Args:
            src: provisional ids of the sources, any integer dtype.
            dst: provisional ids of the destinations.
            weight: of each edge, any float dtype, finite and >= 0, if the graph is weighted.
            kind: type of each edge, if edges have types.
            number: of each edge, if they are numbered: its row in the features that :meth:`finish` is given.

        Raises:
            InputError: a weight is negative or not finite.
        """
        if (
            len(src) != len(dst)
            or (weight is None) == self._weighted
            or (weight is not None and len(weight) != len(src))
            or (kind is None) != (self._edge_dtype is None)
            or (kind is not None and len(kind) != len(src))
            or (number is None) == self._numbered
            or (number is not None and len(number) != len(src))
        ):
            raise ValueError("src, dst and (if there are some) weight, kind and number must have the same length")
        for start in range(0, len(src), _CHECKED_AT_ONCE):
            part = slice(start, start + _CHECKED_AT_ONCE)
            columns = {"src": src[part], "dst": dst[part]}
            if weight is not None:
                columns["weight"] = self._checked(weight[part])
            if kind is not None:
                columns["kind"] = kind[part]
            if number is not None:
                columns["number"] = number[part]
            one_way, straight = kernels.direction_sum(columns["src"], columns["dst"])
            self._direction_sum = (self._direction_sum + int(one_way)) % 2**64
            self._any_straight |= bool(straight)
            if self._spills[-1].dtype["src"] == np.int32 and not _fit_int32(columns["src"], columns["dst"]):
                self._spills.append(self._new_spill(np.dtype(np.int64)))
            self._spills[-1].append(columns)

    @property
    def _num_added(self) -> int:
        return sum(len(spill) for spill in self._spills)

    def _checked(self, weight: Float[np.ndarray, "n"]) -> Float32[np.ndarray, "n"]:
        with np.errstate(over="ignore"):
            weight = np.asarray(weight, dtype=np.float32)
        wrong = ~((weight >= 0) & (weight < np.inf))
        if wrong.any():
            position = int(np.argmax(wrong))
            raise InputError(
                f"the weight {weight[position]} is not a finite number >= 0",
                where=f"edge {self._num_added + position:,}, counted from 0",
                fix="Correct it or leave this edge out",
            )
        return weight

    # All further passes

    def finish(
        self,
        num_nodes: int,
        rank: Integer[np.ndarray, "N"] | None = None,
        features: Float[np.ndarray, "n A"] | None = None,
        times: EdgeTimes | None = None,
    ) -> TopologySummary:
        """Sort all edges and write the columns.

        Args:
            num_nodes: N; provisional ids must be below, or below the length of ``rank``.
            rank: final id of each provisional id, each of 0..N-1 once; -1: its edges are left out. ``None`` if they
                are the same.
            features: of numbered edges, by number; zeros are those of self loops that are added.
            times: when edges are there; they are written as ``edge_time``.

        Raises:
            InputError: an edge names a node outside [0, num_nodes).
        """
        self._num_nodes = int(num_nodes)
        self._rank = np.empty(0, dtype=index_dtype(num_nodes)) if rank is None else np.asarray(rank)
        self._index_dtype = index_dtype(num_nodes)
        self._final = self._record_dtype(self._index_dtype)
        self._num_provisional = max(self._num_nodes, len(self._rank))
        num_added = self._num_added
        both_directions = self._any_straight and self._direction_sum == 0
        self._undirected &= not (self._unless_both and both_directions)
        indptr = self._count()
        mapped, left_out = int(indptr[-1]), self._left_out
        added = self._num_nodes if self._add_loops else 0
        if added:
            indptr += np.arange(self._num_nodes + 1)
        ranges = self._choose_ranges(indptr)
        rows = _Rows(
            self._writer, self._num_nodes, self._index_dtype, self._weighted, self._edge_dtype, self._numbered,
            self._deduplicate, times,
        )  # fmt: skip
        self._sort(indptr, ranges, rows)
        if self._weighted:
            self._quantize(indptr, rows.largest)
            self._sum_weights(indptr)
        if features is not None:
            self._write_features(rows.numbers, features)
        elif self._numbered:
            rows.numbers.unlink()
        self._writer.write("indptr", indptr)
        if rows.loops.any():
            self._writer.write("self_loops", rows.loops)
        summary = TopologySummary(
            num_edges=int(indptr[-1]),
            self_loops=int(rows.loops.sum(dtype=np.int64)),
            repeats=rows.repeats,
            duplicates_dropped=mapped + added - int(indptr[-1]),
            loops_dropped=num_added - left_out - mapped // (2 if self._undirected else 1) if self._drop_loops else 0,
            loops_added=added,
            num_added=num_added,
            both_directions=both_directions,
            mirrored=self._undirected,
            left_out=left_out,
        )
        for spill in self._spills:
            spill.discard()
        return summary

    def _count(self) -> Int64[np.ndarray, "N_1"]:
        """Rows of the graph, cumulated, before repeats are dropped and self loops are added."""
        indptr = np.zeros(self._num_nodes + 1, dtype=np.int64)
        for edges in self._mapped("count edges"):
            kernels.count_rows(edges["dst"], indptr[1:])
        return np.cumsum(indptr, out=indptr)

    def _choose_ranges(self, indptr: Int64[np.ndarray, "N_1"]) -> Int64[np.ndarray, "R_1"]:
        """Boundaries of ranges of destinations whose rows take at most half of the memory limit (or are one row)."""
        edge_bytes = self._index_dtype.itemsize + 4 * self._weighted + self._kind_bytes + 8 * self._numbered

        def cost(node: int) -> int:
            return int(indptr[node]) * edge_bytes + node * _ROW_BYTES

        n = self._num_nodes
        budget = max(self._memory_limit // 2, cost(n) // _MOST_RANGES)
        bounds = [0]
        while (low := bounds[-1]) < n:
            high = bisect.bisect_right(range(n + 1), cost(low) + budget, lo=low + 1, key=cost) - 1
            bounds.append(max(high, low + 1))
        return np.array(bounds, dtype=np.int64)

    def _sort(self, indptr: Int64[np.ndarray, "N_1"], ranges: Int64[np.ndarray, "R_1"], out: _Rows) -> None:
        """Write ``indices`` and ``edge_weight`` range by range; ``indptr`` becomes that of the rows as written."""
        edge_at = indptr[ranges]  # before repeats are dropped
        starts = edge_at - ranges if self._add_loops else edge_at
        if len(ranges) <= 2:
            if len(ranges) == 2:
                everything = partial(self._mapped, "sort edges")
                self._sort_range(everything, 0, self._num_nodes, indptr, int(edge_at[1]), 0, out)
        else:
            path = self._writer.scratch / "ranges"
            allocate_file(path, int(starts[-1]) * self._final.itemsize)
            with open(path, "r+b", buffering=0) as file:
                self._distribute(file.fileno(), ranges, starts)
                chunk = np.empty(self._edges_at_once(self._final.itemsize), dtype=self._final)
                with progress.task("sort edges", total=int(starts[-1]), unit="edges") as task:
                    for r in range(len(ranges) - 1):
                        low, high, first, stop = (int(i) for i in (*ranges[r : r + 2], *starts[r : r + 2]))
                        edges = partial(read_records, file.fileno(), first, stop, chunk)
                        num_edges = int(edge_at[r + 1] - edge_at[r])
                        self._sort_range(edges, low, high, indptr, num_edges, int(edge_at[r]), out)
                        task.advance(stop - first)
            path.unlink()
        out.close()

    def _sort_range(
        self,
        chunks: Callable[[], Iterator[Shaped[np.ndarray, "n"]]],
        low: int,
        high: int,
        indptr: Int64[np.ndarray, "N_1"],
        num_edges: int,
        first_edge: int,
        out: _Rows,
    ) -> None:
        """Put one range of destinations into rows. ``indptr[low]`` is final already, the rest of the range not."""
        begin = int(indptr[low])
        if (
            high - low == 1 and not out.in_order_of_time
        ):  # one row needs no sorting but by type, and may be larger than memory
            kept = 0
            for part in self._by_kind(chunks):
                kept += out.put(
                    low, np.array([len(part)]), part["src"], self._weights(part), self._kinds(part), self._numbers(part)
                )
            if self._add_loops:
                weight = np.ones(int(self._weighted), dtype=np.float32)
                number = np.full(int(self._numbered), -1)
                kept += out.put(low, np.array([1]), np.array([low], dtype=self._index_dtype), weight, _NO_KINDS, number)
            indptr[high] = begin + kept
            return
        length = np.diff(indptr[low : high + 1])
        length[0] = indptr[low + 1] - first_edge  # indptr[low] may have shrunk by the repeats dropped so far
        cursor = np.cumsum(length) - length
        src = np.empty(num_edges, dtype=self._index_dtype)
        weight = np.empty(num_edges if self._weighted else 0, dtype=np.float32)
        kind = np.empty(0 if self._edge_dtype is None else num_edges, dtype=self._edge_dtype or _NO_KINDS.dtype)
        number = np.empty(num_edges if self._numbered else 0, dtype=np.int64)
        for edges in chunks():
            kernels.place_edges(
                edges["src"], edges["dst"], self._weights(edges), self._kinds(edges), self._numbers(edges), low, cursor,
                src, weight, kind, number,
            )  # fmt: skip
        if self._add_loops:
            src[cursor] = np.arange(low, high)
            if self._weighted:
                weight[cursor] = 1.0
            if self._numbered:
                number[cursor] = -1
        out.put(low, length, src, weight, kind, number)
        indptr[low + 1 : high + 1] = np.cumsum(length, out=length)
        indptr[low + 1 : high + 1] += begin

    def _by_kind(self, chunks: Callable[[], Iterator[Shaped[np.ndarray, "n"]]]) -> Iterator[Shaped[np.ndarray, "n"]]:
        """The edges of one row by type: read once for each type that there is."""
        if self._edge_dtype is None:
            yield from chunks()
            return
        found = np.zeros(np.iinfo(self._edge_dtype).max + 1, dtype=bool)
        for edges in chunks():
            found[edges["kind"]] = True
        for each in np.flatnonzero(found):
            for edges in chunks():
                yield edges[edges["kind"] == each]

    def _distribute(self, descriptor: int, ranges: Int64[np.ndarray, "R_1"], starts: Int64[np.ndarray, "R_1"]) -> None:
        """Move every edge to the region of its range in one file, in order."""
        range_of = np.repeat(np.arange(len(ranges) - 1, dtype=np.uint16), np.diff(ranges))
        position = starts[:-1].copy()
        bounds = np.empty(len(ranges), dtype=np.int64)
        room: Shaped[np.ndarray, "n"] = np.empty(0, dtype=self._final)
        for edges in self._mapped("distribute edges"):
            if len(room) < len(edges):
                room = np.empty(len(edges), dtype=self._final)
            kernels.partition_edges(
                edges["src"], edges["dst"], self._weights(edges), self._kinds(edges), self._numbers(edges),
                range_of, bounds,
                room["src"], room["dst"], self._weights(room), self._kinds(room), self._numbers(room),
            )  # fmt: skip
            for r in np.flatnonzero(np.diff(bounds)):
                piece = room[bounds[r] : bounds[r + 1]]
                write_all(descriptor, piece.view(np.uint8).data, int(position[r]) * self._final.itemsize)
                position[r] += len(piece)
        for spill in self._spills:
            spill.discard()

    def _mapped(self, description: str) -> Iterator[Shaped[np.ndarray, "n"]]:
        """All directed edges with their final ids, in order, as records; each array is valid until the next one."""
        ways = 2 if self._undirected else 1
        raw_bytes = self._record_dtype(np.dtype(np.int64)).itemsize
        at_once = self._edges_at_once(raw_bytes + 2 * ways * self._final.itemsize)
        done, self._left_out = 0, 0
        some_left_out = len(self._rank) > self._num_nodes
        out = np.empty(min(at_once, self._num_added) * ways, dtype=self._final)
        with progress.task(description, total=self._num_added, unit="edges") as task:
            for spill in self._spills:
                for chunk in spill.chunks(at_once):
                    raw = chunk
                    if some_left_out:
                        raw = chunk[(self._rank[chunk["src"]] >= 0) & (self._rank[chunk["dst"]] >= 0)]
                        self._left_out += len(chunk) - len(raw)
                    count, wrong = kernels.map_edges(
                        raw["src"], raw["dst"], self._weights(raw), self._kinds(raw), self._numbers(raw), self._rank,
                        self._num_provisional, self._undirected, self._drop_loops,
                        out["src"], out["dst"], self._weights(out), self._kinds(out), self._numbers(out),
                    )  # fmt: skip
                    if wrong >= 0:
                        raise InputError(
                            f"the edge {int(raw['src'][wrong])} -> {int(raw['dst'][wrong])} names a node that does not "
                            f"exist: there are {self._num_nodes:,} nodes, numbered from 0",
                            where=f"edge {done + int(wrong):,}, counted from 0",
                            fix="Correct the edge, or give the right number of nodes",
                        )
                    yield out[:count]
                    done += len(chunk)
                    task.advance(len(chunk))

    def _quantize(self, indptr: Int64[np.ndarray, "N_1"], largest: Float32[np.ndarray, "W"]) -> None:
        weight = map_array(self._writer.directory / "edge_weight.npy")
        column = self._writer.append("edge_weight_quantised", np.uint32)
        at_once = self._edges_at_once(8)
        room = np.empty(min(at_once, len(weight)), dtype=np.uint32)
        with progress.task("scale weights", total=len(weight), unit="edges") as task:
            for first in range(0, len(weight), at_once):
                part = np.array(weight[first : first + at_once])
                kernels.quantize(part, first, indptr, largest, room[: len(part)])
                column.append(room[: len(part)])
                task.advance(len(part))
        column.close()

    def _sum_weights(self, indptr: Int64[np.ndarray, "N_1"]) -> None:
        """Write what weighted degrees are made of, see :class:`partita.core.protocols.Topology`."""
        indices, weight = (map_array(self._writer.directory / f"{name}.npy") for name in ("indices", "edge_weight"))
        for name, column in zip(weight_sums.NAMES, weight_sums.weight_sums(indptr, indices, weight)):
            self._writer.write(name, column)

    def _write_features(self, numbers: Path, features: Float[np.ndarray, "n A"]) -> None:
        """Bring the features of the edges into the order of the rows."""
        column = self._writer.append("edge_attr", features.dtype, features.shape[1:])
        at_once = self._edges_at_once(8 + features.dtype.itemsize * features.shape[1])
        total = numbers.stat().st_size // 8
        with open(numbers, "rb") as file, progress.task("sort edge features", total=total, unit="edges") as task:
            while len(at := np.fromfile(file, dtype=np.int64, count=at_once)):
                there = at >= 0
                rows = np.zeros((len(at), features.shape[1]), dtype=features.dtype)
                rows[there] = features[at[there]]
                column.append(rows)
                task.advance(len(at))
        column.close()
        numbers.unlink()

    # Small helpers

    def _record_dtype(self, ids: np.dtype[Any]) -> np.dtype[Any]:
        fields: list[tuple[str, Any]] = [("src", ids), ("dst", ids)]
        fields += [("weight", np.float32)] if self._weighted else []
        fields += [("kind", self._edge_dtype)] if self._edge_dtype is not None else []
        return np.dtype([*fields, ("number", np.int64)] if self._numbered else fields)

    @property
    def _kind_bytes(self) -> int:
        return 0 if self._edge_dtype is None else self._edge_dtype.itemsize

    def _new_spill(self, ids: np.dtype[Any]) -> Spill:
        dtype = self._record_dtype(ids)
        path = self._writer.scratch / f"edges-{ids.name}"
        return Spill(path, dtype, self._memory_limit // (4 if ids == np.int32 else 8) // dtype.itemsize)

    def _edges_at_once(self, bytes_each: int) -> int:
        """Edges of one pass over a quarter of the memory limit."""
        return max(_FEWEST_EDGES_AT_ONCE, self._memory_limit // 4 // bytes_each)

    def _weights(self, records: Shaped[np.ndarray, "n"]) -> Float32[np.ndarray, "w"]:
        return records["weight"] if self._weighted else np.empty(0, dtype=np.float32)

    def _kinds(self, records: Shaped[np.ndarray, "n"]) -> UInt[np.ndarray, "k"]:
        return _NO_KINDS if self._edge_dtype is None else records["kind"]

    def _numbers(self, records: Shaped[np.ndarray, "n"]) -> Int64[np.ndarray, "p"]:
        return records["number"] if self._numbered else _NO_NUMBERS


class _Rows:
    """Appends finished rows to the columns, without repeats if these are to go.

    Attributes:
        loops: (N) int32, self loops of every node.
        numbers: file of the numbers of the edges, int64, in the order of the rows.
        repeats: edges that repeat an earlier one.
        largest: (N) float32, the largest weight of every row; empty without weights.
    """

    def __init__(
        self,
        writer: StoreWriter,
        num_nodes: int,
        index_dtype: np.dtype[Any],
        weighted: bool,
        edge_dtype: np.dtype[Any] | None,
        numbered: bool,
        deduplicate: bool,
        times: EdgeTimes | None = None,
    ) -> None:
        self._times, self._time_column = times, None if times is None else writer.append("edge_time", np.int64)
        self._indices = writer.append("indices", index_dtype)
        self._weights: ColumnStream | None = writer.append("edge_weight", np.float32) if weighted else None
        self._kinds: ColumnStream | None = None if edge_dtype is None else writer.append("edge_type", edge_dtype)
        self.numbers = writer.scratch / "numbers"
        self._numbers = open(self.numbers, "wb") if numbered else None  # noqa: SIM115
        self._deduplicate = deduplicate
        self._last_seen = np.zeros(num_nodes, dtype=index_dtype)
        self._last_kind = _NO_KINDS if edge_dtype is None else np.zeros(num_nodes, dtype=edge_dtype)
        self.repeats = 0
        self.loops = np.zeros(num_nodes, dtype=np.int32)
        self.largest = np.zeros(num_nodes if weighted else 0, dtype=np.float32)

    def put(
        self,
        low: int,
        length: Int64[np.ndarray, "rows"],
        src: Int[np.ndarray, "n"],
        weight: Float32[np.ndarray, "w"],
        kind: UInt[np.ndarray, "k"],
        number: Int64[np.ndarray, "p"],
    ) -> int:
        """Append rows ``low``, ``low + 1``, ...; ``length`` becomes what remains of each. A row may come in pieces.

        All arrays are used up. Returns the number of edges written.
        """
        rows = slice(low, low + len(length))
        src, weight, kind, number = (np.ascontiguousarray(each) for each in (src, weight, kind, number))
        if self._times is not None:
            # Stable: of a row the edges of one type, and of these the ones of one time, stay in input order.
            time, of_row = self._times.of(src, number), np.repeat(np.arange(len(length)), length)
            by = np.lexsort((time, kind, of_row) if len(kind) else (time, of_row))
            src, weight, kind, number = (each[by] if len(each) else each for each in (src, weight, kind, number))
        kept, repeats = kernels.finish_rows(
            low, length, src, weight, kind, number, self._deduplicate, self._last_seen, self._last_kind,
            self.loops[rows], self.largest[rows],
        )  # fmt: skip
        self.repeats += int(repeats)
        self._indices.append(src[:kept])
        if self._weights is not None:
            self._weights.append(weight[:kept])
        if self._kinds is not None:
            self._kinds.append(kind[:kept])
        if self._numbers is not None:
            number[:kept].tofile(self._numbers)
        if self._times is not None and self._time_column is not None:  # of the edges that are left
            self._time_column.append(self._times.of(src[:kept], number[:kept]))
        return int(kept)

    @property
    def in_order_of_time(self) -> bool:
        """Whether a row must be given as a whole."""
        return self._times is not None

    def close(self) -> None:
        self._indices.close()
        for stream in (self._weights, self._kinds, self._time_column):
            if stream is not None:
                stream.close()
        if self._numbers is not None:
            self._numbers.close()


def _fit_int32(*arrays: Integer[np.ndarray, "n"]) -> bool:
    return all(
        array.dtype.itemsize < 4 or not len(array) or (array.min() >= ~_LARGEST_INT32 and array.max() <= _LARGEST_INT32)
        for array in arrays
    )
