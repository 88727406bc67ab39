"""What a piece of work is going to take of memory: said before it begins, and refused where it cannot be had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partita.core.errors import ResourceError
from partita.core.memory import Available, available_memory, held_bytes
from partita.core.options import format_bytes

THREAD_BYTES = 12 * 2**20
"""Of a thread: its stack, of which the system counts all 8 MiB, and what malloc keeps for it."""

RUNTIME_BYTES = 96 * 2**20
"""What libraries take once they are used: compiled kernels, buffers, modules that are imported on the way."""

DOUBT = 4.0
"""Work is refused only where what it is still to take, by estimate, is this many times what can be had.

Of that, peaks took 0.4 to 0.8 on whole graphs (docs/memory.md), and less in isolated training.
"""
ALLOWANCES = ("libraries", "threads", "views")
"""Parts of an estimate that say what may be taken at most; work may do with nothing of them."""


@dataclass(frozen=True)
class MemoryNeed:
    """An estimate of one process, and what it may use. As the system counts them, both include what is held already.

    Attributes:
        parts: bytes that are still to be taken, by what they are for.
        held: bytes that the process holds now.
        available: what it can still take.
    """

    parts: Mapping[str, int]
    held: int
    available: Available

    @classmethod
    def of(cls, parts: Mapping[str, int], *, threads: int, sharers: int = 1) -> MemoryNeed:
        """The estimate for this process, libraries and threads included.

        Args:
            parts: bytes by what they are for.
            threads: that are still to be started.
            sharers: processes that take as much from the same machine.
        """
        libraries = {"libraries": RUNTIME_BYTES, "threads": THREAD_BYTES * threads}
        return cls({**parts, **libraries}, held_bytes(), available_memory(sharers))

    @property
    def bytes(self) -> int:
        """Of the process at its peak."""
        return self.held + sum(self.parts.values())

    @property
    def allowed(self) -> int:
        """Bytes that the process may use."""
        return self.held + self.available.bytes

    @property
    def text(self) -> str:
        """One line for who has started the work."""
        have = f"{format_bytes(self.allowed)} may be used ({self.available.limit})"
        doubtful = "" if self.bytes <= self.allowed else ", which may not suffice"
        return f"memory: at most {format_bytes(self.bytes)} by estimate, {have}{doubtful}"

    def require(self, what: str, fix: str) -> MemoryNeed:
        """See that there may be enough: the estimate is an upper bound.

        Args:
            what: takes so much, for the message.
            fix: what to change.

        Raises:
            ResourceError: there cannot be; with the need, its largest parts, and what may be used.
        """
        certain = sum(size for name, size in self.parts.items() if name not in ALLOWANCES) / DOUBT
        if self.held + certain <= self.allowed:
            return self
        largest = sorted(self.parts.items(), key=lambda part: -part[1])[:3]
        named = ", ".join(f"{format_bytes(size)} for {name}" for name, size in largest)
        raise ResourceError(
            f"{what} needs up to {format_bytes(self.bytes)} ({named}), {format_bytes(self.allowed)} may be used "
            f"({self.available.limit})",
            where="memory",
            fix=fix,
        )

    def to_json(self) -> dict[str, Any]:
        """As ``run.json`` holds it."""
        return {
            "bytes": self.bytes, "held": self.held, "parts": dict(self.parts), "may_use": self.allowed,
            "limit": self.available.limit,
        }  # fmt: skip
