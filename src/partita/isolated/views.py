"""What a worker of isolated training holds: the induced subgraph of some parts of a store, in its own memory.

Grappa trains on pairs of chunks (section 3.3), SDT-GNN on a part and its one-hop halo (section III). Both are a
:class:`PartView`, on which the engine runs as on a whole graph, with placement ``data`` for every layer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped
from torch import Tensor

from partita.core.errors import ConfigError
from partita.core.node_types import NodeTypes
from partita.features.host import HostRows
from partita.features.levels import Levels
from partita.features.rows import FeatureColumn, l1_scale
from partita.features.typed import TypedColumns
from partita.graph.column_specs import known
from partita.graph.metadata import TYPE_PREFIX, index_dtype
from partita.graph.schema import Schema
from partita.graph.store import GraphStore
from partita.isolated.subgraph import EDGES_AT_ONCE, HALOS, Halo, Owned, Subgraph, checked_halo, sizes_by_type
from partita.isolated.view_columns import EdgeCopies, bytes_of_columns, copied_rows, most_bytes, taken
from partita.sample.topology import EDGE_ROWS, ArrayTopology, as_tensor

__all__ = ["HALOS", "WEIGHTS", "Halo", "PartView", "ViewSize"]

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
    order of the store, in typed graphs by relation. Nodes keep their original index, so samples are drawn by the same
    keys as from the store; a view of all parts gives the same picks.

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
            where only those of owned nodes are taken; of the nodes of a type, in order of their ids; of edges (E). See
            :mod:`partita.graph.column_specs`.
        node_types: which type every node has, by local id; in an untyped graph all have type 0.
        schema: types and relations of the store; ``None`` for an untyped graph.
        unseen: uint8 or uint16 (M), relations of the in-edges of owned nodes that the view leaves out, row by row;
            ``None`` where it has no relations.
        levels: what the small integers of a column of features stand for, by its name.
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
    node_types: NodeTypes
    schema: Schema | None = None
    unseen: Shaped[Tensor, "M"] | None = None
    levels: Mapping[str, Levels] = field(default_factory=dict)

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
        columns = taken(store, without)
        edges = EdgeCopies(store, found, columns)
        copies = {
            name: edges.columns[name] if spec.of == "edges" else copied_rows(store, found, name, spec)
            for name, spec in columns.items()
        }
        store_ids = np.concatenate([*(np.arange(a, b) for a, b, _ in found.owned.runs()), found.halo_ids])
        return cls(
            parts=found.owned.parts,
            halo=found.halo,
            num_owned=found.owned.count,
            store_ids=as_tensor(store_ids),
            indptr=as_tensor(found.indptr),
            indices=as_tensor(edges.indices),
            inside=as_tensor(found.inside),
            whole=as_tensor(found.degrees),
            seeds=as_tensor(_seeds(store, found.owned)),
            columns={name: as_tensor(column) for name, column in copies.items()},
            node_types=found.node_types,
            schema=store.schema,
            unseen=None if edges.unseen is None else as_tensor(edges.unseen),
            levels={name: of for name in store.features if (of := Levels.of(store.levels_of(name))) is not None},
        )

    @staticmethod
    def measure(
        store: GraphStore, parts: Sequence[int], halo: str = "none", *, without: Collection[str] = ()
    ) -> ViewSize:
        """The exact size of a view, by reading the edges of its parts once. Arguments and errors as in :meth:`load`.

        Memory: 24 bytes per node, up to 24 more a halo node in passing, and some 10 MiB.
        """
        found = Subgraph.find(store, parts, halo)
        owned = sizes_by_type(store, found.owned.parts).sum(axis=0)
        same = found.indptr is found.inside
        seeds = len(_seeds(store, found.owned))
        return _size(store, without, owned, found.halo_by_type, found.num_edges, found.num_unseen, seeds, same)

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
        of_parts = sizes_by_type(store, owned.parts).sum(axis=0)
        others = sizes_by_type(store, range(store.num_parts)).sum(axis=0) - of_parts
        of_halo = most_bytes(store, taken(store, without), others, around)
        # An edge that is left out takes less than one that is there.
        return _size(store, without, of_parts, of_halo, edges, 0, seeds, same=halo == "none")

    @property
    def original_index(self) -> Int64[Tensor, "n"]:
        """int64 (n), the key of sampling."""
        return self.columns.get("original_index", self.store_ids)

    @property
    def x(self) -> Shaped[Tensor, "n B"] | None:
        """(n, F) float16 or float32, features, or small integers as they are stored; ``None`` without."""
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
        own = [self.store_ids, self.indptr, self.indices, self.inside, self.whole, self.seeds, *self.columns.values()]
        own += [] if self.unseen is None else [self.unseen]
        held = {array.data_ptr(): array.nbytes for array in own if array.nbytes}
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

    def degrees_by_relation(self, ids: Int[Tensor, "B"]) -> tuple[Int64[Tensor, "B R"], Int64[Tensor, "B R"]]:
        """:meth:`d_local` and :meth:`d_global` of owned nodes of a typed graph, of each relation.

        Raises:
            ConfigError: the view has no relations.
        """
        from partita.isolated.subgraph_loops import count_relations

        if self.schema is None or self.unseen is None:
            raise ConfigError("the view has no relations", where="views")
        found = tuple(np.zeros((len(ids), len(self.schema.relations)), dtype=np.int64) for _ in range(2))
        arrays = (self.indptr, self.indices, self.columns["edge_type"])
        count_relations(
            ids.long().numpy(), *(each.numpy() for each in arrays), self.num_owned, self.whole.numpy(),
            self.unseen.numpy(), *found,
        )  # fmt: skip
        return torch.from_numpy(found[0]), torch.from_numpy(found[1])

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
        return ArrayTopology(
            **arrays,
            edge_rows={name: self.columns[name] for name in EDGE_ROWS if name in self.columns},
            degree_offsets=self.whole,
            node_types=None if self.schema is None else self.node_types,
            num_relations=1 if self.schema is None else len(self.schema.relations),
            replace=replace,
            weighted=weighted,
        )

    def inputs(
        self, dtype: torch.dtype = torch.float32, *, normalize: bool = False, dropout: float = 0.0
    ) -> FeatureColumn | TypedColumns:
        """The input rows: those of :meth:`column`, or in a typed graph those of every type. Arguments as there."""
        if self.schema is None:
            return self.column(dtype, normalize=normalize, dropout=dropout)
        names = [f"{TYPE_PREFIX}{kind}" for kind in range(self.node_types.count)]
        columns = (
            HostRows(self._column(name, dtype, normalize, dropout)) if name in self.columns else None for name in names
        )
        return TypedColumns(self.node_types, tuple(columns), dtype)

    def column(
        self, dtype: torch.dtype = torch.float32, *, normalize: bool = False, dropout: float = 0.0
    ) -> FeatureColumn:
        """The input rows by local id, in an untyped graph.

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
        return self._column("x", dtype, normalize, dropout)

    def _column(self, name: str, dtype: torch.dtype, normalize: bool, dropout: float) -> FeatureColumn:
        x, levels = self.columns[name], self.levels.get(name)
        return FeatureColumn(x, dtype, l1_scale(x, levels) if normalize else None, dropout, levels)


