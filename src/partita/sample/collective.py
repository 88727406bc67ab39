"""Sampling where every worker holds the neighbors of its own nodes only: each node is drawn for by its owner.

This is DSP's collective sampling primitive (Cai et al., "DSP: Efficient GNN training with multiple GPUs", PPoPP 2023,
section 4.1): node ids are shuffled to their owners, sampled there by any rule, and the picks shuffled back. What a node
draws is a function of its original index (and, layer-wise, of a number on which all workers agree), so the sample is
that of :class:`~partita.sample.topology.LocalTopology` over the whole graph, pick for pick. Ids travel one way, counts
and picks the other; adjacency lists never do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, Shaped, UInt64
from torch import Tensor

from partita import kernels
from partita.comm.axis import Axis
from partita.comm.routing import bucket
from partita.core.estimates import SampledLayer
from partita.core.mesh import Mesh
from partita.core.rank_masks import RankMasks
from partita.core.records import Block, RemoteDraws, Sampled, Traffic
from partita.kernels import Relabeller, checks, rank_masks
from partita.sample.topology import ArrayTopology
from partita.sample.walks import step_by_step

_COUNT_BYTES = 4
_DRAW_BYTES = 8


class CollectiveTopology:
    """The graph, of which each worker of an axis draws for its own nodes; see :class:`partita.core.protocols.Topology`.

    All workers of the axis must call :meth:`sample` in the same order, with the same key, fanout and ``positions``,
    and :meth:`draw` with the same rule, from one thread each, also where they want nothing. With an axis of one worker
    nothing is exchanged.

    Args:
        local: draws for the nodes that this worker owns; over a shard or a whole store.
        axis: the workers, and who owns which node.

    Attributes:
        num_nodes: N, of the whole graph.
        id_dtype: of store ids; ids travel in it.
        collective: the axis has more than one worker.
    """

    def __init__(self, local: ArrayTopology, axis: Axis) -> None:
        self.num_nodes = local.num_nodes
        self.id_dtype = local.id_dtype
        self.collective = axis.size > 1
        self._local = local
        self._axis = axis

    def sample(
        self,
        dst: Int[Tensor, "D"],
        key: int,
        fanout: int,
        *,
        relabel: Relabeller | None = None,
        positions: bool = False,
    ) -> Sampled:
        """Draw in-neighbors of distinct store ids, each at its owner.

        Raises:
            IndexError: an id is no node, or its owner does not hold its edges.
            ValueError: see :func:`partita.kernels.sample_neighbors`.
            PeerLost: another worker is gone.
        """
        if not self.collective:
            return self._local.sample(dst, key, fanout, relabel=relabel, positions=positions)
        return self.draw(
            dst, lambda held, asked: held.sample(asked, key, fanout, positions=positions), relabel=relabel
        )  # fmt: skip

    def draw(
        self,
        dst: Int[Tensor, "D"],
        rule: Callable[[ArrayTopology, Int[Tensor, "n"]], Sampled],
        *,
        relabel: Relabeller | None = None,
    ) -> Sampled:
        """Draw by a rule, each node at its owner; see :class:`partita.core.protocols.Topology`.

        Raises:
            IndexError: an id is no node, or its owner does not hold its edges.
            PeerLost: another worker is gone.
        """
        if not self.collective:
            return self._local.draw(dst, rule, relabel=relabel)
        checks.within("dst", dst, self.num_nodes)
        dst = dst.to(self.id_dtype)
        group, rank = self._axis.sampling, self._axis.rank
        order, send = bucket(self._axis.owner(dst), group.size)
        own_first, own = sum(send[:rank]), send[rank]
        send[rank] = 0  # what is drawn here does not go through the exchange
        asked_of = group.exchange_counts(torch.tensor(send)).tolist()
        by_owner = dst[order]
        asked = group.exchange(_without(by_owner, own_first, own), send, asked_of, "ids")

        # One call draws for the own destinations and for those of the others, which may ask for the same nodes.
        drawn = rule(self._local, torch.cat([by_owner[own_first : own_first + own], asked]))
        counts = drawn.indptr.diff()
        own_edges = int(drawn.indptr[own])
        answered = group.exchange(counts[own:].int(), asked_of, send, "ids").long()
        edges_send = _sums(counts[own:], asked_of)
        edges_receive = _sums(answered, send)
        before = sum(edges_receive[:rank])

        counts = torch.cat([answered[:own_first], counts[:own], answered[own_first:]])
        indptr, pick = in_order(counts, order)

        def come_back(picks: Shaped[Tensor, "m"] | None) -> Shaped[Tensor, "E"] | None:
            """The picks of all destinations, own ones in their place."""
            if picks is None:
                return None
            received = group.exchange(picks[own_edges:], edges_send, edges_receive, "ids")
            return torch.cat([received[:before], picks[:own_edges], received[before:]])[pick]

        indices, at, weights = (come_back(picks) for picks in (drawn.indices, drawn.positions, drawn.weights))
        assert indices is not None
        src, remote = None, RemoteDraws(dst.shape[0] - own, sum(edges_receive))
        if relabel is not None:
            src, indices = kernels.relabel(dst, indices, relabel)
        return Sampled(indptr, indices, src, at, remote, weights)

    def step(self, ids: Int[Tensor, "n"], draws: Int64[Tensor, "n"]) -> tuple[Int[Tensor, "n"], RemoteDraws]:
        """Where walks go next, each step taken by the owner of the node; see :func:`partita.kernels.walk_step`.

        All workers call it equally often, also with nothing to ask.

        Raises:
            IndexError: an id is no node, or its owner does not hold its edges.
            PeerLost: another worker is gone.
        """
        if not self.collective:
            return self._local.step(ids, draws)
        checks.within("ids", ids, self.num_nodes)
        group, rank = self._axis.sampling, self._axis.rank
        order, send = bucket(self._axis.owner(ids), group.size)
        own = slice(sum(send[:rank]), sum(send[: rank + 1]))
        elsewhere = torch.cat([order[: own.start], order[own.stop :]])
        here, send[rank] = order[own], 0
        asked_of = group.exchange_counts(torch.tensor(send)).tolist()
        asked = group.exchange(ids[elsewhere].to(self.id_dtype), send, asked_of, "ids")
        asked_draws = group.exchange(draws[elsewhere], send, asked_of, "ids")
        # One call moves the walks of all.
        to, _ = self._local.step(
            torch.cat([ids[here].to(self.id_dtype), asked]), torch.cat([draws[here], asked_draws])
        )  # fmt: skip
        found = torch.empty(ids.shape, dtype=self.id_dtype, device=ids.device)
        found[here] = to[: here.shape[0]]
        found[elsewhere] = group.exchange(to[here.shape[0] :], asked_of, send, "ids")
        return found, RemoteDraws(steps=elsewhere.shape[0])

    def walk(
        self, start: Int[Tensor, "n"], key: int, *, walks: int, length: int, restart: float
    ) -> tuple[Int[Tensor, "nR columns"], RemoteDraws]:
        """Random walks; see :func:`partita.kernels.random_walks`. All workers want the same number of steps."""
        if not self.collective:
            return self._local.walk(start, key, walks=walks, length=length, restart=restart)
        return step_by_step(self, start, key, walks=walks, length=length, restart=restart)

    def estimate(self, drawn: SampledLayer, drawing: UInt64[np.ndarray, "D"], mesh: Mesh) -> list[RemoteDraws]:
        """See :class:`partita.core.protocols.Topology`: whoever does not own a node has it drawn by who does."""
        home = RankMasks.of(mesh, self._axis.sampling.workers).at_position(self._axis.owner(drawn.dst))
        away = drawing & ~home
        nodes, edges = rank_masks.count(away, mesh.size), rank_masks.count(away, mesh.size, drawn.degrees)
        return [RemoteDraws(*numbers) for numbers in zip(nodes.tolist(), edges.tolist(), strict=True)]

    def traffic(self, remote: RemoteDraws) -> Traffic:
        """An id and a count for each node drawn elsewhere, and an id for each of its picks; for each step of a walk
        taken elsewhere an id, a draw, and an id back.

        Where a rule gives positions, which training does not, 8 bytes a pick come on top; with weights, 4.
        """
        if not self.collective:
            return Traffic()
        id_bytes = self.id_dtype.itemsize
        ids = (id_bytes + _COUNT_BYTES) * remote.destinations + id_bytes * remote.edges
        return Traffic(ids=ids + (2 * id_bytes + _DRAW_BYTES) * remote.steps)

    def original(self, ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """Original indices of store ids, int64."""
        return self._local.original(ids)

    def degrees(self, ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """In-degrees of store ids, int64; parallel edges and self loops count."""
        return self._local.degrees(ids)

    def gcn_coefficients(self, block: Block, dtype: torch.dtype) -> tuple[Float[Tensor, "E"], Float[Tensor, "D"]]:
        """``weight`` and ``self_weight`` of a block; see :func:`partita.kernels.gcn_coefficients`."""
        return self._local.gcn_coefficients(block, dtype)


def _without(rows: Shaped[Tensor, "n"], first: int, count: int) -> Shaped[Tensor, "m"]:
    return torch.cat([rows[:first], rows[first + count :]])


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
