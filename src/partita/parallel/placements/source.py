"""``Source``: every owner of a drawn neighbor sums up the neighbors it owns; the asking worker merges.

APT's SNP. Edges travel down, partial states up. The asking worker draws; its edges are dealt out to the owners of
their sources. What an owner gets are *virtual nodes*: a destination together with those of its edges that are shuffle
to this owner. Every destination has one at its own owner too, which computes the destination's own term.

For attention there is a second way (:mod:`partita.parallel.projected`); every batch takes the one of fewer bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, UInt64
from torch import Tensor

from partita import kernels
from partita.comm.axis import Axis
from partita.comm.routing import RowPick, bucket, first_appearance, order_backward
from partita.core.errors import ConfigError
from partita.core.estimates import LayerEstimate, PerWorker, SampledLayer, layer_rows
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.core.protocols import Inputs, Sampler, Topology
from partita.core.rank_masks import RankMasks
from partita.core.records import Block, LayerRows, Traffic
from partita.features.rows import FeatureColumn
from partita.kernels import rank_masks
from partita.nn.layers import Layer
from partita.nn.model import Model
from partita.parallel import projected
from partita.parallel.block_worker import BlockWorker
from partita.parallel.projected import ProjectedWork

ID_BYTES = 8

Sizes = tuple[int, ...]
"""Number of rows for or from each worker."""


@dataclass(frozen=True, slots=True)
class EdgeShuffle:
    """A worker's drawn edges, dealt out to the owners of their sources.

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
        """SeedSplit out the edges of a block whose sources are store ids."""
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


@dataclass(frozen=True, slots=True)
class SourceWork:
    """What this worker sums up for all, and how its own destinations' states come together.

    Attributes:
        key: names the step.
        block: the virtual nodes of all asking workers, with the edges whose sources are owned here.
        own_block: those of them that are owned here, without edges.
        own_rows: picks their rows from the rows of the layer below; ``None`` where rows are read by id.
        own_states: picks their states.
        joined: puts the states that own terms were merged into in their places, after all states.
        virtual_receive, own_receive: virtual nodes, and own ones among them, of each asking worker.
        shuffle: the asking worker's side.
        query_spread: gives each of its virtual nodes the query of its destination.
        own_back: puts what comes from the destinations' owners in the order of the destinations.
        states: picks the state of each (owner, destination) from the received ones and a neutral one at the end.
        dst_original: original indices of the own destinations.
        rows: this worker's own requests.
    """

    key: StepKey
    block: Block
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
    dst_original: Int[Tensor, "D"]
    rows: LayerRows

    @property
    def num_edges(self) -> int:
        """Edges drawn, by the asking worker."""
        return self.rows.edges

    @property
    def num_computed(self) -> int:
        """Rows finished, by the asking worker."""
        return self.rows.destinations


