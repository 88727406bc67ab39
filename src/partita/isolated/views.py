"""What a worker of isolated training holds: the induced subgraph of some parts of a store, in its own memory.

Grappa trains on pairs of chunks (section 3.3), SDT-GNN on a part and its one-hop halo (section III). Both are a
:class:`PartView`, on which the engine runs as on a whole graph, with placement ``data`` for every layer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, Shaped
from torch import Tensor

from partita.core import progress
from partita.core.errors import ConfigError, StoreError
from partita.core.memory import fresh_array
from partita.features.rows import FeatureColumn, l1_scale
from partita.graph.column_specs import ColumnSpec, known
from partita.graph.metadata import index_dtype
from partita.graph.store import GraphStore
from partita.isolated.subgraph import EDGES_AT_ONCE, HALOS, Halo, Owned, Subgraph, checked_halo
from partita.sample.topology import ArrayTopology, as_tensor

__all__ = ["HALOS", "WEIGHTS", "Halo", "PartView", "ViewSize"]

_CHUNK_BYTES = 8 * 2**20
WEIGHTS = "edge_weight_quantised"
"""The column of edge weights for sampling."""


@dataclass(frozen=True, slots=True)
class ViewSize:
    """How large a view is.

    Attributes:
        nodes: owned.
        halo: other nodes.
        edges: of the view.
        bytes: of all its arrays together.
    """

    nodes: int
    halo: int
    edges: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PartView:
    """The induced subgraph of some parts of a store, n nodes with local ids of its own, of which the first m are owned.

    Owned nodes come first, by ascending part and store id, then halo nodes by ascending store id. Neighbors are in the
    order of the store. Nodes keep their original index, so samples are drawn by the same keys as from the store; a
    view of all parts gives the same picks.

    Attributes:
        parts: ascending.
        halo: what it has of the nodes around its parts.
        num_owned: m.
        store_ids: int64 (n).
        indptr: int64 (n+1), rows.
        indices: int32 or int64 (E), local ids of in-neighbors.
        inside: int64 (m+1), running sums over owned nodes of their in-edges from owned nodes.
        whole: int64 (n+1), running sums over all nodes of their in-degrees in the whole graph.
        seeds: int64 (S), local ids of the training nodes among the owned, in ascending original index.
        columns: the rows of the view of every column of the store that views take, by its name: of nodes (n), or (m)
            where only those of owned nodes are taken; of edges (E). See :mod:`partita.graph.column_specs`.
    """

    parts: tuple[int, ...]
    halo: Halo
    num_owned: int
    store_ids: Int64[Tensor, "n"]
    indptr: Int64[Tensor, "n_1"]
    indices: Int[Tensor, "E"]
    inside: Int64[Tensor, "m_1"]
    whole: Int64[Tensor, "n_1"]
    seeds: Int64[Tensor, "S"]
    columns: Mapping[str, Shaped[Tensor, "rows ..."]]

    @classmethod
    def load(
        cls, store: GraphStore, parts: Sequence[int], halo: str = "none", *, without: Collection[str] = ()
    ) -> PartView:
        """Copy a view into memory. Reads the slices of its parts, and what belongs to halo nodes; nothing else.

        Memory: that of the result, as :meth:`measure` gives it, some 10 MiB of buffers, and in passing up to 24 bytes a
        halo node. Any thread may call this.

        Args:
            store: the graph, or a shard that has the parts.
            parts: distinct, in any order; none for an empty view.
            halo: one of :data:`~partita.isolated.subgraph.HALOS`.
            without: columns of the store that are left out: ``"x"``, :data:`WEIGHTS`.

        Raises:
            ConfigError: no such part, or no such halo.
            StoreError: the store is a shard that lacks edges or rows of the view; the message says what to do.
        """
        store.require_rows()
        found = Subgraph.find(store, parts, halo)
        taken = _taken(store, without)
        indices = fresh_array(found.num_edges, index_dtype(found.num_nodes))
        of_edges = {
            name: (store.held(name)[0], fresh_array(found.num_edges, store.held(name)[0].dtype))
            for name, spec in taken.items()
            if spec.of == "edges"
        }
        done = 0
        for local, at, kept in found.edges():
            indices[done : done + len(local)] = local
            for held, copy in of_edges.values():
                copy[done : done + len(local)] = held[at] if kept is None else held[at][kept]
            done += len(local)
        store_ids = np.concatenate([*(np.arange(a, b) for a, b, _ in found.owned.runs()), found.halo_ids])
        columns = {
            name: of_edges[name][1] if name in of_edges else _rows(store, found, name, spec.view == "all")
            for name, spec in taken.items()
        }
        return cls(
            parts=found.owned.parts,
            halo=found.halo,
            num_owned=found.owned.count,
            store_ids=as_tensor(store_ids),
            indptr=as_tensor(found.indptr),
            indices=as_tensor(indices),
            inside=as_tensor(found.inside),
            whole=as_tensor(found.degrees),
            seeds=as_tensor(_seeds(store, found.owned)),
            columns={name: as_tensor(column) for name, column in columns.items()},
        )

    @staticmethod
    def measure(
        store: GraphStore, parts: Sequence[int], halo: str = "none", *, without: Collection[str] = ()
    ) -> ViewSize:
        """The exact size of a view, by reading the edges of its parts once. Arguments and errors as in :meth:`load`.

        Memory: 24 bytes per node, up to 24 more a halo node in passing, and some 10 MiB.
        """
        found = Subgraph.find(store, parts, halo)
        sizes = found.owned.count, len(found.halo_ids), found.num_edges
        same = found.indptr is found.inside
        return _size(store, without, *sizes, len(_seeds(store, found.owned)), same)

    @staticmethod
    def bound(
        store: GraphStore, parts: Sequence[int], halo: str = "none", *, without: Collection[str] = ()
    ) -> ViewSize:
        """No view is larger than this; known at once, without reading edges. Arguments as in :meth:`load`.

        Raises:
            ConfigError: no such part, or no such halo.
        """
        halo, owned = checked_halo(halo), Owned(store.part_offsets, parts)
        edges = sum(int(store.indptr[stop] - store.indptr[start]) for start, stop, _ in owned.runs())
        around = 0 if halo == "none" else min(store.num_nodes - owned.count, edges)
        if halo == "one-hop+edges" and around:
            edges = store.num_edges
        seeds = min(owned.count, len(store.splits.get("train", ())))
        return _size(store, without, owned.count, around, edges, seeds, same=halo == "none")

    @property
    def original_index(self) -> Int64[Tensor, "n"]:
        """int64 (n), the key of sampling."""
        return self.columns.get("original_index", self.store_ids)

    @property
    def x(self) -> Float[Tensor, "n F"] | None:
        """(n, F) float16 or float32, features; ``None`` without."""
        return self.columns.get("x")

    @property
    def num_nodes(self) -> int:
        """n, halo included."""
        return self.store_ids.shape[0]

    @property
    def num_edges(self) -> int:
        """E, edges of the view."""
        return self.indices.shape[0]

    @property
    def size(self) -> ViewSize:
        """What it holds; equal to what :meth:`measure` says."""
        own = (self.store_ids, self.indptr, self.indices, self.inside, self.whole, self.seeds)
        held = {array.data_ptr(): array.nbytes for array in (*own, *self.columns.values()) if array.nbytes}
        halo = self.num_nodes - self.num_owned
        return ViewSize(self.num_owned, halo, self.num_edges, sum(held.values()))

    def d_local(self, ids: Int[Tensor, "B"] | None = None) -> Int64[Tensor, "B"]:
        """In-edges of owned nodes from owned nodes; the halo does not count.

        Args:
            ids: local ids below m, for instance of seeds; ``None`` for all owned nodes.
        """
        return _differences(self.inside, ids)

    def d_global(self, ids: Int[Tensor, "B"] | None = None) -> Int64[Tensor, "B"]:
        """In-degrees of nodes in the whole graph.

        Args:
            ids: local ids; ``None`` for all owned nodes.
        """
        return _differences(self.whole[: self.num_owned + 1] if ids is None else self.whole, ids)

    def topology(self, *, replace: bool = False, weighted: bool = False) -> ArrayTopology:
        """The view as a :class:`~partita.core.protocols.Topology` over local ids.

        Degrees and the coefficients of edges are those of the whole graph, as inference will use them: degrees in the
        view would be wrong by the edges that are missing, most of all for halo nodes, which have none.

        Args:
            replace: draw with replacement.
            weighted: draw in proportion to the edge weights.

        Raises:
            ConfigError: ``weighted`` without edge weights.
        """
        arrays: dict[str, Any] = {"original": self.store_ids, "indptr": self.indptr, "indices": self.indices}
        arrays |= {spec.sampler: self.columns[name] for name, spec in known(self.columns).items() if spec.sampler}
        return ArrayTopology(**arrays, degree_offsets=self.whole, replace=replace, weighted=weighted)

    def column(
        self, dtype: torch.dtype = torch.float32, *, normalize: bool = False, dropout: float = 0.0
    ) -> FeatureColumn:
        """The input rows by local id.

        Args:
            dtype: float32 or float64: what is computed in.
            normalize: bring the absolute values of each row to a sum of 1; 4 bytes per node.
            dropout: probability of dropping an input element in training.

        Raises:
            ConfigError: the view was loaded without features, or the store has none.
        """
        if self.x is None:
            raise ConfigError(
                "the view has no features to train on",
                where="features",
                fix="Ingest again with --features FILE, or with --node-features degree",
            )
        return FeatureColumn(self.x, dtype, l1_scale(self.x) if normalize else None, dropout)


def _taken(store: GraphStore, without: Collection[str]) -> dict[str, ColumnSpec]:
    """The columns that a view takes of a store."""
    return {name: spec for name, spec in known(store.columns).items() if spec.view and name not in without}


def _size(
    store: GraphStore, without: Collection[str], owned: int, halo: int, edges: int, seeds: int, same: bool
) -> ViewSize:
    """Size of a view with so many nodes, edges and seeds; ``same``: its rows hold what is inside, and nothing else.

    See :class:`PartView` for the arrays.
    """
    count = owned + halo
    lists = count + 2 * (count + 1) + (0 if same else owned + 1) + seeds  # store ids; indptr, whole; inside; seeds
    total = 8 * lists + index_dtype(count).itemsize * edges
    for name, spec in _taken(store, without).items():
        rows = edges if spec.of == "edges" else count if spec.view == "all" else owned
        total += rows * _row_bytes(store.held(name)[0])
    return ViewSize(owned, halo, edges, total)


def _row_bytes(column: Shaped[np.ndarray, "n ..."]) -> int:
    return column.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))


def _differences(sums: Int64[Tensor, "n_1"], ids: Int[Tensor, "B"] | None) -> Int64[Tensor, "B"]:
    if ids is None:
        return sums[1:] - sums[:-1]
    ids = ids.long()
    return sums[ids + 1] - sums[ids]


def _rows(store: GraphStore, found: Subgraph, name: str, with_halo: bool) -> Shaped[np.ndarray, "rows ..."]:
    """Copies of the rows of a view's nodes, or of those that it owns, of a column of nodes."""
    held, first = store.held(name)
    halo_ids = found.halo_ids if with_halo else found.halo_ids[:0]
    hot_ids, hot = store.hot if store.hot is not None and name == "x" else (halo_ids[:0], held[:0])
    _require_rows(store, found, name, range(first, first + len(held)), halo_ids, hot_ids)
    m = found.owned.count
    out = fresh_array((m + len(halo_ids), *held.shape[1:]), held.dtype)
    at_once = max(1, _CHUNK_BYTES // max(1, _row_bytes(held)))
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
        raise StoreError(
            f"a view of part{'' if len(owned.parts) == 1 else 's'} {', '.join(map(str, owned.parts))} with halo "
            f"'{found.halo}' needs the rows of '{name}' of {missing:,} nodes that {store.shard} does not have",
            where=str(store.path),
            fix="Give parts of this host and halo 'none', give the shard more hot rows, or use the whole store",
        )


def _seeds(store: GraphStore, owned: Owned) -> Int64[np.ndarray, "S"]:
    """Local ids of owned training nodes, in ascending original index."""
    train = store.splits.get("train", np.empty(0, dtype=np.int64))
    found = [np.empty(0, dtype=np.int64)]
    for low in range(0, len(train), EDGES_AT_ONCE):
        local = owned.local(train[low : low + EDGES_AT_ONCE])
        found.append(local[local >= 0])
    return np.concatenate(found)
