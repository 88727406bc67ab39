"""Nodes and pairs of nodes that users name in files, as store ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int64

from partita.core.errors import ConfigError, InputError, nearest
from partita.graph.schema import Schema
from partita.graph.store import GraphStore
from partita.sources.batch import Cells, Kind
from partita.sources.dialect import BLANKS
from partita.sources.edges import EdgeTable, open_table
from partita.sources.text import TextTable

_CHUNK = 1 << 20


def find_nodes(store: GraphStore, names: pa.Array, kind: int) -> Int64[np.ndarray, "n"]:
    """Store ids of nodes by the users' ids, -1 where a type has no such node.

    Reads the names of all nodes of the type, piece by piece.

    Args:
        store: the graph.
        names: int64 or text, as :meth:`GraphStore.names` has them.
        kind: number of the type.
    """
    wanted = names.unique()
    found = np.full(len(wanted), -1)
    for begin in range(0, store.node_types.size(kind), _CHUNK):
        ids = store.node_types.ids(kind, np.arange(begin, min(begin + _CHUNK, store.node_types.size(kind))))
        at = pc.fill_null(pc.index_in(pa.array(store.names(ids)).cast(names.type), value_set=wanted), -1).to_numpy()
        found[at[at >= 0]] = ids[at >= 0]
    return found[pc.index_in(names, value_set=wanted).to_numpy()]


def nodes_of(store: GraphStore, nodes: str | None, kind: int) -> Int64[np.ndarray, "n"]:
    """Store ids of the nodes of a type that a user means.

    Args:
        store: the graph.
        nodes: a file whose first column, or the one named ``node`` or ``id``, lists them by the user's ids; or the name
            of a split; ``None``: all of the type, in the order of ingest.
        kind: number of the type.

    Raises:
        InputError: the file cannot be read, or names what is no node of the type.
        ConfigError: there is neither such a file nor such a split, or no node is left.
    """
    if nodes is None:
        ids = store.node_types.all_ids(kind)
        ids = ids[np.argsort(store.to_original(ids), kind="stable")]
    elif nodes in store.splits:
        ids = store.split(nodes)
        ids = ids[store.types(ids) == kind]
    elif Path(nodes).exists():
        ids = _listed(store, Path(nodes), kind)
    else:
        raise ConfigError(
            f"'{nodes}' is neither a file nor a split", where="nodes", fix=nearest(nodes, store.splits) or "Name a file"
        )
    if len(ids) == 0:
        raise ConfigError(f"there are no nodes{of_type(store, kind)}", where="nodes", fix="Name others")
    return ids


def _listed(store: GraphStore, path: Path, kind: int) -> Int64[np.ndarray, "n"]:
    table = open_table(path, wanted=("node", "id"))
    named = [name for name in ("node", "id") if table.has_header and name in table.names]
    column = table.names.index(named[0]) if named else 0
    fix = None
    if isinstance(table, TextTable) and table.dialect.delimiter == BLANKS and not named:
        fix = "Write 'node' above the ids, if they have blanks in them"
    pieces = [
        _ends(store, batch, 0, kind, fix=fix)
        for batch in table.batches([column], [_kind(store)], doing=f"read {path.name}")
    ]
    if not pieces:
        raise InputError("lists no nodes", where=str(path), fix="Write an id on each line")
    return np.concatenate(pieces)


def pairs_of(store: GraphStore, path: Path, relation: int | None) -> Iterator[Int64[np.ndarray, "n ends"]]:
    """Pairs of nodes in a file, piece by piece.

    Args:
        store: the graph.
        path: of a table as for edges: sources and destinations, and of a typed graph perhaps names of relations.
        relation: number of that of all pairs, where the file has none; 0 in an untyped graph.

    Yields:
        rows ``[source, destination]``, of a typed graph ``[source, destination, relation]``; store ids.

    Raises:
        InputError: the file cannot be read, or names what is no node of the type, or no relation.
        ConfigError: the file says no relation, and none is given.
    """
    edges = EdgeTable(open_table(path), None, None, None, triples=False if store.schema is None else None)
    schema = store.schema
    for batch in edges.batches(_kind(store)):
        if schema is None:
            yield np.stack([_ends(store, batch, column, 0) for column in (0, 1)], axis=1)
            continue
        if edges.has_relations:
            names = batch.strings(edges.kind_column)
            known = relations_by_name(schema, names.unique().to_pylist(), str(path))
            kinds = np.array([known[name] for name in names.to_pylist()], np.int64)
        elif relation is not None:
            kinds = np.full(len(batch), relation)
        else:
            raise ConfigError("the pairs have no relation", where=str(path), fix="Name it with --relation")
        found = np.empty((len(batch), 3), np.int64)
        found[:, 2] = kinds
        for number in np.unique(kinds).tolist():
            rows = np.flatnonzero(kinds == number)
            for column, kind in enumerate(schema.ends[number].tolist()):
                found[rows, column] = _ends(store, batch, column, kind, rows)
        yield found


def relations_by_name(schema: Schema, names: Iterable[str], where: str) -> dict[str, int]:
    """Numbers of the relations that a file names.

    Raises:
        ConfigError: there is no such relation.
        InputError: several relations have the name.
    """
    found = {name: schema.relation_numbers(name, where) for name in names}
    for name, numbers in found.items():
        if len(numbers) > 1:
            meant = ", ".join(str(schema.relations[number]) for number in numbers)
            raise InputError(
                f"'{name}' is the name of {len(numbers)} relations", where=where, fix=f"Name one of {meant}"
            )
    return {name: numbers[0] for name, numbers in found.items()}


def _ends(
    store: GraphStore, batch: Cells, column: int, kind: int, rows: Int64[np.ndarray, "k"] | None = None,
    fix: str | None = None,
) -> Int64[np.ndarray, "n"]:  # fmt: skip
    """Nodes in a column of some rows, or of all; ``fix``: what a user may do where one is not there."""
    names = batch.strings(column) if _kind(store) == "str" else pa.array(batch.ints(column))
    ids = find_nodes(store, names if rows is None else names.take(pa.array(rows)), kind)
    missing = np.zeros(len(batch), np.bool_)
    missing[slice(None) if rows is None else rows] = ids < 0
    if missing.any():
        name = batch.columns[column][int(np.argmax(missing))].as_py()
        if isinstance(name, str) and name != name.strip():
            fix = "Take the blanks off both ends of the id"
        # As a literal, so that blanks and an empty id are seen.
        batch.check(missing, column, f"there is no node {{!r}}{of_type(store, kind)}", fix)
    return ids


def _kind(store: GraphStore) -> Kind:
    return "str" if store.has("name_offsets") else "int"


def of_type(store: GraphStore, kind: int) -> str:
    """Of a typed graph, words for the type of a node."""
    return "" if store.schema is None else f" of type '{store.schema.node_types[kind]}'"
