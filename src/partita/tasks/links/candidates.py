"""What negatives of every kind are: candidates for one end of a link, and how the rows of a batch carry them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from partita import kernels
from partita.core.errors import ConfigError
from partita.core.keys import MASK64, Purpose, StepKey, fold
from partita.graph.store import GraphStore
from partita.kernels.links import Alias
from partita.nn.decoders import Side
from partita.sample.topology import as_tensor
from partita.tasks.links.edges import COLUMN, TIME
from partita.tasks.links.in_time import InTime

Group = tuple[Tensor | None, Tensor]
"""Places of edges, ``None`` for all of them, and their candidates: (K) where they share them, else (b, K)."""


class Negatives:
    """What gives links their candidates, all of the type that the end has whose place they take.

    The true end may be among them, and so may be others that make an edge: who scores them leaves these out, see
    :func:`~partita.tasks.links.true_edges.true_edges`.

    Attributes:
        store: the graph.
        count: candidates of each link, where their number can be chosen.
        shared: links have the same candidates wherever their ends have the same type.
        counted: their number can be chosen.
        by_time: where edges are asked about at times, only nodes are drawn that are there then.
        in_time: what is known of that; ``None``: edges are asked about at no time in particular.
    """

    shared: bool = False
    counted: bool = True
    by_time: bool = False
    in_time: InTime | None = None

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
    def of(
        cls, store: GraphStore, count: int, relations: Sequence[int] | None = None, in_time: InTime | None = None
    ) -> Negatives:
        """Candidates from a store.

        Args:
            store: the graph; original indices are taken from it.
            count: candidates of each link.
            relations: numbers of those that links have; ``None``: any of the store.
            in_time: links are asked about at times, which their rows have.

        Raises:
            ConfigError: the count is below 1, or candidates of this kind are drawn whether they are there or not.
        """
        if count < 1:
            raise ConfigError(f"{count} negatives are none", where="negatives", fix="Use at least 1")
        if in_time is not None and (cls.shared or not cls.by_time):
            raise ConfigError(
                "links that are asked about at times have negatives of their own, which are there then",
                where="negative_sampler",
                fix="Use negative_sampler uniform or degree",
            )
        found = cls(store, count, relations)
        found.in_time = in_time
        return found

    def width(self, batch_size: int) -> int:
        """K, the number of candidates of each link in a batch of some size."""
        return self.count

    def candidates(self, batch: Int64[Tensor, "B ends"], key: StepKey, side: Side) -> Int64[Tensor, "B K"]:
        """Candidates for one end of every link; where no node of its type is there yet, the end itself, which is none.

        Args:
            batch: the whole batch of all workers, in its order: rows ``[source, destination]``, or ``[source,
                destination, relation]`` in a typed graph, or with a time behind that; store ids.
            key: of the step.
            side: which end.

        Raises:
            ConfigError: the type of an end has a single node, so that there is no other one.
        """
        self._require_once(side)
        return self.pick(batch, self.types(batch, side), key.at(Purpose.NEGATIVE, COLUMN[side]), side)

    def drawn(self, batch: Int64[Tensor, "B ends"], key: StepKey, sides: Sequence[Side]) -> Int64[Tensor, "B w"]:
        """What a row of a batch carries of its candidates, so that :meth:`groups` finds those of any rows.

        Args:
            batch, key: as of :meth:`candidates`.
            sides: which ends are replaced.

        Raises:
            ConfigError: as :meth:`candidates`.
        """
        return torch.cat([self.candidates(batch, key, side) for side in sides], dim=1)

    def groups(
        self, edges: Int64[Tensor, "b ends"], drawn: Int64[Tensor, "b w"], sides: Sequence[Side]
    ) -> list[list[Group]]:
        """The candidates of some rows of a batch: of each side those of groups of rows, none where there are no rows.

        Args:
            edges: the rows, as of :meth:`candidates`.
            drawn: what :meth:`drawn` gave them.
            sides: as there.
        """
        parts = drawn.chunk(len(sides), dim=1)
        if not self.shared:
            return [[(None, part)] for part in parts]
        return [
            [(rows, part[0 if rows is None else rows[0]]) for rows, _ in self._by_type(edges, side)]
            for side, part in zip(sides, parts, strict=True)
        ]

    def width_of(self, drawn: Int64[Tensor, "b w"], sides: Sequence[Side]) -> int:
        """K, the number of candidates that rows have according to what :meth:`drawn` gave them, on each side."""
        return drawn.shape[1] // len(sides)

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
        return as_tensor(self._ends)[batch[:, 2], COLUMN[side]]

    def _by_type(self, edges: Int64[Tensor, "b ends"], side: Side) -> list[tuple[Tensor | None, int]]:
        """Places of edges by the type that their ends on one side have, ``None`` for all, and its number."""
        if not len(edges):
            return []
        if len(self._sizes) == 1:
            return [(None, 0)]
        kinds = self.types(edges, side)
        return [((kinds == kind).nonzero().squeeze(1), kind) for kind in kinds.unique().tolist()]

    def _end_types(self, side: Side) -> list[int]:
        """Numbers of the types that ends on one side may have, ascending."""
        return sorted({int(self._ends[number, COLUMN[side]]) for number in self._numbers})

    def _type_name(self, number: int) -> str:
        return "the graph" if self.store.schema is None else f"type '{self.store.schema.node_types[number]}'"

    def _require_once(self, side: Side) -> None:
        if side not in self._seen:
            self._require(side)
            self._seen.add(side)

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

    def draw_there(
        self, key: int, batch: Int64[Tensor, "B 4"], types: Int64[Tensor, "B"], side: Side
    ) -> Int64[Tensor, "B K"]:
        """The same among the nodes that are there at the times of links, all alike; see :meth:`candidates`."""
        assert self.in_time is not None
        nodes = self.in_time.nodes
        sizes = torch.from_numpy(nodes.counts(types.numpy(), batch[:, TIME].numpy()))
        first = as_tensor(self._first)[types]
        found = kernels.draw_candidates(key, first, sizes.clamp(min=1), self.count, order=nodes.order)
        return torch.where((sizes > 0).unsqueeze(1), found, batch[:, COLUMN[side]].unsqueeze(1))

    def _of_types(
        self, tables: Int64[Tensor, "T K"], known: Sequence[int], types: Int64[Tensor, "B"]
    ) -> Int64[Tensor, "B K"]:
        """To every link the row of its type: a view where there is one only."""
        if len(known) == 1:
            return tables.expand(len(types), -1)
        return tables[torch.searchsorted(torch.tensor(known), types)]


class ByKey(Negatives):
    """Base of those that a batch shares, and that follow from a key alone: this is all that a row of it carries."""

    shared = True

    def __init__(self, store: GraphStore, count: int, relations: Sequence[int] | None = None) -> None:
        super().__init__(store, count, relations)
        if type(self).pick is not ByKey.pick:
            raise ConfigError(
                f"{type(self).__name__} picks candidates itself, and rows of a batch carry no more of them than a key",
                where="negative_sampler",
                fix="Override table in place of pick, or derive it from Negatives",
            )

    def table(self, key: int, side: Side) -> Int64[Tensor, "T K"]:
        """Candidates by the type of the end that they replace, in the order of :meth:`_end_types`.

        Args:
            key: 64-bit key of the step and the side.
            side: which end.
        """
        raise NotImplementedError

    def pick(
        self, batch: Int64[Tensor, "B ends"], types: Int64[Tensor, "B"], key: int, side: Side
    ) -> Int64[Tensor, "B K"]:
        """See :meth:`Negatives.pick`."""
        return self._of_types(self.table(key, side), self._end_types(side), types)

    def drawn(self, batch: Int64[Tensor, "B ends"], key: StepKey, sides: Sequence[Side]) -> Int64[Tensor, "B 1"]:
        """See :meth:`Negatives.drawn`."""
        for side in sides:
            self._require_once(side)
        number = key.before(Purpose.NEGATIVE)
        return torch.full((len(batch), 1), number - (MASK64 + 1) * (number >> 63), dtype=torch.int64)

    def groups(
        self, edges: Int64[Tensor, "b ends"], drawn: Int64[Tensor, "b 1"], sides: Sequence[Side]
    ) -> list[list[Group]]:
        """See :meth:`Negatives.groups`."""
        if not len(edges):
            return [[] for _ in sides]
        number, found = int(drawn[0, 0]) & MASK64, []
        for side in sides:
            tables = dict(zip(self._end_types(side), self.table(fold(number, COLUMN[side]), side), strict=True))
            found.append([(rows, tables[kind]) for rows, kind in self._by_type(edges, side)])
        return found

    def width_of(self, drawn: Int64[Tensor, "b 1"], sides: Sequence[Side]) -> int:
        """See :meth:`Negatives.width_of`."""
        return self.width(len(drawn))
