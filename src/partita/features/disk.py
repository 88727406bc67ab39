"""The tier whose rows are read from files, and kept in bounded memory as long as they are used again soon."""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, UInt8, UInt64
from torch import Tensor

from partita.core.errors import ConfigError
from partita.core.estimates import ReadEstimate
from partita.core.mesh import Mesh
from partita.core.records import DiskReads
from partita.features.host import HostRows, HostWork
from partita.features.look_ahead import Kept, LookAhead
from partita.features.row_loops import copy_into, copy_kept


class DiskRows:
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
        look_ahead: batches that should be announced behind the one that is read.

    Raises:
        ConfigError: the rows are in no file, or the budget has no room for a row.
    """

    collective = False

    def __init__(self, host: HostRows, budget: int, window: int) -> None:
        self.host = host
        self.width, self.dtype = host.width, host.dtype
        self.look_ahead = window
        self._asked = self._hits = 0
        self._seconds = 0.0
        self._files = host.files()
        self._bounds = np.cumsum([0, *(file.num_rows for file in self._files)])
        num_rows, width = int(self._bounds[-1]), self._files[0].width
        lists = LookAhead.bytes_for(num_rows, 0, 0)
        slots = min(num_rows, max(0, budget - lists) // max(1, LookAhead.bytes_for(0, 1, 0) + width))
        if not slots and num_rows and width:
            raise ConfigError(
                f"{budget:,} bytes have no room for a row: to know where {num_rows:,} rows are takes {lists:,}, and a "
                f"row {width:,}",
                where="feature_memory",
                fix="Give more, or leave it out to map the rows into memory",
            )
        self._window = LookAhead(num_rows, slots, window + 1)
        self._kept = np.empty((slots, width), np.uint8)
        self._announced = deque[HostWork]()
        self._known = 0  # of these, the first ones that the window knows

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held, at most."""
        return self._kept.nbytes + self._window.num_bytes

    def ask(self, ids: Int[Tensor, "n"]) -> HostWork:
        """See :class:`partita.core.protocols.FeatureTier`."""
        return self.host.ask(ids)

    def announce(self, work: HostWork) -> None:
        """See :class:`partita.core.protocols.FeatureTier`."""
        self._announced.append(work)  # another thread may be reading

    def restart(self) -> None:
        """See :class:`partita.core.protocols.FeatureTier`."""
        self._announced.clear()
        self._known = 0
        self._window.forget_announced()

    def disk_reads(self) -> DiskReads:
        """See :class:`partita.core.protocols.FeatureTier`."""
        counts = [file.counts for file in self._files]
        return DiskReads(
            self._asked, self._hits, sum(each.rows for each in counts), sum(each.reads for each in counts),
            sum(each.bytes for each in counts), round(1e3 * self._seconds),
        )  # fmt: skip

    def estimate(self, ids: Int[Tensor, "n"], asked: UInt64[np.ndarray, "n"], mesh: Mesh) -> ReadEstimate:
        """See :class:`partita.core.protocols.FeatureTier`: all rows count as the host's."""
        return self.host.estimate(ids, asked, mesh)

    def read(self, work: HostWork) -> Float[Tensor, "n F"]:
        """See :class:`partita.core.protocols.FeatureTier`. Announced batches are read in the order of announcements."""
        rows = self.host.numbers(work).numpy()
        out = torch.empty(len(rows), self.width, dtype=self.host.home.x.dtype)
        data = out.view(torch.uint8).numpy() if out.numel() else np.empty((len(rows), 0), np.uint8)
        if self._announced and self._announced[0] is work:
            # Others that are announced already are none of its business: what is kept must not depend on threads.
            while self._known < min(len(self._announced), self.look_ahead + 1):
                self._window.announce(self.host.numbers(self._announced[self._known]).numpy())
                self._known += 1
            self._announced.popleft()
            self._known -= 1
            self._read_some(rows, self._window.take(), data)
        else:
            self._read_files(rows, np.arange(len(rows)), data)
        return out if self.host.home.scale is None else self.host.scaled(out, torch.from_numpy(rows))

    def _read_some(self, rows: Int64[np.ndarray, "n"], found: Kept, out: UInt8[np.ndarray, "n bytes"]) -> None:
        missing = np.flatnonzero(found.slots < 0)
        copy_kept(self._kept, found.slots, out)
        self._read_files(rows[missing], missing, out)
        copy_into(self._kept, found.into, found.kept, out)
        self._asked += len(rows)
        self._hits += len(rows) - len(missing)

    def _read_files(
        self, rows: Int64[np.ndarray, "k"], places: Int64[np.ndarray, "k"], out: UInt8[np.ndarray, "n bytes"]
    ) -> None:
        begun = time.perf_counter()
        order = np.argsort(rows)
        rows, places = rows[order], places[order]
        cuts = np.searchsorted(rows, self._bounds).tolist()
        for file, first, (low, high) in zip(self._files, self._bounds, pairwise(cuts), strict=False):
            file.read(rows[low:high] - first, out, places[low:high])
        self._seconds += time.perf_counter() - begun
