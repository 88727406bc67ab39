"""A graph store as PyG's loaders take it; made by :func:`partita.pyg_stores`, which says so where PyG is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import EdgeAttr, EdgeLayout, FeatureStore, TensorAttr
from torch_geometric.data import GraphStore as PygGraphStore

from partita.features.rows import FeatureColumn
from partita.graph.store import GraphStore
from partita.loaders.columns import column_of
from partita.sample.topology import as_tensor


@dataclass
class _NodeAttr(TensorAttr):
    """Of the only type of nodes there is."""

    def __post_init__(self) -> None:
        self.group_name = None


def _read_only(*args: Any, **kwargs: Any) -> bool:
    raise NotImplementedError("a graph store is not written through a loader")


class PygFeatures(FeatureStore):
    """Node columns of a store, read where they are asked for.

    Args:
        store: the graph store.
    """

    def __init__(self, store: GraphStore) -> None:
        super().__init__(tensor_attr_cls=_NodeAttr)
        self._columns: dict[str, Any] = {}
        if store.x is not None:
            self._columns["x"] = column_of(store, "x")
        if store.y is not None:
            self._columns["y"] = as_tensor(store.y)

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        column = self._columns.get(attr.attr_name)
        if column is None:
            return None
        of_rows = isinstance(column, FeatureColumn)
        index = attr.index
        if isinstance(index, Tensor) and index.dtype != torch.bool:
            return column.read(index) if of_rows else column[index]
        if of_rows:
            every = torch.arange(column.x.shape[0])
            return column.read(every if index is None else every[index])
        return column if index is None else column[index]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        column = self._columns.get(attr.attr_name)
        if isinstance(column, FeatureColumn):
            return column.x.shape[0], column.width
        return None if column is None else tuple(column.shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Names of the columns."""
        return [_NodeAttr(attr_name=name) for name in self._columns]

    _put_tensor = _remove_tensor = _read_only


class PygEdges(PygGraphStore):
    """The edges of a store.

    Args:
        store: the graph store.
    """

    def __init__(self, store: GraphStore) -> None:
        super().__init__()
        self._indptr, self._indices, self._size = as_tensor(store.indptr), as_tensor(store.indices), store.num_nodes

    def _get_edge_index(self, attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        return (self._indices.long(), self._indptr) if attr.layout == EdgeLayout.CSC else None

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """The only type of edges there is, by destination."""
        return [EdgeAttr(None, EdgeLayout.CSC, is_sorted=True, size=(self._size, self._size))]

    _put_edge_index = _remove_edge_index = _read_only
