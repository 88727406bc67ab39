"""Links in time: which edges are asked about, and when; and which nodes are there then, to be told from the true ones.

An edge is asked about at the time of its source, where that has a ``seed_time``, else just before the edge itself. What
is later carries no messages, so neither does the edge, nor its reverse, which is not earlier where both ends are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.graph.times import ALWAYS, LATEST, SPLIT_TIMES
from partita.sample.topology import as_tensor
from partita.tasks.links.edges import SOURCE, TARGET, TIME, message_edges

SPLITS = ("train", "val", "test")
_ORDER_FIX = "Give when validation begins, and when tests do, for instance 2026-01-01,2026-02-01"


@dataclass(frozen=True, eq=False)
class TimedEdges:
    """Edges of a graph that are asked about.

    Attributes:
        edges: int64 (S, 4), rows ``[source, destination, relation, time]``; the relation is 0 in an untyped graph.
            Their order does not depend on how the store is partitioned.
        left_out: how many edges are not asked about, by the reason.
    """

    edges: Int64[Tensor, "S 4"]
    left_out: Mapping[str, int]

    @classmethod
    def of(cls, store: GraphStore, relations: list[int] | None, *, undirected: bool = False) -> TimedEdges:
        """Those of the relations that are learned, each at its time; see :func:`message_edges`.

        Edges that would be known at that time are left out, or whose ends are not there yet; of edges that ask and
        answer the same, all but one.
        """
        found = message_edges(store, relations, undirected=undirected, times=True).numpy()
        source, target, own = found[:, SOURCE], found[:, TARGET], found[:, TIME]
        asked = np.minimum(own - (own != ALWAYS), LATEST)
        if store.has("seed_time"):
            given = store.column("seed_time")[source]
            asked = np.where(given == ALWAYS, asked, np.minimum(given, LATEST))
        known = own <= asked
        reasons: dict[str, Bool[np.ndarray, "S"]] = {
            "were always there": own == ALWAYS, "are known by the time at which their source is asked about": known,
        }  # fmt: skip
        if (node_time := store.node_time) is not None:
            for end, ids in (("source", source), ("destination", target)):
                reasons[f"have a {end} that is not there yet"] = node_time[ids] > asked
        kept, left_out = np.ones(len(own), np.bool_), dict[str, int]()
        for reason, these in reasons.items():
            left_out[reason] = int((kept & these).sum())
            kept &= ~these
        rows = np.column_stack([found[:, :TIME], asked])[kept]
        first = _first_of_equal(rows)
        left_out["repeat others at the same time"] = len(rows) - len(first)
        return cls(torch.from_numpy(rows[first]), {reason: count for reason, count in left_out.items() if count})

    def splits(self, val: int, test: int) -> dict[str, Int64[Tensor, "n 4"]]:
        """By the time at which they are asked about; splits without edges are left out, but for that of training."""
        part = torch.bucketize(self.edges[:, TIME].contiguous(), torch.tensor([val, test]), right=True)
        found = {name: self.edges[part == number] for number, name in enumerate(SPLITS)}
        return {name: edges for name, edges in found.items() if len(edges) or name == SPLITS[0]}

    def notes(self) -> list[str]:
        """What is left out, in words."""
        total = len(self.edges) + sum(self.left_out.values())
        return [f"{count:,} of {total:,} edges are not asked about: they {why}" for why, count in self.left_out.items()]


def _first_of_equal(rows: Int64[np.ndarray, "n k"]) -> Int64[np.ndarray, "m"]:
    """Of rows that are equal the place of the first one, ascending."""
    order = np.lexsort(rows.T)  # stable
    ordered = rows[order]
    new = np.ones(len(rows), np.bool_)
    new[1:] = (ordered[1:] != ordered[:-1]).any(1)
    return np.sort(order[new])


class NodesInTime:
    """The nodes of every type in the order of the time from which on they are there, so that those are the first ones.

    Args:
        store: the graph. Without ``node_time`` all nodes were always there.

    Attributes:
        order: store id by place; places of a type are those of its original indices. ``None``: ids are places.
        first, sizes: where the places of each type begin, and how many there are.
    """

    def __init__(self, store: GraphStore) -> None:
        schema, order = store.schema, store.ingest_order()
        sizes = np.array([store.num_nodes] if schema is None else schema.num_nodes, dtype=np.int64)
        self.sizes, self.first = sizes, np.cumsum(sizes) - sizes
        self._times: Int64[np.ndarray, "N"] | None = None
        if (node_time := store.node_time) is not None:
            order = np.arange(store.num_nodes) if order is None else np.array(order)
            kinds = np.repeat(np.arange(len(sizes)), sizes)
            by_time = np.lexsort((node_time[order], kinds))  # stable: equal ones in the order of their indices
            order = order[by_time]
            self._times = node_time[order]
        self.order: Int64[Tensor, "N"] | None = None if order is None else as_tensor(np.ascontiguousarray(order))

    def counts(self, types: Int64[np.ndarray, "n"], times: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """How many nodes of a type are there at a time."""
        found = self.sizes[types]
        if self._times is not None:
            for kind in np.unique(types).tolist():
                begin, mine = self.first[kind], types == kind
                of_type = self._times[begin : begin + self.sizes[kind]]
                found[mine] = np.searchsorted(of_type, times[mine], side="right")
        return found

    def at(self, kind: int, time: int) -> Int64[np.ndarray, "n"]:
        """Store ids of the nodes of a type that are there at a time, ascending."""
        begin = int(self.first[kind])
        places = np.arange(begin, begin + int(self.counts(np.array([kind]), np.array([time]))[0]))
        return places if self.order is None else np.sort(self.order.numpy()[places])


@dataclass(frozen=True, eq=False)
class InTime:
    """What links over time need to know of a graph.

    Attributes:
        store: the graph.
        until: when validation begins: what is later has no part in how negatives are drawn.
    """

    store: GraphStore
    until: int

    @cached_property
    def nodes(self) -> NodesInTime:
        """Which are there when."""
        return NodesInTime(self.store)


def split_times(given: str, store: GraphStore) -> tuple[int, int]:
    """When validation begins and when tests do, as the setting or else the store says.

    Raises:
        ConfigError: neither says it, or the setting is no two times in their order.
    """
    noted: Sequence[int] | None = store.metadata.notes.get(SPLIT_TIMES)
    if given:
        found = [_time_of(text.strip()) for text in given.split(",")]
        if len(found) != 2 or not ALWAYS < found[0] <= found[1]:
            raise ConfigError(f"'{given}' are not two times, the earlier first", where=SPLIT_TIMES, fix=_ORDER_FIX)
        noted = found
    if noted is None:
        raise ConfigError(
            "it is not said from when on links are for validation, and for tests",
            where=SPLIT_TIMES,
            fix="Set split_times to two times, or ingest the graph again with --split-times; or set temporal_strategy "
            "to none, so that links are held out at random and edges of the future carry messages, too",
        )
    return int(noted[0]), int(noted[1])


def _time_of(text: str) -> int:
    """A whole number, or a date as microseconds since 1970, as stores have them."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        found = int(np.datetime64(text, "us").astype(np.int64))
    except ValueError:
        found = ALWAYS
    if found == ALWAYS:
        raise ConfigError(f"'{text}' is no time", where=SPLIT_TIMES, fix=_ORDER_FIX)
    return found
