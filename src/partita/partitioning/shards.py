"""Cuts a graph store into shards: what one host needs of a partitioned graph. Streaming, in O(nodes) memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from jaxtyping import Int64, Integer, Shaped

from partita.core import progress
from partita.core.errors import ConfigError, ResourceError, nearest
from partita.core.options import takes
from partita.graph.columns import CHUNK_BYTES, column_bytes
from partita.graph.shard import Shard, ShardTopology
from partita.graph.store import GraphStore
from partita.graph.writer import StoreWriter
from partita.partitioning.options import ShardOptions

_EDGE_COLUMNS = ("indices", "edge_weight", "edge_weight_quantised", "presample_edge")
_FEATURES = "x"


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
    so that degrees, labels, splits and names of any node are known without asking. Private memory: 32 bytes a node
    to rank hot nodes, and buffers of 8 MiB.

    Args:
        store: a whole graph in P parts.
        out: path of the shard.
        options: see :class:`~partita.partitioning.options.ShardOptions`. ``hosts`` divides P. The room for hot rows
            includes their ids (8 bytes each). ``hot`` is ``"in-degree"``, ``"presample"`` (how often a node was met in
            presampled mini-batches), or store ids without repeats, best first. Equals go by store id.

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
    ids = _hot_ids(store, cut, options.hot_bytes, hot)
    columns = _columns(store, cut, ids)
    with StoreWriter(out, overwrite=options.overwrite) as writer:
        _check_space(writer.path, columns)
        for column in columns:
            placed = writer.place(column.name, column.shape, column.dtype)
            with progress.task(f"write {column.name}", total=column.shape[0], unit=column.unit) as task:
                row = 0
                for rows in column.pieces():
                    placed.put(row, rows)
                    row += len(rows)
                    task.advance(len(rows))
            placed.close()
        metadata = store.metadata
        ranking = hot if isinstance(hot, str) else "given"
        policy = {"hot": {"ranking": ranking, "bytes": options.hot_bytes}} if len(ids) else {}
        writer.finish(
            num_nodes=metadata.num_nodes,
            num_edges=metadata.num_edges,
            task=metadata.task,
            num_classes=metadata.num_classes,
            class_names=metadata.class_names,
            source=metadata.source,
            split_rule=metadata.split_rule,
            shard=cut,
            **{**metadata.notes, **policy},
        )
    return ShardSummary(
        path=str(writer.path),
        host=options.host,
        hosts=options.hosts,
        topology=cut.topology,
        nodes=len(cut.nodes),
        edges=next(column.shape[0] for column in columns if column.name == "indices"),
        hot=len(ids),
        bytes=sum(column_bytes(column.shape, column.dtype) for column in columns),
    )


def _plan(store: GraphStore, out: Path, host: int, hosts: int, topology: str) -> Shard:
    """Which rows of which columns the shard holds."""
    if hosts < 1 or not 0 <= host < hosts:
        raise ConfigError(
            f"there is no host {host} of {hosts}", where="host", fix=f"Give a number from 0 to {max(hosts, 1) - 1}"
        )
    if topology not in get_args(ShardTopology):
        raise ConfigError(
            f"'{topology}' is no topology", where="topology", fix=nearest(topology, get_args(ShardTopology))
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
    cut = {_FEATURES: "nodes"} if store.has(_FEATURES) else {}
    if topology == "partitioned":
        cut |= {name: "edges" for name in _EDGE_COLUMNS if store.has(name)}
    return Shard(
        host=host,
        hosts=hosts,
        first_node=int(store.part_offsets[host * parts]),
        last_node=int(store.part_offsets[(host + 1) * parts]),
        fingerprint=store.fingerprint,
        cut=cut,
    )


def _hot_ids(
    store: GraphStore, cut: Shard, hot_bytes: int, hot: str | Integer[np.ndarray, "_"]
) -> Int64[np.ndarray, "M"]:
    """Ascending store ids of the other hosts' nodes whose rows find room, best first."""
    if hot_bytes < 0:
        raise ConfigError(f"{hot_bytes} bytes are no room", where="hot_bytes", fix="Give 0 or more")
    if hot_bytes == 0:
        return np.empty(0, dtype=np.int64)
    if store.x is None:
        raise ConfigError("the store has no features that could be hot", where="hot_bytes", fix="Leave it out")
    room = hot_bytes // (store.x.dtype.itemsize * store.num_features + 8)
    with progress.task("rank nodes"):
        ranked = _ranked(store, hot)
        foreign = ranked[(ranked < cut.first_node) | (ranked >= cut.last_node)]
        return np.sort(foreign[:room])