def _size(
    store: GraphStore,
    without: Collection[str],
    owned: Int64[np.ndarray, "T"],
    halo: Int64[np.ndarray, "T"],
    edges: int,
    unseen: int,
    seeds: int,
    same: bool,
) -> ViewSize:
    """Size of a view with so many nodes of each type, edges and seeds; ``same``: its rows hold what is inside, and
    nothing else.

    See :class:`PartView` for the arrays.
    """
    num_owned, num_halo = int(owned.sum()), int(halo.sum())
    count = num_owned + num_halo
    lists = count + 2 * (count + 1) + (0 if same else num_owned + 1) + seeds  # store ids; indptr, whole; inside; seeds
    total = 8 * lists + index_dtype(count).itemsize * edges
    total += bytes_of_columns(store, taken(store, without), owned, halo, edges, unseen)
    return ViewSize(num_owned, num_halo, edges, total)


def _differences(sums: Int64[Tensor, "n_1"], ids: Int[Tensor, "B"] | None) -> Int64[Tensor, "B"]:
    if ids is None:
        return sums[1:] - sums[:-1]
    ids = ids.long()
    return sums[ids + 1] - sums[ids]


def _seeds(store: GraphStore, owned: Owned) -> Int64[np.ndarray, "S"]:
    """Local ids of owned training nodes, in ascending original index."""
    train = store.splits.get("train", np.empty(0, dtype=np.int64))
    found = [np.empty(0, dtype=np.int64)]
    for low in range(0, len(train), EDGES_AT_ONCE):
        local = owned.local(train[low : low + EDGES_AT_ONCE])
        found.append(local[local >= 0])
    return np.concatenate(found)
