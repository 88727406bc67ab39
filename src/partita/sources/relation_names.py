"""Relations that a column of a table of edges names, as in triples: head, relation, tail."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64

from partita.core.arrow import as_numpy
from partita.graph.schema import MOST_RELATIONS
from partita.sources.batch import Cells

ENTITY = "entity"
"""The node type of a graph of triples."""


class RelationNames:
    """Numbers the names of relations, in order of first appearance."""

    def __init__(self) -> None:
        self._table = dict[str, int]()

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def add(self, batch: Cells, column: int) -> None:
        """Number the new names of a column.

        Raises:
            InputError: a cell is empty, or there are too many names.
        """
        codes, names = _encoded(batch, column)
        for name in names:
            self._table.setdefault(name, len(self._table))
        if len(self._table) > MOST_RELATIONS:
            new = np.array([self._table[name] >= MOST_RELATIONS for name in names])[codes]
            what = f"'{{}}' is relation number {MOST_RELATIONS + 1:,}, at most {MOST_RELATIONS:,} are possible"
            batch.check(new, column, what, "Name another column with --relation-column")

    def numbers(self, batch: Cells, column: int) -> Int64[np.ndarray, "n"]:
        """Numbers of the names in a column, all of which were added."""
        codes, names = _encoded(batch, column)
        return np.array([self._table[name] for name in names], np.int64)[codes]


def _encoded(batch: Cells, column: int) -> tuple[Int64[np.ndarray, "n"], list[str]]:
    import pyarrow.compute as pc

    array = batch.strings(column)
    empty = as_numpy(pc.equal(pc.binary_length(array), 0))
    batch.check(empty, column, "the relation is empty", "Fill it in, or delete the row")
    encoded = array.dictionary_encode()
    return as_numpy(encoded.indices).astype(np.int64), encoded.dictionary.to_pylist()
