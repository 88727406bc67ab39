"""Layers by source, by states: the edges go to the owners of their sources, sums over them come back.

What an owner gets are *virtual nodes* (:class:`~partita.parallel.edge_shuffle.EdgeShuffle`). It computes a partial
state of each from the sources that it owns; the asking worker merges the states of a destination. The destination's own
term comes from its own owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, UInt64
from torch import Tensor

from partita import kernels
from partita.comm.routing import RowPick, first_appearance, order_backward
from partita.core.estimates import LayerEstimate, PerWorker, SampledLayer, traffic_by_worker
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.core.records import ID_BYTES, Block, Traffic
from partita.features.rows import FeatureColumn
from partita.kernels import rank_masks
from partita.nn.layers import Split
from partita.parallel.block_worker import BlockWork, Sending, SharedWork, without_edges
from partita.parallel.edge_shuffle import EdgeShuffle, Sizes


@dataclass(frozen=True, slots=True)
class StatesWork(BlockWork):
    """What this worker sums up for all, and how the states of its own block's destinations come together.

    Attributes:
        virtual: the virtual nodes of all asking workers, with the edges whose sources are owned here.
        own_block: those of them that are owned here, without edges.
        own_rows: picks their rows from the rows of the layer below; ``None`` where rows are read by id.
        own_states: picks their states.
        joined: puts the states that own terms were merged into in their places, after all states.
        virtual_receive, own_receive: virtual nodes, and own ones among them, of each asking worker.
        shuffle: the asking worker's side.
        query_spread: gives each of its virtual nodes the query of its destination.
        own_back: puts what comes from the destinations' owners in the order of the destinations.
        states: picks the state of each (owner, destination) from the received ones and a neutral one at the end.
    """

    virtual: Block
    own_block: Block
    own_rows: RowPick | None
    own_states: RowPick
    joined: RowPick
    virtual_receive: Sizes
    own_receive: Sizes
    shuffle: EdgeShuffle
    query_spread: RowPick
    own_back: RowPick
    states: RowPick


class SourceStates(SharedWork):
    """One way of :class:`~partita.parallel.placements.source.Source`: partial states travel."""

    def draft(self, layer: int, drawn: Block) -> tuple[Traffic, Sending]:
        """Bytes to send for a drawn block whose sources are store ids, and what sends them."""
        shuffle, rank = EdgeShuffle.of(drawn, self.axis), self.axis.rank
        numbers = (sum(sizes) - sizes[rank] for sizes in (shuffle.own_send, shuffle.virtual_send, shuffle.edge_send))
        traffic = self.traffic(layer, *numbers)
        return traffic, partial(self.expand, layer, drawn, shuffle, traffic)

    def expand(
        self, layer: int, drawn: Block, shuffle: EdgeShuffle, traffic: Traffic, key: StepKey
    ) -> tuple[StatesWork, Int[Tensor, "S"]]:
        """Send the edges to the owners of their sources, and take what the others send to this worker.

        Returns:
            The work, and the store ids whose rows of the layer below this worker needs: nodes that it owns.
        """
        got = shuffle.exchange(drawn, self.axis)
        indptr = torch.cat([got.counts.new_zeros(1), got.counts.cumsum(0)])
        # A partial state draws nothing, so no original index is needed to key it.
        virtual = Block(
            dst=got.dst,
            src=None,
            indptr=indptr,
            indices=got.src,
            dst_original=got.dst,
            weight=got.weight,
            edge_type=got.edge_type,
            edge_attr=got.edge_attr,
            node_types=drawn.node_types,
        )
        below = torch.cat([got.dst[got.own], got.src])
        own_rows, num_own, num_virtual = None, got.own.shape[0], got.dst.shape[0]
        if not self.worker.parts_by_id(layer):
            below, place = first_appearance(below)
            own_rows = RowPick.of(place[:num_own], below.shape[0])
            virtual = self.worker.prepared(layer, virtual.with_(src=below, indices=place[num_own:].int()))
        work = StatesWork(
            key=key,
            block=drawn,
            traffic=traffic,
            virtual=virtual,
            own_block=without_edges(virtual, got.dst[got.own], got.self_weight, got.loop_attr),
            own_rows=own_rows,
            own_states=RowPick.of(got.own, num_virtual),
            joined=_replacing(got.own, num_virtual),
            virtual_receive=got.virtual_receive,
            own_receive=got.own_receive,
            shuffle=shuffle,
            query_spread=RowPick.of(shuffle.position, drawn.num_dst),
            own_back=RowPick.of(torch.argsort(shuffle.own), drawn.num_dst),
            states=RowPick.of(shuffle.place, shuffle.position.shape[0] + 1),
        )
        return work, below

    def forward(self, layer: int, work: StatesWork, h: Tensor | FeatureColumn) -> Float[Tensor, "D F"]:
        """Sum up what is owned here, send the states to those who asked, merge one's own."""
        group, shuffle, module = self.axis.computing, work.shuffle, self.worker.split(layer)
        payload, x_own = self._messages(module, work, h)
        q = None
        if module.query_width:
            q = kernels.widened(module.query(x_own, work.own_block))  # type: ignore[arg-type]
            q = work.own_back(group.exchange_rows(q, work.own_receive, shuffle.own_send))
            q = group.exchange_rows(work.query_spread(q), shuffle.virtual_send, work.virtual_receive)
        states = kernels.widened(module.partial(payload, q, work.virtual))
        own = module.self_term(x_own, work.own_block)
        if own is not None and module.self_joins_state:
            merged = module.merge([work.own_states(states), kernels.widened(own)])
            states, own = work.joined(torch.cat([states, merged])), None
        if self._needs_gradient(layer):
            states = group.exchange_rows(states, work.virtual_receive, shuffle.virtual_send)
        else:
            states = group.exchange(states, work.virtual_receive, shuffle.virtual_send, "forward")
        if own is not None:
            own = group.exchange_rows(order_backward(kernels.widened(own), states), work.own_receive, shuffle.own_send)
            own = work.own_back(own)
        padded = work.states(torch.cat([states, module.neutral(1, states)]))
        merged = module.merge(padded.view(self.axis.size, work.num_computed, padded.shape[1]).unbind())
        stage = self.worker.stages[layer - 1]
        return stage.post(module.finish(merged, own, work.block), work.block.dst_original, work.key, layer)

    def estimate(self, layer: int, drawn: SampledLayer, asked: UInt64[np.ndarray, "D"], mesh: Mesh) -> LayerEstimate:
        """Owners sum up what their group's workers draw; see :class:`partita.core.protocols.Estimator`."""
        ranks, size = self.groups(mesh), mesh.size
        home = ranks.at_position(self.axis.owner(drawn.src))  # the destinations are the first of the sources
        own = home[: len(asked)]
        owners = rank_masks.from_sources(drawn.indptr, drawn.indices, home)
        asked_by_edge, home_of_edge = np.repeat(asked, drawn.degrees), home[drawn.indices]

        def count_pairs(groups: UInt64[np.ndarray, "G"]) -> tuple[PerWorker, ...]:
            pairs, virtual = rank_masks.count_pairs(asked, owners, groups, size)
            return pairs, *rank_masks.count_pairs(asked_by_edge, home_of_edge, groups, size), virtual

        remote_pairs, remote_edges, taken, virtual = count_pairs(ranks.masks)
        near_pairs, near_edges, *_ = count_pairs(ranks.near) if mesh.hosts > 1 else (remote_pairs, remote_edges)
        _, own_taken = rank_masks.count_pairs(asked, own, ranks.masks, size)
        wanted = rank_masks.to_sources(drawn.indptr, drawn.indices, asked, len(drawn.src))
        below = ranks.whole_groups(wanted) & home
        remote_destinations = rank_masks.count(asked & ~own, size)
        far_destinations = rank_masks.count(asked & ~ranks.whole_hosts(own), size)
        price = partial(self.traffic, layer)
        return LayerEstimate(
            traffic=traffic_by_worker(price, remote_destinations, remote_pairs, remote_edges),
            far=traffic_by_worker(price, far_destinations, remote_pairs - near_pairs, remote_edges - near_edges),
            drawing=asked,
            computed=rank_masks.count(asked, size),
            blocks=np.stack([virtual, rank_masks.count(below, size), taken], 1),
            below=below,
            accesses=own_taken + taken if self.worker.parts_by_id(layer) else None,
            way="states",
        )

    def traffic(self, layer: int, remote_destinations: int, remote_pairs: int, remote_edges: int) -> Traffic:
        """Virtual nodes and edges down; states, queries and own terms up, and their gradients the other way.

        Args:
            layer: 1 (input side) to K.
            remote_destinations: requests for nodes of another worker than the asking one.
            remote_pairs: virtual nodes at other workers: pairs of a request and a worker that owns the node or one of
                its drawn neighbors.
            remote_edges: edges whose sources other workers own.
        """
        module, item = self.worker.split(layer), self.worker.dtype.itemsize
        ids = ID_BYTES * (2 * remote_pairs + remote_edges)
        probe = module.divisible(self._probe(layer))
        if probe.weight is not None:
            ids += item * remote_edges
        if probe.edge_type is not None:
            ids += probe.edge_type.itemsize * remote_edges
        if probe.edge_attr is not None:
            ids += item * probe.edge_attr.shape[1] * remote_edges
        if probe.self_weight is not None:
            ids += item * remote_destinations
        if probe.loop_attr is not None:
            ids += item * probe.loop_attr.shape[1] * remote_destinations
        states = module.state_width * remote_pairs
        others = module.query_width * (remote_destinations + remote_pairs) + module.self_width * remote_destinations
        backward = others + (states if self._needs_gradient(layer) else 0)
        return Traffic(ids=ids, forward=item * (states + others), backward=item * backward)

    def _probe(self, layer: int) -> Block:
        """An empty block as the sampler makes it for a layer: shows which coefficients travel."""
        ids, weights = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=self.worker.dtype)
        weight, self_weight = (weights if there else None for there in self.worker.weights(layer))
        edge_attr, loop_attr = self.worker.edge_features(layer, 0, 0)
        return Block(
            ids, None, torch.zeros(1, dtype=torch.int64), ids, ids, weight=weight, self_weight=self_weight,
            edge_type=torch.empty(0, dtype=torch.int32) if self.worker.has_relations(layer) else None,
            edge_attr=edge_attr, loop_attr=loop_attr,
        )  # fmt: skip

    def _needs_gradient(self, layer: int) -> bool:
        """Input rows need no gradient, so neither do sums of them."""
        return layer > 1 or self.worker.trains_inputs or self.worker.split(layer).state_is_trained

    def _messages(self, module: Split, work: StatesWork, h: Tensor | FeatureColumn) -> tuple[Any, Tensor]:
        """The payload of the block's sources, and the rows of the destinations owned here."""
        if work.own_rows is None:
            assert isinstance(h, FeatureColumn)
            return h.rows(work.virtual, None), h.read(work.own_block.dst)
        x = h if isinstance(h, Tensor) else h.rows(work.virtual, work.key).all()
        return module.message(x), work.own_rows(x)


def _replacing(at: Int64[Tensor, "n"], num_rows: int) -> RowPick:
    """From rows and n more behind them: the rows, those of the given positions replaced by the ones behind."""
    index = torch.arange(num_rows, device=at.device)
    index[at] = torch.arange(num_rows, num_rows + at.shape[0], device=at.device)
    return RowPick.of(index, num_rows + at.shape[0])
