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
from partita.graph.store import GraphStore
from partita.kernels.links import Alias
from partita.nn.decoders import Side
from partita.tasks.links.candidates import ByKey, Negatives
from partita.tasks.links.edges import COLUMN

_CHUNK = 1 << 22
"""Edges that are looked at together."""


class Uniform(Negatives):
    """Every link has its own, drawn from all nodes of the type alike, with replacement."""

    def pick(
        self, batch: Int64[Tensor, "B ends"], types: Int64[Tensor, "B"], key: int, side: Side
    ) -> Int64[Tensor, "B K"]:
        """See :meth:`Negatives.pick`."""
        return self.draw(key, types)


class Weighted(Negatives):
    """As uniform ones, but drawn in proportion to weights of the nodes."""

    def __init__(self, store: GraphStore, count: int, relations: Sequence[int] | None = None) -> None:
        super().__init__(store, count, relations)
        self._tables = dict[Side, Alias]()

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
        if side not in self._tables:
            self._tables[side] = self._table(side)
        return self.draw(key, types, self._tables[side])

    def _table(self, side: Side) -> Alias:
        weights, chosen = self.weights(side), np.array(self._end_types(side), np.int64)
        for number in chosen.tolist():
            begin = self._first[number]
            if not weights[begin : begin + self._sizes[number]].any():
                raise ConfigError(
                    f"no node of {self._type_name(number)} has a weight as a {side}, so none can be drawn by weight",
                    where=str(self.store.path),
                    fix="Use negatives uniform",
                )
        from partita.tasks.links.alias import alias_table  # imports a compiler, which others can do without

        thresholds, others = alias_table(weights, self._first[chosen], self._sizes[chosen])
        return torch.from_numpy(thresholds), torch.from_numpy(others)


class ByDegree(Weighted):
    """Drawn in proportion to the number of edges to the power of 3/4.

    For tails these are the edges into a node, for heads those out of it, of all relations together: how often it is
    the true end. Nodes without any are not drawn. The power is that of Mikolov et al., "Distributed representations of
    words and phrases and their compositionality", NeurIPS 2013.
    """

    def weights(self, side: Side) -> Float64[np.ndarray, "N"]:
        """Square roots only, which are the same on every machine."""
        degrees = (self.store.in_degree() if side == "tail" else _out_degrees(self.store)).astype(np.float64)
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


def _out_degrees(store: GraphStore) -> Int64[np.ndarray, "N"]:
    """Number of edges out of every node."""
    store.require_edges()
    indices, found = store.indices, np.zeros(store.num_nodes, np.int64)
    chunk = max(_CHUNK, store.num_nodes)
    for begin in range(0, store.num_edges, chunk):
        found += np.bincount(indices[begin : begin + chunk], minlength=store.num_nodes)
    return found


__all__ = ["NEGATIVES", "ByDegree", "Every", "InBatch", "Joint", "Negatives", "Uniform", "Weighted"]
