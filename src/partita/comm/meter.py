"""Counts the bytes that leave this worker for others, by what they are and where they go; and the time it takes."""

from __future__ import annotations

import threading

KINDS = ("ids", "features", "forward", "backward", "gradients", "metadata")
"""What is sent: node ids and edges; input rows; hidden rows; their gradients; gradients of parameters; the rest."""

LINKS = ("same_host", "other_host")
"""Where it is sent."""

Snapshot = dict[str, dict[str, int]]
"""Bytes by kind and link."""


class Meter:
    """Bytes by kind and link: payload that leaves this worker for another one, one direction.

    What a worker sends to itself is not counted, nor are the headers of the protocols below. May be used from
    several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes: Snapshot = {kind: dict.fromkeys(LINKS, 0) for kind in KINDS}
        self._seconds = dict.fromkeys(KINDS, 0.0)

    def add_seconds(self, kind: str, seconds: float) -> None:
        """Count the time that a thread was in an exchange, or waited for it; with that until others came to it."""
        with self._lock:
            self._seconds[kind] += seconds

    def seconds(self) -> dict[str, float]:
        """Time spent since the beginning, by kind, of all threads together."""
        with self._lock:
            return dict(self._seconds)

    def add(self, kind: str, link: str, num_bytes: int) -> None:
        """Count ``num_bytes`` that were sent.

        Args:
            kind: one of :data:`KINDS`.
            link: one of :data:`LINKS`.
            num_bytes: at least 0.

        Raises:
            ValueError: an unknown kind or link.
        """
        if kind not in KINDS or link not in LINKS:
            raise ValueError(f"'{kind}' over '{link}': kinds are {', '.join(KINDS)}; links are {', '.join(LINKS)}")
        with self._lock:
            self._bytes[kind][link] += num_bytes

    def snapshot(self) -> Snapshot:
        """A copy of all counts: bytes by kind and link, with every kind and link present."""
        with self._lock:
            return {kind: dict(links) for kind, links in self._bytes.items()}

    def difference(self, since: Snapshot) -> Snapshot:
        """What has been counted since an earlier :meth:`snapshot`."""
        return {
            kind: {link: count - since[kind][link] for link, count in links.items()}
            for kind, links in self.snapshot().items()
        }
