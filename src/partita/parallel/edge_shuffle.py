"""A worker's drawn edges, on their way to the owners of their sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from partita.comm.axis import Axis
from partita.comm.routing import bucket
from partita.core.records import Block

Sizes = tuple[int, ...]
"""Number of rows for or from each worker."""


@dataclass(frozen=True, slots=True)
class ShuffledEdges:
    """What a worker got from all who drew edges whose sources it owns, by asking worker.

    Attributes:
        dst: (V) store ids of the virtual nodes.
        counts: (V) edges of each.
        src: (E) store ids of the edges' sources, by virtual node.
        weight: (E) coefficients of the edges; ``None`` where the block had none.
        edge_type: int32 (E) relations of the edges; ``None`` likewise.
        edge_attr: (E, A) features of the edges; ``None`` likewise.
        self_weight: (O) coefficients of the own virtual nodes; ``None`` likewise.
        loop_attr: (O, A) features of their own loops; ``None`` likewise.
        own: (O) which virtual nodes are owned here: each asking worker has one for each of its destinations that is.
        virtual_receive, own_receive: virtual nodes, and own ones among them, of each asking worker.
    """

    dst: Int[Tensor, "V"]
    counts: Int64[Tensor, "V"]
    src: Int[Tensor, "E"]
    weight: Float[Tensor, "E"] | None
    edge_type: Int[Tensor, "E"] | None
    edge_attr: Float[Tensor, "E A"] | None
    self_weight: Float[Tensor, "O"] | None
    loop_attr: Float[Tensor, "O A"] | None
    own: Int64[Tensor, "O"]
    virtual_receive: Sizes
    own_receive: Sizes


@dataclass(frozen=True, slots=True)
class EdgeShuffle:
    """Which of a worker's drawn edges goes to which owner (GSplit's shuffle index).

    An owner gets *virtual nodes*: a destination together with those of its edges whose sources this owner has. Every
    destination has one at its own owner too, if need be without edges. Take a worker that drew 3 edges for nodes 7 and
    2, and let worker 0 own the nodes up to 4, worker 1 the others::

        drawn         7 <- 1, 8    2 <- 9                  positions of edges: 0, 1, 2
        to worker 0   7 (1 edge): 1;  2 (its own, 0 edges)   edge 0
        to worker 1   7 (its own, 1 edge): 8;  2 (1 edge): 9  edges 1, 2

    Virtual nodes are sorted by owner, then by destination; the edges by virtual node, then as they were drawn.

    Attributes:
        position: (V) the destination of each virtual node, as position in the block.
        counts: (V) edges of each virtual node.
        edges: (E) positions in the block of the sorted edges.
        own: (D) positions of the destinations sorted by owner: the order in which their own terms come back.
        place: (W*D) virtual node of each owner and destination; V where there is none.
        virtual_send, edge_send, own_send: virtual nodes, edges and own terms of each owner.
    """

    position: Int64[Tensor, "V"]
    counts: Int64[Tensor, "V"]
    edges: Int64[Tensor, "E"]
    own: Int64[Tensor, "D"]
    place: Int64[Tensor, "WD"]
    virtual_send: Sizes
    edge_send: Sizes
    own_send: Sizes

    @classmethod
    def of(cls, block: Block, axis: Axis) -> EdgeShuffle:
        """The shuffle of a block whose sources are store ids."""
        num_dst, size = block.num_dst, axis.size
        dst_owner, src_owner = axis.owner(block.dst), axis.owner(block.indices)
        own, own_send = bucket(dst_owner, size)
        edges, edge_send = bucket(src_owner, size)
        edge_code = src_owner * num_dst + block.edge_dst()
        present = torch.zeros(size * num_dst, dtype=torch.bool, device=edge_code.device)
        present[edge_code] = True
        present[dst_owner * num_dst + torch.arange(num_dst, device=edge_code.device)] = True
        codes = present.nonzero().flatten()
        rank = present.cumsum(0) - 1
        return cls(
            position=codes % max(1, num_dst),
            counts=torch.bincount(rank[edge_code], minlength=codes.shape[0]),
            edges=edges,
            own=own,
            place=torch.where(present, rank, codes.shape[0]),
            virtual_send=tuple(present.view(size, num_dst).sum(1).tolist()),
            edge_send=tuple(edge_send),
            own_send=tuple(own_send),
        )

    def exchange(self, block: Block, axis: Axis) -> ShuffledEdges:
        """Send the block's edges to the owners of their sources; returns what comes from all.

        Up to eight messages, each to all workers: (1) how many virtual nodes and edges; (2) the virtual nodes, each a
        destination and its number of edges; (3) the sources of the edges; then, where the block has them, the edges'
        coefficients, relations and features, and the coefficients and loop features of the destinations' own terms. How
        many own terms come follows from (2).
        """
        group, ones = axis.sampling, [1] * axis.size
        sizes = group.exchange(torch.tensor([self.virtual_send, self.edge_send]).T, ones, ones, "metadata")
        virtual_receive, edge_receive = sizes.T.tolist()
        virtual = torch.stack([block.dst[self.position].long(), self.counts], dim=1)
        virtual = group.exchange(virtual, self.virtual_send, virtual_receive, "ids")
        src = group.exchange(block.indices[self.edges].long(), self.edge_send, edge_receive, "ids")
        dst, counts = (column.contiguous() for column in virtual.T)
        owned = axis.owner(dst) == axis.rank
        own_receive = [int(own.sum()) for own in owned.split(virtual_receive)]
        of_edges, of_own = (self.edges, self.edge_send, edge_receive), (self.own, self.own_send, own_receive)
        columns = {"weight": of_edges, "edge_type": of_edges, "edge_attr": of_edges}
        columns |= {"self_weight": of_own, "loop_attr": of_own}
        arrived = dict[str, Any]()
        for name, (order, send, receive) in columns.items():
            column = getattr(block, name)
            arrived[name] = None if column is None else group.exchange(column[order], send, receive, "ids")
        dtype = block.dst.dtype
        return ShuffledEdges(
            dst=dst.to(dtype), counts=counts, src=src.to(dtype), **arrived, own=owned.nonzero().flatten(),
            virtual_receive=tuple(virtual_receive), own_receive=tuple(own_receive),
        )  # fmt: skip
