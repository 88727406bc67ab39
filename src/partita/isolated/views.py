"""What a worker of isolated training holds: the induced subgraph of some parts of a store, in its own memory.

Grappa trains on pairs of chunks (section 3.3), SDT-GNN on a part and its one-hop halo (section III). Both are a
:class:`PartView`, on which the engine runs as on a whole graph, with placement ``data`` for every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Int32, Int64, Shaped, UInt32
from torch import Tensor

from partita.core import progress
from partita.core.errors import ConfigError, StoreError
from partita.core.memory import fresh_array
from partita.features.rows import FeatureColumn, l1_scale
from partita.graph.metadata import index_dtype
from partita.graph.store import GraphStore
from partita.isolated.subgraph import EDGES_AT_ONCE, HALOS, Halo, Owned, Subgraph, checked_halo
from partita.sample.topology import ArrayTopology, as_tensor

__all__ = ["HALOS", "Halo", "PartView", "ViewSize"]

_CHUNK_BYTES = 8 * 2**20
_WEIGHTS = "edge_weight_quantised"


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
        original_index: int64 (n), the key of sampling.
        indptr: int64 (n+1), rows.
        indices: int32 or int64 (E), local ids of in-neighbors.
        weights: uint32 (E), weights of the edges as the store has them for sampling; ``None`` without.
        inside: int64 (m+1), running sums over owned nodes of their in-edges from owned nodes.
        whole: int64 (n+1), running sums over all nodes of their in-degrees in the whole graph.
        self_loops: int32 (n), self loops in the whole graph; ``None`` where that has none.
        x: (n, F) float16 or float32, features; ``None`` without.
        seeds: int64 (S), local ids of the training nodes among the owned, in ascending original index.
    """

    parts: tuple[int, ...]
    halo: Halo
    num_owned: int
    store_ids: Int64[Tensor, "n"]
    original_index: Int64[Tensor, "n"]
    indptr: Int64[Tensor, "n_1"]
    indices: Int[Tensor, "E"]
    weights: UInt32[Tensor, "E"] | None
    inside: Int64[Tensor, "m_1"]
    whole: Int64[Tensor, "n_1"]
    self_loops: Int32[Tensor, "n"] | None
    x: Float[Tensor, "n F"] | None
    seeds: Int64[Tensor, "S"]

    @classmethod
    def load(
        cls,
        store: GraphStore,
        parts: Sequence[int],
        halo: str = "none",
        *,
        features: bool = True,
        weights: bool = True,
    ) -> PartView:
        """Copy a view into memory. Reads the slices of its parts, and what belongs to halo nodes; nothing else.

        Memory: that of the result, as :meth:`measure` gives it, some 10 MiB of buffers, and in passing up to 24 bytes a
        halo node. Any thread may call this.

        Args:
            store: the graph, or a shard that has the parts.
            parts: distinct, in any order; none for an empty view.
            halo: one of :data:`~partita.isolated.subgraph.HALOS`.
            features: take feature rows, where the store has them.
            weights: take edge weights, where the store has them.

        Raises:
            ConfigError: no such part, or no such halo.
            StoreError: the store is a shard that lacks edges or feature rows of the view; the message says what to do.
        """
        found = Subgraph.find(store, parts, halo)
        columns = _Taken.of(store, features, weights)
        indices = fresh_array(found.num_edges, index_dtype(found.num_nodes))
        weight = fresh_array(found.num_edges, np.uint32) if columns.weights else None
        done = 0
        for local, at, kept in found.edges():
            indices[done : done + len(local)] = local
            if weight is not None:
                piece = store.held(_WEIGHTS)[0][at]
                weight[done : done + len(local)] = piece if kept is None else piece[kept]
            done += len(local)
        store_ids = np.concatenate([*(np.arange(a, b) for a, b, _ in found.owned.runs()), found.halo_ids])
        original = store_ids if store.original_index is None else store.original_index[store_ids]
        return cls(
            parts=found.owned.parts,
            halo=found.halo,
            num_owned=found.owned.count,
            store_ids=as_tensor(store_ids),
            original_index=as_tensor(original),
            indptr=as_tensor(found.indptr),
            indices=as_tensor(indices),
            weights=None if weight is None else as_tensor(weight),
            inside=as_tensor(found.inside),
            whole=as_tensor(found.degrees),
            self_loops=None if store.self_loops is None else as_tensor(store.self_loops[store_ids]),
            x=as_tensor(_rows(store, found)) if columns.features else None,
            seeds=as_tensor(_seeds(store, found.owned)),
        )

    @staticmethod
    def measure(
        store: GraphStore,
        parts: Sequence[int],
        halo: str = "none",
        *,
        features: bool = True,
        weights: bool = True,
    ) -> ViewSize:
        """The exact size of a view, by reading the edges of its parts once. Arguments and errors as in :meth:`load`.

        Memory: 24 bytes a node, up to 24 more a halo node in passing, and some 10 MiB.
        """
        found = Subgraph.find(store, parts, halo)
        sizes = found.owned.count, len(found.halo_ids), found.num_edges
        same = found.indptr is found.inside
        return _Taken.of(store, features, weights).size(store, *sizes, len(_seeds(store, found.owned)), same)

    @staticmethod
    def bound(
        store: GraphStore,
        parts: Sequence[int],
        halo: str = "none",
        *,
        features: bool = True,
        weights: bool = True,
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
        same = halo == "none"
        return _Taken.of(store, features, weights).size(store, owned.count, around, edges, seeds, same)

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
        arrays = (
            self.store_ids, self.original_index, self.indptr, self.indices, self.weights, self.inside, self.whole,
            self.self_loops, self.x, self.seeds,
        )  # fmt: skip
        held = {array.data_ptr(): array.nbytes for array in arrays if array is not None and array.nbytes}
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
        return ArrayTopology(
            self.indptr,
            self.indices,
            original=self.original_index,
            self_loops=self.self_loops,
            weights=self.weights,
            degree_offsets=self.whole,
            replace=replace,
            weighted=weighted,
        )

    def column(
        self, dtype: torch.dtype = torch.float32, *, normalize: bool = False, dropout: float = 0.0
    ) -> FeatureColumn:
        """The input rows by local id.

        Args:
            dtype: float32 or float64: what is computed in.
            normalize: bring the absolute values of each row to a sum of 1; 4 bytes a node.
            dropout: probability of dropping an input element in training.

        Raises:
            ConfigError: the view was loaded without features, or the store has none.
        """
        if self.x is None:
            raise ConfigError(
                "the view has no features to train on", where="features", fix="Ingest again with --features FILE"
            )
        return FeatureColumn(self.x, dtype, l1_scale(self.x) if normalize else None, dropout)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Which optional columns of the store a view takes."""

    features: bool
    weights: bool

    @classmethod
    def of(cls, store: GraphStore, features: bool, weights: bool) -> _Taken:
        return cls(features and store.has("x"), weights and store.has(_WEIGHTS))

    def size(self, store: GraphStore, nodes: int, halo: int, edges: int, seeds: int, same: bool) -> ViewSize:
        """Size of a view with so many nodes, edges and seeds; ``same``: its rows hold what is inside, and nothing else.

        See :class:`PartView` for the arrays.
        """
        count = nodes + halo
        lists = 8 * count if store.original_index is None else 16 * count  # store ids, original indices
        lists += 8 * (count + 1) * 2 + (0 if same else 8 * (nodes + 1))  # indptr, whole; inside
        lists += 0 if store.self_loops is None else 4 * count
        per_edge = index_dtype(count).itemsize + (4 if self.weights else 0)
        x = store.held("x")[0] if self.features else None
        row = 0 if x is None else x.shape[1] * x.itemsize
        return ViewSize(nodes, halo, edges, lists + 8 * seeds + per_edge * edges + row * count)


def _differences(sums: Int64[Tensor, "n_1"], ids: Int[Tensor, "B"] | None) -> Int64[Tensor, "B"]:
    if ids is None:
        return sums[1:] - sums[:-1]
    ids = ids.long()
    return sums[ids + 1] - sums[ids]


def _rows(store: GraphStore, found: Subgraph) -> Shaped[np.ndarray, "n F"]:
    """Copies of the feature rows of all nodes of a view."""
    held, first = store.held("x")
    _require_rows(store, found, range(first, first + len(held)))
    m, out = found.owned.count, fresh_array((found.num_nodes, held.shape[1]), held.dtype)
    at_once = max(1, _CHUNK_BYTES // max(1, held.itemsize * held.shape[1]))
    with progress.task("load feature rows", total=len(out), unit="rows") as task:
        for start, stop, base in found.owned.runs():
            for row in range(start, stop, at_once):
                last = min(row + at_once, stop)
                out[base + row - start : base + last - start] = held[row - first : last - first]
                task.advance(last - row)
        for low in range(0, len(found.halo_ids), at_once):
            ids = found.halo_ids[low : low + at_once]
            here = (ids >= first) & (ids < first + len(held))
            rows = out[m + low : m + low + len(ids)]
            rows[here] = held[ids[here] - first]
            if store.hot is not None and not here.all():
                hot_ids, hot = store.hot
                rows[~here] = hot[np.searchsorted(hot_ids, ids[~here])]
            task.advance(len(ids))
    return out


def _require_rows(store: GraphStore, found: Subgraph, held: range) -> None:
    """Refuse nodes whose feature rows are in the shard of another host, and not among the hot rows of this one."""
    owned, ids = found.owned, found.halo_ids
    missing = owned.count - sum(len(range(max(a, held.start), min(b, held.stop))) for a, b, _ in owned.runs())
    away = ids[(ids < held.start) | (ids >= held.stop)]
    missing += len(away) if store.hot is None else int(np.isin(away, store.hot[0], invert=True).sum())
    if missing:
        raise StoreError(
            f"a view of part{'' if len(owned.parts) == 1 else 's'} {', '.join(map(str, owned.parts))} with halo "
            f"'{found.halo}' needs the feature rows of {missing:,} nodes that {store.shard} does not have",
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
