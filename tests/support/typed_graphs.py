"""A typed graph for oracles: node types of other widths, one without features, several relations between two types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from steps import EDGE_WIDTH, Step
from torch import Tensor

import partita
from partita.comm.axis import Workers
from partita.comm.group import Group
from partita.config import Config
from partita.core.mesh import Mesh
from partita.core.protocols import Sampler, Topology
from partita.features.host import HostRows
from partita.features.rows import FeatureColumn
from partita.features.typed import TypedColumns
from partita.graph.store import GraphStore
from partita.nn.encoder import Encoder
from partita.nn.layers import LAYERS
from partita.nn.model import Model
from partita.parallel.graph_placement import place_topology
from partita.parallel.typed_inputs import TypedInputs
from partita.sample.topology import LocalTopology, as_tensor
from partita.sample.walks import WalkWise
from partita.setup.inputs import open_columns

TYPES = ("paper", "author", "place")
WIDTHS = (5, 3, 0)
RELATIONS = {"cites": (0, 0), "wrote": (1, 0), "knows": (1, 1), "at": (0, 2), "likes": (1, 0)}


def typed_store(
    path: Path, num_nodes: int = 60, *, degree: int = 3, parts: int = 3, more: Callable[[int, int], dict] | None = None
) -> GraphStore:
    """Nodes are re-ordered into parts; papers have one of two classes.

    Args:
        path: of the store.
        num_nodes: of all types.
        degree: edges into each node, by relation.
        parts: number of parts.
        more: gives further arrays, from the numbers of nodes and of edges.
    """
    generator = np.random.default_rng(4)
    kinds = np.sort(generator.choice(3, num_nodes, p=(0.5, 0.35, 0.15))).astype(np.uint8)
    edges, relations = [], []
    for number, (source, target) in enumerate(RELATIONS.values()):
        ends = [np.flatnonzero(kinds == kind) for kind in (source, target)]
        count = degree * len(ends[1])
        edges.append(np.stack([generator.choice(each, count) for each in ends]))  # with loops, and several alike
        relations.append(np.full(count, number, np.uint8))
    arrays = {
        "edge_index": np.concatenate(edges, axis=1).astype(np.int32),
        "edge_type": np.concatenate(relations),
        "edge_weight": generator.random(sum(map(len, relations))).astype(np.float32),
        "edge_attr": generator.normal(size=(sum(map(len, relations)), EDGE_WIDTH)).astype(np.float32),
        "node_type": kinds,
        "node_type_names": np.array(TYPES),
        "edge_type_names": np.array(list(RELATIONS)),
        "target_node_type": np.array("paper"),
        "y": np.where(kinds == 0, np.arange(num_nodes) % 2, -1),
        **{
            f"x_{name}": generator.normal(size=(int((kinds == at).sum()), width)).astype(np.float32)
            for at, (name, width) in enumerate(zip(TYPES, WIDTHS, strict=True))
            if width
        },
        **({} if more is None else more(num_nodes, sum(map(len, relations)))),
    }
    np.savez(path.with_suffix(".npz"), **arrays)
    partita.ingest(path.with_suffix(".npz"), path.with_suffix(".whole"), split=(0.5, 0.25, 0.25))
    partita.partition(path.with_suffix(".whole"), path, parts=parts, algorithm="random")
    return GraphStore.open(path)


@dataclass(frozen=True)
class TypedStep(Step):
    """A step on such a graph; the fanouts are of every relation.

    Attributes:
        shards: of the store, one for each host; without them every host has it whole.
        metapath: numbers of the relations that walks go along; empty for other samplers.
        learnt: columns of learnt rows of each type; empty for none.
        without: numbers of types whose features are left out.
        dated: names of types of whose rows the model reads how old they are, in units of 3.
    """

    shards: tuple[GraphStore, ...] = ()
    metapath: tuple[int, ...] = ()
    learnt: tuple[int, ...] = ()
    without: tuple[int, ...] = ()
    dated: tuple[str, ...] = ()

    def sampler(self, group: Group) -> Sampler:
        if not self.metapath:
            return super().sampler(group)
        return WalkWise(self.fanouts, walks=5, length=3, restart=0.3, metapath=self.metapath)

    def model(self) -> Model:
        ends = self.store.schema.ends.tolist()
        widths = [self.hidden] * len(self.fanouts) + [self.classes]
        layers = []
        for number in range(len(self.fanouts)):
            last = number == len(self.fanouts) - 1
            kind, _, option = self.kind.partition("+")
            known = {
                "num_types": 3, "relations": ends, "heads": 3 if not last else 1, "bases": 2, "aggregator": "sum",
                "edge_width": EDGE_WIDTH, "edge_weights": True,
                "metadata": self.store.schema.metadata, "edge_dim": EDGE_WIDTH,
            }  # fmt: skip
            names = LAYERS.find(kind).options & {
                "num_types",
                "relations",
                "heads",
                "edge_width",
                "metadata",
                *option.split(","),
            }
            options = {name: known[name] for name in names}
            layers.append(LAYERS.find(kind).for_model(widths[number], widths[number + 1], last=last, **options))
        encoder = Encoder(
            self.column().widths, self.hidden, self.store.schema.node_types, self.learnt,
            dated=self.dated, age_unit=3.0,
        )  # fmt: skip
        model = Model.from_layers(layers, activation="elu", dropout=self.dropout, encoder=encoder)
        model.reset(self.model_seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() < 2 or name.endswith("bias"):
                    parameter += torch.linspace(0.1, 0.4, parameter.numel()).view_as(parameter)
        return model.to(self.dtype).train()

    def topology(self) -> LocalTopology:
        return LocalTopology(self.store, replace=self.replace, weighted=self.weighted, types=True)

    def original(self) -> Tensor:
        return self.topology().original(torch.arange(self.store.num_nodes))

    def column(self) -> TypedColumns:
        names = self.store.schema.node_types
        found = [None if kind in self.without else self.store.x_of(name) for kind, name in enumerate(names)]
        columns = [
            None
            if x is None
            else HostRows(FeatureColumn(as_tensor(x).to(self.dtype), self.dtype, dropout=self.input_dropout))
            for x in found
        ]
        return TypedColumns(self.store.node_types, tuple(columns), self.dtype, self.learnt)

    def inputs(self) -> TypedInputs:
        return TypedInputs(self.column(), self.topology(), lambda kind, host: (host, None))

    def rows(self, mesh: Mesh) -> TypedColumns:
        if not self.shards:
            return self.column()
        config = Config.make({"precision": "float64", "input_dropout": self.input_dropout})
        return open_columns(self.shards[mesh.host], self.store.schema, config)

    def topology_of(self, context: Workers) -> Topology:
        if not self.shards:
            return super().topology_of(context)
        shard = self.shards[context.mesh.host]
        local = LocalTopology(shard, replace=self.replace, weighted=self.weighted, types=True)
        return place_topology(local, shard.shard.topology, shard, context)
