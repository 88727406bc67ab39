"""Which pairs of a node with itself are negatives of an edge."""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from partita.graph.store import GraphStore
from partita.nn.decoders import Side
from partita.sample.topology import as_tensor
from partita.tasks.links.edges import COLUMN, RELATION


class LoopNegatives:
    """One more negative of an edge and side: the other end in the place of the end that is replaced.

    Ranks among all nodes have this candidate too, and decoders that multiply rows score it high for relations that are
    nearly symmetric. Negatives that a batch shares hardly ever hit it.

    Args:
        store: the graph.
    """

    def __init__(self, store: GraphStore) -> None:
        self.store = store

    @cached_property
    def _within(self) -> Bool[Tensor, "R"]:
        """Which relations link nodes of one type."""
        schema = self.store.schema
        assert schema is not None
        return torch.from_numpy(schema.ends[:, 0] == schema.ends[:, 1])

    def count(self, edges: Int[Tensor, "B columns"], side: Side) -> Bool[Tensor, "B"]:
        """Of which edges the other end is a negative in the place of an end.

        It is not where both ends are one node, have different types, or where it has an edge with itself.

        Args:
            edges: ``[source, destination]``, in a typed graph ``[source, destination, relation]``; store ids.
            side: which end is replaced.
        """
        other, own = edges[:, 1 - COLUMN[side]], edges[:, COLUMN[side]]
        found = other != own
        if self.store.schema is not None:
            found &= self._within[edges[:, RELATION]]
        loops = self.store.self_loops
        if loops is not None:
            found &= as_tensor(loops)[other] == 0
        return found
