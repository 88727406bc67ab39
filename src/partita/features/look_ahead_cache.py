"""The tier that keeps rows of other hosts as long as batches that are known ahead use them again soon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64, Shaped
from torch import Tensor

from partita import kernels
from partita.core.errors import ConfigError
from partita.core.estimates import AskedRows, ReadEstimate
from partita.core.mesh import Mesh
from partita.core.records import DiskReads, tier_rows
from partita.features.announced import AnnouncedBatches
from partita.features.cache import CachedWork, estimate_below
from partita.features.forwarding import Forwarding
from partita.features.host import HostRows
from partita.features.look_ahead import MOST_ROWS, Kept, LookAhead
from partita.features.lru import LeastRecentlyUsed
from partita.features.of_workers import OfWorkers
from partita.features.peers import Peers, PeersWork


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows of a batch of which it is not decided yet where they come from.

    Attributes:
        reads: store ids.
        far: positions in ``reads`` of the rows that this host lacks.
    """

    reads: Int[Tensor, "n"]
    far: Int64[Tensor, "m"]

    @property
    def hits(self) -> tuple[int, ...]:
        """None, until it is decided."""
        return tier_rows()

    @property
    def remote(self) -> int:
        """None, until it is decided."""
        return 0


@dataclass(frozen=True, slots=True)
class WindowWork(CachedWork):
    """Rows that are kept, and rows from below.

    Attributes:
        far: positions in ``reads`` of the rows that this host lacks.
        keep: positions in ``reads`` of rows that are kept from now on.
        into: where.
    """

    far: Int64[Tensor, "a"]
    keep: Int64[Tensor, "k"]
    into: Int64[Tensor, "k"]


class LookAheadCache(Forwarding, OfWorkers):
    """Copies of rows of other hosts, which come and go: see :class:`~partita.features.look_ahead.LookAhead`.

    Batches are announced ahead. Which rows are asked of other hosts is decided when a batch is prepared, in the order
    of the batches: those that are not kept from an earlier one. A row that several batches of a window use travels
    once, as far as there is room. All rows of a batch that nobody has announced are asked for, and none is kept.

    Args:
        peers: gives rows of other hosts; it asks while rows are loaded.
        host: rows that need no copy.
        budget: bytes of memory for rows that are kept, and for finding them.
        window: batches that are announced at once, at most.

    Attributes:
        width: columns of a row.
        dtype: of a row.
        collective: yes.
        look_ahead: batches that should be announced behind the one that is prepared.
        exchanges_to_prepare: yes.
        row_bytes: that a row takes, with what finds it.
        list_bytes: that are taken whatever is kept.

    Raises:
        ConfigError: there are too many rows.
    """

    exchanges_to_prepare = True

    def __init__(self, peers: Peers, host: HostRows, budget: int, window: int) -> None:
        self.below = self._peers = peers
        self.width, self.dtype, self.collective = peers.width, peers.dtype, peers.collective
        self.look_ahead = window
        self._host, num_rows, row_bytes = host, host.num_nodes, peers.width * peers.dtype.itemsize
        if num_rows > MOST_ROWS:
            raise ConfigError(
                f"{num_rows:,} rows are more than the {MOST_ROWS:,} that can be looked ahead for",
                where="cache_policy",
                fix="Choose another cache_policy, for instance in-degree",
            )
        self.list_bytes = LookAhead.bytes_for(num_rows, 0, 0)
        self.row_bytes = LookAhead.bytes_for(0, 1, 0) + row_bytes if row_bytes else 0
        slots = min(num_rows, max(0, budget - self.list_bytes) // self.row_bytes) if self.row_bytes else 0
        self._batches = AnnouncedBatches[Wanted](
            num_rows, slots, window, 1, lambda work: work.reads[work.far].long().numpy()
        )
        self._rows = torch.empty(slots, self.width, dtype=self.dtype)
        self._unread = 0  # of those that are prepared
        self._asked = self._hits = 0
        self._lru = LeastRecentlyUsed(slots)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held."""
        return self._rows.nbytes + self._batches.num_bytes

    def ask(self, ids: Int[Tensor, "n"]) -> Wanted:
        """See :class:`partita.core.protocols.FeatureTier`: nothing is asked of others yet."""
        return Wanted(ids, self._far(ids).nonzero().flatten())

    def _far(self, ids: Int[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Which rows this host lacks."""
        return ~self._host.holds(ids)

    def announce(self, work: Wanted) -> None:
        """See :class:`partita.core.protocols.FeatureTier`."""
        self._batches.announce(work)

    def prepare(self, work: Wanted) -> Wanted | WindowWork:
        """Decide which rows are asked for, and ask; see :class:`partita.core.protocols.FeatureTier`."""
        if not self._batches.is_next(work):
            return work
        ((_, found),) = self._batches.decide()
        self._unread += 1
        return self._decided(work, found)

    def _decided(self, work: Wanted, found: Kept) -> WindowWork:
        slots = torch.from_numpy(found.slots).long()
        there = slots >= 0
        hit = work.far[there]
        missing = torch.ones(len(work.reads), dtype=torch.bool)
        missing[hit] = False
        miss = missing.nonzero().flatten()
        return WindowWork(
            work.reads, hit, slots[there], miss, self.below.ask(work.reads[miss]), work.far,
            work.far[torch.from_numpy(found.kept).long()], torch.from_numpy(found.into).long(),
        )  # fmt: skip

    def restart(self) -> None:
        """See :class:`partita.core.protocols.FeatureTier`."""
        self._batches.restart(lost=self._unread > 0)  # what they wanted to keep never came
        self._unread = 0
        self.below.restart()

    def read(self, work: Wanted | WindowWork) -> Shaped[Tensor, "n F"]:
        """See :class:`partita.core.protocols.FeatureTier`. Prepared batches are read in the order of preparation."""
        if isinstance(work, Wanted):
            return self.below.read(self.below.ask(work.reads))
        assert isinstance(work.below, PeersWork)
        if len(work.hit):
            out = torch.empty(len(work.reads), self.width, dtype=self.dtype)
            self._peers.read_into(work.below, out, work.miss)
            kernels.move_rows(self._rows, work.slots, out, work.hit)
        else:
            out = self._peers.read(work.below)
        # A row that was kept until now may give way: it was copied before.
        kernels.move_rows(out, work.keep, self._rows, work.into)
        self._unread -= 1
        self._asked += len(work.far)
        self._hits += len(work.hit)
        self._lru.use(work.reads[work.far].long().numpy())
        return out

    def disk_reads(self) -> DiskReads:
        """See :class:`partita.core.protocols.FeatureTier`: nothing from files, but what was kept."""
        return DiskReads(self._asked, self._hits, self._lru.hits)

    def estimate(self, batches: Sequence[AskedRows], mesh: Mesh) -> list[ReadEstimate]:
        """See :class:`partita.core.protocols.FeatureTier`.

        Raises:
            ConfigError: what other workers hold and keep is not known here.
        """
        kept = [np.zeros_like(batch.by) for batch in batches]
        for rank, tier in enumerate(self.of_workers(mesh)):
            bit = np.uint64(1 << rank)
            places = [np.flatnonzero((batch.by & bit != 0) & tier._far(batch.ids).numpy()) for batch in batches]
            hits = tier._batches.foresee(
                [batch.ids[at].long().numpy() for batch, at in zip(batches, places, strict=True)],
                [batch.begins for batch in batches],
            )
            for of_batch, at, hit in zip(kept, places, hits, strict=True):
                of_batch[at[hit]] |= bit
        return estimate_below(self.below, batches, kept, mesh)
