"""A graph store for PyG: for its loaders, or as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from partita.core.errors import ConfigError
from partita.graph.metadata import MULTILABEL, REGRESSION
from partita.graph.schema import Schema
from partita.graph.store import GraphStore

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

    from partita.loaders.backends import PygEdges, PygFeatures


def pyg_stores(store: GraphStore | str | os.PathLike[str]) -> tuple[PygFeatures, PygEdges]:
    """What PyG's ``NeighborLoader`` and other loaders take in place of a ``Data`` object.

    Features and labels are read from the store's files as far as a batch needs them. Of the edges PyG's samplers want
    all in memory, with 8 bytes each: where that is too much, use :class:`partita.NeighborLoader`. PyG's sampling itself
    needs pyg-lib or torch-sparse.

    Args:
        store: a graph store, or its path.

    Returns:
        A ``torch_geometric.data.FeatureStore`` with ``x`` and ``y``, and a ``torch_geometric.data.GraphStore`` with the
        edges in CSC layout; of one type of nodes, which needs no name.

    Raises:
        ConfigError: PyG is not installed.
        StoreError: there is no such store, or it is the shard of a host.
    """
    with _installed():
        from partita.loaders.backends import PygEdges, PygFeatures
    store = store if isinstance(store, GraphStore) else GraphStore.open(store)
    store.require_whole("a loader")
    store.require_untyped("a loader")
    return PygFeatures(store), PygEdges(store)


def to_pyg(store: GraphStore | str | os.PathLike[str]) -> Data | HeteroData:
    """The graph of a store as a ``torch_geometric.data.Data``, all of it in memory; a typed one as ``HeteroData``.

    Nodes are in the order in which they were ingested, however the store is partitioned, edges by destination.

    Args:
        store: a graph store, or its path.

    Returns:
        ``edge_index``, ``num_nodes``, and, as far as the store has them, ``x`` (float32), ``y``, ``edge_weight``,
        ``edge_attr`` (float32) and ``train_mask``, ``val_mask``, ``test_mask`` or masks of other names; ``name``, your
        ids of the nodes, where they are not their numbers (int64, or a list of N strings); ``class_names``, a list,
        where the classes have names; ``held_val`` and ``held_test`` (n, 2), held-out edges. Of a typed graph these are
        by node type, or by relation, labels and masks of the types that have some; nodes are numbered within their
        types.

    Raises:
        ConfigError: PyG is not installed.
        StoreError: there is no such store, or it is the shard of a host.
    """
    with _installed():
        from torch_geometric.data import Data
    store = store if isinstance(store, GraphStore) else GraphStore.open(store)
    store.require_whole("to_pyg")
    if store.schema is not None:
        return _hetero(store, store.schema)
    ids = np.arange(store.num_nodes)
    rank = store.to_original(ids)
    order = np.argsort(rank)
    by_destination = np.argsort(np.repeat(rank, store.in_degree()), kind="stable")
    ends = np.asarray(store.to_original(store.indices)), np.repeat(rank, store.in_degree())
    found: dict[str, Any] = {"edge_index": np.stack([end[by_destination] for end in ends]).astype(np.int64)}
    if store.x is not None:
        found["x"] = store.x[order].astype(np.float32)
    if store.y is not None:
        found["y"] = store.y[order]
    if store.edge_weight is not None:
        found["edge_weight"] = store.edge_weight[by_destination]
    if store.edge_attr is not None:
        found["edge_attr"] = store.edge_attr[by_destination].astype(np.float32)
    for name, split in store.splits.items():
        found[f"{name}_mask"] = np.zeros(store.num_nodes, dtype=bool)
        found[f"{name}_mask"][rank[split]] = True
    for name in store.held_out:
        found[f"held_{name}"] = np.array(store.to_original(store.held_out_edges(name)[0].T))
    if store.has_names:
        names = store.names(order)
        found["name"] = names if names.dtype != object else names.tolist()
    data = {name: torch.from_numpy(each) if isinstance(each, np.ndarray) else each for name, each in found.items()}
    if store.class_names is not None:
        data["class_names"] = store.class_names
    return Data(num_nodes=store.num_nodes, **data)


def _hetero(store: GraphStore, schema: Schema) -> HeteroData:
    from torch_geometric.data import HeteroData

    data, order = HeteroData(), np.argsort(store.to_original(np.arange(store.num_nodes)))
    rank = store.to_original(np.arange(store.num_nodes))
    ends = np.asarray(store.to_original(store.indices)), np.repeat(rank, store.in_degree())
    first = schema.first_nodes
    held_out = {f"held_{split}": store.held_out_edges(split) for split in store.held_out}
    for number, name in enumerate(schema.node_types):
        mine = order[first[number] : first[number + 1]]
        data[name].num_nodes = len(mine)
        if (x := store.x_of(name)) is not None:
            data[name].x = torch.from_numpy(x[store.type_rows(mine)].astype(np.float32))
        if store.y is not None:
            y = store.y[mine]
            if store.task == MULTILABEL or (~np.isnan(y) if store.task == REGRESSION else y >= 0).any():
                data[name].y = torch.from_numpy(y)
        for split, ids in store.splits.items():
            mask = np.isin(mine, ids)
            if mask.any():
                data[name][f"{split}_mask"] = torch.from_numpy(mask)
    for number, relation in enumerate(schema.relations):
        mine = np.flatnonzero(store.edge_type == number)
        mine = mine[np.argsort(ends[1][mine], kind="stable")]
        source, target = (first[kind] for kind in schema.ends[number])
        held = data[relation.source, relation.name, relation.target]
        held.edge_index = torch.from_numpy(np.stack([ends[0][mine] - source, ends[1][mine] - target]).astype(np.int64))
        if store.edge_weight is not None:
            held.edge_weight = torch.from_numpy(store.edge_weight[mine])
        if store.edge_attr is not None:
            held.edge_attr = torch.from_numpy(store.edge_attr[mine].astype(np.float32))
        for key, (pairs, kinds) in held_out.items():
            if kinds is not None and (there := kinds == number).any():
                held[key] = torch.from_numpy(np.asarray(store.to_original(pairs[:, there].T)) - [source, target])
    if store.class_names is not None:
        data["class_names"] = store.class_names
    return data


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise ConfigError(
            "PyTorch Geometric is not installed", where="partita", fix="Install it with: pip install 'partita[pyg]'"
        ) from None
