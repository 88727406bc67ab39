"""What workers that are threads have sent."""

from __future__ import annotations

from partita.comm.meter import Meter
from partita.comm.threads import ThreadGroups


def bytes_sent(groups: ThreadGroups) -> dict[str, int]:
    """Bytes by kind that all workers have sent to one another."""
    snapshots = [context.meter.snapshot() for context in groups.contexts]
    return {kind: sum(sum(found[kind].values()) for found in snapshots) for kind in snapshots[0]}


def bytes_far(groups: ThreadGroups) -> dict[str, int]:
    """Likewise, what went from one host to another."""
    snapshots = [context.meter.snapshot() for context in groups.contexts]
    return {kind: sum(found[kind]["other_host"] for found in snapshots) for kind in snapshots[0]}


def reset(meter: Meter) -> None:
    """Begin again at zero."""
    vars(meter).update(vars(Meter()))
