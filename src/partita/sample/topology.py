"""Where neighbors are drawn from: arrays of this process, usually the memory maps of a graph store or of a shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace as replaced
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float64, Int, Int32, Int64, Shaped, UInt8, UInt16, UInt32, UInt64
from torch import Tensor

from partita import kernels
from partita.core.errors import ConfigError
from partita.core.estimates import SampledLayer
from partita.core.mesh import Mesh
from partita.core.node_types import NodeTypes
from partita.core.once import Once
from partita.core.protocols import Rule
from partita.core.records import RemoteDraws, Removed, Sampled, TargetEdges, Traffic
from partita.graph.column_specs import COLUMNS, known
from partita.graph.store import GraphStore
from partita.kernels import checks
from partita.kernels.memory import to_device
from partita.kernels.reference.shared_draws import SharedKey


class _Writable:
    """An array's memory without its read-only flag, and a reference that keeps it alive."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        interface: dict[str, Any] = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


EDGE_ROWS = tuple(name for name, spec in known(COLUMNS).items() if spec.drawn)
"""Columns of edges whose rows come with the edges that are drawn, where a layer reads them."""

_MEANING = {"edge_weight": "edge weights", "edge_attr": "edge features"}

RELATION_DEGREE = "relation_degree"
"""As a column of edges of a typed graph: how many edges a drawn edge's destination has along its relation."""
_DEGREE_BYTES = 4

EDGE_ARRAYS = tuple(spec.sampler for spec in known(COLUMNS).values() if spec.of == "edges" and spec.sampler)
"""Arguments of :class:`ArrayTopology` with one element for each edge."""


def as_tensor(array: Shaped[np.ndarray, "..."]) -> Shaped[Tensor, "..."]:
    """A tensor over an array's memory, without a copy; read-only memory maps too.

    torch knows no read-only tensors and warns when given a read-only array, once per process and from any thread.
    So the flag is taken off first. Writing to the tensor of a read-only map ends the process.
    """
    if not array.flags.writeable:
        array = np.asarray(_Writable(array))
    return torch.from_numpy(array)


_Kind = TypeVar("_Kind", bound="ArrayTopology")


