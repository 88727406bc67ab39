"""Whose rows a layer joins to the row of a node, in inference: the one place that asks the topology."""

from __future__ import annotations

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from partita.core.errors import ConfigError
from partita.core.keys import StepKey
from partita.core.protocols import Sampler, Topology
from partita.core.records import Block
from partita.graph.store import GraphStore
from partita.kernels import Relabeller
from partita.nn.layers import Layer
from partita.sample.base import EvaluationSampler
from partita.sample.blocks import sample_block
from partita.sample.samplers import Fanout

_ALL = -1
# Nothing is drawn that is of a step.
_NO_KEY = StepKey(seed=0, epoch=0, step=0)


class Neighbors:
    """The neighbors of nodes: the same whoever asks, and whatever is asked for besides. These are all of them.

    Args:
        topology: holds all in-neighbors of all nodes that will be asked for.

    Attributes:
        node_bytes: memory that finding them takes, for each node.
    """

    node_bytes = 0
    _sampler: Sampler | int = _ALL

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def block(
        self, ids: Int[Tensor, "D"], layer: Layer, number: int, relabel: Relabeller | None, dtype: torch.dtype
    ) -> Block:
        """Those of distinct store ids for a layer, which is the ``number``-th, 1 = input side."""
        return sample_block(
            self._topology,
            ids,
            _NO_KEY,
            number,
            self._sampler,
            coefficients=layer.coefficients,
            reduce=layer.sums,
            edge_columns=layer.edge_columns,
            fills_loops=layer.fills_loops,
            relabel=relabel,
            dtype=dtype,
        )

    def most(self, ids: Int[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """How many of them there are in a layer, at most."""
        return self._topology.degrees(ids).long()

    def ids(self, ids: Int[Tensor, "n"]) -> Int[Tensor, "m"]:
        """The store ids of those of any layer."""
        return self._topology.at_owners(ids, Fanout(0, _ALL)).indices


class VisitedNeighbors(Neighbors):
    """The nodes that walks visit most, as a model was trained on them.

    Args:
        topology: holds all in-neighbors of all nodes, as a walk goes anywhere.
        sampler: with a key of its own.
    """

    def __init__(self, topology: Topology, sampler: EvaluationSampler) -> None:
        super().__init__(topology)
        self._sampler: EvaluationSampler = sampler
        self.node_bytes = sampler.node_bytes

    def most(self, ids: Int[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """See :meth:`Neighbors.most`."""
        return torch.full(ids.shape, self._sampler.most)

    def ids(self, ids: Int[Tensor, "n"]) -> Int[Tensor, "m"]:
        """See :meth:`Neighbors.ids`."""
        return self._sampler.widest(self._topology, ids).indices


def neighbors_of(topology: Topology, sampler: EvaluationSampler | None) -> Neighbors:
    """The neighbors that a sampler for evaluation takes; ``None``: all."""
    return Neighbors(topology) if sampler is None else VisitedNeighbors(topology, sampler)


def check_walkable(store: GraphStore, sampler: EvaluationSampler | None) -> None:
    """Refuse to evaluate by walks where a host has not the edges to walk on.

    Raises:
        ConfigError: the store is a shard with the edges of its own nodes only.
    """
    one_host = store.shard is None or store.shard.hosts == 1
    if sampler is None or one_host or not store.edges_are_cut:
        return
    raise ConfigError(
        "a model that is trained on walks is evaluated on walks, which go anywhere in the graph, but every host has "
        "the edges of its own nodes only",
        where=str(store.path),
        fix="Make shards with --topology replicated, use the whole store, or train with the sampler node",
    )
