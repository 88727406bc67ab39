"""Drawing and computing blocks: what every placement does on the worker that it gives a row to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Float, Int, UInt64
from torch import Tensor

from partita.comm.axis import Axis
from partita.comm.routing import order_backward
from partita.core.errors import ConfigError
from partita.core.estimates import LayerEstimate, SampledLayer
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.core.protocols import Inputs, Sampler, Topology
from partita.core.rank_masks import RankMasks
from partita.core.records import Block, RemoteDraws, Traffic
from partita.features.rows import FeatureColumn
from partita.kernels import Relabeller, rank_masks, relabel, transpose
from partita.nn.ages import RowAges
from partita.nn.encoder import Encoding
from partita.nn.layers import ColumnSplit, Layer, Split
from partita.nn.model import Model
from partita.nn.relations import Groups
from partita.nn.stage import Stage
from partita.parallel.inputs import Direct
from partita.sample.blocks import sample_block
from partita.sample.samplers import as_sampler
from partita.sample.topology import RELATION_DEGREE


@dataclass(frozen=True, slots=True)
class BlockWork:
    """What a placement remembers of a layer whose block it drew here; see :class:`partita.core.protocols.Work`.

    Attributes:
        key: names the step.
        block: as it was drawn.
        traffic: see the protocol.
    """

    key: StepKey
    block: Block
    traffic: Traffic

    @property
    def num_edges(self) -> int:
        """Edges drawn."""
        return self.block.num_edges

    @property
    def num_computed(self) -> int:
        """Rows computed: those of the block's destinations."""
        return self.block.num_dst

    @property
    def remote(self) -> RemoteDraws:
        """What other workers drew of the block."""
        return self.block.remote


Sending = Callable[[StepKey], tuple[BlockWork, Int[Tensor, "S"]]]
"""Asks other workers for what is known of a step's block; returns as :meth:`Placement.expand` does."""


