"""The input placement: who reads the input rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from partita import kernels
from partita.core.estimates import AskedRows, InputEstimate
from partita.core.keys import Purpose, StepKey
from partita.core.mesh import Mesh
from partita.core.protocols import CacheTier, FeatureTier, TierWork
from partita.core.records import ID_BYTES, DiskReads, Traffic, read_here, tier_rows
from partita.features.forwarding import Forwarding
from partita.features.host import HostRows
from partita.features.of_workers import OfWorkers
from partita.features.rows import FeatureColumn
from partita.kernels import count_distinct


@dataclass(frozen=True, slots=True)
class Reads:
    """Which rows a worker reads; see :class:`partita.core.protocols.InputWork` for the attributes."""

    reads: Int[Tensor, "n"]
    hits: tuple[int, ...]
    traffic: Traffic

    @property
    def num_read(self) -> int:
        """Distinct rows that are read here, from the cache or the host, for this worker or for others."""
        return read_here(self.hits)

    @property
    def num_accesses(self) -> int:
        """Accesses of this worker to input rows."""
        return self.reads.shape[0]


class Direct:
    """Every worker reads what it asks for, from a column that it can address; the layer reads as far as it needs.

    Args:
        column: the rows.
        num_nodes: of the store.
    """

    collective = False
    prefetchable = False
    look_ahead = 0
    exchanges_to_prepare = False
    caches: tuple[CacheTier | None, ...] = (None,)

    def __init__(self, column: FeatureColumn, num_nodes: int) -> None:
        self.column = column
        self.num_nodes = num_nodes
        self.dropout = column.dropout

    def sums_by_id(self, training: bool) -> bool:
        """As the column says."""
        return self.column.sums_by_id(training)

    def expand(self, requests: Int[Tensor, "S"], key: StepKey) -> Reads:
        """Count; nothing is to be prepared."""
        return Reads(requests, tier_rows(host=count_distinct(requests, self.num_nodes)), Traffic())

    def announce(self, work: Reads) -> None:
        """Nothing: the layer reads the rows."""

    def prepare(self, work: Reads) -> Reads:
        """Nothing."""
        return work

    def restart(self) -> None:
        """Nothing."""

    def disk_reads(self) -> DiskReads:
        """None."""
        return DiskReads()

    def forward(self, work: Reads) -> FeatureColumn:
        """The column: the layer reads as far as it needs."""
        return self.column

    def estimate(self, batches: Sequence[AskedRows], mesh: Mesh) -> list[InputEstimate]:
        """All rows come from the memory of the host, and nothing is asked of others."""
        host = HostRows(self.column)
        row_bytes, nothing = host.width * host.dtype.itemsize, [Traffic()] * mesh.size
        found = host.estimate(batches, mesh)
        return [InputEstimate(each.hits, row_bytes * each.hits, each.reads, nothing) for each in found]


@dataclass(frozen=True, slots=True)
class TieredReads(Reads):
    """Rows that come through tiers: distinct, as no row is read twice.

    Attributes:
        tier: what the highest tier remembers.
        original: original indices of the requests where rows are dropped out, else ``None``.
        key: names the step.
    """

    tier: TierWork
    original: Int[Tensor, "S"] | None
    key: StepKey

    @property
    def num_accesses(self) -> int:
        """As many as rows: what others read here is read once."""
        return self.num_read


class Tiered(Forwarding, OfWorkers):
    """Rows are de-duplicated and read through a chain of tiers, whole or some of their columns.

    Args:
        tier: the highest.
        column: says what is computed in, how wide a whole row is, and what is dropped out.
        columns: those that the tiers give, of a whole row.
        original: gives original indices of ids, the key of input dropout.
        cache: one of the tiers; ``None`` where none is one.
        widens: rows are handed out in the dtype that is computed in; otherwise as the tiers give them, but for small
            integers and those of which something is dropped out.

    Attributes:
        cache: as given.
        caches: of each node type: the only one.
        tier: as given.
        collective: whether the tiers exchange anything.
    """

    dropout = 0.0  # applied here, not by the layer
    prefetchable = True

    def __init__(
        self,
        tier: FeatureTier,
        column: FeatureColumn,
        columns: slice,
        original: Callable[[Int[Tensor, "n"]], Int[Tensor, "n"]],
        cache: CacheTier | None = None,
        *,
        widens: bool = True,
    ) -> None:
        self.tier = self.below = tier
        self.cache = cache
        self.caches = (cache,)
        self.collective = tier.collective
        self.look_ahead = tier.look_ahead
        self._column = column
        self._dtype = column.dtype
        self._widens = widens
        self._dropout = column.dropout
        self._width = column.width
        self._columns = columns
        self._original = original

    def sums_by_id(self, training: bool) -> bool:
        """No: a row that comes from far comes once."""
        return False

    def expand(self, requests: Int[Tensor, "S"], key: StepKey) -> TieredReads:
        """Ask the tiers for the rows; all ask theirs where they are :attr:`collective`."""
        original = self._original(requests) if self._dropout > 0 else None
        return self._reads(self.tier.ask(requests), original, key)

    def _reads(self, work: TierWork, original: Int[Tensor, "S"] | None, key: StepKey) -> TieredReads:
        return TieredReads(work.reads, work.hits, self.traffic(work.remote), work, original, key)

    def with_below(self, work: TieredReads, below: TierWork) -> TieredReads:
        """The same rows, which come from elsewhere."""
        return self._reads(below, work.original, work.key)

    def work_below(self, work: TieredReads) -> TierWork:
        """What the highest tier remembers."""
        return work.tier

    def forward(self, work: TieredReads) -> Float[Tensor, "S F"]:
        """Read the rows."""
        rows = self._column.values(self.tier.read(work.tier), self._columns)
        if work.original is None:
            return rows.to(self._dtype) if self._widens else rows
        rows = rows.to(self._dtype)
        key = work.key.at(Purpose.INPUT_DROPOUT, 0)
        if rows.shape[1] == self._width:
            return kernels.dropout(rows, work.original, key, self._dropout)
        # Masks are keyed by the column in the whole row.
        whole = torch.ones(rows.shape[0], self._width, dtype=self._dtype, device=rows.device)
        return rows * kernels.dropout(whole, work.original, key, self._dropout, out=whole)[:, self._columns]

    def estimate(self, batches: Sequence[AskedRows], mesh: Mesh) -> list[InputEstimate]:
        """As the tiers say."""
        # Workers that read slices of columns may have slices of other widths.
        workers = self.of_workers(mesh) if self.knows_workers else (self,) * mesh.size
        row_bytes = np.array([each.row_bytes for each in workers], np.int64)
        estimates = list[InputEstimate]()
        for found in self.tier.estimate(batches, mesh):
            traffic = [each.traffic(count) for each, count in zip(workers, found.remote.tolist(), strict=True)]
            estimates.append(
                InputEstimate(found.hits, row_bytes[:, None] * found.hits, found.reads, traffic, found.files)
            )
        return estimates

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as the tiers give it."""
        return self.tier.width * self.tier.dtype.itemsize

    def traffic(self, remote_destinations: int) -> Traffic:
        """An id and a row for every row that comes from another worker."""
        return Traffic(ids=ID_BYTES * remote_destinations, features=self.row_bytes * remote_destinations)


def columns_of(width: int, rank: int, size: int) -> slice:
    """The feature columns of a worker: equal shares, the first ``width mod size`` workers have one more."""
    share, rest = divmod(width, size)
    start = rank * share + min(rank, rest)
    return slice(start, start + share + (rank < rest))
