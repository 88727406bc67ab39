"""A mini-batch as models of PyG take it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Batch = TypeVar("_Batch", bound="DataclassInstance")


@dataclass(repr=False)
class Batch:
    """A sampled subgraph: nodes, numbered from 0, and edges among them. The seeds are the first nodes.

    Names and order are those of PyG's ``NeighborLoader``.

    Attributes:
        n_id: (n) store ids of the nodes, distinct: the seeds, then others as they were found.
        edge_index: (2, e) from source to destination, as positions in ``n_id``.
        e_id: (e) position of every edge in the store's ``indices``.
        batch_size: B, how many of the first nodes are seeds.
        input_id: (B) positions of the seeds in the loader's ``input_nodes``.
        num_sampled_nodes: seeds, then nodes that each hop found.
        num_sampled_edges: edges that each hop drew; ``torch_geometric.utils.trim_to_layer`` takes both.
        x: (n, F) features; ``None`` where the store has none.
        y: (n, ...) labels: int64 classes, uint8 (n, C) labels, or floats; ``None`` where the store has none.
        edge_weight: (e) float32; ``None`` where the store has none.
        edge_attr: (e, A) float32, features of the edges; ``None`` where the store has none.
        seed_time: (B) when the seeds are asked about, where edges are drawn by time; else ``None``.
        time: (n) the time of the seeds that each node was found for. Then a node is there once for each such time.
    """

    n_id: Int64[Tensor, "n"]
    edge_index: Int64[Tensor, "2 e"]
    e_id: Int64[Tensor, "e"]
    batch_size: int
    input_id: Int64[Tensor, "B"]
    num_sampled_nodes: list[int]
    num_sampled_edges: list[int]
    x: Float[Tensor, "n F"] | None = None
    y: Num[Tensor, "n ..."] | None = None
    edge_weight: Float[Tensor, "e"] | None = None
    edge_attr: Float[Tensor, "e A"] | None = None
    seed_time: Int64[Tensor, "B"] | None = None
    time: Int64[Tensor, "n"] | None = None

    def __repr__(self) -> str:
        return as_shown(self)

    @property
    def num_nodes(self) -> int:
        """n."""
        return self.n_id.shape[0]

    @property
    def num_edges(self) -> int:
        """e."""
        return self.edge_index.shape[1]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The same batch with its tensors on a device, as in PyG: the batch itself is changed."""
        return changed(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same batch with its tensors in pinned memory, from which devices copy faster."""
        return changed(self, lambda tensor: tensor.pin_memory())


def as_shown(batch: Any) -> str:
    """The fields of a batch: shapes of tensors, anything else as it is."""

    def shown(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key!r}: {shown(each)}" for key, each in value.items()) + "}"
        return str(list(value.shape)) if isinstance(value, Tensor) else str(value)

    given = {field.name: getattr(batch, field.name) for field in fields(batch)}
    named = ", ".join(f"{name}={shown(value)}" for name, value in given.items() if value is not None)
    return f"{type(batch).__name__}({named})"


def changed(batch: _Batch, change: Callable[[Tensor], Tensor]) -> _Batch:
    """The same batch with its tensors, also those in dictionaries, changed."""
    for field in fields(batch):
        value: Any = getattr(batch, field.name)
        if isinstance(value, Tensor):
            setattr(batch, field.name, change(value))
        elif isinstance(value, dict):
            moved = {key: change(each) if isinstance(each, Tensor) else each for key, each in value.items()}
            setattr(batch, field.name, moved)
    return batch