class BlockWorker:
    """Draws blocks and computes them: one for all the placements of an engine.

    Args:
        model: computes; says for each layer what the sampler must put on a block.
        topology: where neighbors are drawn.
        inputs: the input placement; a feature column stands for :class:`~partita.parallel.inputs.Direct`. It
            decides whether layer 1 may sum rows by id.
        sampler: what is drawn; fanouts, layer 1 (input side) first, -1 for all neighbors, stand for
            :class:`~partita.sample.samplers.NodeWise`.
        dtype: of edge coefficients, and of rows between layers.

    Raises:
        ConfigError: a layer cannot work with what the sampler draws.
    """

    def __init__(
        self,
        model: Model,
        topology: Topology,
        inputs: Inputs | FeatureColumn,
        sampler: Sampler | Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = model
        self.stages = cast("list[Stage]", list(model.stages))
        self.topology = topology
        self.inputs: Inputs = Direct(inputs, topology.num_nodes) if isinstance(inputs, FeatureColumn) else inputs
        self.sampler = as_sampler(sampler)
        self.dtype = dtype
        if topology.node_types is not None and not self.sampler.draws_relations:
            raise ConfigError(
                "the sampler does not draw by relation, as typed graphs are sampled",
                where="sampler",
                fix="Use the sampler node or layer",
            )
        for number, stage in enumerate(self.stages, start=1):
            _check_relations(stage.layer, topology, f"layer {number} ({stage.layer.name})")
            reads = stage.layer.reads_relations and topology.num_relations > 1
            if topology.node_types is not None and reads and not self.sampler.draws_graph_edges:
                raise ConfigError(
                    "the layer reads the relations of edges, and the sampler takes the nodes that its walks visit as "
                    "neighbors, whether or not there is an edge",
                    where=f"sampler, layer {number} ({stage.layer.name})",
                    fix="Use the model sage, gin or gat, or the sampler node or layer",
                )
            needs_edges = stage.layer.coefficients is not None or stage.layer.edge_columns
            if needs_edges and not self.sampler.draws_graph_edges:
                raise ConfigError(
                    "what the layer reads of edges belongs to those of the graph, and the sampler takes the nodes that "
                    "its walks visit as neighbors, whether or not there is an edge",
                    where=f"sampler, layer {number} ({stage.layer.name})",
                    fix="Use the model sage, gin or gat, or the sampler node or layer",
                )
        # Several threads may sample different steps at once; each has a scratch of its own.
        self._local = threading.local()

    def layer(self, number: int) -> Layer:
        """The layer of a number: 1 (input side) to K."""
        return self.stages[number - 1].layer

    def split(self, number: int) -> Split:
        """How a layer is split over edges, which its placement has checked that it can be."""
        return cast(Split, self.layer(number).split)

    def columns(self, number: int) -> ColumnSplit:
        """How a layer is split over input columns, which its placement has checked that it can be."""
        return cast(ColumnSplit, self.layer(number).columns)

    def by_id(self, layer: int) -> bool:
        """Whether the layer sums input rows straight by store id, at one place."""
        return (
            layer == 1 and self.layer(1).sums_by_id(self.sampler.takes_all(1)) and self.inputs.sums_by_id(training=True)
        )

    def parts_by_id(self, layer: int) -> bool:
        """Whether parts of the layer sum input rows straight by store id."""
        return self.by_id(layer) and not self.layer(layer).sends_messages

    def weights(self, layer: int) -> tuple[bool, bool]:
        """Whether the blocks that are drawn for a layer have edge weights, and own weights."""
        module = self.layer(layer)
        if module.coefficients is not None:
            return True, module.coefficients.has_self_weight
        weighed = self.sampler.has_importance or "edge_weight" in module.edge_columns
        return weighed and module.sums is not None, False

    def edge_features(self, layer: int, edges: int, destinations: int) -> tuple[Tensor | None, Tensor | None]:
        """Zeros in the form of ``edge_attr`` and ``loop_attr`` of the blocks that are drawn for a layer."""
        module = self.layer(layer)
        there = ("edge_attr" in module.edge_columns, module.fills_loops)
        edge_attr, loop_attr = (
            torch.zeros(n, module.edge_width, dtype=self.dtype) if reads else None
            for n, reads in zip((edges, destinations), there)
        )
        return edge_attr, loop_attr

    def edge_columns(self, layer: int) -> Sequence[str]:
        """What comes with the edges that are drawn for a layer."""
        module = self.layer(layer)
        averages = self.has_relations(layer) and self.topology.num_relations > 1 and module.sums == "mean"
        if not (averages and self.sampler.has_importance and self.sampler.draws_graph_edges):
            return module.edge_columns
        return (*module.edge_columns, RELATION_DEGREE)

    def topology_of(self, layer: int) -> Topology:
        """What draws the blocks of a layer, with the columns of edges that it reads."""
        columns = self.edge_columns(layer)
        return self.topology.drawing(columns) if columns else self.topology

    def has_relations(self, layer: int) -> bool:
        """Whether the blocks that are drawn for a layer have the relations of their edges."""
        return self.topology.node_types is not None and self.layer(layer).reads_relations

    @property
    def trains_inputs(self) -> bool:
        """Whether what layer 1 takes depends on parameters, so that gradients go back to it."""
        return self.model.encoder is not None

    def draw(self, layer: int, requests: Int[Tensor, "D"], key: StepKey, *, relabel: bool) -> Block:
        """Draw one block; with ``relabel`` its sources are de-duplicated."""
        block = sample_block(
            self.topology,
            requests,
            key,
            layer,
            self.sampler,
            coefficients=self.layer(layer).coefficients,
            reduce=self.layer(layer).sums,
            edge_columns=self.edge_columns(layer),
            fills_loops=self.layer(layer).fills_loops,
            relabel=self._scratch() if relabel else None,
            dtype=self.dtype,
        )
        return block if self.layer(layer).reads_relations else block.with_(edge_type=None)

    def whole(
        self, layer: int, requests: Int[Tensor, "D"], key: StepKey, *, relabel: bool = False
    ) -> tuple[Block, Int[Tensor, "S"]]:
        """Draw a block to compute at one place, its sources de-duplicated unless they are summed by id.

        Args:
            layer: 1 (input side) to K.
            requests: distinct store ids.
            key: names the step.
            relabel: de-duplicate in any case.

        Returns:
            The block, and the store ids whose rows of the layer below it needs.
        """
        block = self.draw(layer, requests, key, relabel=relabel or not self.by_id(layer))
        if block.src is None:
            return block, torch.cat([block.dst, block.indices])
        if layer == 1 and self.model.encoder is not None:
            block = _sorted_by_type(block)
        assert block.src is not None
        if self.layer(layer).reads_relations and (layer > 1 or self.trains_inputs):
            return block, block.src  # such layers sort the edges anew, by relation, also for their backward pass
        return self.prepared(layer, block), block.src

    def estimate(
        self,
        layer: int,
        drawn: SampledLayer,
        computing: UInt64[np.ndarray, "D"],
        traffic: Sequence[Traffic],
        far: Sequence[Traffic],
    ) -> LayerEstimate:
        """What workers come to who draw and compute whole blocks.

        Args:
            layer: 1 (input side) to K.
            drawn: for all workers.
            computing: who computes each destination.
            traffic: (W) bytes for the requests of each worker.
            far: (W) what of these goes from one host to another.
        """
        size = len(traffic)
        below = rank_masks.to_sources(drawn.indptr, drawn.indices, computing, len(drawn.src))
        destinations, edges = rank_masks.count(computing, size), rank_masks.count(computing, size, drawn.degrees)
        return LayerEstimate(
            traffic=traffic,
            drawing=computing,
            computed=destinations,
            blocks=np.stack([destinations, rank_masks.count(below, size), edges], 1),
            below=below,
            accesses=destinations + edges if self.by_id(layer) else None,
            far=far,
        )

    def prepared(self, layer: int, block: Block) -> Block:
        """The block with what computing it will want, worked out here to keep it off the training thread."""
        if layer > 1 or self.trains_inputs:
            # The backward pass wants the edges by source.
            return block.with_(transposed=transpose(block.indptr, block.indices, block.num_src))
        if self.inputs.dropout > 0 and block.src is not None:
            return block.with_(src_original=self.topology.original(block.src))
        return block

    def compute(
        self, layer: int, block: Block, h: Tensor | FeatureColumn | Encoding, key: StepKey
    ) -> Float[Tensor, "D F"]:
        """Rows of the block's destinations, from rows of its sources."""
        rows: Any = h if isinstance(h, Tensor) else h.rows(block, key)
        out = self.stages[layer - 1](block, rows, key, layer)
        # A layer of others may skip its input where there is nothing to do, but the workers below wait for gradients.
        return order_backward(out, h) if isinstance(h, Tensor) else out

    def input_rows(self, requests: Int[Tensor, "S"]) -> tuple[Int[Tensor, "n"], Int[Tensor, "S"] | None]:
        """Whose input rows are needed: the nodes, each once, and which of them each request is about; ``None``: they
        are asked for themselves."""
        slots = self.topology.slots
        if slots == 1:
            return requests, None
        nodes = requests // slots
        return relabel(nodes[:0], nodes, self._scratch())

    def row_ages(self, requests: Int[Tensor, "S"], key: StepKey) -> RowAges | None:
        """What the model reads of the ages of input rows; ``None``: nothing."""
        encoder = self.model.encoder
        if encoder is None or encoder.ages is None or key.times is None:
            return None
        return encoder.ages.of(requests, key.times, self.topology.slots)

    def _scratch(self) -> Relabeller:
        if not hasattr(self._local, "relabeller"):
            mode: Literal["hash", "auto"] = "hash" if self.topology.frugal else "auto"
            self._local.relabeller = Relabeller(self.topology.num_nodes, mode)
        return self._local.relabeller


def _sorted_by_type(block: Block) -> Block:
    """The block with its sources sorted by type, but for the destinations: so they need not be put in order later."""
    assert block.src is not None
    if block.node_types is None or block.num_src == block.num_dst:
        return block
    num_dst = block.num_dst
    kinds = torch.from_numpy(block.node_types.of(block.src[num_dst:].cpu().numpy())).to(block.src.device)
    order = Groups.of(kinds, block.node_types.count)
    src = torch.cat([block.src[:num_dst], block.src[num_dst:][order.order]])
    place = torch.arange(len(src), dtype=block.indices.dtype, device=src.device)
    place[num_dst:] = (order.place + num_dst).to(place.dtype)
    return block.with_(src=src, indices=place[block.indices.long()])


def _check_relations(layer: Layer, topology: Topology, where: str) -> None:
    if topology.node_types is not None and layer.coefficients is not None:
        raise ConfigError(
            "the layer's coefficients are for draws from all in-edges, and typed graphs are sampled by relation",
            where=where,
            fix="Use the model rgcn, hetero-sage, rgat, hgt, sage, gin or gat",
        )
    relations = len(layer.relations) if layer.reads_relations else topology.num_relations
    if relations != topology.num_relations:
        raise ConfigError(
            f"the layer is made for {relations} relations, and the graph has {topology.num_relations}",
            where=where,
            fix="Make the layer for the relations of the store: relations=store.schema.ends.tolist()",
        )


@dataclass(frozen=True)
class SharedWork:
    """What all placements have whose workers work for one another, each way of one included.

    Attributes:
        worker: draws and computes.
        axis: the workers, and who of them owns which node.
    """

    worker: BlockWorker
    axis: Axis
    collective = True

    def groups(self, mesh: Mesh) -> RankMasks:
        """The workers of the axis, and all other groups along it."""
        return RankMasks.of(mesh, self.axis.sampling.workers)


def without_edges(
    block: Block,
    dst: Int[Tensor, "n"],
    self_weight: Float[Tensor, "n"] | None = None,
    loop_attr: Float[Tensor, "n A"] | None = None,
) -> Block:
    """A block of the same kind with other destinations, and no edges. It is not for what draws by original index."""
    return Block(
        dst=dst,
        src=dst,
        indptr=block.indptr.new_zeros(dst.shape[0] + 1),
        indices=block.indices[:0],
        dst_original=dst,
        self_weight=self_weight,
        loop_attr=loop_attr,
        node_types=block.node_types,
        **block.of_edges(block.indices[:0].long()),
    )
