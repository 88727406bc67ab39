"""Tiers that keep copies of chosen rows in a worker's own memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64, Shaped, UInt64
from torch import Tensor

from partita import kernels
from partita.comm.axis import Axis
from partita.comm.routing import to_all
from partita.core import progress
from partita.core.estimates import AskedRows, ReadEstimate
from partita.core.mesh import Mesh
from partita.core.protocols import FeatureTier, TierWork
from partita.core.rank_masks import RankMasks
from partita.core.records import TIERS, tier_rows
from partita.features.forwarding import Forwarding
from partita.features.host import HostRows
from partita.features.peers import Peers, PeersWork
from partita.features.rank_bitmap import Positions
from partita.kernels import rank_masks

_CHUNK_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class CachedWork:
    """Rows from the cache and rows from below; see :class:`partita.core.protocols.TierWork`.

    Attributes:
        reads: store ids.
        hit: positions in ``reads`` of the rows that the cache has.
        slots: where it has them.
        miss: positions in ``reads`` of the others.
        below: those.
    """

    reads: Int[Tensor, "n"]
    hit: Int64[Tensor, "h"]
    slots: Int64[Tensor, "h"]
    miss: Int64[Tensor, "m"]
    below: TierWork

    @property
    def hits(self) -> tuple[int, ...]:
        """The cache's, and those of the tiers below."""
        below = dict(zip(TIERS, self.below.hits, strict=True))
        return tier_rows(**{**below, "cache": below["cache"] + len(self.hit)})

    @property
    def remote(self) -> int:
        """Rows from other workers."""
        return self.below.remote


