"""The input placement of typed graphs: rows of every node type through tiers of the type's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from partita.core.adding import Adding
from partita.core.estimates import AskedRows, FileReads, InputEstimate, LearntReads
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.core.protocols import CacheTier, FeatureTier, Topology
from partita.core.rank_masks import RankMasks
from partita.core.records import ID_BYTES, TIERS, DiskReads, RowsByType, Traffic
from partita.features.host import HostRows
from partita.features.learnt import LearntRows, Pull, RowOwners
from partita.features.typed import TypedColumns
from partita.kernels import rank_masks
from partita.parallel.inputs import Reads, Tiered, TieredReads


@dataclass(frozen=True, slots=True)
class TypedReads(Reads):
    """Rows of all types; see :class:`partita.core.protocols.InputWork`.

    Attributes:
        at: of each type (n), which of the requests have it.
        works: of each type; ``None`` of types without features.
        numbers: of each type (n), which of its rows those are; in host memory.
        head: see :class:`~partita.core.records.RowsByType`.
        pulls: of each type, what its learnt rows' owners were asked for ahead, if they were.
    """

    at: tuple[Int64[Tensor, "_"], ...]
    works: tuple[TieredReads | None, ...]
    numbers: tuple[Int64[Tensor, "_"], ...]
    head: int
    pulls: tuple[Pull | None, ...]

    @property
    def num_accesses(self) -> int:
        """As many as rows: what others read here is read once."""
        return self.num_read


_Record = TypeVar("_Record", bound=Adding)

MakeTier = Callable[[int, HostRows], tuple[FeatureTier, CacheTier | None]]
"""The highest tier for the rows of a type, by number of the type, and the cache among its tiers."""


class TypedInputs:
    """Every type has a chain of tiers; a row's place in it is its row among those of its type.

    Args:
        columns: the features of the store.
        topology: gives original indices, the key of input dropout.
        make: makes the tiers of a type.
        owners: of learnt rows, whose bytes are counted; ``None`` where there are none, or one worker has all.
        rank: of this worker among them.
        learnt: the tables, where rows are learnt: they are told what will be read.

    Attributes:
        collective: whether the tiers exchange anything.
        prefetchable: some type has features, or learnt rows that are prepared; others are read when they are computed.
        caches: of each type, ``None`` where there is none.
    """

    dropout = 0.0  # applied here, not by the layer

    def __init__(
        self,
        columns: TypedColumns,
        topology: Topology,
        make: MakeTier,
        owners: RowOwners | None = None,
        rank: int = 0,
        learnt: LearntRows | None = None,
    ) -> None:
        self.columns = columns
        self._owners, self._rank = owners, rank
        self._learnt = learnt if learnt is not None and learnt.window else None
        self._parts: list[Tiered | None] = []
        for kind, host in enumerate(columns.columns):
            if host is None:
                self._parts.append(None)
                continue
            tier, cache = make(kind, host)
            original = partial(self._original, topology, kind)
            # The encoder widens what it needs, and some rows are summed as they are.
            self._parts.append(Tiered(tier, host.home, host.columns, original, cache, widens=False))
        self.caches = tuple(None if part is None else part.cache for part in self._parts)
        self.collective = any(part is not None and part.collective for part in self._parts)
        self.look_ahead = max((part.look_ahead for part in self._parts if part is not None), default=0)
        self.prefetchable = self._learnt is not None or any(part is not None for part in self._parts)
        if self._learnt is not None:
            self.collective = self.collective or self._learnt.group.size > 1
            self.look_ahead = max(self.look_ahead, self._learnt.window)

    def _original(self, topology: Topology, kind: int, rows: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """Original indices of rows of a type."""
        return topology.original(self._ids(kind, rows))

    def _ids(self, kind: int, rows: Int[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Store ids of rows of a type, where the rows' numbers are."""
        return torch.from_numpy(self.columns.types.ids(kind, rows.cpu().numpy())).to(rows.device)

    def sums_by_id(self, training: bool) -> bool:
        """No: rows are encoded first."""
        return False

    def expand(self, requests: Int[Tensor, "S"], key: StepKey) -> TypedReads:
        """Ask the tiers of all types, in one order on all workers."""
        at, numbers, head = self.columns.split(requests)
        rows = [each.to(requests.device) if part is not None else each for part, each in zip(self._parts, numbers)]
        works = tuple(None if part is None else part.expand(each, key) for part, each in zip(self._parts, rows))
        there = [(kind, work) for kind, work in enumerate(works) if work is not None]
        reads = [
            requests[at[kind]].long()
            if work.reads is rows[kind]  # nothing is read for others
            else self._ids(kind, work.reads)
            for kind, work in there
        ]
        return TypedReads(
            reads=torch.cat(reads) if reads else requests[:0].long(),
            at=at,
            works=works,
            numbers=numbers,
            head=head,
            pulls=self._pulls(numbers),
            **self._totals(works, numbers),
        )

    def _pulls(self, numbers: tuple[Tensor, ...]) -> tuple[Pull | None, ...]:
        """Ask for learnt rows ahead, type by type."""
        learnt = self._learnt
        if learnt is None:
            return ()
        return tuple(learnt.ask(kind, rows) if kind in learnt.tables else None for kind, rows in enumerate(numbers))

    def _totals(self, works: tuple[TieredReads | None, ...], numbers: tuple[Tensor, ...]) -> dict[str, Any]:
        """Rows by tier, and bytes from others, of all types."""
        there = [work for work in works if work is not None]
        hits = [work.hits for work in there] or [(0,) * len(TIERS)]
        return {
            "hits": tuple(map(sum, zip(*hits))),
            "traffic": sum((work.traffic for work in there), self._learnt_traffic(numbers)),
        }

    def _learnt_traffic(self, numbers: tuple[Tensor, ...]) -> Traffic:
        """Of the learnt rows that this worker wants and others own."""
        if self._owners is None:
            return Traffic()
        learnt = [(kind, rows) for kind, rows in enumerate(numbers) if self.columns.learnt[kind]]
        remote = [(kind, int((self._owners.of_rows(kind, rows) != self._rank).sum())) for kind, rows in learnt]
        return sum((self._bytes_of_learnt(kind, count) for kind, count in remote), Traffic())

    def _bytes_of_learnt(self, kind: int, remote: int) -> Traffic:
        """A number asked for, a row back, and its gradient."""
        sent = self.columns.learnt[kind] * self.columns.dtype.itemsize * remote
        return Traffic(ids=ID_BYTES * remote, features=sent, backward=sent)

    def announce(self, work: TypedReads) -> None:
        """Tell the tiers of all types."""
        for part, each in zip(self._parts, work.works, strict=True):
            if part is not None and each is not None:
                part.announce(each)
        for pull in filter(None, work.pulls):
            assert self._learnt is not None
            self._learnt.announce(pull)

    @property
    def exchanges_to_prepare(self) -> bool:
        """Whether the tiers of a type do."""
        return any(part is not None and part.exchanges_to_prepare for part in self._parts)

    def prepare(self, work: TypedReads) -> TypedReads:
        """Tell the tiers of all types, in one order on all workers."""
        for pull in filter(None, work.pulls):
            assert self._learnt is not None
            self._learnt.prepare(pull)
        works = tuple(
            each if part is None or each is None else part.prepare(each)
            for part, each in zip(self._parts, work.works, strict=True)
        )
        if all(new is old for new, old in zip(works, work.works, strict=True)):
            return work
        return replace(work, works=works, **self._totals(works, work.numbers))

    def restart(self) -> None:
        """Tell the tiers of all types."""
        for part in self._parts:
            if part is not None:
                part.restart()
        if self._learnt is not None:
            self._learnt.restart()

    def disk_reads(self) -> DiskReads:
        """Of all types."""
        return sum((part.disk_reads() for part in self._parts if part is not None), DiskReads())

    def forward(self, work: TypedReads) -> RowsByType:
        """Read the rows, as they are stored unless something changes them."""
        found = [
            self.columns.empty(at) if part is None or each is None else part.forward(each)
            for part, each, at in zip(self._parts, work.works, work.at, strict=True)
        ]
        return RowsByType(work.at, tuple(found), work.head, work.numbers, work.pulls)

    @property
    def parts(self) -> tuple[Tiered, ...]:
        """Of the types with features, what reads them."""
        return tuple(part for part in self._parts if part is not None)

    def estimate(self, batches: Sequence[AskedRows], mesh: Mesh) -> list[InputEstimate]:
        """As the tiers of all types say; and what becomes of learnt rows."""
        places = [self.columns.split(batch.ids)[:2] for batch in batches]
        hits = np.zeros((len(batches), mesh.size, len(TIERS)), np.int64)
        bytes_, types = np.zeros_like(hits), np.zeros((len(batches), mesh.size, len(self._parts)), np.int64)
        reads = [np.zeros_like(batch.by) for batch in batches]
        traffic = [[Traffic()] * mesh.size for _ in batches]
        files = [[FileReads()] * mesh.size for _ in batches]
        learnt = [self._no_learnt(mesh) for _ in batches]
        for kind, part in enumerate(self._parts):
            of_type = [
                replace(batch, ids=rows[kind], by=batch.by[at[kind].numpy()])
                for batch, (at, rows) in zip(batches, places, strict=True)
            ]
            for number, (asked, noted) in enumerate(zip(of_type, learnt, strict=True)):
                if noted is not None and self.columns.learnt[kind]:
                    traffic[number] = _added(traffic[number], self._learnt_reads(kind, asked, noted, mesh))
            if part is None:
                continue
            for number, found in enumerate(part.estimate(of_type, mesh)):
                hits[number] += found.hits
                bytes_[number] += found.bytes
                reads[number][places[number][0][kind].numpy()] = found.reads
                types[number, :, kind] = found.read[:, 0]
                traffic[number] = _added(traffic[number], found.traffic)
                files[number] = _added(files[number], found.files)
        return [
            InputEstimate(hits[at], bytes_[at], reads[at], traffic[at], tuple(files[at]), types[at], learnt[at])
            for at in range(len(batches))
        ]

    def _no_learnt(self, mesh: Mesh) -> LearntReads | None:
        """None of the learnt rows, to be added to; ``None`` where there are none."""
        if not any(self.columns.learnt):
            return None
        given, moved = (np.zeros((mesh.size, len(self._parts)), np.int64) for _ in range(2))
        return LearntReads(given, moved, [Traffic()] * mesh.size)

    def _learnt_reads(self, kind: int, asked: AskedRows, found: LearntReads, mesh: Mesh) -> list[Traffic]:
        """Note the learnt rows of a type that workers ask for; bytes of each worker for them."""
        owner = np.zeros(len(asked.ids), np.int64)
        if self._owners is not None:
            owner = self._owners.of_rows(kind, asked.ids).numpy()
        own = np.uint64(1) << owner.astype(np.uint64)
        on_host = RankMasks.of(mesh, mesh.members("workers")[0]).whole_hosts(own)
        for rank in range(mesh.size):
            found.given[rank, kind] = rank_masks.count(asked.by[owner == rank], mesh.size).sum()
        found.moved[:, kind] = np.bincount(owner[asked.by != 0], minlength=mesh.size)
        remote, far = (rank_masks.count(asked.by & ~near, mesh.size).tolist() for near in (own, on_host))
        found.far[:] = _added(found.far, [self._bytes_of_learnt(kind, count) for count in far])
        return [self._bytes_of_learnt(kind, count) for count in remote]


def _added(before: list[_Record], more: Sequence[_Record]) -> list[_Record]:
    """Records of each worker, with more of each; there may be none more at all."""
    return [one + other for one, other in zip(before, more, strict=True)] if more else before
