"""What a partition costs: edges cut, nodes replicated, and how evenly the load is spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt16

from partita.core.errors import ConfigError, InputError
from partita.core.partitioning import EdgeStream, checked_parts
from partita.graph.store import GraphStore
from partita.kernels.compile import compiled
from partita.partitioning.edge_streams import UNWEIGHTED, StoreStream
from partita.partitioning.loads import class_loads, part_loads


@dataclass(frozen=True, slots=True)
class Spread:
    """How much of something every part has.

    Attributes:
        counts: of every part.
    """

    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Over all parts."""
        return sum(self.counts)

    @property
    def balance(self) -> float:
        """The largest count over the mean; 1 is even, and so is nothing at all."""
        return max(self.counts) * len(self.counts) / self.total if self.total else 1.0

    def to_json(self) -> dict[str, Any]:
        """Counts, their total, and the balance."""
        return {"counts": list(self.counts), "total": self.total, "balance": self.balance}


@dataclass(frozen=True, slots=True)
class Quality:
    """How good a partition is. Self loops are never cut and link nothing; they count as edges of their row only.

    Attributes:
        num_nodes: N.
        num_edges: E, as stored.
        num_parts: P.
        empty_parts: parts that own no node.
        cut_edges: edges whose ends belong to different parts.
        edge_cut: ``cut_edges`` over all edges that are no self loops.
        cross_edge_share: the same, with every edge counted as often as presampling drew it: the expected share of
            cut edges in a mini-batch. ``None`` without edge weights.
        replication_factor: the sum over parts of the nodes it owns or that have an edge into one of these, over N.
        replication_factor_connected: the same over nodes with at least one edge, all others left out.
        nodes: owned by each part.
        halo: nodes of other parts with an edge into the part.
        in_edges: edges into nodes of the part, self loops included.
        train_nodes: training nodes of each part; ``None`` if not given.
        load: node weights of each part; ``None`` if not given.
        sampled_edges: weights of the edges into nodes of the part, self loops included; ``None`` without edge weights.
        types: nodes of each node type in each part, by name of the type; empty for an untyped graph.
    """

    num_nodes: int
    num_edges: int
    num_parts: int
    empty_parts: int
    cut_edges: int
    edge_cut: float
    cross_edge_share: float | None
    replication_factor: float
    replication_factor_connected: float
    nodes: Spread
    halo: Spread
    in_edges: Spread
    train_nodes: Spread | None = None
    load: Spread | None = None
    sampled_edges: Spread | None = None
    types: Mapping[str, Spread] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All fields as values that JSON can hold."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        shown = {name: value.to_json() if isinstance(value, Spread) else value for name, value in values.items()}
        return {**shown, "types": {name: spread.to_json() for name, spread in self.types.items()}}

    def _spreads(self) -> dict[str, Spread]:
        """What is known of every part, by name."""
        named = {each.name.replace("_", " "): getattr(self, each.name) for each in fields(self)}
        of_types = {f"{name} nodes": spread for name, spread in self.types.items()}
        return {name: spread for name, spread in {**named, **of_types}.items() if isinstance(spread, Spread)}

    def rows(self) -> list[tuple[str, str]]:
        """Names and values for a table on a terminal; what is not known is left out."""
        shown = [
            ("parts", f"{self.num_parts:,}" + (f", {self.empty_parts:,} of them empty" if self.empty_parts else "")),
            ("edge cut", f"{self.edge_cut:.2%} ({self.cut_edges:,} edges)"),
        ]
        if self.cross_edge_share is not None:
            shown.append(("cut in mini-batches", f"{self.cross_edge_share:.2%} of the sampled edges"))
        connected = f"{self.replication_factor_connected:.3f} without isolated nodes"
        shown.append(("replication factor", f"{self.replication_factor:.3f} ({connected})"))
        for name, spread in self._spreads().items():
            mean = spread.total / self.num_parts
            shown.append((name, f"balance {spread.balance:.3f} (most {max(spread.counts):,}, mean {mean:,.0f})"))
        return shown

    def columns(self) -> dict[str, tuple[int, ...]]:
        """What is counted of every part, by name, for a table with one row a part."""
        return {name: spread.counts for name, spread in self._spreads().items()}


