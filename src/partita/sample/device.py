"""Drawing on a device: what of the graph lies there, and how the rest is read."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from partita.core.once import Once
from partita.core.protocols import Rule
from partita.core.records import Removed, Sampled, TargetEdges
from partita.kernels import checks
from partita.kernels.memory import is_pinned, pinned, to_device
from partita.sample.collective import in_order
from partita.sample.hot_rows import bytes_of, copied_rows, edge_columns, most_drawn
from partita.sample.topology import EDGE_ARRAYS, ArrayTopology


def node_bytes(local: ArrayTopology) -> int:
    """Bytes of the columns of nodes, which a device holds in any case, and of the table that numbers sources there."""
    columns = {id(column): column for name, column in local.arrays().items() if name not in EDGE_ARRAYS}
    return bytes_of(columns.values()) + 4 * local.num_nodes


def edge_bytes(local: ArrayTopology) -> int:
    """Bytes of the columns of edges."""
    return bytes_of(edge_columns(local).values())


def on_device(local: ArrayTopology, device: torch.device, budget: int, *, pin: bool) -> ArrayTopology:
    """A topology that draws on a device what another one draws on the host, pick for pick.

    Columns of nodes (where rows begin, original indices, self loops) are copied to the device in any case. Edges are,
    as far as the budget goes: those of nodes with the most in-edges first, as they are drawn from most.

    Args:
        local: in the memory of the host.
        device: where ids are, and where samples go.
        budget: bytes of the device's memory for edges and for finding them.
        pin: copy the edges to pinned host memory, which the device reads in place, where some stay on the host.
            Otherwise the host draws for those nodes.

    Raises:
        EdgesError: an in-neighbor is no node: kernels of a device look at none of those that they draw.
    """
    checks.sources(local.arrays()["indices"], local.num_nodes)
    if edge_bytes(local) <= budget:
        return ArrayTopology(**_moved(local.arrays(), device))
    return DeviceTopology(local, device, budget, pin=pin)


class DeviceTopology(ArrayTopology):
    """In-neighbors of which some lie on a device and the others on the host.

    A batch is drawn by two calls, one for each place, whose rows are put in order afterwards.

    Args:
        local, device, budget, pin: see :func:`on_device`.

    Attributes:
        num_hot: nodes whose edges are on the device.
        num_bytes: bytes of the device's memory that the budget is for.
    """

    def __init__(self, local: ArrayTopology, device: torch.device, budget: int, *, pin: bool) -> None:
        super().__init__(**_node_columns(local, device))
        self._host = self._cold = local
        if pin:
            columns = edge_columns(local).items()
            edges = {name: column if is_pinned(column) else pinned(column) for name, column in columns}
            self._cold = ArrayTopology(**{**self.arrays(), **edges})
        self._cold_on_host = not pin
        hot = most_drawn(local, budget)
        rank = torch.full((local.num_nodes,), -1, dtype=torch.int32)
        rank[hot] = torch.arange(len(hot), dtype=torch.int32)
        self._rank = rank.to(device)
        self._hot_indptr, hot_edges = copied_rows(local, hot, device, "the device")
        self._hot = ArrayTopology(
            self._hot_indptr, **hot_edges, node_types=self.node_types, num_relations=self.num_relations,
            replace=self.replace, weighted=self.weighted,
        )  # fmt: skip
        self.num_hot = len(hot)
        self.num_bytes = bytes_of([self._rank, self._hot_indptr, *hot_edges.values()])

    def _without(self, excluded: TargetEdges) -> DeviceTopology:
        """Looked for on the host, whose edges are all; found again among those of the device."""
        device, host = self._rank.device, self._host.without(excluded)
        positions, count = host.left_out.to(device), Once(lambda: _moved_counts(host, device))
        other = self._left(positions, count)
        other._cold = self._cold._left(host.left_out if self._cold_on_host else positions, count)
        node = torch.searchsorted(self._indptr, positions, right=True) - 1
        hot = self._rank[node] >= 0
        node, at = node[hot], positions[hot]
        moved = at - self._indptr[node] + self._hot_indptr[self._rank[node].long()]
        other._hot = self._hot._left(moved, count)
        return other

    def sample(
        self, dst: Int[Tensor, "D"], key: int, fanout: int | Sequence[int], *, positions: bool = False
    ) -> Sampled:
        """Draw in-neighbors of ids; see :meth:`ArrayTopology.sample`."""
        positions, asked = positions or bool(self._drawn_rows), positions
        rank = self._rank[dst.long()]
        hot, cold = (rank >= 0).nonzero().flatten(), (rank < 0).nonzero().flatten()
        near = self._hot.drawn(rank[hot], self.original(dst[hot]), key, fanout, positions=positions)
        far = self._sample_cold(dst[cold], key, fanout, positions)
        counts = torch.cat([near.indptr.diff(), far.indptr.diff()])
        indptr, pick = in_order(counts, torch.cat([hot, cold]))
        indices, at, kinds = torch.cat([near.indices, far.indices])[pick], None, None
        if near.edge_type is not None and far.edge_type is not None:
            kinds = torch.cat([near.edge_type, far.edge_type])[pick]
        if near.positions is not None and far.positions is not None:
            moved = self._indptr[dst[hot].long()] - self._hot_indptr[rank[hot].long()]
            moved = torch.repeat_interleave(moved, near.indptr.diff(), output_size=len(near.indices))
            at = torch.cat([near.positions + moved, far.positions])[pick]
        return self._with_rows(Sampled(indptr, indices, at, edge_type=kinds), positions=asked)

    def _sample_cold(self, dst: Int[Tensor, "n"], key: int, fanout: int | Sequence[int], positions: bool) -> Sampled:
        if not self._cold_on_host:
            return self._cold.sample(dst, key, fanout, positions=positions)
        return _sent(self._cold.sample(dst.cpu(), key, fanout, positions=positions), dst.device)


class HostDraws(ArrayTopology):
    """In-neighbors that the host draws, for samplers without kernels for a device; the picks go where the ids are.

    Original indices, degrees and coefficients are of the device, as its blocks are.

    Args:
        local: in the memory of the host.
        device: where ids are, and where samples go.
    """

    def __init__(self, local: ArrayTopology, device: torch.device) -> None:
        super().__init__(**_node_columns(local, device))
        self._local = local

    def drawing(self, columns: Sequence[str]) -> HostDraws:
        """See :meth:`ArrayTopology.drawing`."""
        other = copy(self)
        other._local = self._local.drawing(columns)
        return other

    def _without(self, excluded: TargetEdges) -> HostDraws:
        host, device = self._local.without(excluded), self.degree_offsets.device
        other = self._left(host.left_out.to(device), Once(lambda: _moved_counts(host, device)))
        other._local = host
        return other

    def at_owners(
        self, ids: Int[Tensor, "n"], rule: Rule, *, payload: Tensor | None = None, one_each: bool = False
    ) -> Sampled:
        """See :meth:`ArrayTopology.at_owners`; the rule works on the host."""
        payload = None if payload is None else payload.cpu()
        return _sent(self._local.at_owners(ids.cpu(), rule, payload=payload, one_each=one_each), ids.device)

    def original(self, ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """Original indices of ids, int64; ids may be on the host too, where walks are followed step by step."""
        return self._local.original(ids) if ids.device.type == "cpu" else super().original(ids)


def _moved_counts(host: ArrayTopology, device: torch.device) -> Removed:
    removed = host.removed()
    assert removed is not None
    return removed.to(device)


def _sent(found: Sampled, device: torch.device) -> Sampled:
    found = found.mapped(lambda column: to_device(column, device))
    return replace(found, indptr=to_device(found.indptr, device))


def _moved(arrays: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in arrays.items()}


def _node_columns(local: ArrayTopology, device: torch.device) -> dict[str, Any]:
    """Everything but the edges, on a device."""
    arrays = local.arrays()
    return _moved({**arrays, **{name: column[:0] for name, column in edge_columns(local).items()}}, device)
