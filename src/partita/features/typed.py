"""The features of a typed graph: rows of each node type, of a width and a dtype of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from partita.core.node_types import NodeTypes
from partita.core.records import RowsByType
from partita.features.host import HostRows
from partita.features.rows import FeatureColumn


@dataclass(frozen=True)
class TypedColumns:
    """Rows that this process can address, usually the memory-mapped features of a store, or of a shard.

    Attributes:
        types: which type every node has.
        columns: rows of each type, by their numbers among those of the type; ``None`` of types without features.
        dtype: float32 or float64: what is computed in.
        learnt: columns of the learnt rows of each type, which lie elsewhere, 0 of types without; empty for none at all.
    """

    types: NodeTypes
    columns: tuple[HostRows | None, ...]
    dtype: torch.dtype = torch.float32
    learnt: tuple[int, ...] = ()

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each type, 0 of types without features."""
        return tuple(0 if rows is None else rows.num_columns for rows in self.columns)

    @property
    def row_bytes(self) -> int:
        """Of a row of a node, as it is computed with, on average."""
        sizes = [self.types.size(kind) for kind in range(self.types.count)]
        total = sum(size * width for size, width in zip(sizes, self.widths, strict=True))
        return -(-total * self.dtype.itemsize // max(1, sum(sizes)))

    def split(self, ids: Int[Tensor, "n"]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], int]:
        """Of each type, which of the given store ids have it, and their rows among those of the type; both int64.

        The former where the ids are, the latter in host memory. And behind how many of the ids all others are sorted by
        type.
        """
        if self.types.count == 1:  # a node's row is its id
            return (torch.arange(len(ids), device=ids.device),), (ids.cpu().long(),), 0
        kinds, rows = self.types.places(ids.cpu().numpy())
        falls = np.flatnonzero(kinds[1:] < kinds[:-1])
        head = int(falls[-1]) + 1 if len(falls) else 0
        bounds = head + np.searchsorted(kinds[head:], np.arange(self.types.count + 1))
        at, found = list[Tensor](), list[Tensor]()
        for kind, (low, high) in enumerate(pairwise(bounds.tolist())):
            first = np.flatnonzero(kinds[:head] == kind)
            at.append(torch.from_numpy(np.concatenate([first, np.arange(low, high)])).to(ids.device))
            found.append(torch.from_numpy(np.concatenate([rows[first], rows[low:high]])))
        return tuple(at), tuple(found), head

    def empty(self, at: Int[Tensor, "n"]) -> Float[Tensor, "n 0"]:
        """Rows of nodes without features, where those nodes are."""
        return torch.empty(len(at), 0, dtype=self.dtype, device=at.device)

    @property
    def whole(self) -> bool:
        """Whether every host has the rows of all nodes."""
        return all(rows.whole for rows in self.columns if rows is not None)

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows and their factors."""
        return sum(rows.num_bytes for rows in self.columns if rows is not None)

    def mapped(self, change: Callable[[FeatureColumn], FeatureColumn]) -> TypedColumns:
        """The same rows, with a change made to the columns that hold them."""
        return replace(self, columns=tuple(None if rows is None else rows.mapped(change) for rows in self.columns))

    def read(self, ids: Int[Tensor, "n"]) -> RowsByType:
        """Rows of the given store ids, which this host must have, as evaluation sees them."""
        at, numbers, head = self.split(ids)
        found = [
            self.empty(each) if rows is None else rows.values(rows.read(rows.ask(each)))
            for rows, each in zip(self.columns, numbers, strict=True)
        ]
        return RowsByType(at, tuple(found), head, numbers)
