"""Models of users: what a test names as ``own_models:Name``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, GCNConv, SAGEConv


class BlocksNet(nn.Module):
    """Takes blocks, as in DGL; with a residual connection."""

    def __init__(self, in_feats: int, hidden: int, num_classes: int, scale: float = 1.0) -> None:
        super().__init__()
        self.first = SAGEConv(in_feats, hidden)
        self.second = SAGEConv(hidden, hidden)
        self.out = nn.Linear(hidden, num_classes)
        self.scale = scale

    def forward(self, blocks: Any, x: Tensor) -> Tensor:
        h = self.first((x, x[: blocks[0].num_dst]), blocks[0].edge_index()).relu()
        own = h[: blocks[1].num_dst]
        return self.out(own + self.scale * self.second((h, own), blocks[1].edge_index()))


class ConvNet(nn.Module):
    """Takes ``x`` and ``edge_index``, as most scripts for PyG."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = GATv2Conv(in_channels, hidden_channels, heads=2, concat=False)
        self.norm = nn.LayerNorm(hidden_channels)
        self.conv2 = SAGEConv(hidden_channels, out_channels)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.norm(self.conv1(x, edge_index)).relu()
        h = torch.nn.functional.dropout(h, p=self.dropout, training=self.training)
        return self.conv2(h, edge_index)


class GcnNet(nn.Module):
    """Of convolutions that weight edges by the degrees of both ends."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = GCNConv(in_channels, 16)
        self.conv2 = GCNConv(16, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class BatchNormNet(ConvNet):
    """Mixes rows."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, hidden_channels, out_channels)
        self.norm = nn.BatchNorm1d(hidden_channels)


class Residual(GcnNet):
    """Adds rows of different layers."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.conv1 = SAGEConv(in_channels, in_channels)
        self.conv2 = SAGEConv(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(x + self.conv1(x, edge_index), edge_index)


class MyConv(SAGEConv):
    """A convolution of one's own."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, aggr="max")


class Whole(nn.Module):
    """Takes what nobody gives."""

    def forward(self, graph: Any) -> Any:
        return graph


def make_net(in_width: int, out_width: int, hidden: int) -> nn.Module:
    """A function that makes a model."""
    return BlocksNet(in_width, hidden, out_width)


def margins(output: Tensor, targets: Tensor) -> Tensor:
    """A loss: the hinge of every node."""
    return torch.nn.functional.multi_margin_loss(output, targets, reduction="none")


def share_of_class_zero(answers: Any) -> float:
    """A metric: how many nodes are said to be of class 0."""
    return float((answers.predicted == 0).double().mean())
