"""The layers, and the table of their names. A new layer is one file here and one entry in the table."""

from __future__ import annotations

from partita.core.registry import Registry
from partita.nn.layers.base import ColumnSplit, Layer, Split
from partita.nn.layers.convolutions import as_layer_type
from partita.nn.layers.edge_attention import GATv2, Transformer
from partita.nn.layers.gat import GAT
from partita.nn.layers.gcn import GCN
from partita.nn.layers.gin import GIN, GINE
from partita.nn.layers.hetero import HeteroLayer
from partita.nn.layers.mlp import MLP
from partita.nn.layers.nothing import Nothing
from partita.nn.layers.pyg import PygLayer
from partita.nn.layers.relational import RGCN, HeteroSAGE
from partita.nn.layers.relational_attention import HGT, RGAT
from partita.nn.layers.sage import SAGE, GraphConv

_OWN = (SAGE, GCN, GAT, GIN, MLP, GraphConv, GATv2, GINE, Transformer, RGCN, HeteroSAGE, RGAT, HGT, Nothing)

LAYERS: Registry[type[Layer]] = Registry(
    "layer", {layer.name: layer for layer in _OWN}, setting="model", adapt=as_layer_type
)
"""By name; ``pyg:Name`` stands for a convolution of ``torch_geometric.nn``."""

__all__ = [
    "GAT", "GCN", "GIN", "GINE", "HGT", "LAYERS", "MLP", "RGAT", "RGCN", "SAGE", "ColumnSplit", "GATv2", "GraphConv",
    "HeteroLayer", "HeteroSAGE", "Layer", "Nothing", "PygLayer", "Split", "Transformer",
]  # fmt: skip
