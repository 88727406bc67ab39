"""From the user's ids to node ids: by value (``index``), by hash table (``int``) or by name (``str``).

Streaming code numbers ids as they come, the *provisional* ids; when all have been seen, :meth:`freeze` gives the
final order: ascending ids for integers, so that the store does not depend on the order of the edges, and order of
first appearance for strings. All three hold O(nodes).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import compress, islice
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int, Int64, Shaped

from partita.core.arrow import as_numpy
from partita.core.errors import InputError
from partita.graph.writer import StoreWriter
from partita.sources.batch import Cells, Kind

if TYPE_CHECKING:
    import pyarrow as pa

IdMode = Literal["int", "str", "index"]

_PLAUSIBLE_IDS = 1 << 20
_IDS_PER_EDGE = 64
_LARGEST_DIRECT = 1 << 24  # 64 MiB of slots at most, of which only the pages with ids are ever touched
_DIRECT_PER_NODE = 8
_NAMES_PER_WRITE = 1 << 18


@runtime_checkable
class Ids(Protocol):
    """Numbers the user's ids."""

    kind: Kind

    def __len__(self) -> int:
        """How many nodes there are so far."""

    def add_nodes(self, batch: Cells, column: int) -> Int[np.ndarray, "n"]:
        """Provisional ids of the nodes of a table, new ones numbered."""

    def add_edges(self, batch: Cells) -> tuple[Int[np.ndarray, "E"], Int[np.ndarray, "E"]]:
        """Provisional ids of the sources (column 0) and the targets (column 1), new ones numbered."""
        return self.add_nodes(batch, 0), self.add_nodes(batch, 1)

    def freeze(self) -> Int64[np.ndarray, "N"] | None:
        """No more ids will come: the final id of every provisional id; ``None`` where they are the same."""
        return None

    def find(self, batch: Cells, column: int) -> Int64[np.ndarray, "n"]:
        """Final ids, -1 for an id that was never numbered. Only after :meth:`freeze`."""

    def name(self, node: int) -> str:
        """What the user calls a node (a final id), for messages. Only after :meth:`freeze`."""

    def in_order(self) -> Sequence[str] | Int64[np.ndarray, "N"]:
        """The ids by their provisional numbers. Only before :meth:`freeze`."""
        return np.arange(len(self))

    def write_names(self, writer: StoreWriter) -> None:
        """Write the columns that keep the user's ids, if they are not the node ids. Only after :meth:`freeze`."""

    def drop(self, kept: Bool[np.ndarray, "N"]) -> None:
        """Leave out the nodes that are not kept, and number the others anew in their order. Only after :meth:`freeze`.

        From now on :meth:`find` gives -2 for the ids of nodes that were left out.

        Raises:
            NotImplementedError: ids are positions, so that there are none to leave out.
        """


class IndexIds(Ids):
    """Ids that are node ids already: 0..N-1.

    Args:
        num_nodes: N; ``None``: the largest id + 1.
        known_from: the file that says how many nodes there are, for messages.
    """

    kind: Kind = "int"

    def __init__(self, num_nodes: int | None = None, known_from: str = "") -> None:
        self._known = num_nodes
        self._known_from = known_from
        self._largest = -1
        self._edges = 0

    def __len__(self) -> int:
        return self._largest + 1 if self._known is None else self._known

    def set_num_nodes(self, num_nodes: int, known_from: str) -> None:
        """From now on every id must be less than ``num_nodes``."""
        self._known, self._known_from = num_nodes, known_from

    def add_nodes(self, batch: Cells, column: int) -> Int64[np.ndarray, "n"]:
        """See :class:`Ids`."""
        values = _non_negative(batch, column)
        if self._known is not None:
            allowed = f"ids are 0..{self._known - 1}, because {self._known_from} has {self._known} nodes"
            what = f"id {{}} is out of range: {allowed}"
            batch.check(values >= self._known, column, what, "Fix the id, or use ids=int")
        self._largest = max(self._largest, int(values.max(initial=-1)))
        return values

    def add_edges(self, batch: Cells) -> tuple[Int64[np.ndarray, "E"], Int64[np.ndarray, "E"]]:
        """See :class:`Ids`."""
        pair = super().add_edges(batch)
        self._edges += len(batch)
        return pair

    def freeze(self) -> None:
        """See :class:`Ids`.

        Raises:
            InputError: as :meth:`check_plausible`.
        """
        self.check_plausible(0)

    def check_plausible(self, rows: int) -> None:
        """Check that the largest id can be the index of a node.

        Args:
            rows: of a table of nodes, read so far.

        Raises:
            InputError: it is so large that nearly all nodes would have neither an edge nor a row.
        """
        if self._known is None and self._largest >= _PLAUSIBLE_IDS + _IDS_PER_EDGE * (self._edges + rows):
            raise InputError(
                f"the largest id is {self._largest}, which would make {self._largest + 1:,} nodes "
                f"of {self._edges:,} edges and {rows:,} rows",
                fix="Use ids=int for ids that are not 0..N-1",
            )

    def find(self, batch: Cells, column: int) -> Int64[np.ndarray, "n"]:
        """See :class:`Ids`."""
        values = _non_negative(batch, column)
        return np.where(values < len(self), values, -1)

    def name(self, node: int) -> str:
        """See :class:`Ids`."""
        return str(node)

    def write_names(self, writer: StoreWriter) -> None:
        """See :class:`Ids`."""

    def drop(self, kept: Bool[np.ndarray, "N"]) -> None:
        """See :class:`Ids`."""
        raise NotImplementedError


