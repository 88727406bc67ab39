"""``Feature``: every worker computes layer 1 of everybody's block from its own feature columns; the asker adds up.

P3's push-pull parallelism (Gandhi and Iyer, OSDI 2021), APT's NFP. Blocks travel to all, partial rows up. What is
added up are rows of destinations where the layer is a sum over input columns, and projected sources where it is not
(attention). Weights are whole everywhere and sliced in forward; the bias is added once, by the asking worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, UInt64
from torch import Tensor

from partita import kernels
from partita.comm.routing import RowPick, first_appearance, to_all
from partita.core.errors import ConfigError
from partita.core.estimates import LayerEstimate, PerWorker, SampledLayer, traffic_by_worker
from partita.core.keys import Purpose, StepKey
from partita.core.mesh import Mesh
from partita.core.records import ID_BYTES, Block, Traffic
from partita.kernels import rank_masks
from partita.parallel.block_worker import BlockWork, SharedWork
from partita.parallel.placements.kinds import PlacementKind


@dataclass(frozen=True, slots=True)
class FeatureWork(BlockWork):
    """Everybody's blocks as one, and this worker's own.

    Attributes:
        merged: all workers' blocks behind one another, over distinct sources in order of first appearance.
        dst: where among the distinct sources the destinations are.
        src: where the sources of each worker's block are, workers behind one another.
        num_dst, num_src: destinations and sources of each worker's block.
    """

    merged: Block
    dst: Int64[Tensor, "D"]
    src: RowPick
    num_dst: tuple[int, ...]
    num_src: tuple[int, ...]


@dataclass(frozen=True)
class Feature(SharedWork):
    """The placement by feature column, for layer 1.

    Attributes:
        columns: the feature columns of this worker.
    """

    columns: slice

    def check(self, layer: int) -> None:
        """Refuse a layer that cannot be computed from slices of input columns.

        Raises:
            ConfigError: the layer cannot be placed by feature.
        """
        if self.worker.layer(layer).columns is None:
            raise ConfigError(
                "the placement 'feature' computes a row from slices of the input columns, which this layer cannot be",
                where=f"placements, layer {layer} ({self.worker.layer(layer).name})",
                fix="Use 'data' or 'destination' for this layer, or one of Partita's own layers",
            )

    def expand(self, layer: int, requests: Int[Tensor, "D"], key: StepKey) -> tuple[FeatureWork, Int[Tensor, "S"]]:
        """Draw a block and send it to all; see the protocol."""
        block, _ = self.worker.whole(layer, requests, key, relabel=True)
        if self.worker.columns(layer).sums_over_columns == "sources":
            block = self.worker.prepared(layer + 1, block)  # projected sources have a gradient
        assert block.src is not None
        group, ones = self.axis.sampling, [1] * self.axis.size
        mine = torch.tensor([[block.num_dst, block.num_src, block.num_edges]])
        sizes = to_all(group, mine, ones, "metadata").tolist()
        num_dst, num_src, num_edges = zip(*sizes)
        lengths = [sum(three) for three in sizes]
        numbers = torch.cat([block.indptr.diff(), block.src.long(), block.indices.long()])
        parts = to_all(group, numbers, lengths, "ids").split(lengths)
        counts, src, indices = zip(*(part.split(three) for part, three in zip(parts, sizes)))
        all_counts, all_src = torch.cat(counts), torch.cat(src).to(block.src.dtype)
        starts = [0, *accumulate(num_src[:-1])]
        dst = torch.cat([torch.arange(start, start + n, device=all_src.device) for start, n in zip(starts, num_dst)])
        below, place = first_appearance(all_src)
        merged = Block(
            dst=all_src[dst],
            src=below,
            indptr=torch.cat([all_counts.new_zeros(1), all_counts.cumsum(0)]),
            indices=place[torch.cat([each + start for each, start in zip(indices, starts)])].int(),
            dst_original=all_src[dst],  # a slice of a row draws nothing
            weight=None if block.weight is None else to_all(group, block.weight, num_edges, "ids"),
            self_weight=None if block.self_weight is None else to_all(group, block.self_weight, num_dst, "ids"),
            edge_attr=None if block.edge_attr is None else to_all(group, block.edge_attr, num_edges, "ids"),
        )
        traffic = self.traffic(layer, self.axis.size - 1, block.num_dst, block.num_src, block.num_edges)
        spread = RowPick.of(place, below.shape[0])
        return FeatureWork(key, block, traffic, merged, place[dst], spread, num_dst, num_src), below

    def forward(self, layer: int, work: FeatureWork, h: Tensor) -> Float[Tensor, "D F"]:
        """Compute everybody's summands, add up one's own; see the protocol."""
        group, module = self.axis.computing, self.worker.columns(layer)
        if module.sums_over_columns == "rows":
            summands = module.from_columns(self.columns, h, h.index_select(0, work.dst), work.merged)
            send, own = work.num_dst, work.block.num_dst
        else:
            summands = work.src(module.from_columns(self.columns, h, h[:0], work.merged))
            send, own = work.num_src, work.block.num_src
        received = group.exchange_rows(kernels.widened(summands), send, [own] * group.size)
        total = received.reshape(group.size, own, module.column_width).sum(0)
        rows = module.finish_columns(total, work.block, work.key.at(Purpose.ATTENTION_DROPOUT, layer))
        return self.worker.stages[layer - 1].post(rows, work.block.dst_original, work.key, layer)

    def estimate(self, layer: int, drawn: SampledLayer, asked: UInt64[np.ndarray, "D"], mesh: Mesh) -> LayerEstimate:
        """All workers of a group compute for all of them; see the protocol."""
        ranks = self.groups(mesh)
        wanted = rank_masks.to_sources(drawn.indptr, drawn.indices, asked, len(drawn.src))
        below = ranks.whole_groups(wanted)
        destinations, edges = rank_masks.count(asked, mesh.size), rank_masks.count(asked, mesh.size, drawn.degrees)

        def everybodys(numbers: PerWorker) -> PerWorker:
            found = np.empty_like(numbers)
            for group in ranks.groups:
                found[list(group)] = numbers[list(group)].sum()
            return found

        sources = rank_masks.count(wanted, mesh.size)
        here = next(group for group in ranks.groups if mesh.rank in group)
        others_far = sum(rank // mesh.workers != mesh.host for rank in here)  # as many from any worker
        traffic, far = (
            traffic_by_worker(partial(self.traffic, layer, others), destinations, sources, edges)
            for others in (self.axis.size - 1, others_far)
        )
        return LayerEstimate(
            traffic=traffic,
            far=far,
            drawing=asked,
            computed=destinations,
            blocks=np.stack([everybodys(destinations), rank_masks.count(below, mesh.size), everybodys(edges)], 1),
            below=below,
            columns=1 / self.axis.size,
            way="slices",
        )

    def traffic(self, layer: int, others: int, destinations: int, sources: int, edges: int) -> Traffic:
        """The own block to so many other workers; from each of them a summand, and its gradient back."""
        module, item = self.worker.columns(layer), self.worker.dtype.itemsize
        on_edges, on_own = self.worker.weights(layer)
        ids = ID_BYTES * (destinations + sources + edges) + item * (on_edges * edges + on_own * destinations)
        if "edge_attr" in self.worker.layer(layer).edge_columns:
            ids += item * self.worker.layer(layer).edge_width * edges
        summands = destinations if module.sums_over_columns == "rows" else sources
        sent = item * module.column_width * summands * others
        return Traffic(ids=ids * others, forward=sent, backward=sent)


KIND = PlacementKind(
    make=Feature,
    sentence="every worker computes all rows from its feature columns; the one that needs a row adds them up",
    inputs="columns",
    first_layer_only=True,
)