def _ranked(store: GraphStore, hot: str | Integer[np.ndarray, "_"]) -> Int64[np.ndarray, "n"]:
    """Store ids, best first."""
    if isinstance(hot, str):
        if hot == "in-degree":
            score = store.in_degree()
        elif hot == "presample":
            if store.presample_node is None:
                raise ConfigError(
                    "the store was not presampled",
                    where="hot",
                    fix=f"Run partita presample {store.path}, or rank by in-degree",
                )
            score = store.presample_node
        else:
            raise ConfigError(
                f"'{hot}' is no way to rank nodes", where="hot", fix=nearest(hot, ("in-degree", "presample"))
            )
        return np.argsort(-score, kind="stable")
    ranked = np.asarray(hot, dtype=np.int64)
    if len(ranked) and (ranked.min() < 0 or ranked.max() >= store.num_nodes):
        raise ConfigError(f"not all are ids of {store.num_nodes:,} nodes", where="hot", fix="Give store ids")
    if len(np.unique(ranked)) < len(ranked):
        raise ConfigError("a node is ranked twice", where="hot", fix="Give every node at most once")
    return ranked


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    unit: str
    pieces: Callable[[], Iterator[Shaped[np.ndarray, "n ..."]]]


def _columns(store: GraphStore, cut: Shard, hot: Int64[np.ndarray, "M"]) -> list[_Column]:
    """All columns of the shard. Columns that nothing is known about are taken whole."""
    edges = slice(int(store.indptr[cut.first_node]), int(store.indptr[cut.last_node]))
    rows = {"nodes": slice(cut.first_node, cut.last_node), "edges": edges}
    columns = []
    for name in sorted(store.metadata.columns):
        by = cut.cut.get(name)
        columns.append(_taken(name, store.column(name) if by is None else store.column(name)[rows[by]], by or "rows"))
    if len(hot):
        x = store.column(_FEATURES)
        columns.append(_taken("hot_index", hot, "nodes"))
        columns.append(_Column("hot_x", (len(hot), *x.shape[1:]), x.dtype, "nodes", lambda: _picked(x, hot)))
    return columns


def _taken(name: str, data: Shaped[np.ndarray, "n ..."], unit: str) -> _Column:
    def pieces() -> Iterator[Shaped[np.ndarray, "m ..."]]:
        at_once = _rows_at_once(data)
        for start in range(0, len(data), at_once):
            yield data[start : start + at_once]

    return _Column(name, data.shape, data.dtype, unit, pieces)


def _picked(x: Shaped[np.ndarray, "N F"], ids: Int64[np.ndarray, "M"]) -> Iterator[Shaped[np.ndarray, "m F"]]:
    at_once = _rows_at_once(x)
    for start in range(0, len(ids), at_once):
        yield x[ids[start : start + at_once]]


def _rows_at_once(data: Shaped[np.ndarray, "n ..."]) -> int:
    return max(1, CHUNK_BYTES // max(1, data.itemsize * int(np.prod(data.shape[1:], dtype=np.int64))))


def _check_space(path: Path, columns: list[_Column]) -> None:
    need = sum(column_bytes(column.shape, column.dtype) for column in columns)
    free = shutil.disk_usage(path.parent).free
    if need > free:
        raise ResourceError(
            f"the shard needs {need:,} bytes, {free:,} bytes are free",
            where=str(path.parent),
            fix="Free space there, or write the shard to another disk",
        )