class IntIds(Ids):
    """Integer ids >= 0 with gaps, numbered by a table that doubles as it fills; see :mod:`partita.sources.id_loops`."""

    kind: Kind = "int"

    def __init__(self, *, compiled: bool = True) -> None:
        """Choose the kernel: ``compiled=False``, or numba missing, means a dictionary (slower, same numbers)."""
        from partita.kernels.compile import COMPILES
        from partita.sources import id_loops

        self._kernels = id_loops if compiled and COMPILES else None
        self._table: dict[int, int] = {}
        self._direct = True
        self._slots: np.ndarray[Any, Any] = np.zeros(1 << 10, np.int32)
        self._keys = np.empty(1 << 9, np.int64)
        self._count = 0
        self._names: Int64[np.ndarray, "N"]  # ascending, from freeze() on
        self._dropped = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self._count

    def add_nodes(self, batch: Cells, column: int) -> Int[np.ndarray, "n"]:
        """See :class:`Ids`."""
        values = _non_negative(batch, column)
        if self._kernels is None:
            return self._number_by_dictionary(values)
        kernels, values = self._kernels, np.array(values, np.int64)  # a copy: arrow's arrays are read-only
        out = np.empty(len(values), self._slots.dtype)
        done = 0
        while True:
            insert = kernels.insert_direct if self._direct else kernels.insert
            done, self._count = insert(values, done, self._slots, self._keys, self._count, out)
            if done == len(values):
                return out
            self._make_room(int(values[done]), kernels)
            out = out.astype(self._slots.dtype, copy=False)

    def in_order(self) -> Int64[np.ndarray, "N"]:
        """See :class:`Ids`."""
        return self._keys[: self._count] if self._kernels else np.fromiter(self._table, np.int64)

    def freeze(self) -> Int64[np.ndarray, "N"] | None:
        """See :class:`Ids`."""
        keys = self.in_order()
        self._slots, self._keys, self._table = np.empty(0, np.int32), np.empty(0, np.int64), {}
        order = np.argsort(keys, kind="stable")
        self._names = keys[order]
        if np.array_equal(self._names, keys):
            return None
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return rank

    def find(self, batch: Cells, column: int) -> Int64[np.ndarray, "n"]:
        """See :class:`Ids`."""
        names, values = self._names, _non_negative(batch, column)
        if len(names) == 0:
            return np.full(len(values), -1, np.int64)
        place = np.minimum(np.searchsorted(names, values), len(names) - 1)
        found = np.where(names[place] == values, place, -1)
        return np.where(np.isin(values, self._dropped), -2, found) if len(self._dropped) else found

    def name(self, node: int) -> str:
        """See :class:`Ids`."""
        return str(self._names[node])

    def write_names(self, writer: StoreWriter) -> None:
        """See :class:`Ids`."""
        if len(self._names) and self._names[-1] != len(self._names) - 1:  # distinct, ascending, >= 0: not 0..N-1
            writer.write("name", self._names)

    def drop(self, kept: Bool[np.ndarray, "N"]) -> None:
        """See :class:`Ids`."""
        self._dropped, self._names = self._names[~kept], self._names[kept]
        self._count = len(self._names)

    def _make_room(self, value: int, kernels: Any) -> None:
        """Grow, so that there is room for one more id, ``value``, and choose the kind of table anew."""
        count = self._count
        keys = self._keys[:count]
        largest = max(value, int(keys.max(initial=0)))
        if count == len(self._keys):
            self._keys = np.concatenate([keys, np.empty(count, np.int64)])
            keys = self._keys[:count]
        numbers = np.int32 if len(self._keys) < np.iinfo(np.int32).max else np.int64
        self._direct = largest < max(_LARGEST_DIRECT, _DIRECT_PER_NODE * count)
        self._slots = np.empty(0, numbers)  # the old table goes before the new one comes
        if self._direct:
            self._slots = np.zeros(1 << largest.bit_length(), numbers)
            self._slots[keys] = np.arange(1, count + 1)
        else:
            self._slots = np.zeros(2 * len(self._keys), numbers)
            kernels.refill(self._slots, self._keys, count)

    def _number_by_dictionary(self, values: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        numbers = np.empty(len(distinct), np.int64)
        for position in np.argsort(first, kind="stable").tolist():
            numbers[position] = self._table.setdefault(int(distinct[position]), len(self._table))
        self._count = len(self._table)
        return numbers[inverse]


class StringIds(Ids):
    """Names. A dictionary is asked only for the distinct names of a batch, so that its cost is not per edge."""

    kind: Kind = "str"

    def __init__(self) -> None:
        self._table: dict[str, int] = {}
        self._dropped: set[str] = set()

    def __len__(self) -> int:
        return len(self._table)

    def add_nodes(self, batch: Cells, column: int) -> Int64[np.ndarray, "n"]:
        """See :class:`Ids`."""
        codes, names = _encode(_named(batch, column))
        table = self._table
        return np.array([table.setdefault(name, len(table)) for name in names], np.int64)[codes]

    def add_edges(self, batch: Cells) -> tuple[Int64[np.ndarray, "E"], Int64[np.ndarray, "E"]]:
        """See :class:`Ids`. First appearance counts row by row, the source before the target."""
        import pyarrow as pa

        codes, names = _encode(pa.concat_arrays([_named(batch, 0), _named(batch, 1)]))
        sources, targets = codes[: len(batch)], codes[len(batch) :]
        cells = np.empty(len(codes), codes.dtype)
        cells[0::2], cells[1::2] = sources, targets
        first = np.empty(len(names), np.int64)
        first[cells[::-1]] = np.arange(len(cells) - 1, -1, -1)  # the last write wins: the first appearance
        table = self._table
        numbers = np.empty(len(names), np.int64)
        for position in np.argsort(first, kind="stable").tolist():
            numbers[position] = table.setdefault(names[position], len(table))
        return numbers[sources], numbers[targets]

    def in_order(self) -> list[str]:
        """See :class:`Ids`."""
        return list(self._table)

    def find(self, batch: Cells, column: int) -> Int64[np.ndarray, "n"]:
        """See :class:`Ids`."""
        codes, names = _encode(_named(batch, column))
        return np.array([self._table.get(name, -1 - (name in self._dropped)) for name in names], np.int64)[codes]

    def name(self, node: int) -> str:
        """See :class:`Ids`."""
        return repr(next(islice(self._table, node, None)))

    def write_names(self, writer: StoreWriter) -> None:
        """See :class:`Ids`."""
        write_text_names(writer, self._table)

    def drop(self, kept: Bool[np.ndarray, "N"]) -> None:
        """See :class:`Ids`."""
        names = list(self._table)
        self._dropped = {name for name, there in zip(names, kept.tolist()) if not there}
        self._table = {name: number for number, name in enumerate(compress(names, kept.tolist()))}


class NamedIds(IndexIds):
    """Ids that are node ids already, of nodes that the user knows by other names.

    Args:
        num_nodes: N.
        known_from: the array that says how many nodes there are, for messages.
        names: (N) integers or text.
    """

    def __init__(self, num_nodes: int | None, known_from: str, names: Shaped[np.ndarray, "N"]) -> None:
        super().__init__(num_nodes, known_from)
        self._names = names

    def name(self, node: int) -> str:
        """See :class:`Ids`."""
        return str(self._names[node])

    def write_names(self, writer: StoreWriter) -> None:
        """See :class:`Ids`."""
        if self._names.dtype.kind == "U":
            write_text_names(writer, [str(name) for name in self._names])
        else:
            writer.write("name", self._names.astype(np.int64))


def write_text_names(writer: StoreWriter, names: Collection[str]) -> None:
    """Write the columns of names that are text."""
    offsets = writer.append("name_offsets", np.int64)
    text = writer.append("name_bytes", np.uint8)
    offsets.append(np.zeros(1, np.int64))
    total, held = 0, list[bytes]()
    for number, name in enumerate(names, start=1):
        held.append(name.encode())
        if len(held) == _NAMES_PER_WRITE or number == len(names):
            ends = total + np.cumsum([len(part) for part in held], dtype=np.int64)
            offsets.append(ends)
            text.append(np.frombuffer(b"".join(held), np.uint8))
            total, held = int(ends[-1]), []
    offsets.close()
    text.close()


def _non_negative(batch: Cells, column: int) -> Int64[np.ndarray, "n"]:
    values = batch.ints(column)
    batch.check(values < 0, column, "id {} is negative", "Ids are integers >= 0; read names with ids=str")
    return values


def _named(batch: Cells, column: int) -> pa.Array:
    import pyarrow.compute as pc

    array = batch.strings(column)
    empty = as_numpy(pc.equal(pc.binary_length(array), 0))
    batch.check(empty, column, "the id is empty", "Fill it in, or delete the row")
    return array


def _encode(array: pa.Array) -> tuple[Int[np.ndarray, "n"], list[str]]:
    """Position of every string in the list of distinct strings, which is in order of first appearance."""
    encoded = array.dictionary_encode()
    return as_numpy(encoded.indices), encoded.dictionary.to_pylist()
