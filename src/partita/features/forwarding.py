"""What tiers that wrap others pass on of batches ahead."""

from __future__ import annotations

from typing import Any

from partita.core.protocols import FeatureTier
from partita.core.records import DiskReads


class Forwarding:
    """Base of whoever gets rows from a tier below: that one is told of batches ahead, and says what it has read.

    Attributes:
        below: the tier.
    """

    below: FeatureTier

    def work_below(self, work: Any) -> Any:
        """Of the work of a batch, that of the tier below."""
        return work.below

    def announce(self, work: Any) -> None:
        """See :class:`partita.core.protocols.FeatureTier`: the rows from below, those for others included."""
        self.below.announce(self.work_below(work))

    def prepare(self, work: Any) -> None:
        """See :class:`partita.core.protocols.FeatureTier`: the rows from below, those for others included."""
        self.below.prepare(self.work_below(work))

    def restart(self) -> None:
        """See :class:`partita.core.protocols.FeatureTier`."""
        self.below.restart()

    def disk_reads(self) -> DiskReads:
        """See :class:`partita.core.protocols.FeatureTier`."""
        return self.below.disk_reads()
