"""Drawing from edges in files, of which memory keeps those that are drawn most."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int, Int64, Shaped, UInt8
from torch import Tensor

from partita import kernels
from partita.core.records import DiskReads, Sampled, TargetEdges
from partita.files.joined_reads import JoinedReads
from partita.files.row_file import RowFile
from partita.kernels import checks
from partita.kernels.reference.shared_draws import SharedKey
from partita.sample.hot_rows import bytes_of, copied_rows, edge_columns, most_drawn
from partita.sample.topology import ArrayTopology, as_tensor

INDICES, WEIGHTS, TYPES = "indices", "weights", "edge_type"


def how_often(degrees: Int64[Tensor, "n"], num_edges: int, asked: int, picks: int) -> Float64[Tensor, "n"]:
    """How often a batch reads an edge of a node, about, for nodes of some in-degrees.

    A node is taken to be the source of as many edges as it is the destination of. So the more edges it has, the
    likelier is a batch to come to it, and the less likely is it to draw a certain one of them.

    Args:
        degrees: in-degrees.
        num_edges: of the graph.
        asked: edges that a batch comes along before its last hop.
        picks: edges that are drawn of a node; -1: all are read.
    """
    reached = -torch.expm1(degrees.double() * -asked / max(1, num_edges))
    return reached if picks < 0 else reached * (picks / degrees.clamp(min=1)).clamp(max=1)


class DiskTopology(ArrayTopology):
    """In-neighbors in files. It draws what :class:`ArrayTopology` draws from the same arrays, pick for pick.

    Only what a draw must look at is read before it: nothing where all edges of a node are equally likely, else weights
    and relations of the rows that are drawn from, and for draws that destinations share the neighbors too. The
    neighbors that were picked are read afterwards. Reads of one draw are sorted by place and joined, and several are
    under way at once. Rows that batches read most often (:func:`how_often`) are copied into memory at the start.

    Any number of threads may sample at once, and the more do, the less is read for each: those that wait for the file
    get what they want of it in one pass.

    Args:
        local: the same edges, mapped from the files.
        files: where the columns of edges are, by names of arguments of :class:`ArrayTopology` and of its
            ``edge_rows``; one row for each edge of ``local``.
        budget: bytes of memory for rows that are kept, and for finding them; what finding them takes is taken anyhow.
        asked, picks: see :func:`how_often`.

    Attributes:
        frugal: memory is short.
        num_hot: nodes whose edges are in memory.
        num_bytes: bytes of memory that the budget is for.
    """

    frugal = True

    def __init__(
        self, local: ArrayTopology, files: Mapping[str, RowFile], budget: int, *, asked: int, picks: int
    ) -> None:
        super().__init__(**local.arrays())
        self._counts = _Counts()
        for file in files.values():
            file.open()
        self._files = {name: JoinedReads(file) for name, file in files.items()}
        degrees = self._indptr[self.nodes.start : self.nodes.stop + 1].diff()
        worth = how_often(degrees, int(self._indptr[-1]), asked, picks)
        hot = most_drawn(local, budget, worth)
        self._rank = torch.full((self.num_nodes,), -1, dtype=torch.int32)
        self._rank[hot] = torch.arange(len(hot), dtype=torch.int32)
        self._hot_indptr, self._hot = copied_rows(local, hot, torch.device("cpu"), "memory")
        self._looked_at = [name for name in (WEIGHTS, TYPES) if name in edge_columns(local)]
        self.num_hot = len(hot)
        self.num_bytes = bytes_of([self._rank, self._hot_indptr, *self._hot.values()])

    def drawn(
        self, rows: Int[Tensor, "D"], original: Int[Tensor, "D"], key: int, fanout: int | Sequence[int], *,
        positions: bool,
    ) -> Sampled:  # fmt: skip
        """See :meth:`ArrayTopology.drawn`; rows are those of the store."""
        if self._looked_at:
            some, place = self._rows(rows, self._looked_at)
            found = some.located(some.drawn(place, original, key, fanout, positions=True))
        else:
            if not isinstance(fanout, int):
                raise ValueError("an untyped graph is sampled with one fanout")
            found = kernels.sample_neighbors(
                self._indptr, None, rows, original, key, fanout, positions=True, replace=self.replace,
                first_edge=self._first_edge, excluded=self._excluded,
            )  # fmt: skip
        assert found.positions is not None
        owner = torch.repeat_interleave(rows.long(), found.indptr.diff())
        ids = self._read([INDICES], found.positions - self._first_edge, owner)[INDICES]
        return replace(found, indices=ids, positions=found.positions if positions else None)

    def shared(self, rows: Int[Tensor, "D"], key: SharedKey, fanouts: Sequence[int], *, positions: bool) -> Sampled:
        """See :meth:`ArrayTopology.shared`."""
        some, place = self._rows(rows, [INDICES, *self._looked_at])
        return some.located(some.shared(place, key, fanouts, positions=positions))

    def arrival_times(self, dst: Int[Tensor, "n"], key: int, wanted: Sequence[int]) -> Int64[Tensor, "wanted"]:
        """See :meth:`ArrayTopology.arrival_times`."""
        some, place = self._rows(dst, self._looked_at)
        return some.arrival_times(place, key, wanted)

    def arrived(
        self, rows: Int[Tensor, "n"], key: int, before: Sequence[int], *, positions: bool, degrees: bool
    ) -> Sampled:
        """See :meth:`ArrayTopology.arrived`."""
        some, place = self._rows(rows, [INDICES, *self._looked_at])
        return some.located(some.arrived(place, key, before, positions=positions, degrees=degrees))

    def walk_step(
        self, ids: Int[Tensor, "n"], draws: Int64[Tensor, "n"], relation: int | None = None
    ) -> Int[Tensor, "n"]:
        """See :meth:`ArrayTopology.walk_step`."""
        some, place = self._rows(ids, [INDICES, *self._looked_at])
        return some.walk_step(place, draws, relation)

    def random_walks(
        self, start: Int[Tensor, "n"], key: int, *, walks: int, length: int, restart: float
    ) -> Int[Tensor, "nR columns"]:
        """See :meth:`ArrayTopology.random_walks`; step by step, so that rows are read for all walks together."""
        from partita.sample.walks import step_by_step  # which imports the topologies

        return step_by_step(self, start, key, walks=walks, length=length, restart=restart)[0]

    def disk_reads(self) -> DiskReads:
        """Edges that were asked for, and those of them that were in memory; and what was read of files."""
        return self._counts.total

    def _found(self, pairs: TargetEdges) -> Int64[Tensor, "k"]:
        some, place = self._rows(pairs.dst, [INDICES, *self._looked_at])
        found = some._found(TargetEdges(place, pairs.src, pairs.edge_type))
        return found + some.shift[some.rows_of(found)]

    def _column_at(self, name: str, at: Int64[Tensor, "E"]) -> Shaped[Tensor, "E ..."]:
        return self._read([name], at)[name]

    def _rows(self, ids: Int[Tensor, "n"], names: Sequence[str]) -> tuple[_SomeRows, Int64[Tensor, "n"]]:
        """The rows of some nodes with what these columns have of them, and which row each of the nodes has.

        Raises:
            IndexError: one of them is no node.
        """
        checks.within("ids", ids, self.num_nodes)
        ids, place = ids.long().unique(return_inverse=True)
        begins = self._indptr[ids]
        counts = self._indptr[ids + 1] - begins
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        shift = begins - indptr[:-1]
        owner = torch.repeat_interleave(ids, counts)
        at = torch.repeat_interleave(shift, counts) + torch.arange(len(owner)) - self._first_edge
        return _SomeRows(self, ids, indptr, shift, self._read(names, at, owner)), place

    def _read(
        self, names: Sequence[str], at: Int64[Tensor, "E"], owner: Int64[Tensor, "E"] | None = None
    ) -> dict[str, Tensor]:
        """What columns have of some edges.

        Args:
            names: of the columns.
            at: the edges, counted from the first that is here, in any order.
            owner: the node of each of them, if it is known: then those in memory are not read from files.
        """
        rank = None if owner is None else self._rank[owner].long()
        near = torch.empty(0, dtype=torch.int64) if rank is None else (rank >= 0).nonzero().flatten()
        if rank is None or owner is None:
            far, kept = np.arange(len(at)), at[:0]
        else:
            far = (rank < 0).nonzero().flatten().numpy()
            kept = at[near] + self._first_edge - self._indptr[owner[near]] + self._hot_indptr[rank[near]]
        rows = at.numpy()[far]
        order = np.argsort(rows)
        rows, places, found = rows[order], far[order], dict[str, Tensor]()
        del far, order, rank  # memory of every thread that waits
        for name in names:
            column = self._edge_rows[name] if name in self._edge_rows else self.arrays()[name]
            out = np.empty((len(at), *column.shape[1:]), column[:0].numpy().dtype)
            if len(rows):
                self._read_file(self._files[name], rows, out.reshape(len(at), -1).view(np.uint8), places)
            if len(near):
                out[near.numpy()] = self._hot[name].numpy()[kept.numpy()]
            found[name] = as_tensor(out)
        self._counts.add(DiskReads(asked=len(at), kept=len(near)))
        return found

    def _read_file(
        self, file: JoinedReads, rows: Int64[np.ndarray, "k"], out: UInt8[np.ndarray, "E width"],
        places: Int64[np.ndarray, "k"],
    ) -> None:  # fmt: skip
        begun = time.perf_counter()
        reads, count = file.read(rows, out, places)
        spent = round(1e3 * (time.perf_counter() - begun))
        self._counts.add(DiskReads(rows=len(rows), reads=reads, bytes=count, milliseconds=spent))


class _SomeRows(ArrayTopology):
    """Rows of some nodes, which are numbered by these; neighbors are store ids.

    Attributes:
        shift: of each row, how much further behind its edges are in the store.
    """

    def __init__(
        self, whole: DiskTopology, ids: Int64[Tensor, "n"], indptr: Int64[Tensor, "n_1"], shift: Int64[Tensor, "n"],
        columns: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        arrays: dict[str, Any] = {INDICES: torch.empty(int(indptr[-1]), dtype=whole.id_dtype), **columns}
        super().__init__(
            indptr, **arrays, original=whole.arrays()["original"], node_types=whole.node_types,
            num_relations=whole.num_relations, replace=whole.replace, weighted=whole.weighted,
        )  # fmt: skip
        self.ids, self.shift, self.num_nodes = ids, shift, whole.num_nodes
        if whole._excluded is not None:
            positions = whole.left_out
            node = whole.rows_of(positions)
            place = torch.searchsorted(ids, node).clamp(max=max(0, len(ids) - 1))
            here = ids[place] == node if len(ids) else torch.zeros_like(node, dtype=torch.bool)
            self._excluded = positions[here] - shift[place[here]]
            self._edges = {**self._edges, "excluded": self._excluded}

    def original(self, ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """Original indices of the nodes of some rows."""
        return super().original(self.ids[ids.long()])

    def located(self, found: Sampled) -> Sampled:
        """What was drawn, with positions in the store where it has those among these rows."""
        if found.positions is None:
            return found
        return replace(found, positions=found.positions + self.shift[self.rows_of(found.positions)])


class _Counts:
    """What was read, from any thread."""

    def __init__(self) -> None:
        self.total, self._lock = DiskReads(), Lock()

    def add(self, more: DiskReads) -> None:
        """Note it."""
        with self._lock:
            self.total = self.total + more


def edges_on_disk(
    local: ArrayTopology, columns: Mapping[str, Shaped[np.ndarray, "M ..."]], budget: int, *, asked: int, picks: int
) -> DiskTopology | None:
    """A topology that reads edges from the files that its columns are mapped from; ``None`` where there are no files.

    Args:
        local: the edges.
        columns: of the edges, as :class:`DiskTopology` names them, mapped.
        budget, asked, picks: see :class:`DiskTopology`.
    """
    files = {name: RowFile.of(column.reshape(len(column), -1)) for name, column in columns.items()}
    found = {name: file for name, file in files.items() if file is not None}
    return DiskTopology(local, found, budget, asked=asked, picks=picks) if len(found) == len(files) else None
