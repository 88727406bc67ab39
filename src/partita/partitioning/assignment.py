"""Ready-made assignments: files that say which part every node belongs to, read and written by the user's ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64, Shaped

from partita.core.asides import written_aside
from partita.core.errors import ConfigError, InputError
from partita.core.files import map_array, require_parent
from partita.core.partitioning import PartitionTask, Requires, checked_parts
from partita.graph.store import GraphStore
from partita.partitioning.loads import Unbounded

SUFFIXES = (".npy", ".csv", ".parquet")
"""Of the files that can be written; ``.tsv`` and ``.txt`` can be read too."""

_ROWS_AT_ONCE = 1 << 18


class AssignmentFile(Unbounded):
    """A file as a partitioner.

    ``.npy`` holds one integer per node, in the order in which nodes were ingested. A table (text or Parquet) has two
    columns: the user's id of a node, and its part; columns named ``part`` and ``node`` (or ``id``) are found by name,
    else the first is the node and the second the part.

    Args:
        path: of the file.
    """

    requires = Requires(passes=0, survey=False, node_bytes=(24.0, 0.0), options=())
    order_independent = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def partition(self, task: PartitionTask) -> Int32[np.ndarray, "N"]:
        """Read the file.

        Raises:
            InputError: it does not name every node exactly once, or a part is outside [0, P).
        """
        if not isinstance(task.source, GraphStore):
            raise ConfigError("an assignment file belongs to a graph store", where=str(self.path))
        return read_assignment(self.path, task.source, task.num_parts)


def read_assignment(path: Path, store: GraphStore, num_parts: int) -> Int32[np.ndarray, "N"]:
    """The part of every node by store id; see :class:`AssignmentFile`.

    Raises:
        InputError: the file cannot be read, does not name every node exactly once, or a part is outside [0, P).
    """
    if path.suffix == ".npy":
        try:
            array = map_array(path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise InputError(f"cannot be read as an .npy array ({reason})", where=str(path)) from error
        parts = checked_parts(array, store.num_nodes, num_parts, str(path))
        original = store.original_index
        return np.array(parts if original is None else parts[original], dtype=np.int32)
    return _from_table(path, store, num_parts)


def _from_table(path: Path, store: GraphStore, num_parts: int) -> Int32[np.ndarray, "N"]:
    from partita.sources.edges import find_column, open_table

    table = open_table(path, wanted=("node", "id", "part"))
    named = [name for name in ("node", "id") if table.has_header and name in table.names]
    columns = [
        find_column(table, named[0] if named else 0, "node"),
        find_column(table, "part" if table.has_header and "part" in table.names else 1, "part"),
    ]
    text = store.has("name_offsets")
    position = _positions(store)
    parts = np.full(store.num_nodes, -1, dtype=np.int32)
    for batch in table.batches(columns, ["str" if text else "int", "int"], doing=f"read {path.name}"):
        nodes = position(np.asarray(batch.strings(0).to_numpy(zero_copy_only=False)) if text else batch.ints(0))
        batch.check(nodes < 0, 0, "there is no node {} in the store")
        given = batch.ints(1)
        batch.check((given < 0) | (given >= num_parts), 1, f"part {{}} is outside [0, {num_parts})")
        repeated = parts[nodes] >= 0
        repeated |= ~np.isin(np.arange(len(nodes)), np.unique(nodes, return_index=True)[1])
        batch.check(repeated, 0, "node {} comes twice")
        parts[nodes] = given
    if (missing := parts < 0).any():
        name = store.names(np.array([np.argmax(missing)]))[0]
        raise InputError(
            f"says nothing about {int(missing.sum()):,} of {store.num_nodes:,} nodes, the first is {name}",
            where=str(path),
            fix="Give every node a part",
        )
    return parts


def _positions(store: GraphStore) -> Callable[[Shaped[np.ndarray, "n"]], Int64[np.ndarray, "n"]]:
    """A function from users' ids to store ids, -1 where there is no such node."""
    if store.has("name_offsets"):
        at = {name: node for node, name in enumerate(store.names().tolist())}
        return lambda names: np.array([at.get(name, -1) for name in names.tolist()], dtype=np.int64)
    names = store.names()
    order = np.argsort(names, kind="stable")
    ascending = names[order]

    def find(wanted: Shaped[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        slot = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
        return np.where(ascending[slot] == wanted, order[slot], -1)

    return find


def write_assignment(path: Path, parts: Int32[np.ndarray, "N"], store: GraphStore | None = None) -> None:
    """Write the part of every node: ``.npy`` in order of ingest, ``.csv`` or ``.parquet`` with columns node and part.

    The file is written aside and renamed.

    Args:
        path: of the file.
        parts: by store id.
        store: whose ids name the nodes; ``None``: positions do.

    Raises:
        ConfigError: another suffix, or no such directory.
    """
    check_assignment_path(path)
    with written_aside(path) as aside:
        if path.suffix == ".npy":
            ordered = parts
            if store is not None and store.original_index is not None:
                ordered = np.empty_like(parts)
                ordered[store.original_index] = parts
            with aside.open("wb") as file:
                np.save(file, ordered, allow_pickle=False)
        else:
            _write_table(aside, path.suffix, _rows(parts, store))


def check_assignment_path(path: Path) -> None:
    """Raise a :class:`ConfigError` where no assignment can be written."""
    if path.suffix not in SUFFIXES:
        fix = f"Name a file that ends in {', '.join(SUFFIXES)}"
        raise ConfigError(f"cannot write '{path.suffix}' files", where=str(path), fix=fix)
    require_parent(path)


def _rows(parts: Int32[np.ndarray, "N"], store: GraphStore | None) -> Iterator[Any]:
    import pyarrow as pa

    for start in range(0, len(parts), _ROWS_AT_ONCE):
        ids = np.arange(start, min(start + _ROWS_AT_ONCE, len(parts)))
        names = ids if store is None else store.names(ids)
        yield pa.table({"node": pa.array(names), "part": pa.array(parts[start : start + _ROWS_AT_ONCE])})


def _write_table(path: Path, suffix: str, tables: Iterator[Any]) -> None:
    from pyarrow import csv, parquet

    first = next(tables)
    kind: Any = csv.CSVWriter if suffix == ".csv" else parquet.ParquetWriter
    with kind(path, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
