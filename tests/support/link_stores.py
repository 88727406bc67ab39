"""The same graphs in stores of several partitions, with links and candidates in original ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from reordering import reorder
from torch import Tensor
from typed_graphs import typed_store

from partita.core.keys import StepKey
from partita.graph.store import GraphStore
from partita.tasks.links.negatives import NEGATIVES
from partita.testing.graphs import formula_store

KEY = StepKey(3, 1, 4)
COLUMN = {"head": 0, "tail": 1}
"""Of a link: where its ends are."""


def typed_stores(folder: Path) -> list[GraphStore]:
    """The same typed graph as it was ingested, and in parts."""
    parts = typed_store(folder / "store")
    return [GraphStore.open(folder / "store.whole"), parts]


def untyped_stores(folder: Path) -> list[GraphStore]:
    """The same graph as it was ingested, and in two and five parts."""
    whole = formula_store(folder / "whole")
    return [
        whole,
        *(
            reorder(whole, (np.arange(60) * 7 % parts).astype(np.int64), folder / f"{parts}", num_parts=parts)
            for parts in (2, 5)
        ),
    ]


def edges_of(store: GraphStore) -> Tensor:
    """All edges as rows of a batch, in original ids, in one order for all stores of a graph."""
    target = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    columns = [store.to_original(store.indices.astype(np.int64)), store.to_original(target)]
    columns += [] if store.edge_type is None else [store.edge_type.astype(np.int64)]
    rows = np.stack(columns, axis=1)
    return torch.from_numpy(rows[np.lexsort(rows.T)])


def in_store(store: GraphStore, batch: Tensor) -> Tensor:
    """Links in original ids, in those of a store."""
    order = store.ingest_order()
    if order is None:
        return batch
    return torch.cat([torch.from_numpy(order)[batch[:, :2]], batch[:, 2:]], dim=1)


def drawn(store: GraphStore, name: str, batch: Tensor, side: str, count: int = 6, key: StepKey = KEY, **of) -> Tensor:
    """Candidates of links, all in original ids."""
    found = NEGATIVES.find(name).of(store, count, **of).candidates(in_store(store, batch), key, side)
    return torch.from_numpy(np.array(store.to_original(found.numpy())))
