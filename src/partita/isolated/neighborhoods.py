"""What of the neighborhoods of a batch's seeds was sampled, what is in the view, and what there is in the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from partita.core.records import Block
from partita.isolated.views import PartView


class Neighborhoods(NamedTuple):
    """Numbers that a :data:`~partita.isolated.coverage.Coverage` is made of.

    There is an entry for each mean that the layer takes: of every seed; in a typed graph, where the layer tells
    relations apart, of every seed and every relation that leads to its type and is sampled, seed after seed. A neighbor
    u of v along r is drawn with probability 1 / d_global(v, r) from the whole graph and 1 / d_local(v, r) from the
    view: their quotient, which Grappa corrects by (section 3.4), has degrees by relation.

    Attributes:
        sampled: int64 (n), in-edges that were drawn.
        d_local: int64 (n), in-edges from owned nodes.
        d_global: int64 (n), in-edges in the whole graph.
    """

    sampled: Int64[Tensor, "n"]
    d_local: Int64[Tensor, "n"]
    d_global: Int64[Tensor, "n"]

    @classmethod
    def of(cls, view: PartView, block: Block, fanouts: Sequence[int] | None = None) -> Neighborhoods:
        """Those of a block's destinations.

        Args:
            view: from which the block was drawn.
            block: of the last layer, so that its destinations are owned nodes.
            fanouts: of every relation, those with 0 are of no matter; ``None``: all relations are sampled.
        """
        drawn, seeds = block.indptr.diff(), block.dst.long()
        if view.schema is None:
            return cls(drawn, view.d_local(seeds), view.d_global(seeds))
        d_local, d_global = view.degrees_by_relation(seeds)
        wanted = torch.ones(d_local.shape[1], dtype=torch.bool)
        if fanouts is not None:
            wanted = torch.tensor(fanouts) != 0
        if block.edge_type is None:  # the layer counts the neighbors along all relations alike
            return cls(drawn, d_local[:, wanted].sum(1), d_global[:, wanted].sum(1))
        sampled = torch.zeros_like(d_local)
        at = block.edge_dst() * sampled.shape[1] + block.edge_type
        sampled.view(-1).index_add_(0, at, torch.ones_like(at))
        leads = view.schema.ends[:, 1] == view.node_types.of(seeds.numpy())[:, None]
        pairs = torch.from_numpy(np.asarray(leads)) & wanted
        return cls(sampled[pairs], d_local[pairs], d_global[pairs])