class ArrayTopology:
    """In-neighbors that are at hand in this process, as arrays; see :class:`partita.core.protocols.Topology`.

    It holds no memory of its own and no state: any number of threads may sample at once.

    Args:
        indptr: int64 (N+1), rows.
        indices: int32 or int64 (M), in-neighbors: of all nodes, or of those in ``nodes``.
        original: int64 (N), original index of every node; ``None`` where it is the id.
        self_loops: int32 (N), self loops of every node; ``None`` where the graph has none.
        weight_sums, loop_weights: float64 (N), see :class:`partita.core.protocols.Topology`; ``None`` without weights.
        weights: uint32 (M), weight of every edge; ``None`` where there are none.
        edge_type: uint8 or uint16 (M), number of the relation of every edge, ascending in every row; ``None`` where the
            graph is untyped.
        degree_offsets: int64 (N+1), running sums of the in-degrees that :meth:`degrees` and coefficients go by, where
            rows hold only some of a node's edges; ``None``: those of ``indptr``.
        edge_rows: columns of the edges, (M, ...) each, by names among :data:`EDGE_ROWS`; they stay where they are.
        node_types: which type every node has; ``None`` where the graph is untyped.
        num_relations: R; 1 where the graph is untyped.
        nodes: ids for which it draws; ``None`` for all.
        first_edge: position in the rows of the first of ``indices``.
        replace: draw with replacement.
        weighted: draw in proportion to ``weights``.

    Attributes:
        num_nodes: N.
        nodes: ids for which it draws.
        id_dtype: of ids, that of ``indices``.
        degree_offsets: as given, or those of ``indptr``.
        self_loops, weight_sums, loop_weights, replace, weighted, node_types, num_relations: as given.
        collective: no: sampling exchanges nothing.
        frugal: no: there is memory for each thread that samples to have tables of all nodes.
        slots: 1: what is asked for are nodes.

    Raises:
        ConfigError: ``weighted`` without weights.
    """

    collective = False
    frugal = False
    slots = 1

    def __init__(
        self,
        indptr: Int64[Tensor, "N_1"],
        indices: Int[Tensor, "M"],
        *,
        original: Int64[Tensor, "N"] | None = None,
        self_loops: Int32[Tensor, "N"] | None = None,
        weight_sums: Float64[Tensor, "N"] | None = None,
        loop_weights: Float64[Tensor, "N"] | None = None,
        weights: UInt32[Tensor, "M"] | None = None,
        edge_type: UInt8[Tensor, "M"] | UInt16[Tensor, "M"] | None = None,
        degree_offsets: Int64[Tensor, "N_1"] | None = None,
        edge_rows: Mapping[str, Tensor] = {},
        node_types: NodeTypes | None = None,
        num_relations: int = 1,
        nodes: range | None = None,
        first_edge: int = 0,
        replace: bool = False,
        weighted: bool = False,
    ) -> None:
        if weighted and weights is None:
            raise ConfigError(
                "weighted sampling needs edge weights, and the store has none",
                where="weighted",
                fix="Ingest the graph again with an edge weight column, or set weighted to false",
            )
        self.num_nodes = indptr.shape[0] - 1
        self.nodes = range(self.num_nodes) if nodes is None else nodes
        self.id_dtype = indices.dtype
        self.self_loops = self_loops
        self.weight_sums, self.loop_weights = weight_sums, loop_weights
        self.node_types, self.num_relations = node_types, num_relations
        self.replace = replace
        self.weighted = weighted
        self._indptr, self._indices, self._first_edge = indptr, indices, first_edge
        self.degree_offsets = indptr if degree_offsets is None else degree_offsets
        self._has_all_edges = indices.shape[0] == int(indptr[-1])
        self._knows_all_edges = int(self.degree_offsets[-1]) == int(indptr[-1])
        self._original = original
        self._edge_type = edge_type
        self._edge_rows, self._drawn_rows = edge_rows, dict[str, Tensor]()
        self._tells_degrees = False
        self._weights = weights if weighted else None
        self._edges: dict[str, Any] = {"replace": replace, "weights": self._weights, "first_edge": first_edge}
        self._excluded: Int64[Tensor, "k"] | None = None
        self._count_removed: Callable[[], Removed] | None = None

    def __copy__(self: _Kind) -> _Kind:
        # Steps make some, and the general way takes three times as long.
        other = self.__class__.__new__(self.__class__)
        other.__dict__.update(self.__dict__)
        return other

    def arrays(self) -> dict[str, Any]:
        """What another one like it is made of, by the names of the arguments."""
        return {
            "indptr": self._indptr,
            "indices": self._indices,
            "original": self._original,
            "self_loops": self.self_loops,
            "weight_sums": self.weight_sums,
            "loop_weights": self.loop_weights,
            "edge_rows": self._edge_rows,
            "degree_offsets": self.degree_offsets,
            "nodes": self.nodes,
            "weighted": self.weighted,
            "edge_type": self._edge_type,
            "node_types": self.node_types,
            "num_relations": self.num_relations,
            "replace": self.replace,
            "weights": self._weights,
            "first_edge": self._first_edge,
        }

    def drawing(self, columns: Sequence[str]) -> ArrayTopology:
        """The same one, whose samples have columns of the edges; see :class:`partita.core.protocols.Topology`.

        Raises:
            ConfigError: there is no such column.
        """
        stored = [name for name in columns if name != RELATION_DEGREE]
        if missing := [name for name in stored if name not in self._edge_rows]:
            raise ConfigError(
                f"the layers read {_MEANING[missing[0]]}, and the edges have none here",
                where="model",
                fix=f"Ingest the graph with {_MEANING[missing[0]]}, or use a model that reads none",
            )
        other = copy(self)
        other._drawn_rows = {name: self._edge_rows[name] for name in stored}
        other._tells_degrees = len(stored) < len(columns)
        return other

    @property
    def of_nodes(self) -> ArrayTopology:
        """Itself; see :class:`partita.core.protocols.Topology`."""
        return self

    def at_times(self, times: Int64[Tensor, "T"]) -> ArrayTopology:
        """Itself: what it draws does not depend on time."""
        return self

    def without(self, excluded: TargetEdges) -> ArrayTopology:
        """The same one without some edges; see :class:`partita.core.protocols.Topology`.

        Where their positions are not known, they are looked for once.

        Raises:
            ConfigError: rows hold only some of a node's edges, so that it is not known how many others there are.
            IndexError: one of the ids is no node.
        """
        return excluded.once(self, lambda: self._without(excluded))

    def _without(self, excluded: TargetEdges) -> ArrayTopology:
        if not self._knows_all_edges:
            raise ConfigError(
                "edges that are predicted cannot be left out of a view of some parts, which does not know all edges",
                where="views",
                fix="Leave out views, and the presets grappa and sdt-gnn",
            )
        if excluded.positions is not None:
            found = excluded.positions if self._indices.is_cpu else excluded.positions.to(self._indices.device)
            if not self._has_all_edges:
                last = self._first_edge + self._indices.shape[0]
                found = found[(found >= self._first_edge) & (found < last)]
            return self._left(found, Once(lambda: self._removed(found, self.rows_of(found).unique())))
        if len(self.nodes) < self.num_nodes:
            checks.within("dst", excluded.dst, self.num_nodes)
            excluded = excluded.of((excluded.dst >= self.nodes.start) & (excluded.dst < self.nodes.stop))
        pairs = excluded.to(self._indices.device)
        searched = self._found(pairs)
        return self._left(searched, Once(lambda: self._removed(searched, pairs.dst.unique())))

    def _found(self, pairs: TargetEdges) -> Int64[Tensor, "k"]:
        """Positions of the edges between some pairs, ascending."""
        return kernels.find_edges(
            self._indptr, self._indices, self._edge_type, pairs.dst, pairs.src, pairs.edge_type,
            first_edge=self._first_edge, num_nodes=self.num_nodes,
        )  # fmt: skip

    def rows_of(self, positions: Int64[Tensor, "k"]) -> Int64[Tensor, "k"]:
        """The nodes that edges at these positions lead to."""
        return torch.searchsorted(self._indptr, positions, right=True) - 1

    def _left(self: _Kind, positions: Int64[Tensor, "k"], count_removed: Callable[[], Removed]) -> _Kind:
        """A copy that draws without the edges at these positions."""
        other = copy(self)
        other._edges = {**self._edges, "excluded": positions}
        other._excluded, other._count_removed = positions, count_removed
        return other

    def _removed(self, positions: Int64[Tensor, "k"], ids: Int64[Tensor, "n"]) -> Removed:
        """How many of the edges at these positions are those of some nodes, which have them all."""
        row = torch.searchsorted(positions, self._indptr[ids])
        counts = torch.searchsorted(positions, self._indptr[ids + 1]) - row
        at, owner = positions - self._first_edge, torch.repeat_interleave(ids, counts)
        loops = self._column_at("indices", at) == owner
        lost = torch.zeros_like(at, dtype=torch.float64)
        if "edge_weight" in self._edge_rows:
            lost = self._column_at("edge_weight", at).double().masked_fill(loops, 0)
        place = torch.repeat_interleave(counts)
        sums = torch.zeros(len(ids), dtype=torch.float64, device=ids.device).index_add_(0, place, lost)
        return Removed(ids, counts, torch.zeros_like(counts).index_add_(0, place, loops.long()), sums)

    @property
    def left_out(self) -> Int64[Tensor, "k"]:
        """Positions of the edges that it draws without, ascending."""
        return torch.empty(0, dtype=torch.int64) if self._excluded is None else self._excluded

    def removed(self) -> Removed | None:
        """What nodes lose of their in-edges; see :class:`partita.core.protocols.Topology`."""
        return None if self._count_removed is None else self._count_removed()

    @property
    def edge_row_bytes(self) -> int:
        """Of the columns of an edge that come with it."""
        stored = sum(rows.itemsize * rows[:1].numel() for rows in self._drawn_rows.values())
        return stored + _DEGREE_BYTES * self._tells_degrees

    def at_owners(
        self, ids: Int[Tensor, "n"], rule: Rule, *, payload: Tensor | None = None, one_each: bool = False
    ) -> Sampled:
        """Apply a rule; see :class:`partita.core.protocols.Topology`.

        Raises:
            IndexError: a node's edges are in the shard of another host.
        """
        if len(self.nodes) < self.num_nodes and ids.numel():
            low, high = int(ids.min()), int(ids.max())
            if low < self.nodes.start or high >= self.nodes.stop:
                raise IndexError(
                    f"nodes {low} to {high} were asked of a host that has the edges of "
                    f"{self.nodes.start}:{self.nodes.stop} only"
                )
        return rule(self, ids) if payload is None else rule(self, ids, payload)

    def sample(
        self, dst: Int[Tensor, "D"], key: int, fanout: int | Sequence[int], *, positions: bool = False
    ) -> Sampled:
        """Draw in-neighbors of ids; see :func:`partita.kernels.sample_neighbors`, and for typed graphs
        :func:`partita.kernels.sample_relations`.

        Args:
            dst: store ids.
            key: of the step and layer.
            fanout: edges per node, and in typed graphs per relation; several are of the relations one by one.
            positions: say where the edges are.

        Raises:
            ValueError: there are several fanouts, and the graph is untyped or has another number of relations.
            EdgesError: one of them is no node.
        """
        positions, asked = positions or bool(self._drawn_rows), positions
        return self._of_nodes(self.drawn(dst, self.original(dst), key, fanout, positions=positions), positions=asked)

    def drawn(
        self, rows: Int[Tensor, "D"], original: Int[Tensor, "D"], key: int, fanout: int | Sequence[int], *,
        positions: bool,
    ) -> Sampled:  # fmt: skip
        """Draw from rows of edges, which may be numbered otherwise than by store ids; the picks are not looked at.

        Args:
            rows: numbers of rows.
            original: original indices of the nodes that they are of.
            key, fanout, positions: see :meth:`sample`.
        """
        if self._edge_type is not None:
            fanouts = (fanout,) * self.num_relations if isinstance(fanout, int) else fanout
            self._check_relations("fanouts", fanouts)
            return kernels.sample_relations(
                self._indptr, self._indices, self._edge_type, rows, original, key, fanouts, positions=positions,
                **self._edges,
            )  # fmt: skip
        if not isinstance(fanout, int):
            raise ValueError("an untyped graph is sampled with one fanout")
        return kernels.sample_neighbors(
            self._indptr, self._indices, rows, original, key, fanout, positions=positions, **self._edges
        )

    def _of_nodes(self, drawn: Sampled, *, positions: bool) -> Sampled:
        """What was drawn, once it is seen that it is nodes: whatever follows relies on that. With the edges' rows."""
        checks.sources(drawn.indices, self.num_nodes)
        return self._with_rows(drawn, positions=positions)

    def _with_rows(self, drawn: Sampled, *, positions: bool) -> Sampled:
        """What was drawn with the columns that come with edges; and with positions only where they were asked for."""
        if not self._drawn_rows or drawn.positions is None:
            return drawn
        at = drawn.positions - self._first_edge
        rows: dict[str, Any] = {name: self._column_at(name, at) for name in self._drawn_rows}
        return replaced(drawn, **rows, positions=drawn.positions if positions else None)

    def _column_at(self, name: str, at: Int64[Tensor, "E"]) -> Shaped[Tensor, "E ..."]:
        """What edges that are counted from the first that is here have in a column."""
        column = self._indices if name == "indices" else self._edge_rows[name]
        return to_device(column.index_select(0, at.to(column.device)), at.device)

    def sample_shared(self, dst: Int[Tensor, "D"], key: SharedKey, fanout: int | Sequence[int]) -> Sampled:
        """Draw in-neighbors of ids, repeated or not, those with the smallest draws; see
        :func:`partita.kernels.sample_shared`.

        Args:
            dst: store ids.
            key: of the draws.
            fanout: edges per node, and in typed graphs per relation; several are of the relations one by one.

        Raises:
            ValueError: with replacement; or there are several fanouts, and the graph has another number of relations.
            EdgesError: one of them comes from no node.
        """
        if self.replace:
            raise ValueError("draws that destinations share are without replacement")
        fanouts = (fanout,) * self.num_relations if isinstance(fanout, int) else fanout
        self._check_relations("fanouts", fanouts)
        return self._of_nodes(self.shared(dst, key, fanouts, positions=bool(self._drawn_rows)), positions=False)

    def shared(self, rows: Int[Tensor, "D"], key: SharedKey, fanouts: Sequence[int], *, positions: bool) -> Sampled:
        """As :meth:`drawn`, the draws of :meth:`sample_shared`."""
        return kernels.sample_shared(
            self._indptr, self._indices, rows, self._original, key, fanouts, edge_type=self._edge_type,
            weights=self._weights, positions=positions, first_edge=self._first_edge, excluded=self._excluded,
            num_nodes=self.num_nodes,
        )  # fmt: skip

    def arrival_times(self, dst: Int[Tensor, "n"], key: int, wanted: Sequence[int]) -> Int64[Tensor, "wanted"]:
        """When the first in-edges of ids, repeated or not, arrive, of each relation; 0 are wanted of none.

        See :func:`partita.kernels.arrival_times` and :func:`partita.kernels.relation_arrival_times`.

        Raises:
            ValueError: there are not as many numbers as relations.
        """
        self._check_relations("times", wanted)
        original = self.original(dst)
        if self._edge_type is not None:
            return kernels.relation_arrival_times(
                self._indptr, self._edge_type, dst, original, key, wanted, **self._edges
            )
        last_edge = self._first_edge + self._indices.shape[0]
        return kernels.arrival_times(self._indptr, dst, original, key, wanted[0], last_edge=last_edge, **self._edges)

    def arrivals(self, dst: Int[Tensor, "n"], key: int, before: Sequence[int], *, positions: bool = False) -> Sampled:
        """All in-edges of ids that arrive before a time, which every relation has for itself.

        See :func:`partita.kernels.pick_arrivals` and :func:`partita.kernels.pick_relation_arrivals`.

        Raises:
            ValueError: there are not as many times as relations.
            EdgesError: one of them comes from no node.
        """
        self._check_relations("times", before)
        found = self.arrived(
            dst, key, before, positions=positions or bool(self._drawn_rows), degrees=self._tells_degrees
        )
        return self._of_nodes(found, positions=positions)

    def arrived(
        self, rows: Int[Tensor, "n"], key: int, before: Sequence[int], *, positions: bool, degrees: bool
    ) -> Sampled:
        """As :meth:`drawn`, the draws of :meth:`arrivals`.

        Args:
            rows, key, before, positions: see there.
            degrees: say how many edges a destination has along each edge's relation.
        """
        original = self.original(rows)
        if self._edge_type is not None:
            return kernels.pick_relation_arrivals(
                self._indptr, self._indices, self._edge_type, rows, original, key, before,
                positions=positions, degrees=degrees, **self._edges,
            )  # fmt: skip
        return kernels.pick_arrivals(
            self._indptr, self._indices, rows, original, key, before[0], positions=positions, **self._edges
        )

    def _check_relations(self, what: str, numbers: Sequence[int]) -> None:
        if len(numbers) != self.num_relations:
            raise ValueError(f"{len(numbers)} {what} for {self.num_relations} relations")

    def walk_step(
        self, ids: Int[Tensor, "n"], draws: Int64[Tensor, "n"], relation: int | None = None
    ) -> Int[Tensor, "n"]:
        """Where walks go next, of a typed graph along a relation.

        See :func:`partita.kernels.walk_step` and :func:`partita.kernels.relation_step`.
        """
        if relation is not None and self._edge_type is not None:
            return kernels.relation_step(
                self._indptr, self._indices, self._edge_type, ids, draws, relation,
                num_relations=self.num_relations, weights=self._weights, first_edge=self._first_edge,
                excluded=self._excluded, num_nodes=self.num_nodes,
            )  # fmt: skip
        return kernels.walk_step(
            self._indptr, self._indices, ids, draws, weights=self._weights, first_edge=self._first_edge,
            excluded=self._excluded, num_nodes=self.num_nodes,
        )  # fmt: skip

    def random_walks(
        self, start: Int[Tensor, "n"], key: int, *, walks: int, length: int, restart: float
    ) -> Int[Tensor, "nR columns"]:
        """Random walks; see :func:`partita.kernels.random_walks`.

        Raises:
            ValueError: only some of the edges are here.
        """
        return kernels.random_walks(
            self._indptr, self._indices, start, self.original(start), key,
            walks=walks, length=length, restart=restart, weights=self._weights, excluded=self._excluded,
        )  # fmt: skip

    def original(self, ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """Original indices of ids, int64."""
        ids = ids.long()
        return ids if self._original is None else self._original[ids]

    def estimate(self, drawn: SampledLayer, drawing: UInt64[np.ndarray, "D"], mesh: Mesh) -> list[RemoteDraws]:
        """Nobody draws for others."""
        return [RemoteDraws()] * mesh.size

    def traffic(self, remote: RemoteDraws) -> Traffic:
        """Nothing travels."""
        return Traffic()

    def degrees(self, ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """In-degrees of ids, int64; parallel edges and self loops count."""
        ids = ids.long()
        return remaining_degrees(self.degree_offsets[ids + 1] - self.degree_offsets[ids], ids, self.removed())


def remaining_degrees(degrees: Int[Tensor, "n"], ids: Int[Tensor, "n"], removed: Removed | None) -> Int[Tensor, "n"]:
    """Degrees of ids without the edges that are removed."""
    return degrees if removed is None else degrees - removed.of(ids, "edges")[0]


class LocalTopology(ArrayTopology):
    """In-neighbors that are in the memory maps of a graph store, or of one host's shard of it.

    Of a store it draws for all nodes; of a shard whose edges are cut, for the nodes of its host
    (:attr:`~ArrayTopology.nodes`). What follows from node columns (original indices, degrees, self loops) is known
    of all nodes in either case.

    Args:
        store: the graph, or a shard of it.
        replace: draw with replacement.
        weighted: draw in proportion to the edge weights.
        types: the graph may be typed.

    Raises:
        ConfigError: ``weighted`` without edge weights in the store.
        StoreError: the rows of the store are damaged, or the graph is typed.
    """

    def __init__(
        self, store: GraphStore, *, replace: bool = False, weighted: bool = False, types: bool = False
    ) -> None:
        if not types:
            store.require_untyped("sampling")
        store.require_rows()
        columns, schema = known(store.columns).items(), store.schema
        arrays = {spec.sampler: as_tensor(store.held(name)[0]) for name, spec in columns if spec.sampler}
        super().__init__(
            **arrays,
            edge_rows={name: as_tensor(store.held(name)[0]) for name in EDGE_ROWS if store.has(name)},
            node_types=None if schema is None else store.node_types,
            num_relations=1 if schema is None else len(schema.relations),
            nodes=store.nodes_with_edges,
            first_edge=store.held("indices")[1],
            replace=replace,
            weighted=weighted,
        )
