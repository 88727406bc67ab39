"""``Source``: every owner of a drawn neighbor sums up the neighbors it owns; the asking worker merges.

APT's SNP. Edges travel down, partial states up (:mod:`~partita.parallel.placements.source_states`). For attention there
is a second way, by projected rows (:mod:`~partita.parallel.placements.source_rows`); every batch takes the one of fewer
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt64
from torch import Tensor

from partita.comm.axis import Axis
from partita.core.errors import ConfigError
from partita.core.estimates import LayerEstimate, SampledLayer
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.core.rank_masks import RankMasks
from partita.core.records import Traffic
from partita.features.rows import FeatureColumn
from partita.parallel.block_worker import BlockWorker
from partita.parallel.placements.kinds import CacheRule, PlacementKind
from partita.parallel.placements.source_rows import RowsWork, SourceRows
from partita.parallel.placements.source_states import SourceStates, StatesWork


@dataclass(frozen=True)
class Source:
    """The placement by source.

    Attributes:
        worker: draws and computes.
        axis: the workers, and who of them owns which node.
    """

    worker: BlockWorker
    axis: Axis
    collective = True

    @cached_property
    def _ways(self) -> dict[str, Any]:
        return {"states": SourceStates(self.worker, self.axis), "rows": SourceRows(self.worker, self.axis)}

    def _ways_of(self, layer: int) -> list[str]:
        return ["states", "rows"] if SourceRows.fits(self.worker.layer(layer)) else ["states"]

    def check(self, layer: int) -> None:
        """Refuse a layer that cannot be merged from parts of a destination's edges.

        Raises:
            ConfigError: the layer is not divisible, or drops edges out by their position.
        """
        found = self.worker.layer(layer)
        where = f"placements, layer {layer} ({found.name})"
        if found.split is None:
            raise ConfigError(
                "the placement 'source' computes a row from parts of its edges, which this layer cannot be",
                where=where,
                fix="Use 'data' or 'destination' for this layer, or one of Partita's own layers",
            )
        if found.split.draws_by_edge:
            raise ConfigError(
                "attention dropout is keyed by the position of an edge among all edges of its node, which the "
                "placement 'source' deals out",
                where=where,
                fix="Use 'data', 'destination' or (layer 1) 'feature' for this layer, or set attn_dropout to 0",
            )

    def expand(
        self, layer: int, requests: Int[Tensor, "D"], key: StepKey
    ) -> tuple[StatesWork | RowsWork, Int[Tensor, "S"]]:
        """Draw, then ask the owners of the sources in one of the ways; see the protocol."""
        drawn = self.worker.split(layer).divisible(self.worker.draw(layer, requests, key, relabel=False))
        drafts = {way: self._ways[way].draft(layer, drawn) for way in self._ways_of(layer)}
        way = self._cheapest({way: draft.traffic for way, draft in drafts.items()})
        return self._ways[way].expand(layer, drafts[way], key)

    def _cheapest(self, traffic: dict[str, Traffic]) -> str:
        """The way of fewest bytes of all workers together: every worker comes to the same answer."""
        if len(traffic) == 1:
            return next(iter(traffic))
        totals = torch.tensor([each.total for each in traffic.values()], dtype=torch.float64)
        self.axis.sampling.sum_([totals], kind="metadata")
        return min(zip(traffic, totals.tolist(), strict=True), key=lambda each: each[1])[0]

    def forward(self, layer: int, work: StatesWork | RowsWork, h: Tensor | FeatureColumn) -> Float[Tensor, "D F"]:
        """Compute in the way that was taken; see the protocol."""
        return self._ways[work.way].forward(layer, work, h)

    def estimate(self, layer: int, drawn: SampledLayer, asked: UInt64[np.ndarray, "D"], mesh: Mesh) -> LayerEstimate:
        """As by states, but for the bytes of those groups that send fewer in the other way; see
        :class:`partita.core.protocols.Estimator`.
        """
        found = self._ways["states"].estimate(layer, drawn, asked, mesh)
        if "rows" not in self._ways_of(layer):
            return found
        groups = RankMasks.of(mesh, self.axis.sampling.workers).groups
        others = self._ways["rows"].estimated_traffic(layer, drawn, asked, mesh)
        return replace(found, traffic=_cheaper(groups, found.traffic, others))


def _cheaper(groups: Sequence[Sequence[int]], *ways: Sequence[Traffic]) -> list[Traffic]:
    """For the workers of each group those bytes of which their group sends fewer."""
    chosen = list(ways[0])
    for group in groups:
        best = min(ways, key=lambda way: sum(way[rank].total for rank in group))
        for rank in group:
            chosen[rank] = best[rank]
    return chosen


KIND = PlacementKind(
    make=lambda worker, axis, columns: Source(worker, axis),
    sentence="every worker sums up the neighbors that it owns; the worker that needs the row adds up the sums",
    needs_owners=True,
    cache_rule=CacheRule(reads="owned"),
)
