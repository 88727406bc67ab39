"""``Source``: every owner of a drawn neighbor sums up the neighbors it owns; the asking worker merges.

APT's SNP. Edges travel down, partial states up (:mod:`~partita.parallel.placements.source_states`). For attention there
is a second way, by projected rows (:mod:`~partita.parallel.placements.source_rows`); every batch takes the one of fewer
bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt64
from torch import Tensor

from partita.core.errors import ConfigError
from partita.core.estimates import LayerEstimate, SampledLayer
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.core.records import Traffic
from partita.features.rows import FeatureColumn
from partita.parallel.block_worker import BlockWork, SharedWork
from partita.parallel.placements.kinds import CacheRule, PlacementKind
from partita.parallel.placements.source_rows import RowsWork, SourceRows
from partita.parallel.placements.source_states import SourceStates


class Source(SharedWork):
    """The placement by source.

    Attributes:
        takes_encoded: owners send what they make of encoded rows, so layer 1 cannot compose the encoder.
    """

    takes_encoded = True

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

    def expand(self, layer: int, requests: Int[Tensor, "D"], key: StepKey) -> tuple[BlockWork, Int[Tensor, "S"]]:
        """Draw, then ask the owners of the sources in the way of fewest bytes; see the protocol."""
        drawn = self.worker.split(layer).divisible(self.worker.draw(layer, requests, key, relabel=False))
        traffic, send = SourceStates(self.worker, self.axis).draft(layer, drawn)
        if SourceRows.fits(self.worker.layer(layer)):
            other, send_other = SourceRows(self.worker, self.axis).draft(layer, drawn)
            if self._is_less(other, traffic):
                send = send_other
        return send(key)

    def _is_less(self, other: Traffic, traffic: Traffic) -> bool:
        """Whether all workers together send less: every worker comes to the same answer."""
        totals = torch.tensor([other.total, traffic.total], dtype=torch.float64)
        self.axis.sampling.sum_([totals], kind="metadata")
        return bool(totals[0] < totals[1])

    def forward(self, layer: int, work: BlockWork, h: Tensor | FeatureColumn) -> Float[Tensor, "D F"]:
        """Compute in the way that was taken; see the protocol."""
        way: Any = SourceRows if isinstance(work, RowsWork) else SourceStates
        return way(self.worker, self.axis).forward(layer, work, h)

    def estimate(self, layer: int, drawn: SampledLayer, asked: UInt64[np.ndarray, "D"], mesh: Mesh) -> LayerEstimate:
        """As by states, but for the bytes of those groups that send fewer in the other way; see
        :class:`partita.core.protocols.Estimator`.
        """
        found = SourceStates(self.worker, self.axis).estimate(layer, drawn, asked, mesh)
        if not SourceRows.fits(self.worker.layer(layer)):
            return found
        assert found.far is not None
        traffic, far = list(found.traffic), list(found.far)
        others, far_others = SourceRows(self.worker, self.axis).estimated_traffic(layer, drawn, asked, mesh)
        way = found.way
        for group in self.groups(mesh).groups:
            if sum(others[rank].total for rank in group) < sum(traffic[rank].total for rank in group):
                way = "rows"
                for rank in group:
                    traffic[rank], far[rank] = others[rank], far_others[rank]
        return replace(found, traffic=traffic, far=far, way=way)


KIND = PlacementKind(
    make=lambda worker, axis, columns: Source(worker, axis),
    sentence="every worker aggregates the neighbors that it owns; the worker that needs the row adds the partial sums",
    needs_owners=True,
    cache_rule=CacheRule(reads="owned"),
)
