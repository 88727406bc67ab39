"""Sampling where every worker holds the neighbors of its own nodes only: each node is drawn for by its owner.

This is DSP's collective sampling primitive (Cai et al., "DSP: Efficient GNN training with multiple GPUs", PPoPP 2023,
section 4.1): node ids are shuffled to their owners, sampled there by any rule, and the picks shuffled back. What a node
draws is a function of its original index (and, layer-wise, of a number on which all workers agree), so the sample is
that of :class:`~partita.sample.topology.LocalTopology` over the whole graph, pick for pick. Ids travel one way, counts
and picks the other; adjacency lists never do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped, UInt64
from torch import Tensor

from partita.comm.axis import Axis
from partita.comm.routing import bucket, to_all
from partita.core.estimates import SampledLayer
from partita.core.mesh import Mesh
from partita.core.once import Once
from partita.core.protocols import Rule
from partita.core.rank_masks import RankMasks
from partita.core.records import RemoteDraws, Removed, Sampled, TargetEdges, Traffic
from partita.kernels import checks, rank_masks
from partita.sample.topology import ArrayTopology, remaining_degrees

_COUNT_BYTES = 4
_TYPE_BYTES = 4
_DRAW_BYTES = 8


class CollectiveTopology:
    """The graph, of which each worker of an axis draws for its own nodes; see :class:`partita.core.protocols.Topology`.

    All workers of the axis must call :meth:`at_owners` in the same order, with the same rule, from one thread each,
    also where they want nothing. With an axis of one worker nothing is exchanged.

    Args:
        local: draws for the nodes that this worker owns; over a shard or a whole store.
        axis: the workers, and who owns which node.

    Attributes:
        num_nodes: N, of the whole graph.
        id_dtype: of store ids; ids travel in it.
        collective: the axis has more than one worker.
        frugal, degree_offsets, self_loops, weight_sums, loop_weights, node_types, num_relations, slots: those of
            ``local``.
    """

    def __init__(self, local: ArrayTopology, axis: Axis) -> None:
        self.num_nodes = local.num_nodes
        self.id_dtype = local.id_dtype
        self.collective = axis.size > 1
        self.frugal = local.frugal
        self.degree_offsets = local.degree_offsets
        self.self_loops = local.self_loops
        self.weight_sums, self.loop_weights = local.weight_sums, local.loop_weights
        self.node_types, self.num_relations = local.node_types, local.num_relations
        self.slots = local.slots
        self._local = local
        self._axis = axis
        self._count_removed: Callable[[], Removed] | None = None

    def drawing(self, columns: Sequence[str]) -> CollectiveTopology:
        """See :class:`partita.core.protocols.Topology`."""
        other = copy(self)
        other._local = self._local.drawing(columns)
        return other

    @property
    def of_nodes(self) -> ArrayTopology:
        """What this worker knows of nodes; see :class:`partita.core.protocols.Topology`."""
        return self._local.of_nodes

    def at_times(self, times: Int64[Tensor, "T"]) -> CollectiveTopology:
        """See :class:`partita.core.protocols.Topology`. All workers know the times of the whole batch."""
        other = copy(self)
        other._local = self._local.at_times(times)
        return other

    def without(self, excluded: TargetEdges) -> CollectiveTopology:
        """See :class:`partita.core.protocols.Topology`. Every worker looks for the edges in the rows of its own nodes.

        Raises:
            IndexError: one of the ids is no node.
        """
        return excluded.once(self, lambda: self._without(excluded))

    def _without(self, excluded: TargetEdges) -> CollectiveTopology:
        known, axis = excluded.positions, self._axis
        if known is None:
            checks.within("dst", excluded.dst, self.num_nodes)
        nodes = excluded.dst if known is None else self._local.rows_of(known.to(self.degree_offsets.device)).cpu()
        own = axis.owner(nodes) == axis.rank
        other = copy(self)
        other._local = self._local.without(
            excluded.of(own) if known is None else TargetEdges.at(known[own.to(known.device)], excluded.pairs)
        )
        other._count_removed = Once(lambda: self._removed_anywhere(nodes.unique(), other._local.removed()))
        return other

    def _removed_anywhere(self, ids: Int64[Tensor, "n"], own: Removed | None) -> Removed:
        """What all nodes lose: their owners say it to all workers."""
        assert own is not None
        if not self.collective:
            return own
        group, owner = self._axis.sampling, self._axis.owner(ids)
        order, counts = bucket(owner, group.size)
        device = own.ids.device
        said = torch.stack([own.edges.double(), own.loops.double(), own.weights], dim=1)
        found = to_all(group, said, counts, "ids")
        there = ids[order].to(device)
        back = torch.argsort(there)
        edges, loops, weights = found[back].unbind(1)
        return Removed(there[back], edges.long(), loops.long(), weights.contiguous())

    def removed(self) -> Removed | None:
        """What nodes lose of their in-edges. The first to ask in a step are all workers, who exchange it."""
        return None if self._count_removed is None else self._count_removed()

    def at_owners(
        self, ids: Int[Tensor, "n"], rule: Rule, *, payload: Tensor | None = None, one_each: bool = False
    ) -> Sampled:
        """Apply a rule, to each node at its owner; see :class:`partita.core.protocols.Topology`.

        Raises:
            IndexError: an id is no node, or its owner does not hold its edges.
            PeerLost: another worker is gone.
        """
        if not self.collective:
            return self._local.at_owners(ids, rule, payload=payload, one_each=one_each)
        checks.within("ids", ids, self.num_nodes)
        ids = ids.to(self.id_dtype)
        group, rank = self._axis.sampling, self._axis.rank
        order, send = bucket(self._axis.owner(ids), group.size)
        own_first, own = sum(send[:rank]), send[rank]
        send[rank] = 0  # what is taken here does not go through the exchange
        asked_of = group.exchange_counts(torch.tensor(send)).tolist()

        def gathered(column: Shaped[Tensor, "n ..."]) -> Shaped[Tensor, "m ..."]:
            """What this worker has of its own nodes, and then of those that others ask for."""
            by_owner = column[order]
            lower, mine, upper = by_owner.tensor_split([own_first, own_first + own])
            return torch.cat([mine, group.exchange(torch.cat([lower, upper]), send, asked_of, "ids")])

        # One call serves the own nodes and those of the others, which may ask for the same ones.
        found = self._local.at_owners(
            gathered(ids), rule, payload=None if payload is None else gathered(payload), one_each=one_each
        )
        counts = found.indptr.diff()
        own_edges = int(found.indptr[own])
        if one_each:
            answered, edges_send, edges_receive = counts.new_ones(sum(send)), asked_of, send
        else:
            answered = group.exchange(counts[own:].int(), asked_of, send, "ids").long()
            edges_send, edges_receive = _sums(counts[own:], asked_of), _sums(answered, send)
        before = sum(edges_receive[:rank])
        counts = torch.cat([answered[:own_first], counts[:own], answered[own_first:]])
        indptr, pick = in_order(counts, order)

        def come_back(column: Shaped[Tensor, "m ..."]) -> Shaped[Tensor, "E ..."]:
            """A column of the edges of all nodes, own ones in their place."""
            received = group.exchange(column[own_edges:], edges_send, edges_receive, "ids")
            return torch.cat([received[:before], column[:own_edges], received[before:]])[pick]

        remote = RemoteDraws(ids.shape[0] - own, sum(edges_receive))
        return replace(found.mapped(come_back), indptr=indptr, remote=remote)

    def estimate(self, drawn: SampledLayer, drawing: UInt64[np.ndarray, "D"], mesh: Mesh) -> list[RemoteDraws]:
        """See :class:`partita.core.protocols.Topology`: whoever does not own a node has it drawn by who does."""
        home = RankMasks.of(mesh, self._axis.sampling.workers).at_position(self._axis.owner(drawn.dst))
        away = drawing & ~home
        nodes, edges = rank_masks.count(away, mesh.size), rank_masks.count(away, mesh.size, drawn.degrees)
        return [RemoteDraws(*numbers) for numbers in zip(nodes.tolist(), edges.tolist(), strict=True)]

    def traffic(self, remote: RemoteDraws) -> Traffic:
        """An id and a count for each node drawn elsewhere, and an id for each of its picks, with the number of its
        relation in a typed graph and the columns that come with edges; for each step of a walk taken elsewhere an id, a
        draw, and an id back.

        Where a rule gives positions, which training does not, 8 bytes a pick come on top; with weights, 4.
        """
        if not self.collective:
            return Traffic()
        id_bytes = self.id_dtype.itemsize
        edge_bytes = id_bytes + (0 if self.node_types is None else _TYPE_BYTES) + self._local.edge_row_bytes
        ids = (id_bytes + _COUNT_BYTES) * remote.destinations + edge_bytes * remote.edges
        return Traffic(ids=ids + (2 * id_bytes + _DRAW_BYTES) * remote.steps)

    def original(self, ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """Original indices of store ids, int64."""
        return self._local.original(ids)

    def degrees(self, ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """In-degrees of store ids, int64; parallel edges and self loops count."""
        if self.slots > 1:
            return self._local.degrees(ids)
        offsets, ids = self.degree_offsets, ids.long()
        return remaining_degrees(offsets[ids + 1] - offsets[ids], ids, self.removed())


def _sums(counts: Int64[Tensor, "n"], lengths: list[int]) -> list[int]:
    """Sums of consecutive pieces."""
    return [int(piece.sum()) for piece in counts.cpu().split(lengths)]


def in_order(counts: Int64[Tensor, "D"], order: Int64[Tensor, "D"]) -> tuple[Int64[Tensor, "D_1"], Int64[Tensor, "E"]]:
    """Put rows that come sorted by owner into the order of the destinations.

    Args:
        counts: picks of every row, sorted by owner.
        order: the destination of each of these rows.

    Returns:
        ``indptr`` of the destinations, and where in the sorted picks each pick of theirs is.
    """
    begins = torch.cumsum(counts, 0) - counts
    row_of = torch.empty_like(order)
    row_of[order] = torch.arange(order.shape[0], device=order.device)
    indptr = order.new_zeros(order.shape[0] + 1)
    torch.cumsum(counts[row_of], 0, out=indptr[1:])
    shift = torch.repeat_interleave(begins[row_of] - indptr[:-1], counts[row_of], output_size=int(indptr[-1]))
    return indptr, shift.add_(torch.arange(shift.shape[0], device=shift.device))
