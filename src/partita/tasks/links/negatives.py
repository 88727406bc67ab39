"""Negatives by name: which nodes stand in the place of one end of a link, to be told from the true one.

All are drawn in original indices and keyed by the step, the side and the place of the link in the batch, so they are
the same nodes however the store is partitioned and whoever works on the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from partita.core.errors import ConfigError
from partita.core.registry import Registry
from partita.graph.hashing import fold_arrays
from partita.graph.soundness import rows_of
from partita.graph.store import GraphStore
from partita.kernels.links import Alias
from partita.nn.decoders import Side
from partita.tasks.links.candidates import ByKey, Negatives
from partita.tasks.links.edges import COLUMN, TIME

_CHUNK = 1 << 22
"""Edges that are looked at together."""


class Uniform(Negatives):
    """Every link has its own, drawn from all nodes of the type alike, with replacement."""

    by_time = True

    def pick(
        self, batch: Int64[Tensor, "B ends"], types: Int64[Tensor, "B"], key: int, side: Side
    ) -> Int64[Tensor, "B K"]:
        """See :meth:`Negatives.pick`."""
        return self.draw(key, types) if self.in_time is None else self.draw_there(key, batch, types, side)


class Weighted(Negatives):
    """As uniform ones, but drawn in proportion to weights of the nodes."""

    by_time = True

    def __init__(self, store: GraphStore, count: int, relations: Sequence[int] | None = None) -> None:
        super().__init__(store, count, relations)
        self._tables = dict[Side, Alias]()
        self._sums = dict[Side, Float64[np.ndarray, "N"]]()

    def weights(self, side: Side) -> Float64[np.ndarray, "N"]:
        """Of all nodes in the order of their original indices, finite and >= 0; a node of weight 0 is never drawn."""
        raise NotImplementedError

    def pick(
        self, batch: Int64[Tensor, "B ends"], types: Int64[Tensor, "B"], key: int, side: Side
    ) -> Int64[Tensor, "B K"]:
        """See :meth:`Negatives.pick`.

        Raises:
            ConfigError: no node of a type has a weight.
        """
        if self.in_time is not None:
            return self._there(key, batch, types, side)
        if side not in self._tables:
            self._tables[side] = self._table(side)
        return self.draw(key, types, self._tables[side])

    def _there(
        self, key: int, batch: Int64[Tensor, "B 4"], types: Int64[Tensor, "B"], side: Side
    ) -> Int64[Tensor, "B K"]:
        """Among the nodes that are there: their weights, one after the other, are cut at a random place."""
        assert self.in_time is not None
        nodes, kinds = self.in_time.nodes, types.numpy()
        if side not in self._sums:
            self._sums[side] = self._running_sums(side)
        sizes = nodes.counts(kinds, batch[:, TIME].numpy())
        row_keys = fold_arrays(np.full(len(batch), key, np.uint64), np.arange(len(batch)))
        draws = fold_arrays(np.repeat(row_keys, self.count), np.tile(np.arange(self.count), len(batch)))
        share = (draws >> np.uint64(11)).reshape(len(batch), self.count) * 2.0**-53
        found = batch[:, [COLUMN[side]]].repeat(1, self.count)
        for kind in np.unique(kinds).tolist():
            begin = int(nodes.first[kind])
            sums = self._sums[side][begin : begin + int(nodes.sizes[kind])]
            rows = np.flatnonzero((kinds == kind) & (sizes > 0))
            rows = rows[sums[sizes[rows] - 1] > 0]
            last = sizes[rows] - 1
            places = np.searchsorted(sums, share[rows] * sums[last, None], side="right")
            # Rounding may give the whole sum, which the last one with a weight ends.
            places = np.minimum(places, np.searchsorted(sums, sums[last], side="left")[:, None]) + begin
            picked = torch.from_numpy(places)
            found[torch.from_numpy(rows)] = picked if nodes.order is None else nodes.order[picked]
        return found

    def _running_sums(self, side: Side) -> Float64[np.ndarray, "N"]:
        """Of the weights of the nodes of each type, in the order in which they come to be there."""
        assert self.in_time is not None
        nodes, weights = self.in_time.nodes, self.weights(side)
        if nodes.order is not None:
            weights = weights[self.store.to_original(nodes.order.numpy())]
        self._require_weights(weights, self._end_types(side), side)
        ends = nodes.first + nodes.sizes
        return np.concatenate([np.cumsum(weights[begin:end]) for begin, end in zip(nodes.first, ends, strict=True)])

    def _table(self, side: Side) -> Alias:
        weights, chosen = self.weights(side), np.array(self._end_types(side), np.int64)
        self._require_weights(weights, chosen.tolist(), side)
        from partita.tasks.links.alias import alias_table  # imports a compiler, which others can do without

        thresholds, others = alias_table(weights, self._first[chosen], self._sizes[chosen])
        return torch.from_numpy(thresholds), torch.from_numpy(others)

    def _require_weights(self, weights: Float64[np.ndarray, "N"], chosen: Sequence[int], side: Side) -> None:
        for number in chosen:
            begin = self._first[number]
            if not weights[begin : begin + self._sizes[number]].any():
                raise ConfigError(
                    f"no node of {self._type_name(number)} has a weight as a {side}, so none can be drawn by weight",
                    where=str(self.store.path),
                    fix="Use negatives uniform",
                )


class ByDegree(Weighted):
    """Drawn in proportion to the number of edges to the power of 3/4.

    For tails these are the edges into a node, for heads those out of it, of all relations together: how often it is
    the true end. Nodes without any are not drawn. The power is that of Mikolov et al., "Distributed representations of
    words and phrases and their compositionality", NeurIPS 2013. Where links are asked about at times, edges count that
    are there before validation begins.
    """

    def weights(self, side: Side) -> Float64[np.ndarray, "N"]:
        """Square roots only, which are the same on every machine."""
        if self.in_time is not None:
            counts = _degrees_before(self.store, side, self.in_time.until)
        else:
            counts = self.store.in_degree() if side == "tail" else _out_degrees(self.store)
        degrees = counts.astype(np.float64)
        if self._order is not None:
            degrees = degrees[self._order.numpy()]
        return np.sqrt(degrees) * np.sqrt(np.sqrt(degrees))


class Joint(ByKey):
    """Drawn as uniform ones, once for the whole batch: far fewer rows are needed, and scores are matrix products."""

    def table(self, key: int, side: Side) -> Int64[Tensor, "T K"]:
        """See :meth:`ByKey.table`."""
        return self.draw(key, torch.tensor(self._end_types(side)))


class InBatch(Negatives):
    """The ends of the other links of the batch, whose rows are there anyway: about as likely as nodes have edges.

    Their number is that of the links. Where ends have several types, those of one type are repeated in their order
    until there are so many.
    """

    shared = True
    counted = False

    def width(self, batch_size: int) -> int:
        """See :meth:`Negatives.width`."""
        return batch_size

    def pick(
        self, batch: Int64[Tensor, "B ends"], types: Int64[Tensor, "B"], key: int, side: Side
    ) -> Int64[Tensor, "B K"]:
        """See :meth:`Negatives.pick`."""
        ends, known = batch[:, COLUMN[side]], torch.unique(types).tolist()
        if len(known) <= 1:
            return ends.expand(len(batch), -1)
        places = torch.arange(len(batch))
        rows = [ends[types == number] for number in known]
        return self._of_types(torch.stack([row[places % len(row)] for row in rows]), known, types)


class Every(ByKey):
    """All nodes of the type, in the order of their original indices: for small graphs.

    Lacroix, Usunier and Obozinski, "Canonical tensor decomposition for knowledge base completion", ICML 2018, train so.
    """

    counted = False

    def width(self, batch_size: int) -> int:
        """See :meth:`Negatives.width`."""
        return max(int(self._sizes[number]) for side in COLUMN for number in self._end_types(side))

    def _require(self, side: Side) -> None:
        super()._require(side)
        ends = {number: int(self._sizes[number]) for each in COLUMN for number in self._end_types(each)}
        if len(set(ends.values())) > 1:
            sizes = ", ".join(f"{size:,} of {self._type_name(number)}" for number, size in ends.items())
            raise ConfigError(
                f"negatives of all nodes are for links whose ends have one type, or as many nodes of each ({sizes})",
                where="negative_sampler",
                fix="Use negative_sampler joint",
            )

    def table(self, key: int, side: Side) -> Int64[Tensor, "T K"]:
        """See :meth:`ByKey.table`."""
        first, size = self._first[self._end_types(side)], self.width(0)
        rows = torch.from_numpy(first).unsqueeze(1) + torch.arange(size)
        return rows if self._order is None else self._order[rows]


def _as_negatives(name: str, found: Any) -> type[Negatives]:
    if isinstance(found, type) and issubclass(found, Negatives):
        return found
    raise ConfigError(
        f"'{name}' gives no negatives",
        where="negative_sampler",
        fix="Name a subclass of partita.tasks.links.negatives.Negatives",
    )


NEGATIVES: Registry[type[Negatives]] = Registry(
    "kind of negatives",
    {"uniform": Uniform, "degree": ByDegree, "joint": Joint, "in_batch": InBatch, "all": Every},
    setting="negative_sampler",
    also=("auto",),
    adapt=_as_negatives,
)
"""By name."""


def _degrees_before(store: GraphStore, side: Side, until: int) -> Int64[np.ndarray, "N"]:
    """Number of edges into every node, or out of it, that are there before a time."""
    indices, times, indptr = store.indices, store.column("edge_time"), store.indptr
    found = np.zeros(store.num_nodes, np.int64)
    chunk = max(_CHUNK, store.num_nodes)
    for begin in range(0, store.num_edges, chunk):
        end = min(begin + chunk, store.num_edges)
        ends = indices[begin:end] if side == "head" else rows_of(indptr, begin, end)
        found += np.bincount(ends[times[begin:end] < until], minlength=store.num_nodes)
    return found


def _out_degrees(store: GraphStore) -> Int64[np.ndarray, "N"]:
    """Number of edges out of every node."""
    store.require_edges()
    indices, found = store.indices, np.zeros(store.num_nodes, np.int64)
    chunk = max(_CHUNK, store.num_nodes)
    for begin in range(0, store.num_edges, chunk):
        found += np.bincount(indices[begin : begin + chunk], minlength=store.num_nodes)
    return found


__all__ = ["NEGATIVES", "ByDegree", "Every", "InBatch", "Joint", "Negatives", "Uniform", "Weighted"]
