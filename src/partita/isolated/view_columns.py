"""The columns that a view takes of a store: which they are, how large, and copies of their rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from jaxtyping import Bool, Int64, Shaped

from partita.core import progress
from partita.core.errors import StoreError
from partita.core.memory import fresh_array
from partita.graph.column_specs import ColumnSpec, known, type_of_column
from partita.graph.metadata import how_to_mend, index_dtype
from partita.graph.store import GraphStore
from partita.isolated.subgraph import EDGES_AT_ONCE, At, Subgraph

_CHUNK_BYTES = 8 * 2**20


def taken(store: GraphStore, without: Collection[str]) -> dict[str, ColumnSpec]:
    """The columns that a view takes of a store, by name."""
    return {name: spec for name, spec in known(store.columns).items() if spec.view and name not in without}


def bytes_of_columns(
    store: GraphStore,
    columns: Mapping[str, ColumnSpec],
    owned: Int64[np.ndarray, "T"],
    halo: Int64[np.ndarray, "T"],
    edges: int,
    unseen: int,
) -> int:
    """Size of the columns of a view.

    Args:
        store: the graph.
        columns: those that are taken.
        owned, halo: nodes of each type.
        edges: of the view.
        unseen: in-edges of owned nodes that the view leaves out; their relations are kept.
    """
    total = unseen * store.held("edge_type")[0].itemsize if "edge_type" in columns else 0
    for name, spec in columns.items():
        nodes = owned + halo if spec.view == "all" else owned
        kind = type_of_column(name) if spec.of == "type" else None
        rows = edges if spec.of == "edges" else int(nodes.sum() if kind is None else nodes[kind])
        total += rows * row_bytes(store.held(name)[0])
    return total


def most_bytes(
    store: GraphStore, columns: Mapping[str, ColumnSpec], available: Int64[np.ndarray, "T"], count: int
) -> Int64[np.ndarray, "T"]:
    """So many of the available nodes of each type that their rows take the most bytes."""
    sizes = np.zeros(len(available), dtype=np.int64)
    for name, spec in columns.items():
        if spec.of == "type" and spec.view == "all" and (kind := type_of_column(name)) is not None:
            sizes[kind] += row_bytes(store.held(name)[0])
    order = np.argsort(-sizes, kind="stable")
    before = np.cumsum(available[order]) - available[order]
    found = np.empty_like(available)
    found[order] = np.clip(count - before, 0, available[order])
    return found


def row_bytes(column: Shaped[np.ndarray, "n ..."]) -> int:
    """Of one row."""
    return column.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))


class EdgeCopies:
    """Local sources and columns of the edges of a view, copied piece by piece.

    Args:
        store: the graph.
        found: the view.
        columns: those that are taken.

    Attributes:
        indices: int32 or int64 (E), local ids of in-neighbors.
        columns: (E, ...) by name.
        unseen: uint8 or uint16 (M), relations of the in-edges of owned nodes that the view leaves out, row by row;
            ``None`` without relations.

    Raises:
        StoreError: an edge is of no relation of the store, so a column is damaged.
    """

    def __init__(self, store: GraphStore, found: Subgraph, columns: Mapping[str, ColumnSpec]) -> None:
        held = {name: store.held(name)[0] for name, spec in columns.items() if spec.of == "edges"}
        self.indices = fresh_array(found.num_edges, index_dtype(found.num_nodes))
        self.columns = {
            name: fresh_array((found.num_edges, *each.shape[1:]), each.dtype) for name, each in held.items()
        }
        self.unseen: Shaped[np.ndarray, "M"] | None = None
        kinds = held.get("edge_type")
        if kinds is not None:
            self.unseen = fresh_array(found.num_unseen, kinds.dtype)
        done = seen = 0
        for local, at, kept in found.edges():
            stop = done + len(local)
            self.indices[done:stop] = local
            for name, copy in self.columns.items():
                _copy(held[name], at, kept, copy[done:stop])
            if kinds is not None and self.unseen is not None and kept is not None and found.halo == "none":
                out = kinds[at][~kept]
                self.unseen[seen : seen + len(out)] = out
                seen += len(out)
            done = stop
        self._require_relations(store)

    def _require_relations(self, store: GraphStore) -> None:
        """Loops count edges by relation without looking."""
        relations = 0 if store.schema is None else len(store.schema.relations)
        for kinds in (self.columns.get("edge_type"), self.unseen):
            if kinds is not None and len(kinds) and kinds.max() >= relations:
                raise StoreError(
                    f"column 'edge_type' is damaged: a value is {kinds.max()}, not one of {relations} relations",
                    where=str(store.path),
                    fix=how_to_mend(store.shard),
                )


def _copy(
    held: Shaped[np.ndarray, "E ..."], at: At, kept: Bool[np.ndarray, "p"] | None, out: Shaped[np.ndarray, "k ..."]
) -> None:
    """Copy rows of edges straight to where they belong: those of a piece may be wide."""
    if kept is None:
        out[:] = held[at]
    elif isinstance(at, slice):
        np.take(held[at], np.flatnonzero(kept), axis=0, out=out, mode="clip")  # other modes make a copy first
    else:
        np.take(held, at[kept], axis=0, out=out, mode="clip")


def copied_rows(store: GraphStore, found: Subgraph, name: str, spec: ColumnSpec) -> Shaped[np.ndarray, "rows ..."]:
    """Copies of the rows of a view's nodes, or of those that it owns, of a column of nodes or of a type."""
    if spec.of == "type" and (kind := type_of_column(name)) is not None:
        return _rows_of_type(store, found, name, kind)
    return _rows(store, found, name, spec.view == "all")