class Source:
    """The placement by source.

    Args:
        model, topology, inputs, sampler, dtype: as :class:`~partita.parallel.block_worker.BlockWorker` has them.
        axis: the workers, and who of them owns which node.
    """

    collective = True

    def __init__(
        self,
        model: Model,
        topology: Topology,
        inputs: Inputs | FeatureColumn,
        sampler: Sampler | Sequence[int],
        dtype: torch.dtype,
        axis: Axis,
    ) -> None:
        self.worker = BlockWorker(model, topology, inputs, sampler, dtype)
        self.axis = axis

    def check(self, layer: int) -> None:
        """Refuse a layer that cannot be merged from parts of a destination's edges.

        Raises:
            ConfigError: the layer is not divisible, or drops edges out by their position.
        """
        found = self._layer(layer)
        where = f"placements, layer {layer} ({found.name})"
        if not found.splittable:
            raise ConfigError(
                "the placement 'source' computes a row from parts of its edges, which this layer cannot be",
                where=where,
                fix="Use 'data' or 'destination' for this layer, or one of Partita's own layers",
            )
        if found.draws_by_edge:
            raise ConfigError(
                "attention dropout is keyed by the position of an edge among all edges of its node, which the "
                "placement 'source' deals out",
                where=where,
                fix="Use 'data', 'destination' or (layer 1) 'feature' for this layer, or set attn_dropout to 0",
            )

    def expand(
        self, layer: int, requests: Int[Tensor, "D"], key: StepKey
    ) -> tuple[SourceWork | ProjectedWork, Int[Tensor, "S"]]:
        """Draw, deal the edges out, and take what the others deal to this worker; see the protocol."""
        drawn = self._layer(layer).divisible(self.worker.draw(layer, requests, key, relabel=False))
        shuffle = EdgeShuffle.of(drawn, self.axis)
        if projected.can_project(self._layer(layer)):
            whole = projected.relabeled(drawn)
            if self._projecting_is_cheaper(layer, _rows(drawn, shuffle, self.axis.rank), whole):
                return projected.expand(self.worker, layer, whole, self.axis, key)
        return self._expand_shuffled(layer, drawn, shuffle, key)

    def _projecting_is_cheaper(self, layer: int, rows: LayerRows, block: Block) -> bool:
        """Whether all workers together send fewer bytes so; every worker comes to the same answer."""
        fetched = LayerRows(remote_sources=projected.remote_sources(block, self.axis))
        both = [self.traffic(layer, each).total for each in (rows, fetched)]
        totals = torch.tensor(both, dtype=torch.float64)
        self.axis.sampling.sum_([totals], kind="metadata")
        by_states, by_sources = totals.tolist()
        return by_sources < by_states

    def _expand_shuffled(
        self, layer: int, drawn: Block, shuffle: EdgeShuffle, key: StepKey
    ) -> tuple[SourceWork, Int[Tensor, "S"]]:
        axis, group = self.axis, self.axis.sampling
        ones = [1] * axis.size
        sizes = group.exchange(torch.tensor([shuffle.virtual_send, shuffle.edge_send]).T, ones, ones, "metadata")
        virtual_receive, edge_receive = sizes.T.tolist()
        virtual = torch.stack([drawn.dst[shuffle.position].long(), shuffle.counts], dim=1)
        virtual = group.exchange(virtual, shuffle.virtual_send, virtual_receive, "ids")
        src = group.exchange(drawn.indices[shuffle.edges].long(), shuffle.edge_send, edge_receive, "ids")
        dst, counts = (column.contiguous() for column in virtual.T)
        owned = axis.owner(dst) == axis.rank
        at = owned.nonzero().flatten()
        own_receive = [int(own.sum()) for own in owned.split(virtual_receive)]
        weight = self_weight = None
        if drawn.weight is not None:
            weight = group.exchange(drawn.weight[shuffle.edges], shuffle.edge_send, edge_receive, "ids")
        if drawn.self_weight is not None:
            self_weight = group.exchange(drawn.self_weight[shuffle.own], shuffle.own_send, own_receive, "ids")

        dtype = drawn.dst.dtype
        dst, src = dst.to(dtype), src.to(dtype)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        # A partial state draws nothing, so no original index is needed to key it.
        block = Block(dst=dst, src=None, indptr=indptr, indices=src, dst_original=dst, weight=weight)
        below = torch.cat([dst[at], src])
        own_rows = None
        if not self.worker.by_id(layer):
            below, place = first_appearance(below)
            own_rows = RowPick.of(place[: at.shape[0]], below.shape[0])
            block = self.worker.prepared(layer, block.with_(src=below, indices=place[at.shape[0] :].int()))
        work = SourceWork(
            key=key,
            block=block,
            own_block=_without_edges(block, at, self_weight),
            own_rows=own_rows,
            own_states=RowPick.of(at, dst.shape[0]),
            joined=_replacing(at, dst.shape[0]),
            virtual_receive=tuple(virtual_receive),
            own_receive=tuple(own_receive),
            shuffle=shuffle,
            query_spread=RowPick.of(shuffle.position, drawn.num_dst),
            own_back=RowPick.of(torch.argsort(shuffle.own), drawn.num_dst),
            states=RowPick.of(shuffle.place, shuffle.position.shape[0] + 1),
            dst_original=drawn.dst_original,
            rows=_rows(drawn, shuffle, axis.rank),
        )
        return work, below

    def forward(self, layer: int, work: SourceWork | ProjectedWork, h: Tensor | FeatureColumn) -> Float[Tensor, "D F"]:
        """Sum up what is owned here, send the states to those who asked, merge one's own; see the protocol."""
        if isinstance(work, ProjectedWork):
            return projected.forward(self.worker, layer, work, h, self.axis)
        group, shuffle, module = self.axis.computing, work.shuffle, self._layer(layer)
        payload, x_own = self._messages(module, work, h)
        q = None
        if module.query_width:
            q = kernels.widened(module.query(x_own))  # type: ignore[arg-type]
            q = work.own_back(group.exchange_rows(q, work.own_receive, shuffle.own_send))
            q = group.exchange_rows(work.query_spread(q), shuffle.virtual_send, work.virtual_receive)
        states = kernels.widened(module.partial(payload, q, work.block))
        own = module.own(x_own, work.own_block)
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
        merged = module.merge(padded.view(self.axis.size, work.rows.destinations, padded.shape[1]).unbind())
        stage = self.worker.stages[layer - 1]
        return stage.post(module.finish(merged, own), work.dst_original, work.key, layer)

    def estimate(self, layer: int, drawn: SampledLayer, asked: UInt64[np.ndarray, "D"], mesh: Mesh) -> LayerEstimate:
        """Owners sum up what their group's workers draw; see the protocol."""
        ranks, size = RankMasks.of(mesh, self.axis.sampling.workers), mesh.size
        home = ranks.at_position(self.axis.owner(drawn.src))  # the destinations are the first of the sources
        own = home[: len(asked)]
        owners = rank_masks.from_sources(drawn.indptr, drawn.indices, home)
        remote_pairs, virtual = rank_masks.count_pairs(asked, owners, ranks.masks, size)
        asked_by_edge = np.repeat(asked, drawn.degrees)
        remote_edges, taken = rank_masks.count_pairs(asked_by_edge, home[drawn.indices], ranks.masks, size)
        _, own_taken = rank_masks.count_pairs(asked, own, ranks.masks, size)
        wanted = rank_masks.to_sources(drawn.indptr, drawn.indices, asked, len(drawn.src))
        below = ranks.whole_groups(wanted) & home
        destinations = rank_masks.count(asked, size)
        both = {"destinations": destinations, "edges": rank_masks.count(asked, size, drawn.degrees)}
        rows = layer_rows(
            size, **both, remote_destinations=rank_masks.count(asked & ~own, size), remote_pairs=remote_pairs,
            remote_edges=remote_edges,
        )  # fmt: skip
        if projected.can_project(self._layer(layer)):
            rows = self._cheaper(layer, ranks, rows, {**both, "remote_sources": rank_masks.count(wanted & ~home, size)})
        return LayerEstimate(
            rows=rows,
            drawing=asked,
            computed=destinations,
            blocks=np.stack([virtual, rank_masks.count(below, size), taken], 1),
            below=below,
            accesses=own_taken + taken if self.worker.by_id(layer) else None,
        )

    def _cheaper(
        self, layer: int, ranks: RankMasks, by_states: list[LayerRows], by_sources: dict[str, PerWorker]
    ) -> list[LayerRows]:
        """For the workers of each group the rows of the way that sends fewer bytes among them."""
        chosen, others = list(by_states), layer_rows(len(by_states), **by_sources)
        for group in ranks.groups:
            sent = [sum(self.traffic(layer, way[rank]).total for rank in group) for way in (by_states, others)]
            if sent[1] < sent[0]:
                for rank in group:
                    chosen[rank] = others[rank]
        return chosen

    def traffic(self, layer: int, rows: LayerRows) -> Traffic:
        """Virtual nodes and edges down; states, queries and own terms up, and their gradients the other way.

        Where the batch took the second way: source ids down, projected rows up, and their gradients.
        """
        module, item = self._layer(layer), self.worker.dtype.itemsize
        ids = ID_BYTES * (2 * rows.remote_pairs + rows.remote_edges)
        probe = module.divisible(self._probe(layer))
        if probe.weight is not None:
            ids += item * rows.remote_edges
        if probe.self_weight is not None:
            ids += item * rows.remote_destinations
        states = module.state_width * rows.remote_pairs
        others = module.query_width * (rows.remote_destinations + rows.remote_pairs)
        others += module.self_width * rows.remote_destinations
        backward = others + (states if self._needs_gradient(layer) else 0)
        by_states = Traffic(ids=ids, forward=item * (states + others), backward=item * backward)
        return by_states + projected.traffic(module, rows, item)

    def _probe(self, layer: int) -> Block:
        """An empty block as the sampler makes it for a layer: shows which coefficients travel."""
        ids, weights = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=self.worker.dtype)
        weight, self_weight = (weights if there else None for there in self.worker.weights(layer))
        return Block(
            ids, None, torch.zeros(1, dtype=torch.int64), ids, ids, weight=weight, self_weight=self_weight
        )  # fmt: skip

    def _layer(self, layer: int) -> Layer:
        return self.worker.stages[layer - 1].layer

    def _needs_gradient(self, layer: int) -> bool:
        """Input rows need no gradient, so neither do sums of them."""
        return layer > 1 or self._layer(layer).state_is_trained

    def _messages(self, module: Layer, work: SourceWork, h: Tensor | FeatureColumn) -> tuple[Any, Tensor]:
        """The payload of the block's sources, and the rows of the destinations owned here."""
        if work.own_rows is None:
            assert isinstance(h, FeatureColumn)
            return h.rows(work.block, None), h.read(work.own_block.dst)
        x = h if isinstance(h, Tensor) else h.rows(work.block, work.key).all()
        return module.message(x), work.own_rows(x)


