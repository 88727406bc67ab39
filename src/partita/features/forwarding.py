"""What tiers that wrap others pass on of batches ahead."""

from __future__ import annotations

from dataclasses import replace
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

    def with_below(self, work: Any, below: Any) -> Any:
        """The work of a batch with other work of the tier below."""
        return replace(work, below=below)

    @property
    def exchanges_to_prepare(self) -> bool:
        """As below."""
        return self.below.exchanges_to_prepare

    def announce(self, work: Any) -> None:
        """See :class:`partita.core.protocols.FeatureTier`: the rows from below, those for others included."""
        self.below.announce(self.work_below(work))

    def prepare(self, work: Any) -> Any:
        """See :class:`partita.core.protocols.FeatureTier`: the rows from below, those for others included."""
        below = self.work_below(work)
        prepared = self.below.prepare(below)
        return work if prepared is below else self.with_below(work, prepared)

    def restart(self) -> None:
        """See :class:`partita.core.protocols.FeatureTier`."""
        self.below.restart()

    def disk_reads(self) -> DiskReads:
        """See :class:`partita.core.protocols.FeatureTier`."""
        return self.below.disk_reads()