def _rows_of_type(store: GraphStore, found: Subgraph, name: str, kind: int) -> Shaped[np.ndarray, "rows F"]:
    """The rows of the nodes of a type, in order of their ids in the view."""
    (held, first), types = store.held(name), found.node_types
    hot_ids, hot = store.hot_of(name) or (np.empty(0, np.int64), held[:0])
    out = fresh_array((types.size(kind), *held.shape[1:]), held.dtype)
    at_once = max(1, min(EDGES_AT_ONCE, _CHUNK_BYTES // max(1, row_bytes(held))))
    with progress.task(f"load rows of {name}", total=len(out), unit="rows") as task:
        for low in range(0, len(out), at_once):
            local = types.ids(kind, np.arange(low, min(low + at_once, len(out))))
            ids = found.store_ids(local)
            places, rows = store.type_rows(ids) - first, out[low : low + len(local)]
            here = (places >= 0) & (places < len(held))
            rows[here] = held[places[here]]
            if not here.all():
                away = ids[~here]
                if missing := int(np.isin(away, hot_ids, invert=True).sum()):
                    raise _missing(store, found, name, missing)
                rows[~here] = hot[np.searchsorted(hot_ids, away)]
            task.advance(len(local))
    return out


def _rows(store: GraphStore, found: Subgraph, name: str, with_halo: bool) -> Shaped[np.ndarray, "rows ..."]:
    held, first = store.held(name)
    halo_ids = found.halo_ids if with_halo else found.halo_ids[:0]
    hot_ids, hot = store.hot if store.hot is not None and name == "x" else (halo_ids[:0], held[:0])
    _require_rows(store, found, name, range(first, first + len(held)), halo_ids, hot_ids)
    m = found.owned.count
    out = fresh_array((m + len(halo_ids), *held.shape[1:]), held.dtype)
    at_once = max(1, _CHUNK_BYTES // max(1, row_bytes(held)))
    with progress.task(f"load rows of {name}", total=len(out), unit="rows") as task:
        for start, stop, base in found.owned.runs():
            for row in range(start, stop, at_once):
                last = min(row + at_once, stop)
                out[base + row - start : base + last - start] = held[row - first : last - first]
                task.advance(last - row)
        for low in range(0, len(halo_ids), at_once):
            ids = halo_ids[low : low + at_once]
            here = (ids >= first) & (ids < first + len(held))
            rows = out[m + low : m + low + len(ids)]
            rows[here] = held[ids[here] - first]
            if not here.all():
                rows[~here] = hot[np.searchsorted(hot_ids, ids[~here])]
            task.advance(len(ids))
    return out


def _require_rows(
    store: GraphStore,
    found: Subgraph,
    name: str,
    held: range,
    halo_ids: Int64[np.ndarray, "h"],
    hot_ids: Int64[np.ndarray, "M"],
) -> None:
    """Refuse nodes whose rows are in the shard of another host, and not among the hot rows of this one."""
    owned = found.owned
    missing = owned.count - sum(len(range(max(a, held.start), min(b, held.stop))) for a, b, _ in owned.runs())
    away = halo_ids[(halo_ids < held.start) | (halo_ids >= held.stop)]
    missing += int(np.isin(away, hot_ids, invert=True).sum())
    if missing:
        raise _missing(store, found, name, missing)


def _missing(store: GraphStore, found: Subgraph, name: str, missing: int) -> StoreError:
    parts = found.owned.parts
    return StoreError(
        f"a view of part{'' if len(parts) == 1 else 's'} {', '.join(map(str, parts))} with halo "
        f"'{found.halo}' needs the rows of '{name}' of {missing:,} nodes that {store.shard} does not have",
        where=str(store.path),
        fix="Give parts of this host and halo 'none', give the shard more hot rows, or use the whole store",
    )
