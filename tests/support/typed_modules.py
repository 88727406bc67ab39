"""Modules of PyG for typed graphs, as users write them: what a test names as ``typed_modules:Name``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    GAT,
    GATConv,
    GATv2Conv,
    GraphConv,
    HeteroConv,
    HGTConv,
    Linear,
    SAGEConv,
    TransformerConv,
    to_hetero,
)


class Sage(nn.Module):
    """Of an untyped graph, with a connection that skips a layer."""

    def __init__(self, hidden: int, out: int) -> None:
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), hidden), SAGEConv((-1, -1), hidden)
        self.skip, self.out = Linear(-1, hidden), Linear(hidden, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.first(x, edge_index).relu() + self.skip(x)
        return self.out(self.second(h, edge_index).relu())


class Gat(nn.Module):
    """Of an untyped graph."""

    def __init__(self, hidden: int, out: int) -> None:
        super().__init__()
        self.first = GATConv((-1, -1), hidden, heads=2, add_self_loops=False)
        self.second = GATConv((-1, -1), out, add_self_loops=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Edges(nn.Module):
    """Of an untyped graph; reads the features of edges."""

    def __init__(self, hidden: int, out: int, edge_dim: int) -> None:
        super().__init__()
        self.first = GATv2Conv((-1, -1), hidden, add_self_loops=False, edge_dim=edge_dim)
        self.second = TransformerConv((-1, -1), out, edge_dim=edge_dim)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index, edge_attr).relu(), edge_index, edge_attr)


def hetero_sage(metadata: Any, hidden: int, out_channels: int) -> nn.Module:
    return to_hetero(Sage(hidden, out_channels), metadata)


def hetero_basic(metadata: Any, hidden: int, out_channels: int) -> nn.Module:
    """A model of PyG itself, which could read the features of edges."""
    return to_hetero(GAT((-1, -1), hidden, 2, out_channels, add_self_loops=False), metadata)


def hetero_gat(metadata: Any, hidden: int, out_channels: int) -> nn.Module:
    return to_hetero(Gat(hidden, out_channels), metadata, aggr="mean")


def hetero_edges(metadata: Any, hidden: int, out_channels: int, edge_dim: int = 5) -> nn.Module:
    return to_hetero(Edges(hidden, out_channels, edge_dim), metadata)


class Mixed(nn.Module):
    """Layers of ``HeteroConv``, with another convolution for every relation, as in PyG's tutorial."""

    def __init__(self, metadata: Any, hidden: int, out_channels: int, dropout: float = 0.0, layers: int = 2) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for layer in range(layers):
            convs = {}
            for number, relation in enumerate(metadata[1]):
                if number % 3 == 0:
                    convs[relation] = SAGEConv((-1, -1), hidden)
                elif number % 3 == 1:
                    convs[relation] = GATConv((-1, -1), hidden, add_self_loops=False)
                else:
                    convs[relation] = GraphConv((-1, -1), hidden)
            self.convs.append(HeteroConv(convs, aggr="sum" if layer else "mean"))
        self.lin = Linear(hidden, out_channels)
        self.dropout = dropout

    def forward(self, x_dict: dict, edge_index_dict: dict) -> Tensor:
        for conv in self.convs:
            x_dict = {name: x.relu() for name, x in conv(x_dict, edge_index_dict).items()}
        return self.lin(nn.functional.dropout(x_dict["paper"], self.dropout, self.training))


class EdgeConvs(nn.Module):
    """Layers of ``HeteroConv`` that read the features of edges."""

    def __init__(self, metadata: Any, hidden: int, out_channels: int, edge_dim: int = 5) -> None:
        super().__init__()
        widths = hidden, out_channels
        self.convs = nn.ModuleList(
            HeteroConv(
                {each: GATv2Conv((-1, -1), width, add_self_loops=False, edge_dim=edge_dim) for each in metadata[1]}
            )
            for width in widths
        )

    def forward(self, x_dict: dict, edge_index_dict: dict, edge_attr_dict: dict) -> dict:
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict, edge_attr_dict=edge_attr_dict)
        return x_dict


class Hgt(nn.Module):
    """PyG's own layers of typed graphs, which take dictionaries."""

    def __init__(self, metadata: Any, hidden: int, out_channels: int) -> None:
        super().__init__()
        self.lins = nn.ModuleDict({name: Linear(-1, hidden) for name in metadata[0]})
        self.convs = nn.ModuleList(HGTConv(hidden, hidden, metadata, heads=2) for _ in range(2))
        self.out = Linear(hidden, out_channels)

    def forward(self, x_dict: dict, edge_index_dict: dict) -> Tensor:
        x_dict = {name: self.lins[name](x).relu() for name, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.out(x_dict["paper"])


class Mean(Mixed):
    """The row of a seed depends on the other seeds."""

    def forward(self, x_dict: dict, edge_index_dict: dict) -> Tensor:
        out = super().forward(x_dict, edge_index_dict)
        return out - out.mean(0)


class Degrees(nn.Module):
    """Looks at the degrees of sources, which a sampled batch does not have."""

    def __init__(self, metadata: Any, hidden: int, out_channels: int) -> None:
        from torch_geometric.nn import GCNConv

        super().__init__()
        self.first = HeteroConv(
            {each: GCNConv(-1, hidden) if each[0] == each[2] else SAGEConv((-1, -1), hidden) for each in metadata[1]}
        )
        self.second = HeteroConv(
            {each: GCNConv(-1, out_channels) if each[0] == each[2] else SAGEConv((-1, -1), out_channels)
             for each in metadata[1]}
        )  # fmt: skip

    def forward(self, x_dict: dict, edge_index_dict: dict) -> dict:
        return self.second(self.first(x_dict, edge_index_dict), edge_index_dict)


class OwnEdges(Mixed):
    """Its convolutions are not given the edges as they are."""

    def forward(self, x_dict: dict, edge_index_dict: dict) -> Tensor:
        return super().forward(x_dict, {name: torch.unique(each, dim=1) for name, each in edge_index_dict.items()})
