"""Cuts a graph store into shards: what one host needs of a partitioned graph. Streaming, in O(nodes) memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from jaxtyping import Int64, Integer, Shaped

from partita.core import progress
from partita.core.errors import ConfigError, nearest
from partita.core.options import takes
from partita.graph.column_specs import hot_columns, known, type_of_column
from partita.graph.columns import CHUNK_BYTES, PlacedColumn, column_bytes
from partita.graph.shard import Shard, ShardTopology
from partita.graph.store import GraphStore
from partita.graph.writer import NewColumn, StoreWriter
from partita.partitioning.options import ShardOptions

_ID_BYTES = 8
_RANKED_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """What was written.

    Attributes:
        path: of the shard.
        host: whose shard it is, from 0.
        hosts: number of hosts.
        topology: ``"partitioned"`` or ``"replicated"``.
        nodes: of the host.
        edges: in the shard.
        hot: rows of other hosts' nodes in the shard.
        bytes: of all columns.
    """

    path: str
    host: int
    hosts: int
    topology: ShardTopology
    nodes: int
    edges: int
    hot: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@takes(ShardOptions)
def shard(
    store: GraphStore | str | os.PathLike[str], out: str | os.PathLike[str], options: ShardOptions
) -> ShardSummary:
    """Write what one host needs of a graph: a store with the features, and the edges, of its own nodes only.

    Host h of H owns the parts ``h * P / H`` to ``(h + 1) * P / H - 1``. All node columns are whole in every shard,
    so that degrees, labels, splits and names of any node are known without asking. Private memory: 32 bytes per node
    to rank hot nodes, and buffers of 8 MiB.

    In a typed graph that holds for the features of each node type; hot rows of all types share the room.

    Args:
        store: a whole graph in P parts.
        out: path of the shard.
        options: see :class:`~partita.partitioning.options.ShardOptions`. ``hosts`` divides P. The room for hot rows
            includes their ids (8 bytes each), and is filled up to the first row that does not fit. ``hot`` is
            ``"in-degree"``, ``"presample"`` (how often a node was met in presampled mini-batches), or store ids
            without repeats, best first. Equals go by store id.

    Raises:
        ConfigError: there is no such host, the parts cannot be divided among the hosts, or the hot rows are impossible.
        StoreError: the store is a shard itself, or ``out`` may not be replaced.
        ResourceError: the disk has no room.
    """
    if not isinstance(store, GraphStore):
        store = GraphStore.open(store)
    store.require_whole("shard")
    hot = options.hot
    cut = _plan(store, Path(out), options.host, options.hosts, options.topology)
    hot_ids = _hot_ids(store, cut, options.hot_bytes, hot)
    columns = _columns(store, cut, hot_ids)
    store.require_sound()
    with StoreWriter(out, overwrite=options.overwrite) as writer:
        writer.fill(columns)
        ranking = hot if isinstance(hot, str) else "given"
        policy = {"hot": {"ranking": ranking, "bytes": options.hot_bytes}} if hot_ids else {}
        writer.finish_like(store.metadata, {**store.metadata.notes, **policy}, cut)
    return ShardSummary(
        path=str(writer.path),
        host=options.host,
        hosts=options.hosts,
        topology=cut.topology,
        nodes=len(cut.nodes),
        edges=columns["indices"].shape[0],
        hot=sum(map(len, hot_ids.values())),
        bytes=sum(column_bytes(column.shape, column.dtype) for column in columns.values()),
    )


def _plan(store: GraphStore, out: Path, host: int, hosts: int, topology: str) -> Shard:
    """Which rows of which columns the shard holds."""
    if hosts < 1 or not 0 <= host < hosts:
        raise ConfigError(
            f"there is no host {host} of {hosts}", where="host", fix=f"Give a number from 0 to {max(hosts, 1) - 1}"
        )
    if topology not in get_args(ShardTopology):
        raise ConfigError(
            f"invalid topology: '{topology}'", where="topology", fix=nearest(topology, get_args(ShardTopology))
        )
    if store.num_parts % hosts:
        raise ConfigError(
            f"{store.num_parts} part{'' if store.num_parts == 1 else 's'} cannot be divided among {hosts} hosts evenly",
            where=str(store.path),
            fix=f"Run partita partition STORE OUT --parts {hosts}xWORKERS, then shard OUT",
        )
    if out.exists() and out.resolve() == store.path.resolve():
        raise ConfigError(
            "the shard would replace the only whole store", where=str(out), fix="Give the shard another path"
        )
    parts = store.num_parts // hosts
    specs = known(store.columns).items()
    return Shard(
        host=host,
        hosts=hosts,
        first_node=int(store.part_offsets[host * parts]),
        last_node=int(store.part_offsets[(host + 1) * parts]),
        fingerprint=store.fingerprint,
        cut={name: f"{spec.of}" for name, spec in specs if spec.is_cut(edges=topology == "partitioned")},
    )


def _hot_ids(
    store: GraphStore, cut: Shard, hot_bytes: int, hot: str | Integer[np.ndarray, "_"]
) -> dict[str, Int64[np.ndarray, "M"]]:
    """Ascending store ids of the other hosts' nodes whose rows find room, by the columns that these are rows of."""
    if hot_bytes < 0:
        raise ConfigError(f"invalid size: {hot_bytes} bytes", where="hot_bytes", fix="Give 0 or more")
    if hot_bytes == 0:
        return {}
    if not store.features:
        raise ConfigError("the store has no features that could be hot", where="hot_bytes", fix="Leave it out")
    column_of = {type_of_column(name) or 0: name for name in store.features}
    row_bytes = np.zeros(store.node_types.count, np.int64)
    for kind, name in column_of.items():
        x = store.column(name)
        row_bytes[kind] = x.itemsize * x.shape[1] + _ID_BYTES
    with progress.task("rank nodes"):
        ranked = _ranked(store, hot)
        ids = _fitting(ranked[(ranked < cut.first_node) | (ranked >= cut.last_node)], store, row_bytes, hot_bytes)
        kinds = store.types(ids)
        found = {name: np.sort(ids[kinds == kind]) for kind, name in column_of.items()}
        return {name: of_type for name, of_type in found.items() if len(of_type)}


