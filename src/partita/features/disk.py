"""The tier whose rows are read from files, and kept in bounded memory as long as they are used again soon."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped, UInt8
from torch import Tensor

from partita.core.errors import ConfigError
from partita.core.estimates import AskedRows, FileReads, ReadEstimate
from partita.core.mesh import Mesh
from partita.core.records import DiskReads
from partita.features.announced import AnnouncedBatches, epochs
from partita.features.host import HostRows, HostWork
from partita.features.look_ahead import MOST_ROWS, Kept, LookAhead
from partita.features.lru import LeastRecentlyUsed
from partita.features.of_workers import OfWorkers
from partita.features.packing import PackedRows, foreseen_costs, is_worth_it
from partita.features.row_loops import copy_into, copy_kept


@dataclass(slots=True)
class _Plan:
    """What reading a batch will do.

    Attributes:
        work: the batch.
        found: where its rows are, and which of them are kept.
        missing: positions of rows that must be read, by their place in the files.
        by_file: those rows.
        packed: where they are meanwhile; ``None``: where they always were.
        number: of the batch there.
    """

    work: HostWork
    found: Kept
    missing: Int64[np.ndarray, "k"]
    by_file: list[Int64[np.ndarray, "_"]]
    packed: PackedRows | None = None
    number: int = 0


class DiskRows(OfWorkers):
    """Rows of a host that are read from the files they are in, not through memory that is mapped.

    Batches are announced ahead, so that it is known which rows are used again: those stay in memory, see
    :class:`~partita.features.look_ahead.LookAhead`. Rows of batches that nobody has announced are read and not kept.

    Args:
        host: the rows.
        budget: bytes of memory for rows that are kept, and for finding them.
        window: batches that are announced at once, at most.

    Attributes:
        host: as given.
        width: columns of a row.
        dtype: of a row.
        collective: no.
        look_ahead: batches that should be announced behind the one that is prepared.

    Raises:
        ConfigError: the rows are in no file or too many, or the budget has no room for a row.
    """

    collective = False
    exchanges_to_prepare = False

    def __init__(self, host: HostRows, budget: int, window: int) -> None:
        self.host = host
        self.width, self.dtype = host.width, host.dtype
        self.look_ahead = window
        self._asked = self._hits = 0
        self._seconds = self._packing = 0.0
        self._files = host.files()
        for file in self._files:
            file.open()  # now, as the rest of the store is: later another store might be there
        self._bounds = np.cumsum([0, *(file.num_rows for file in self._files)])
        num_rows, width = int(self._bounds[-1]), self._files[0].width
        if num_rows > MOST_ROWS:
            raise ConfigError(
                f"{num_rows:,} rows are more than the {MOST_ROWS:,} that can be looked ahead for",
                where="feature_memory",
                fix="Leave it out to map the rows into memory, or deal the nodes out to hosts: partita shard",
            )
        lists = LookAhead.bytes_for(num_rows, 0, 0)
        slots = min(num_rows, max(0, budget - lists) // max(1, LookAhead.bytes_for(0, 1, 0) + width))
        if not slots and num_rows and width:
            raise ConfigError(
                f"{budget:,} bytes have no room for a row: to know where {num_rows:,} rows are takes {lists:,}, and a "
                f"row {width:,}",
                where="feature_memory",
                fix="Give more, or leave it out to map the rows into memory",
            )
        self._together = max(1, window * 3 // 4)
        self._batches = AnnouncedBatches[HostWork](
            num_rows, slots, window, self._together, lambda work: host.numbers(work).numpy()
        )
        self._lru = LeastRecentlyUsed(slots)
        self._kept = np.empty((slots, width), np.uint8)
        self._plans = dict[int, _Plan]()  # by the identity of the work, which they hold

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held, at most."""
        return self._kept.nbytes + self._batches.num_bytes

    def ask(self, ids: Int[Tensor, "n"]) -> HostWork:
        """See :class:`partita.core.protocols.FeatureTier`."""
        return self.host.ask(ids)

    def announce(self, work: HostWork) -> None:
        """See :class:`partita.core.protocols.FeatureTier`."""
        self._batches.announce(work)

    def prepare(self, work: HostWork) -> HostWork:
        """See :class:`partita.core.protocols.FeatureTier`; others are prepared together with the first of them."""
        if id(work) in self._plans or not self._batches.is_next(work):
            return work
        plans = [self._plan(*decided) for decided in self._batches.decide()]
        wanted = [plan.by_file for plan in plans]
        if is_worth_it(self._files, wanted):
            begun = time.perf_counter()
            packed = PackedRows.of(self._files, wanted)
            self._packing += time.perf_counter() - begun
            for number, plan in enumerate(plans):
                plan.packed, plan.number = packed, number
        self._plans.update({id(plan.work): plan for plan in plans})
        return work

    def _plan(self, work: HostWork, found: Kept) -> _Plan:
        rows = self.host.numbers(work).numpy()
        missing = np.flatnonzero(found.slots < 0)
        missing = missing[np.argsort(rows[missing])]
        return _Plan(work, found, missing, self._by_file(rows[missing]))

    def restart(self) -> None:
        """See :class:`partita.core.protocols.FeatureTier`."""
        self._batches.restart(lost=bool(self._plans))  # what they wanted to keep was never read
        self._plans.clear()

    def disk_reads(self) -> DiskReads:
        """See :class:`partita.core.protocols.FeatureTier`."""
        counts = [file.counts for file in self._files]
        return DiskReads(
            self._asked, self._hits, self._lru.hits,
            sum(each.rows for each in counts), sum(each.reads for each in counts), sum(each.bytes for each in counts),
            round(1e3 * self._seconds), round(1e3 * self._packing),
        )  # fmt: skip

    def estimate(self, batches: Sequence[AskedRows], mesh: Mesh) -> list[ReadEstimate]:
        """See :class:`partita.core.protocols.FeatureTier`: all rows count as the host's, read from files or not.

        Raises:
            ConfigError: what other workers hold and keep is not known here.
        """
        files, begins = [], [batch.begins for batch in batches]
        for rank, tier in enumerate(self.of_workers(mesh)):
            mine = [torch.from_numpy((batch.by & np.uint64(1 << rank)) != 0) for batch in batches]
            files.append(tier.foresee([batch.ids[own] for batch, own in zip(batches, mine, strict=True)], begins))
        found = self.host.estimate(batches, mesh)
        return [replace(each, files=reads) for each, reads in zip(found, zip(*files, strict=True), strict=True)]

    def foresee(self, batches: Sequence[Int[Tensor, "_"]], begins: Sequence[bool]) -> list[FileReads]:
        """What will be read for consecutive batches, if no rows are kept before the first.

        Args:
            batches: store ids of the rows of each.
            begins: whether each begins an epoch.
        """
        rows = [self.host.numbers(self.host.ask(ids)).numpy() for ids in batches]
        hits = self._batches.foresee(rows, begins)
        wanted = [self._by_file(np.sort(each[~hit])) for each, hit in zip(rows, hits, strict=True)]
        costs = list[int]()
        for epoch in epochs(begins):
            for first in range(epoch.start, epoch.stop, self._together):  # as they are prepared
                costs += foreseen_costs(self._files, wanted[first : min(epoch.stop, first + self._together)])
        counts = [sum(map(len, each)) for each in wanted]
        return [FileReads(count, count * self._files[0].width, cost) for count, cost in zip(counts, costs, strict=True)]

    def read(self, work: HostWork) -> Shaped[Tensor, "n F"]:
        """See :class:`partita.core.protocols.FeatureTier`. Announced batches are read in the order of announcements."""
        rows = self.host.numbers(work).numpy()
        stored = self.host.home.x.dtype
        # NumPy asks for large pages, which are cleared in a third of the time; torch does not.
        data = np.empty((len(rows), self._files[0].width), np.uint8)
        columns = self._files[0].width // stored.itemsize
        out = torch.from_numpy(data).view(stored) if data.size else torch.empty(len(rows), columns, dtype=stored)
        plan = self._plans.pop(id(work), None)
        if plan is None:
            places = np.argsort(rows)
            self._read_files(self._by_file(rows[places]), places, data)
        else:
            self._read_planned(plan, rows, data)
        return out if self.host.home.scale is None else self.host.scaled(out, torch.from_numpy(rows))

    def _read_planned(self, plan: _Plan, rows: Int64[np.ndarray, "n"], out: UInt8[np.ndarray, "n bytes"]) -> None:
        found = plan.found
        copy_kept(self._kept, found.slots, out)
        if plan.packed is None:
            self._read_files(plan.by_file, plan.missing, out)
        else:
            begun = time.perf_counter()
            self._files[0].counts.add(0, *plan.packed.read(plan.number, plan.missing, out))
            self._seconds += time.perf_counter() - begun
        copy_into(self._kept, found.into, found.kept, out)
        self._lru.use(rows)
        self._asked += len(out)
        self._hits += len(out) - len(plan.missing)

    def _by_file(self, rows: Int64[np.ndarray, "k"]) -> list[Int64[np.ndarray, "_"]]:
        """Ascending rows, by the file that they are in."""
        cuts = np.searchsorted(rows, self._bounds).tolist()
        return [rows[low:high] - first for first, (low, high) in zip(self._bounds, pairwise(cuts), strict=False)]

    def _read_files(
        self, by_file: list[Int64[np.ndarray, "_"]], places: Int64[np.ndarray, "k"], out: UInt8[np.ndarray, "n bytes"]
    ) -> None:
        begun, at = time.perf_counter(), 0
        for file, rows in zip(self._files, by_file, strict=True):
            file.read(rows, out, places[at : at + len(rows)])
            at += len(rows)
        self._seconds += time.perf_counter() - begun
