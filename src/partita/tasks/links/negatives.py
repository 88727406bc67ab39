"""Negatives by name: which nodes stand in the place of one end of a link, to be told from the true one.

All are drawn in original indices and keyed by the step, the side and the place of the link in the batch, so they are
the same nodes however the store is partitioned and whoever works on the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from partita import kernels
from partita.core.errors import ConfigError
from partita.core.keys import Purpose, StepKey
from partita.core.registry import Registry
from partita.graph.store import GraphStore
from partita.kernels.links import Alias
from partita.nn.decoders import Side
from partita.sample.topology import as_tensor

_CHUNK = 1 << 22
"""Edges that are looked at together."""


class Negatives:
    """What gives links their candidates, all of the type that the end has whose place they take.

    The true end may be among them, and so may be others that make an edge (:func:`true_edges`): who scores them leaves
    these out.

    Attributes:
        store: the graph.
        count: candidates of each link, where their number can be chosen.
        shared: links have the same candidates wherever their ends have the same type.
    """

    shared: bool = False

    def __init__(self, store: GraphStore, count: int, relations: Sequence[int] | None = None) -> None:
        """Use :meth:`of`."""
        self.store, self.count = store, count
        schema = store.schema
        self._sizes = np.array([store.num_nodes] if schema is None else schema.num_nodes, dtype=np.int64)
        self._first = np.cumsum(self._sizes) - self._sizes
        self._ends = np.zeros((1, 2), np.int64) if schema is None else schema.ends
        self._numbers = tuple(range(len(self._ends))) if relations is None else tuple(relations)
        order = store.ingest_order()
        self._order = None if order is None else as_tensor(order)
        self._seen = set[Side]()

    @classmethod
    def of(cls, store: GraphStore, count: int, relations: Sequence[int] | None = None) -> Negatives:
        """Candidates from a store.

        Args:
            store: the graph; original indices are taken from it.
            count: candidates of each link.
            relations: numbers of those that links have; ``None``: any of the store.

        Raises:
            ConfigError: the count is below 1.
        """
        if count < 1:
            raise ConfigError(f"{count} negatives are none", where="negatives", fix="Use at least 1")
        return cls(store, count, relations)

    def width(self, batch_size: int) -> int:
        """K, the number of candidates of each link in a batch of some size."""
        return self.count

    def candidates(self, batch: Int64[Tensor, "B ends"], key: StepKey, side: Side) -> Int64[Tensor, "B K"]:
        """Candidates for one end of every link.

        Args:
            batch: the whole batch of all workers, in its order: rows ``[source, destination]``, or ``[source,
                destination, relation]`` in a typed graph; store ids.
            key: of the step.
            side: which end.

        Raises:
            ConfigError: the type of an end has a single node, so that there is no other one.
        """
        if side not in self._seen:
            self._require(side)
            self._seen.add(side)
        return self.pick(batch, self.types(batch, side), key.at(Purpose.NEGATIVE, _COLUMN[side]), side)

    def pick(
        self, batch: Int64[Tensor, "B ends"], types: Int64[Tensor, "B"], key: int, side: Side
    ) -> Int64[Tensor, "B K"]:
        """What :meth:`candidates` gives: store ids, a function of original indices and the key.

        Args:
            batch: the whole batch.
            types: number of the node type of each end that is replaced.
            key: 64-bit key of the step and the side.
            side: which end.
        """
        raise NotImplementedError

    def types(self, batch: Int64[Tensor, "B ends"], side: Side) -> Int64[Tensor, "B"]:
        """Number of the node type that one end of every link has."""
        if self.store.schema is None:
            return torch.zeros(len(batch), dtype=torch.int64)
        return as_tensor(self._ends)[batch[:, 2], _COLUMN[side]]

    def _end_types(self, side: Side) -> list[int]:
        """Numbers of the types that ends on one side may have, ascending."""
        return sorted({int(self._ends[number, _COLUMN[side]]) for number in self._numbers})

    def _type_name(self, number: int) -> str:
        return "the graph" if self.store.schema is None else f"type '{self.store.schema.node_types[number]}'"

    def _require(self, side: Side) -> None:
        for number in self._end_types(side):
            if self._sizes[number] < 2:
                raise ConfigError(
                    f"{self._type_name(number)} has {self._sizes[number]} node(s), so there is no other {side} to tell "
                    "a true one from",
                    where=str(self.store.path),
                    fix="Train on other relations",
                )

    def draw(self, key: int, types: Int64[Tensor, "n"], alias: Alias | None = None) -> Int64[Tensor, "n K"]:
        """Nodes of the given types, some for each."""
        first, sizes = as_tensor(self._first)[types], as_tensor(self._sizes)[types]
        return kernels.draw_candidates(key, first, sizes, self.count, alias=alias, order=self._order)

    def _of_types(
        self, tables: Int64[Tensor, "T K"], known: Sequence[int], types: Int64[Tensor, "B"]
    ) -> Int64[Tensor, "B K"]:
        """To every link the row of its type: a view where there is one only."""
        if len(known) == 1:
            return tables.expand(len(types), -1)
        return tables[torch.searchsorted(torch.tensor(known), types)]


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


class Joint(Negatives):
    """Drawn as uniform ones, once for the whole batch: far fewer rows are needed, and scores are matrix products."""

    shared = True

    def pick(
        self, batch: Int64[Tensor, "B ends"], types: Int64[Tensor, "B"], key: int, side: Side
    ) -> Int64[Tensor, "B K"]:
        """See :meth:`Negatives.pick`."""
        known = self._end_types(side)
        return self._of_types(self.draw(key, torch.tensor(known)), known, types)


class InBatch(Negatives):
    """The ends of the other links of the batch, whose rows are there anyway: about as likely as nodes have edges.

    Their number is that of the links. Where ends have several types, those of one type are repeated in their order
    until there are so many.
    """

    shared = True

    def width(self, batch_size: int) -> int:
        """See :meth:`Negatives.width`."""
        return batch_size

    def pick(
        self, batch: Int64[Tensor, "B ends"], types: Int64[Tensor, "B"], key: int, side: Side
    ) -> Int64[Tensor, "B K"]:
        """See :meth:`Negatives.pick`."""
        ends, known = batch[:, _COLUMN[side]], torch.unique(types).tolist()
        if len(known) <= 1:
            return ends.expand(len(batch), -1)
        places = torch.arange(len(batch))
        rows = [ends[types == number] for number in known]
        return self._of_types(torch.stack([row[places % len(row)] for row in rows]), known, types)


class Every(Negatives):
    """All nodes of the type, in the order of their original indices: for small graphs.

    Lacroix, Usunier and Obozinski, "Canonical tensor decomposition for knowledge base completion", ICML 2018, train so.
    """

    shared = True

    def width(self, batch_size: int) -> int:
        """See :meth:`Negatives.width`."""
        return max(int(self._sizes[number]) for side in _COLUMN for number in self._end_types(side))

    def _require(self, side: Side) -> None:
        super()._require(side)
        ends = {number: int(self._sizes[number]) for each in _COLUMN for number in self._end_types(each)}
        if len(set(ends.values())) > 1:
            sizes = ", ".join(f"{size:,} of {self._type_name(number)}" for number, size in ends.items())
            raise ConfigError(
                f"negatives of all nodes are for links whose ends have one type, or as many nodes of each ({sizes})",
                where="negative_sampler",
                fix="Use negative_sampler joint",
            )

    def pick(
        self, batch: Int64[Tensor, "B ends"], types: Int64[Tensor, "B"], key: int, side: Side
    ) -> Int64[Tensor, "B K"]:
        """See :meth:`Negatives.pick`."""
        known = self._end_types(side)
        rows = torch.stack([torch.arange(self._sizes[number]) + self._first[number] for number in known])
        return self._of_types(rows if self._order is None else self._order[rows], known, types)


_COLUMN: dict[Side, int] = {"head": 0, "tail": 1}
"""Of a row of a batch, and of the ends of a relation."""


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


def true_edges(
    store: GraphStore, batch: Int64[Tensor, "B ends"], candidates: Int64[Tensor, "B K"], side: Side
) -> Bool[Tensor, "B K"]:
    """Which candidates make a link that is an edge of the store, of the link's relation.

    Args:
        store: the graph, with all its edges.
        batch: links, as for :meth:`Negatives.candidates`.
        candidates: of each, in the place of one end.
        side: of this end.

    Raises:
        StoreError: the store is a shard without the edges of other hosts' nodes, or damaged.
    """
    store.require_rows()
    kinds = store.edge_type
    return kernels.find_links(
        as_tensor(store.indptr),
        as_tensor(store.indices),
        None if kinds is None else as_tensor(kinds),
        batch[:, 1 - _COLUMN[side]],
        None if kinds is None else batch[:, 2],
        candidates,
        tails=side == "tail",
    )


def require_negatives(store: GraphStore, relations: Sequence[int] | None = None) -> None:
    """See that links have negatives that are no edges, for who leaves out those that are.

    Args:
        store: the graph, with all its edges.
        relations: numbers of those that links have; ``None``: all.

    Raises:
        ConfigError: in a relation every source is linked with every destination.
        StoreError: the store is a shard without the edges of other hosts' nodes.
    """
    schema = store.schema
    if schema is None:
        _require_incomplete(store, None, (store.num_nodes, store.num_nodes), store.num_edges, loops=True)
        return
    for number in range(len(schema.relations)) if relations is None else relations:
        source, target = schema.ends[number].tolist()
        sizes = (schema.num_nodes[source], schema.num_nodes[target])
        _require_incomplete(store, number, sizes, schema.num_edges[number], loops=source == target)


def _require_incomplete(
    store: GraphStore, relation: int | None, sizes: tuple[int, int], num_edges: int, *, loops: bool
) -> None:
    pairs = sizes[0] * sizes[1] - (sizes[0] if loops else 0)
    if num_edges < pairs or _distinct_pairs(store, relation) < pairs:
        return
    what = "" if relation is None or store.schema is None else f" of relation '{store.schema.relations[relation]}'"
    raise ConfigError(
        f"every source{what} is linked with every destination, so there are no negatives that are not true",
        where=str(store.path),
        fix="Let true edges be negatives, or train on other relations",
    )


def _distinct_pairs(store: GraphStore, relation: int | None) -> int:
    """Pairs of different nodes that a relation links."""
    indptr, indices, kinds, found = store.indptr, store.indices, store.edge_type, 0
    begin = 0
    while begin < store.num_nodes:
        end = max(begin + 1, int(np.searchsorted(indptr, indptr[begin] + _CHUNK, side="right")) - 1)
        edges = slice(int(indptr[begin]), int(indptr[end]))
        targets = np.repeat(np.arange(begin, end), np.diff(indptr[begin : end + 1]))
        sources = indices[edges].astype(np.int64)
        chosen = sources != targets
        if relation is not None and kinds is not None:
            chosen &= kinds[edges] == relation
        found += len(np.unique(targets[chosen] * store.num_nodes + sources[chosen]))
        begin = end
    return found


def _out_degrees(store: GraphStore) -> Int64[np.ndarray, "N"]:
    """Number of edges out of every node."""
    store.require_edges()
    indices, found = store.indices, np.zeros(store.num_nodes, np.int64)
    chunk = max(_CHUNK, store.num_nodes)
    for begin in range(0, store.num_edges, chunk):
        found += np.bincount(indices[begin : begin + chunk], minlength=store.num_nodes)
    return found
