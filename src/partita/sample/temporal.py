"""Sampling not later than the time of a seed: the graph as it was known at each of a batch's times.

Edges have times, and a seed is asked about at a time of its own. Everything that is computed for it is of that time: at
every hop only those edges count that are not later. So the same node has other neighbors for another seed, and other
rows in every layer above the input. What is requested of workers is therefore not a node but a *node at a time*. It has
an id of its own, by which it is requested, owned, de-duplicated and computed like any node::

    request = node * slots + slot

where the slot says which of the distinct times of the batch is meant. The nodes of a part, or of a type, are still a
range of ids, so that ownership needs no other code. Seeds of equal time share what they have in common. Only the rows
of layer 1 do not depend on time: they are read once for every node.

In the rows of a store the edges of a relation are in order of time, so that those which are not later than a time are
the first of them (pyg-lib finds them likewise). They are drawn as if there were no others: uniformly, or in proportion
to their weights; or the last of them are taken. The draws of node v at time t are those of a node whose original index
is ``fold(v, t)``: they do not depend on what else is in the batch, nor on the number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from partita import kernels
from partita.core.errors import ConfigError
from partita.core.node_types import NodeTypes
from partita.core.records import Sampled, TargetEdges
from partita.graph.store import GraphStore
from partita.graph.times import ALWAYS
from partita.kernels.reference.relations import DrawnRuns, Runs
from partita.sample.topology import ArrayTopology

EDGE_TIME = "edge_time"
"""The column of a store."""


def draws_by_time(strategy: str, store: GraphStore) -> bool:
    """Whether neighbors are sampled not later than the times of seeds: where the edges have times, unless refused.

    Args:
        strategy: the setting ``temporal_strategy``.
        store: the graph.

    Raises:
        ConfigError: they should be, and edges have no times.
    """
    if strategy == "none" or store.has(EDGE_TIME):
        return strategy != "none"
    if strategy == "auto":
        return False
    raise ConfigError(
        "the edges of the store have no times",
        where="temporal_strategy",
        fix="Ingest the graph again with edge_time or node_time, or leave temporal_strategy out",
    )


class TemporalTopology(ArrayTopology):
    """Edges with times; it draws for requests, see the module, once it was told the times of a batch.

    Args:
        local: all the edges, or those of some nodes.
        edge_time: int64 (M), time of every edge that is here, ascending in the edges of a row that are of one relation.
        slots: most distinct times of a batch, a power of two above 1.
        last: take the last edges before a time in place of random ones.
        windows: how old edges may be; ``None``: of any age.

    Attributes:
        slots: as given.
        num_nodes, nodes, node_types, id_dtype: of requests.
    """

    frugal = True  # no table has room for all requests

    def __init__(
        self,
        local: ArrayTopology,
        edge_time: Int64[Tensor, "M"],
        slots: int,
        *,
        last: bool = False,
        windows: Windows | None = None,
    ) -> None:
        super().__init__(**local.arrays())
        if slots & (slots - 1) or slots < 2:
            raise ValueError(f"{slots} slots: must be a power of two above 1")
        if self.num_nodes * slots > 2**62:
            raise ConfigError(
                f"{self.num_nodes:,} nodes at {slots:,} times have no ids of 62 bits",
                where="batch_size",
                fix="Use smaller batches, which have fewer times",
            )
        self._local, self._last, self._num_stored = local, last, self.num_nodes
        self._edge_time, self._times, self._windows = edge_time, edge_time[:0], windows
        self._keys: tuple[Tensor | None, Tensor] = None, edge_time[:0]
        """Of the requests that were asked for last: a sample and its block ask for the same ones."""
        self.slots, self._bits = slots, slots.bit_length() - 1
        self.num_nodes *= slots
        self.id_dtype = torch.int64
        self.nodes = range(self.nodes.start * slots, self.nodes.stop * slots)
        if self.node_types is not None:
            self.node_types = NodeTypes(self.node_types.offsets * slots, self.node_types.count)

    @property
    def of_nodes(self) -> ArrayTopology:
        """The same edges whenever they were there, with store ids."""
        return self._local

    def at_times(self, times: Int64[Tensor, "T"]) -> TemporalTopology:
        """The same one, for requests at the distinct times of a batch."""
        other = copy(self)
        other._times, other._keys = times, (None, times)
        return other

    def without(self, excluded: TargetEdges) -> ArrayTopology:
        """No edges can be left out; those that are predicted are later than the time at which they are asked about.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "edges that are predicted cannot be left out where neighbors are sampled by time",
            where="temporal_strategy",
            fix="Set temporal_strategy to none",
        )

    def original(self, ids: Int[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Keys of the draws of requests: ``fold(original index, time)``."""
        asked, keys = self._keys
        if asked is not ids:
            keys = kernels.request_keys(self._original, ids.long(), self._times, self.slots)
            self._keys = ids, keys
        return keys

    def degrees(self, ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """Nobody knows degrees at any time of nodes that another worker owns.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("in-degrees at a time")

    def sample(
        self, dst: Int[Tensor, "D"], key: int, fanout: int | Sequence[int], *, positions: bool = False
    ) -> Sampled:
        """Draw in-neighbors of requests, at the same times; see :meth:`ArrayTopology.sample`."""
        fanouts = (fanout,) * self.num_relations if isinstance(fanout, int) else tuple(fanout)
        self._check_relations("fanouts", fanouts)
        placed = positions or bool(self._drawn_rows)
        if self._edge_type is None:
            since = None if self._windows is None else self._windows.since(self._times)
            keys, drawn = kernels.sample_until(
                self._original, self._indptr, self._indices, self._edge_time, dst.long(), self._times, self.slots, key,
                fanouts[0], since=since, last=self._last, **self._edges,
            )  # fmt: skip
            self._keys = dst, keys
            return self._with_rows(drawn if placed else replace(drawn, positions=None), positions=positions)
        drawn = self._draw_relations(dst.long(), self.original(dst), key, fanouts, positions=placed)
        requests = kernels.to_requests(drawn.indptr, drawn.indices, dst.long(), self.slots, self._num_stored)
        return self._with_rows(replace(drawn, indices=requests), positions=positions)

    def _draw(
        self, rows: Int64[Tensor, "_"], keys: Int64[Tensor, "n"], key: int, fanout: int, *, positions: bool
    ) -> Sampled:
        """Draw from n pieces of the store, of each of which ``rows`` says where it begins and ends."""
        if self._last and fanout > 0:
            begins = rows[: 2 * len(keys) : 2]
            torch.maximum(begins, rows[1::2] - fanout, out=begins)
        return kernels.sample_neighbors(
            rows, self._indices, torch.arange(0, 2 * len(keys), 2), keys, key, -1 if self._last else fanout,
            positions=positions, **self._edges,
        )  # fmt: skip

    def _draw_relations(
        self, dst: Int64[Tensor, "D"], keys: Int64[Tensor, "D"], key: int, fanouts: Sequence[int], *, positions: bool
    ) -> Sampled:
        """Draw so many edges of each relation."""
        runs = self._runs(*self._split(dst), [relation for relation, count in enumerate(fanouts) if count])
        keys, counts, drawn = runs.keys(keys, self.num_relations), sorted(set(fanouts) - {0}), list[DrawnRuns]()
        if len(counts) == 1:  # then they are in order
            found = self._draw(runs.bounds.reshape(-1), keys, key, counts[0], positions=positions)
            of_dst = torch.searchsorted(runs.row, torch.arange(len(dst) + 1))
            kinds = runs.relation.int().repeat_interleave(found.indptr.diff(), output_size=len(found.indices))
            return replace(found, indptr=found.indptr[of_dst], edge_type=kinds)
        wanted = torch.tensor(fanouts)[runs.relation]
        for count in counts:
            (which,) = torch.nonzero(wanted == count, as_tuple=True)
            found = self._draw(runs.bounds[which].reshape(-1), keys[which], key, count, positions=True)
            assert found.positions is not None
            drawn.append((which, found.indptr, found.indices, found.positions))
        indptr, indices, at, kinds = runs.in_order(len(dst), drawn, self._indices.dtype)
        return Sampled(indptr, indices, at if positions else None, edge_type=kinds)

    def _split(self, ids: Int[Tensor, "n"]) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
        """Nodes and times of requests."""
        ids = ids.long()
        return ids >> self._bits, self._times[ids & (self.slots - 1)]

    def _runs(self, nodes: Int64[Tensor, "D"], times: Int64[Tensor, "D"], relations: Sequence[int]) -> Runs:
        """The edges of some relations that are not later than the times of nodes, nor older than windows."""
        assert self._edge_type is not None
        chosen = [relation in relations for relation in range(self.num_relations)]
        runs = kernels.relation_runs(self._indptr, self._edge_type, nodes, nodes, chosen, self._first_edge)
        times = times[runs.row]
        ends = kernels.edges_until(self._edge_time, runs.bounds, times, first_edge=self._first_edge)
        bounds = torch.stack([runs.bounds[:, 0], ends], 1)
        if self._windows is not None:
            bounds[:, 0] = self._windows.begins(self._edge_time, bounds, times, runs.relation, self._first_edge)
        return runs._replace(bounds=bounds)


@dataclass(frozen=True)
class Windows:
    """How old edges may be at the time of a seed; an edge without a time is older than any window.

    Attributes:
        of_relations: int64 (R), in the unit of the times, of an untyped graph one number; -1: of any age.
        latest: time at which all is known: later ones, such as that of seeds without a time, count as this one.
    """

    of_relations: Int64[Tensor, "R"]
    latest: int

    def begins(
        self,
        edge_time: Int64[Tensor, "M"],
        bounds: Int64[Tensor, "n 2"],
        times: Int64[Tensor, "n"],
        relation: Int64[Tensor, "n"],
        first_edge: int,
    ) -> Int64[Tensor, "n"]:
        """Where the edges of runs begin that are not too old at times; see :func:`partita.kernels.edges_until`."""
        found = kernels.edges_until(edge_time, bounds, self.too_old(times, relation), first_edge=first_edge)
        return torch.where(self.of_relations[relation] < 0, bounds[:, 0], found)

    def since(self, times: Int64[Tensor, "n"]) -> Int64[Tensor, "n"] | None:
        """The last times that do not count at these in an untyped graph; ``None``: edges may be of any age."""
        return None if int(self.of_relations[0]) < 0 else self.too_old(times, torch.zeros_like(times))

    def too_old(self, times: Int64[Tensor, "n"], relation: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """The last times that do not count at these, of relations whose edges may be of some ages only."""
        width, now = self.of_relations[relation], times.clamp(max=self.latest)
        return torch.where(now < ALWAYS + 1 + width, ALWAYS, now - width - 1)  # not below 64 bits


@dataclass(eq=False)
class SeedTimes:
    """When the seeds of a run are asked about.

    Attributes:
        of_nodes: int64 (N), of every node as a seed.
        slots: of the requests, see the module.
        at_once: all seeds of a batch are asked about at the earliest of their times.
    """

    of_nodes: Int64[Tensor, "N"]
    slots: int
    at_once: bool = False
    _latest: tuple[Tensor | None, ...] = field(default=(None, None, None), init=False, repr=False)
    """Of what was asked last: nodes, their distinct times, and which of these is theirs."""

    def each(self, nodes: Int[Tensor, "S"]) -> Int64[Tensor, "S"]:
        """When every one of some seeds is asked about."""
        return self.of_nodes[nodes.long()]

    def of(self, nodes: Int[Tensor, "B"]) -> Int64[Tensor, "T"]:
        """The distinct times at which the seeds of a batch are asked about, ascending."""
        if self.at_once:
            return self.earliest(self.each(nodes))
        times, slot = kernels.distinct_times(self.of_nodes, nodes.long())
        self._latest = nodes, times, slot
        return times

    @staticmethod
    def earliest(times: Int64[Tensor, "n"]) -> Int64[Tensor, "_"]:
        """The first of some times, if there are any."""
        return times.min(dim=0, keepdim=True).values if len(times) else times

    def requests(self, nodes: Int[Tensor, "R"], times: Int64[Tensor, "T"]) -> Int64[Tensor, "R"]:
        """Nodes at their times, which are among those of the batch."""
        if self.at_once:
            return nodes.long() * self.slots
        asked, found, slot = self._latest
        if slot is not None and asked is nodes and found is times:
            return nodes.long() * self.slots + slot
        return self.requests_at(nodes, self.each(nodes), times)

    def requests_at(
        self, nodes: Int[Tensor, "R"], asked: Int64[Tensor, "R"], times: Int64[Tensor, "T"]
    ) -> Int64[Tensor, "R"]:
        """Nodes at any of the times of the batch."""
        return nodes.long() * self.slots + torch.searchsorted(times, asked)


def slots_for(batch_size: int) -> int:
    """Slots for all times that the seeds of a batch can have: a power of two, and not 1, which stands for no times."""
    return 1 << max(1, (batch_size - 1).bit_length())
