"""Which type every node of a typed graph has: a type is a finer range of ids than a part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int64, Integer


@dataclass(frozen=True, eq=False)
class NodeTypes:
    """The ranges of ids of the T types: part after part, and in each of them type after type.

    Besides its store id, a node has a *row*: where it is among all nodes of its type, in order of their ids.

    Attributes:
        offsets: int64 (P T + 1): the nodes of type t in part p are ``offsets[p * T + t]:offsets[p * T + t + 1]``.
        count: T.
    """

    offsets: Int64[np.ndarray, "R_1"]
    count: int = 1

    @cached_property
    def _sizes(self) -> Int64[np.ndarray, "P T"]:
        return np.diff(self.offsets).reshape(-1, self.count)

    @cached_property
    def _shift(self) -> Int64[np.ndarray, "R"]:
        """From store ids to rows, for each range: how many nodes of its type, less how many nodes, are before it."""
        return (np.cumsum(self._sizes, axis=0) - self._sizes).reshape(-1) - self.offsets[:-1]

    def places(self, ids: Integer[np.ndarray, "n"]) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
        """Number of the type of each store id, and its row among the nodes of its type."""
        at = self._range(ids)
        return at % self.count, ids + self._shift[at]

    def of(self, ids: Integer[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Number of the type of each store id."""
        return self._range(ids) % self.count

    def rows(self, ids: Integer[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Row of each store id among the nodes of its type."""
        return self.places(ids)[1]

    def ids(self, kind: int, rows: Integer[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Store ids of rows of a type: the inverse of :meth:`rows`."""
        bounds = self.bounds(kind)
        part = np.searchsorted(bounds[1:], rows, side="right")
        return rows - bounds[part] + self.offsets[part * self.count + kind]

    def all_ids(self, kind: int) -> Int64[np.ndarray, "m"]:
        """Store ids of all nodes of a type, ascending."""
        return self.ids(kind, np.arange(self.size(kind)))

    def before(self, kind: int, ids: Integer[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """How many nodes of a type have lower store ids than each of the given ones, which may be N."""
        starts, sizes = self.offsets[kind : -1 : self.count], self._sizes[:, kind]
        return np.clip(np.subtract.outer(ids, starts), 0, sizes).sum(1)

    def rows_within(self, kind: int, first: int, last: int) -> slice:
        """Rows of those nodes of a type that have store ids from ``first`` to ``last - 1``."""
        return slice(*self.before(kind, np.array([first, last])).tolist())

    def bounds(self, kind: int) -> Int64[np.ndarray, "P_1"]:
        """Rows of a type at which parts begin, and how many rows there are: ``part_offsets`` of the type alone."""
        return np.concatenate([[0], np.cumsum(self._sizes[:, kind])])

    def size(self, kind: int) -> int:
        """Nodes of a type."""
        return int(self._sizes[:, kind].sum())

    def _range(self, ids: Integer[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        return np.searchsorted(self.offsets, ids, side="right") - 1