def quality(
    stream: EdgeStream | GraphStore,
    parts: Integer[np.ndarray, "N"],
    num_parts: int,
    *,
    train: Integer[np.ndarray, "T"] | None = None,
    node_weight: Integer[np.ndarray, "W"] | None = None,
    edge_weight: Integer[np.ndarray, "E"] | None = None,
    types: tuple[Sequence[str], Integer[np.ndarray, "N"]] | None = None,
) -> Quality:
    """Measure a partition in one pass over the edges. Memory: ``ceil(num_parts / 8)`` bytes a node.

    Args:
        stream: edges grouped by destination, or a store.
        parts: the part of every node.
        num_parts: P >= 1.
        train: training nodes.
        node_weight: load of every node, for instance ``presample_node``.
        edge_weight: how often every edge is drawn, in row order, for instance ``presample_edge``; ``None``: the
            weights of the stream, where it has any.
        types: names of the node types, and the number of every node's type; ``None``: the graph is untyped.

    Raises:
        ConfigError: ``num_parts`` is below 1.
        InputError: an array of another length than the graph asks for; a part or a node that does not exist; edges
            that are not grouped.
    """
    if num_parts < 1:
        raise ConfigError(f"{num_parts} parts", where="parts", fix="Give at least 1")
    if isinstance(stream, GraphStore):
        stream = StoreStream(stream)
    num_nodes = stream.num_nodes
    parts = checked_parts(parts, num_nodes, num_parts, "parts")
    _check_length("edge_weight", edge_weight, stream.num_edges)
    _check_length("node_weight", node_weight, num_nodes)
    weighted = edge_weight is not None or stream.weighted
    members = np.zeros((num_nodes, (num_parts + 7) // 8), dtype=np.uint8)
    in_edges, sampled = np.zeros(num_parts, dtype=np.int64), np.zeros(num_parts, dtype=np.int64)
    state = np.zeros(4, dtype=np.int64)  # edges: proper, cut; weight of edges: proper, cut
    done = 0
    for rows in stream.rows("measure the partition"):
        weight = rows.weight if edge_weight is None else edge_weight[done : done + len(rows.src)]
        wrong = _scan(rows.first, rows.indptr, rows.src, weight, parts, members, in_edges, sampled, state)
        if wrong >= 0:
            raise InputError(
                f"an edge names the node {int(rows.src[wrong])}, and there are {num_nodes:,} nodes, numbered from 0",
                where=f"edge {done + int(wrong):,}, counted from 0",
                fix="Look for damage with: partita verify STORE",
            )
        done += len(rows.src)
    halo = np.zeros(num_parts, dtype=np.int64)
    connected = int(_count_members(members, parts, halo))
    replicas = int(halo.sum())
    nodes, load = part_loads(parts, num_parts, UNWEIGHTED), None
    if node_weight is not None:
        load = _spread(part_loads(parts, num_parts, node_weight.astype(np.int64, copy=False)))
    proper, cut, proper_weight, cut_weight = (int(value) for value in state)
    return Quality(
        num_nodes=num_nodes,
        num_edges=done,
        num_parts=num_parts,
        empty_parts=int(np.count_nonzero(nodes == 0)),
        cut_edges=cut,
        edge_cut=cut / max(1, proper),
        cross_edge_share=cut_weight / max(1, proper_weight) if weighted else None,
        replication_factor=(num_nodes + replicas) / num_nodes if num_nodes else 1.0,
        replication_factor_connected=(connected + replicas) / connected if connected else 1.0,
        nodes=_spread(nodes),
        halo=_spread(halo),
        in_edges=_spread(in_edges),
        train_nodes=None if train is None else _spread(np.bincount(parts[train], minlength=num_parts)),
        load=load,
        sampled_edges=_spread(sampled) if weighted else None,
        types=_type_spreads(parts, num_parts, types),
    )


def store_quality(
    store: GraphStore, parts: Integer[np.ndarray, "N"] | None = None, num_parts: int | None = None
) -> Quality:
    """Measure a partition of a store, with its training nodes and presampled counts where it has them.

    Args:
        store: the graph.
        parts: the part of every node; ``None``: the store's own parts.
        num_parts: P; ``None``: those of the store, or one more than the largest of ``parts``.

    Raises:
        ConfigError, InputError: see :func:`quality`.
    """
    if parts is None:
        parts, num_parts = own_parts(store), store.num_parts
    elif num_parts is None:
        num_parts = int(parts.max()) + 1 if len(parts) else 1
    return quality(
        StoreStream(store),
        parts,
        num_parts,
        train=store.splits.get("train"),
        node_weight=store.presample_node,
        edge_weight=store.presample_edge,
        types=types_of(store),
    )


def types_of(store: GraphStore) -> tuple[Sequence[str], UInt16[np.ndarray, "N"]] | None:
    """The names of the node types of a store and the number of every node's type; ``None``: the graph is untyped."""
    if store.schema is None:
        return None
    names, sizes = store.schema.node_types, np.diff(store.type_offsets)
    return names, np.repeat((np.arange(len(sizes)) % len(names)).astype(np.uint16), sizes)


def _type_spreads(
    parts: Integer[np.ndarray, "N"], num_parts: int, types: tuple[Sequence[str], Integer[np.ndarray, "N"]] | None
) -> dict[str, Spread]:
    if types is None:
        return {}
    names, kinds = types
    counts = np.zeros((len(names), num_parts), dtype=np.int64)
    counts[: int(kinds.max(initial=0)) + 1] = class_loads(parts, num_parts, UNWEIGHTED, kinds.astype(np.uint16))
    return {name: _spread(row) for name, row in zip(names, counts, strict=True)}


MOST_PARTS_BETWEEN = 64
"""Parts of a store up to which edges between them are counted pair by pair."""


def edges_between(store: GraphStore) -> Int64[np.ndarray, "P P"] | None:
    """Edges by the part of their destination (row) and of their source (column), self loops included.

    One pass over the edges, in pieces; ``None`` where there is one part, or more than :data:`MOST_PARTS_BETWEEN`.
    """
    number = store.num_parts
    if not 1 < number <= MOST_PARTS_BETWEEN:
        return None
    offsets = np.asarray(store.part_offsets)
    found = np.zeros((number, number), dtype=np.int64)
    for rows in StoreStream(store).rows("count edges between parts"):
        ends = rows.indptr - rows.indptr[0]
        node = np.arange(rows.first, rows.first + len(ends) - 1)
        target = np.repeat(np.searchsorted(offsets, node, side="right") - 1, np.diff(ends))
        source = np.searchsorted(offsets, rows.src, side="right") - 1
        found += np.bincount(target * number + source, minlength=number * number).reshape(number, number)
    return found


def own_parts(store: GraphStore) -> Int32[np.ndarray, "N"]:
    """The part of every node in a store in partition order."""
    return np.repeat(np.arange(store.num_parts, dtype=np.int32), np.diff(store.part_offsets))


def _check_length(name: str, array: Integer[np.ndarray, "n"] | None, length: int | None) -> None:
    if array is not None and length is not None and len(array) != length:
        raise InputError(f"{len(array):,} weights for {length:,}", where=name, fix="Give one weight for each")


def _spread(counts: Integer[np.ndarray, "P"]) -> Spread:
    return Spread(tuple(counts.tolist()))


@compiled
def _scan(first, indptr, src, weight, parts, members, in_edges, sampled, state):
    """Count the edges of some rows, and note at both ends of a proper edge that they belong to the row's part.

    Returns:
        The first edge whose source does not exist, -1 where there is none.
    """
    num_nodes = len(parts)
    for i in range(len(indptr) - 1):
        node = first + i
        part = parts[node]
        byte, bit = part >> 3, np.uint8(1 << (part & 7))
        begin, end = indptr[i] - indptr[0], indptr[i + 1] - indptr[0]
        in_edges[part] += end - begin
        proper, cut = 0, 0
        for e in range(begin, end):
            source = src[e]
            if source < 0 or source >= num_nodes:
                return e
            if source != node:
                proper += 1
                cut += parts[source] != part
                members[source, byte] |= bit
        if proper > 0:
            members[node, byte] |= bit
        state[0] += proper
        state[1] += cut
        if len(weight) > 0:
            for e in range(begin, end):
                sampled[part] += weight[e]
                if src[e] != node:
                    state[2] += weight[e]
                    if parts[src[e]] != part:
                        state[3] += weight[e]
    return -1


@compiled
def _count_members(members, parts, halo):
    """Count for every part the nodes of others that it needs; returns the number of nodes with an edge."""
    connected = 0
    for node in range(members.shape[0]):
        linked = False
        for byte in range(members.shape[1]):
            bits = members[node, byte]
            part = 8 * byte
            while bits:
                linked = True
                if bits & 1 and part != parts[node]:
                    halo[part] += 1
                bits >>= 1
                part += 1
        connected += linked
    return connected