class Cached(Forwarding):
    """Copies of chosen rows in this worker's private memory; on a GPU, in its device memory. Empty until filled.

    The copies are the bytes that the tiers below give. A worker finds a row with :class:`Positions`.

    Args:
        below: where the other rows come from.
        num_nodes: N.
        budget: bytes, for the rows and the list of positions.
        reserved: bytes of the budget that are taken otherwise.
        device: where the rows are kept and :meth:`read` puts its result.
        besides: rows that need no copy; ``None``: any row may.

    Attributes:
        width: columns of a row.
        dtype: of a row.
        collective: as below.
    """

    def __init__(
        self,
        below: FeatureTier,
        num_nodes: int,
        budget: int,
        *,
        reserved: int = 0,
        device: torch.device | str = "cpu",
        besides: HostRows | None = None,
    ) -> None:
        self.below = below
        self.width = below.width
        self.dtype = below.dtype
        self.collective = below.collective
        self.look_ahead = below.look_ahead
        self._num_nodes = num_nodes
        self._budget = budget - reserved
        self._besides = besides
        self._positions: Positions | None = None
        self._imagined: UInt64[np.ndarray, "N"] | None = None
        self._rows = torch.empty(0, self.width, dtype=self.dtype, device=device)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * self.dtype.itemsize

    @property
    def list_bytes(self) -> int:
        """Bytes of the list of positions."""
        return Positions.bytes_for(self._num_nodes)

    @property
    def capacity(self) -> int:
        """Rows that the budget has room for, at most N."""
        room = self._budget - self.list_bytes
        return 0 if self.row_bytes == 0 else min(self._num_nodes, max(0, room // self.row_bytes))

    @property
    def num_rows(self) -> int:
        """Rows held."""
        return self._rows.shape[0]

    @property
    def num_bytes(self) -> int:
        """Bytes held, the list of positions included."""
        listed = 0 if self._positions is None else self._positions.num_bytes
        return listed + self._rows.nbytes

    def allocate(self, count: int) -> Shaped[Tensor, "m F"]:
        """Room for some rows, at least one: memory of the device."""
        return self._rows.new_empty(count, self.width)

    def allowed(self) -> Bool[Tensor, "N"] | None:
        """Nodes that may be cached; ``None`` for any."""
        return None if self._besides is None else ~self._besides.holds(torch.arange(self._num_nodes))

    def fill(self, ids: Int[Tensor, "m"]) -> None:
        """Forget what is held and keep the rows of other nodes. All workers call this where a tier below is collective.

        Args:
            ids: distinct store ids, best first; those beyond the capacity are left out.
        """
        chosen = ids[: self.capacity].sort().values
        self._positions = None
        self._rows = self._rows.new_empty(0, self.width)
        rows = self.allocate(len(chosen)) if len(chosen) else self._rows
        step = max(1, _CHUNK_BYTES // max(1, self.row_bytes))
        # As many rounds on every worker: others may be asked for rows of a worker that chose fewer.
        starts = range(0, self.capacity, step) if self.collective else range(0, len(chosen), step)
        with progress.task("fill the feature cache", total=len(chosen), unit="rows") as task:
            for start in starts:
                part = chosen[start : start + step]
                rows[start : start + len(part)] = self.below.read(self.below.ask(part)).to(rows.device)
                task.advance(len(part))
        if len(chosen):
            self._rows, self._positions = rows, Positions(chosen, self._num_nodes)

    def ask(self, ids: Int[Tensor, "n"]) -> CachedWork:
        """See :class:`partita.core.protocols.FeatureTier`."""
        slots = torch.full(ids.shape, -1, device=ids.device) if self._positions is None else self._positions.find(ids)
        hit = (slots >= 0).nonzero().flatten()
        miss = (slots < 0).nonzero().flatten()
        below = self.below.ask(ids[miss])
        return CachedWork(ids, hit, slots[hit], miss, below)

    def assume_contents(self, kept: UInt64[np.ndarray, "N"]) -> None:
        """Say which workers' caches hold each row, for :meth:`estimate`."""
        self._imagined = kept

    def estimate(self, batches: Sequence[AskedRows], mesh: Mesh) -> list[ReadEstimate]:
        """See :class:`partita.core.protocols.FeatureTier`; nothing is held until :meth:`assume_contents`."""
        held = self._imagined
        hits = [
            batch.by & held[batch.ids.numpy()] if held is not None else np.zeros_like(batch.by) for batch in batches
        ]
        return estimate_below(self.below, batches, hits, mesh)

    def read(self, work: CachedWork) -> Shaped[Tensor, "n F"]:
        """See :class:`partita.core.protocols.FeatureTier`."""
        rows = self.below.read(work.below).to(self._rows.device)
        if not len(work.hit):
            return rows
        out = rows.new_empty(len(work.reads), self.width)
        kernels.move_rows(self._rows, work.slots.to(rows.device), out, work.hit.to(rows.device))
        kernels.move_rows(rows, None, out, work.miss.to(rows.device))
        return out


class PartitionedCache(Forwarding):
    """The workers of an axis keep different hot rows, each those of nodes that it owns (DSP).

    A request for a hot row goes to its holder; all other rows come from below. Cai et al., "DSP: efficient GNN training
    with multiple GPUs", PPoPP 2023, section 3.1.

    Args:
        below: where the other rows come from.
        num_nodes: N.
        budget: bytes of each worker, for its rows and for two lists of positions: of its own hot rows, and of all.
        axis: the workers, usually those of a host.
        per_host: workers of a host; ``None``: all of the axis are on one.
        device: as for :class:`Cached`.
        besides: as for :class:`Cached`.

    Attributes:
        width: columns of a row.
        dtype: of a row.
        collective: whether anything is exchanged here or below.
        row_bytes: bytes of a row.
        list_bytes: bytes of both lists of positions.
        capacity: rows that this worker's budget has room for, at most N.
    """

    def __init__(
        self,
        below: FeatureTier,
        num_nodes: int,
        budget: int,
        axis: Axis,
        *,
        per_host: int | None = None,
        device: torch.device | str = "cpu",
        besides: HostRows | None = None,
    ) -> None:
        reserved = Positions.bytes_for(num_nodes)
        self._axis = axis
        self._num_nodes = num_nodes
        self._hot: Positions | None = None
        self._imagined: UInt64[np.ndarray, "N"] | None = None
        self._own = Cached(below, num_nodes, budget, reserved=reserved, device=device, besides=besides)
        self.below = self._peers = Peers(axis, self._own, self._place, per_host)
        self.width = below.width
        self.dtype = below.dtype
        self.collective = self._peers.collective
        self.look_ahead = below.look_ahead
        self.row_bytes = self._own.row_bytes
        self.list_bytes = 2 * self._own.list_bytes
        self.capacity = self._own.capacity

    @property
    def num_rows(self) -> int:
        """Rows that this worker holds."""
        return self._own.num_rows

    @property
    def num_bytes(self) -> int:
        """Bytes that this worker holds, the lists of positions included."""
        return self._own.num_bytes + (0 if self._hot is None else self._hot.num_bytes)

    def allowed(self) -> Bool[Tensor, "N"]:
        """Nodes that this worker may cache: only those that it owns."""
        allowed, mine = self._own.allowed(), owned(self._axis, self._num_nodes)
        return mine if allowed is None else mine & allowed

    def fill(self, ids: Int[Tensor, "m"]) -> None:
        """Keep the rows of nodes that this worker owns, and learn what the others keep. All workers call this.

        Args:
            ids: distinct store ids, best first; those beyond the capacity are left out.
        """
        chosen = ids[: self.capacity]
        group = self._axis.sampling
        counts = group.exchange_counts(torch.full((group.size,), len(chosen))).tolist()
        everybodys = to_all(group, chosen.long(), counts, "metadata")
        self._hot = None
        self._own.fill(chosen)
        if len(everybodys):
            self._hot = Positions(everybodys, self._num_nodes)

    def ask(self, ids: Int[Tensor, "n"]) -> PeersWork:
        """See :class:`partita.core.protocols.FeatureTier`."""
        return self._peers.ask(ids)

    def assume_contents(self, kept: UInt64[np.ndarray, "N"]) -> None:
        """Say which workers' caches hold each row, for :meth:`estimate`: in a group only its owner's."""
        self._imagined = kept
        self._own.assume_contents(kept)

    def estimate(self, batches: Sequence[AskedRows], mesh: Mesh) -> list[ReadEstimate]:
        """See :class:`partita.core.protocols.FeatureTier`; nothing is held until :meth:`assume_contents`."""
        ranks, held = RankMasks.of(mesh, self._axis.sampling.workers), self._imagined
        hot = [
            np.zeros_like(batch.by) if held is None else ranks.whole_groups(held[batch.ids.numpy()])
            for batch in batches
        ]
        return self._peers.estimate(batches, mesh, hot)

    def read(self, work: PeersWork) -> Shaped[Tensor, "n F"]:
        """See :class:`partita.core.protocols.FeatureTier`."""
        return self._peers.read(work)

    def work_below(self, work: PeersWork) -> PeersWork:
        """The same: what is asked of this tier is asked of the workers of the axis."""
        return work

    def _place(self, ids: Int[Tensor, "n"]) -> Int64[Tensor, "n"]:
        here = torch.full(ids.shape, self._axis.rank, device=ids.device)
        return here if self._hot is None else torch.where(self._hot.contains(ids), self._axis.owner(ids), here)


def estimate_below(
    below: FeatureTier, batches: Sequence[AskedRows], hits: Sequence[UInt64[np.ndarray, "_"]], mesh: Mesh
) -> list[ReadEstimate]:
    """Where all workers will find the rows of some batches, where a cache of each of them has some.

    Args:
        below: where the others come from.
        batches, mesh: as of :meth:`partita.core.protocols.FeatureTier.estimate`.
        hits: of each batch, whose cache has each row, of those who ask for it.
    """
    missed = [replace(batch, by=batch.by & ~hit) for batch, hit in zip(batches, hits, strict=True)]
    estimates = list[ReadEstimate]()
    for batch, hit, found in zip(batches, hits, below.estimate(missed, mesh), strict=True):
        rows = found.hits.copy()
        rows[:, TIERS.index("cache")] += rank_masks.count(hit, mesh.size)
        estimates.append(replace(found, hits=rows, reads=batch.by))
    return estimates


def owned(axis: Axis, num_nodes: int) -> Bool[Tensor, "N"]:
    """Which nodes this worker owns on an axis."""
    if axis.size == 1:
        return torch.ones(num_nodes, dtype=torch.bool)
    return (axis.owner_of_part == axis.rank).repeat_interleave(axis.part_offsets.diff())