def _fitting(
    ranked: Int64[np.ndarray, "n"], store: GraphStore, row_bytes: Int64[np.ndarray, "T"], room: int
) -> Int64[np.ndarray, "m"]:
    """The first nodes of a list whose rows fit into so many bytes; those without rows are passed over."""
    kept = [ranked[:0]]
    for start in range(0, len(ranked), _RANKED_AT_ONCE):
        ids = ranked[start : start + _RANKED_AT_ONCE]
        sizes = row_bytes[store.types(ids)]
        ids, filled = ids[sizes > 0], np.cumsum(sizes[sizes > 0])
        count = int(np.searchsorted(filled, room, side="right"))
        kept.append(ids[:count])
        if count < len(ids):
            break
        room -= int(filled[-1]) if count else 0
    return np.concatenate(kept)


def _presampled(store: GraphStore) -> Integer[np.ndarray, "N"]:
    if store.presample_node is None:
        raise ConfigError(
            "the store was not presampled",
            where="hot",
            fix=f"Run partita presample {store.path}, or rank by in-degree",
        )
    return store.presample_node


_RANKINGS: dict[str, Callable[[GraphStore], Integer[np.ndarray, "N"]]] = {
    "in-degree": lambda store: store.in_degree(),
    "presample": _presampled,
}
"""By name: what makes a node's row worth having, of each node."""


def _ranked(store: GraphStore, hot: str | Integer[np.ndarray, "_"]) -> Int64[np.ndarray, "n"]:
    """Store ids, best first."""
    if isinstance(hot, str):
        if hot not in _RANKINGS:
            raise ConfigError(f"invalid ranking: '{hot}'", where="hot", fix=nearest(hot, _RANKINGS))
        return np.argsort(-_RANKINGS[hot](store), kind="stable")
    ranked = np.asarray(hot, dtype=np.int64)
    if len(ranked) and (ranked.min() < 0 or ranked.max() >= store.num_nodes):
        raise ConfigError(f"not all are ids of {store.num_nodes:,} nodes", where="hot", fix="Give store ids")
    if len(np.unique(ranked)) < len(ranked):
        raise ConfigError("a node is ranked twice", where="hot", fix="Give every node at most once")
    return ranked


def _columns(store: GraphStore, cut: Shard, hot: Mapping[str, Int64[np.ndarray, "M"]]) -> dict[str, NewColumn]:
    """All columns of the shard. Columns that nothing is known about are taken whole."""
    edges = slice(int(store.indptr[cut.first_node]), int(store.indptr[cut.last_node]))
    places = {"nodes": slice(*cut.ends), "edges": edges, "rows": slice(None)}
    columns = {}
    for name in sorted(store.columns):
        by, kind = cut.cut.get(name, "rows"), type_of_column(name) or 0
        rows = store.node_types.rows_within(kind, *cut.ends) if by == "type" else places[by]
        columns[name] = _taken(store.column(name)[rows], "nodes" if by == "type" else by)
    for name, ids in hot.items():
        index, hot_rows = hot_columns(name)
        columns[index] = _taken(ids, "nodes")
        columns[hot_rows] = _taken(store.column(name), "nodes", store.type_rows(ids))
    return columns


def _taken(data: Shaped[np.ndarray, "n ..."], unit: str, ids: Int64[np.ndarray, "M"] | None = None) -> NewColumn:
    """A copy of a column, or of some of its rows."""
    count = len(data) if ids is None else len(ids)
    at_once = max(1, CHUNK_BYTES // max(1, data.itemsize * int(np.prod(data.shape[1:], dtype=np.int64))))

    def fill(column: PlacedColumn, task: progress.Bar) -> None:
        for start in range(0, count, at_once):
            at = slice(start, start + at_once)
            rows = data[at if ids is None else ids[at]]
            column.put(start, rows)
            task.advance(len(rows))

    return NewColumn((count, *data.shape[1:]), data.dtype, unit, fill)