def _without_edges(block: Block, at: Tensor, self_weight: Tensor | None) -> Block:
    """The chosen destinations of a block."""
    dst = block.dst[at]
    return Block(
        dst=dst,
        src=dst,
        indptr=block.indptr.new_zeros(dst.shape[0] + 1),
        indices=block.indices[:0],
        dst_original=dst,
        weight=None if block.weight is None else block.weight[:0],
        self_weight=self_weight,
    )


def _replacing(at: Int64[Tensor, "n"], num_rows: int) -> RowPick:
    """From rows and n more behind them: the rows, those of the given positions replaced by the ones behind."""
    index = torch.arange(num_rows, device=at.device)
    index[at] = torch.arange(num_rows, num_rows + at.shape[0], device=at.device)
    return RowPick.of(index, num_rows + at.shape[0])


def _rows(block: Block, shuffle: EdgeShuffle, rank: int) -> LayerRows:
    def remote(sizes: Sizes) -> int:
        return sum(sizes) - sizes[rank]

    rows = LayerRows(
        destinations=block.num_dst,
        edges=block.num_edges,
        remote_destinations=remote(shuffle.own_send),
        remote_pairs=remote(shuffle.virtual_send),
        remote_edges=remote(shuffle.edge_send),
    )
    return rows + block.remote.rows
