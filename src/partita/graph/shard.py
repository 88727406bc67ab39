"""What a store says that holds only one host's share of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ShardTopology = Literal["partitioned", "replicated"]
"""Whether a shard holds the edges of its own nodes only, or all edges."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Which share of a graph a store holds: the rows of one host's nodes, of the columns that are cut.

    Node columns are whole in every shard; see ``docs/format.md``.

    Attributes:
        host: whose share, from 0.
        hosts: number of shards of the graph.
        first_node: first store id of the host.
        last_node: one more than the last store id of the host; equal to ``first_node`` for a host without nodes.
        fingerprint: of the whole store.
        cut: column -> ``"nodes"``, ``"type"`` or ``"edges"``: it holds the rows of the host's nodes, of those of them
            that have the column's type, or of the edges into them.
    """

    host: int
    hosts: int
    first_node: int
    last_node: int
    fingerprint: str
    cut: Mapping[str, str]

    def __post_init__(self) -> None:
        if not 0 <= self.host < self.hosts or not 0 <= self.first_node <= self.last_node:
            raise ValueError(f"there is no host {self.host} of {self.hosts} with nodes from {self.first_node}")
        if not all(by in ("nodes", "type", "edges") for by in self.cut.values()):
            raise ValueError("a column of a shard is cut in an unknown way")

    def __str__(self) -> str:
        return f"the shard of host {self.host} of {self.hosts}"

    @property
    def nodes(self) -> range:
        """Store ids of the host."""
        return range(self.first_node, self.last_node)

    @property
    def ends(self) -> tuple[int, int]:
        """First store id of the host, and one more than its last."""
        return self.first_node, self.last_node

    @property
    def topology(self) -> ShardTopology:
        """Whether the edges are cut."""
        return "partitioned" if "indices" in self.cut else "replicated"
