"""Records that travel between the stages, with the shape, dtype and index space of every field.

Index spaces: *store ids* are positions in the graph store at hand; *original indices* are positions at ingest
(the key of all sampling; equal to store ids unless the store was re-ordered); *local indices* point into a
block's ``src``. Letters: D destinations, S sources, E sampled edges, F feature columns, A columns of edge features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64, Shaped, UInt32
from torch import Tensor

from partita.core.adding import Adding
from partita.core.node_types import NodeTypes
from partita.core.once import Once
from partita.core.typed import typed

Made = TypeVar("Made")

Reduce = Literal["sum", "mean"]
"""How the rows of a destination's sources are joined."""

ID_BYTES = 8
"""Of a node id, and of any other whole number, on its way between workers."""


@dataclass(frozen=True, slots=True)
class RemoteDraws(Adding):
    """How much of a sample other workers drew, because the topology is partitioned among them.

    Attributes:
        destinations: nodes whose neighbors another worker drew.
        edges: edges that it drew for them.
        times: arrival times that this worker sent to others, to draw a layer as a whole.
        steps: steps of walks that another worker took.
    """

    destinations: int = 0
    edges: int = 0
    times: int = 0
    steps: int = 0


Pairs = tuple[Int64[Tensor, "t"], Int64[Tensor, "t"], Int[Tensor, "t"] | None]


class TargetEdges:
    """Edges that carry no messages in a step, because they are what it predicts: all edges between two nodes.

    Args:
        dst: int64 (t), store ids of destinations, in any order. Pairs may be repeated, or have no edge at all.
        src: int64 (t), store ids of sources. Where an edge goes both ways, so do two of the pairs.
        edge_type: (t) number of the relation whose edges are meant; ``None``: those of all relations.

    Attributes:
        positions: int64 (k), where all of these edges are in the store, ascending; ``None``: they are looked for.
        pairs: gives destinations, sources and relations.
    """

    def __init__(
        self, dst: Int64[Tensor, "t"], src: Int64[Tensor, "t"], edge_type: Int[Tensor, "t"] | None = None
    ) -> None:
        self.positions: Int64[Tensor, "k"] | None = None
        self.pairs: Callable[[], Pairs] = lambda: (dst, src, edge_type)
        self._known = dict[int, tuple[object, Any]]()

    @classmethod
    def at(cls, positions: Int64[Tensor, "k"], pairs: Callable[[], Pairs]) -> TargetEdges:
        """Edges of which it is known where they are; their ends and relations are made when somebody asks for them."""
        found = cls.__new__(cls)
        found.positions, found.pairs, found._known = positions, Once(pairs), {}
        return found

    @property
    def dst(self) -> Int64[Tensor, "t"]:
        """As given."""
        return self.pairs()[0]

    @property
    def src(self) -> Int64[Tensor, "t"]:
        """As given."""
        return self.pairs()[1]

    @property
    def edge_type(self) -> Int[Tensor, "t"] | None:
        """As given."""
        return self.pairs()[2]

    def of(self, chosen: Bool[Tensor, "t"]) -> TargetEdges:
        """Some of them, which are looked for."""
        kinds = self.edge_type
        return TargetEdges(self.dst[chosen], self.src[chosen], None if kinds is None else kinds[chosen])

    def to(self, device: torch.device) -> TargetEdges:
        """The same on a device; they are looked for."""
        kinds = self.edge_type
        return TargetEdges(self.dst.to(device), self.src.to(device), None if kinds is None else kinds.to(device))

    def once(self, asker: object, make: Callable[[], Made]) -> Made:
        """What an object makes of them, made when it first asks: a step asks in every layer."""
        if id(asker) not in self._known:
            self._known[id(asker)] = asker, make()  # an object that is kept does not give its id to another
        made: Made = self._known[id(asker)][1]
        return made


@dataclass(frozen=True, slots=True)
class Removed:
    """What nodes lose of their in-edges in a step, see :class:`TargetEdges`.

    Attributes:
        ids: int64 (n), store ids, ascending; others lose nothing.
        edges: int64 (n), how many edges each of them loses.
        loops: int64 (n), how many of these are self loops.
        weights: float64 (n), sum of the weights of those that are none; 0 where edges have none.
    """

    ids: Int64[Tensor, "n"]
    edges: Int64[Tensor, "n"]
    loops: Int64[Tensor, "n"]
    weights: Float64[Tensor, "n"]

    def of(self, ids: Int[Tensor, "m"], *columns: str) -> list[Shaped[Tensor, "m"]]:
        """Columns of any nodes, repeated or not; 0 of those that lose nothing."""
        ids = ids.long()
        if not len(self.ids):
            return [torch.zeros_like(ids, dtype=getattr(self, name).dtype) for name in columns]
        place = torch.searchsorted(self.ids, ids).clamp(max=len(self.ids) - 1)
        there = self.ids[place] == ids
        return [getattr(self, name)[place] * there for name in columns]

    def to(self, device: torch.device) -> Removed:
        """The same on a device."""
        return Removed(*(getattr(self, each.name).to(device) for each in fields(self)))


SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Of dtypes that PyTorch cannot index on a device those of as many bits that it can."""
_EDGE_COLUMNS = (
    "indices", "positions", "weights", "importance", "visit_weight", "edge_type", "relation_degree", "edge_weight",
    "edge_attr",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sampled in-edges of a list of destinations.

    Attributes:
        indptr: int64 (D+1).
        indices: (E) store ids, in the dtype of the store.
        positions: int64 (E), position of every sampled edge in the store's ``indices``; ``None`` if not asked for.
        remote: what another worker drew.
        weights: uint32 (E), edge weight of every sampled edge; ``None`` if not asked for.
        importance: float64 (E), how often each sampled edge must count so that sums over the sampled edges have those
            over all edges as their expectation; ``None`` where the layer's own rule applies (1/k in a mean over k).
        visit_weight: float64 (E), what each of its neighbors counts of a destination's neighborhood, in all 1: takes
            the place of the layer's own rule; ``None`` where the sampler has no opinion.
        edge_type: int32 (E), number of the relation of every sampled edge, ascending for every destination; ``None`` of
            untyped graphs.
        relation_degree: int32 (E), in-edges that the destination of every sampled edge has along the edge's relation;
            ``None`` if not asked for.
        edge_weight: float32 (E), weight of every sampled edge as the store has it; ``None`` if not asked for.
        edge_attr: (E, A) features of every sampled edge, in the dtype of the store; ``None`` if not asked for.
    """

    indptr: Int[Tensor, "D_1"]
    indices: Int[Tensor, "E"]
    positions: Int[Tensor, "E"] | None = None
    remote: RemoteDraws = RemoteDraws()
    weights: UInt32[Tensor, "E"] | None = None
    importance: Float[Tensor, "E"] | None = None
    visit_weight: Float[Tensor, "E"] | None = None
    edge_type: Int[Tensor, "E"] | None = None
    relation_degree: Int[Tensor, "E"] | None = None
    edge_weight: Float[Tensor, "E"] | None = None
    edge_attr: Float[Tensor, "E A"] | None = None

    def mapped(self, move: Callable[[Tensor], Tensor]) -> Sampled:
        """A copy in which every column of edges that is there is moved: the one way in which they travel.

        Unsigned columns travel as signed ones of the same bits: on a device, PyTorch cannot index others.
        """
        columns = {name: getattr(self, name) for name in _EDGE_COLUMNS}
        moved: dict[str, Any] = {
            name: move(column.view(SIGNED.get(column.dtype, column.dtype))).view(column.dtype)
            for name, column in columns.items()
            if column is not None
        }
        return replace(self, **moved)


@dataclass(frozen=True, slots=True)
class Transposed:
    """A block's edges grouped by source, for backward passes without scatter.

    Attributes:
        indptr: int64 (S+1).
        dst: int32 (E), local index of the destination of each edge, ascending within a source.
        edge: int64 (E), position of the edge in the block.
    """

    indptr: Int[Tensor, "S_1"]
    dst: Int[Tensor, "E"]
    edge: Int[Tensor, "E"]


@dataclass(frozen=True, slots=True)
class Block:
    """One bipartite layer of a sampled mini-batch in CSC form: the in-edges of every destination.

    Attributes:
        dst: (D) store ids, int32 or int64 as the store's ``indices``.
        src: (S) store ids, the D destinations first, then new sources by first appearance. ``None`` where the
            sources were not de-duplicated, because the layer sums rows straight from the feature column.
        indptr: int64 (D+1). The edges of destination i are ``indptr[i]:indptr[i+1]``.
        indices: (E) local indices into ``src`` (int32); where ``src`` is ``None``, store ids.
        dst_original: (D) original indices of the destinations, the key of sampling and dropout.
        weight: (E) float coefficient of each edge; ``None`` means that the layer's own rule applies
            (1/k for a mean over k sampled edges, 1 for a sum).
        self_weight: (D) float coefficient of the destination's own row; ``None`` where the layer has none.
        src_original: (S) original indices of the sources; ``None`` unless something keys on them (input dropout).
        transposed: the same edges grouped by source; ``None`` until a backward pass needs it.
        remote: what of the sample another worker drew.
        edge_type: int32 (E), number of the relation of each edge, ascending for every destination; ``None`` in untyped
            graphs, and where the layer does not look at it.
        node_types: which type each store id has; ``None`` in untyped graphs.
        edge_attr: (E, A) features of each edge; ``None`` where the layer does not look at them.
        loop_attr: (D, A) mean features of the edges of each destination, self loops left out: those of the loop that
            the layer adds. 0 without edges; ``None`` where the layer adds none.
    """

    dst: Int[Tensor, "D"]
    src: Int[Tensor, "S"] | None
    indptr: Int[Tensor, "D_1"]
    indices: Int[Tensor, "E"]
    dst_original: Int[Tensor, "D"]
    weight: Float[Tensor, "E"] | None = None
    self_weight: Float[Tensor, "D"] | None = None
    src_original: Int[Tensor, "S"] | None = None
    transposed: Transposed | None = field(default=None, compare=False)
    remote: RemoteDraws = field(default=RemoteDraws(), compare=False)
    edge_type: Int[Tensor, "E"] | None = None
    node_types: NodeTypes | None = None
    edge_attr: Float[Tensor, "E A"] | None = None
    loop_attr: Float[Tensor, "D A"] | None = None

    @property
    def num_dst(self) -> int:
        """D, the number of destinations."""
        return self.dst.shape[0]

    @property
    def num_src(self) -> int:
        """S, the number of distinct sources, destinations included."""
        if self.src is None:
            raise ValueError("the sources of this block were not de-duplicated")
        return self.src.shape[0]

    @property
    def num_edges(self) -> int:
        """E, the number of sampled edges."""
        return self.indices.shape[0]

    def with_(self, **changes: object) -> Block:
        """A copy with some fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def of_edges(self, chosen: Tensor) -> dict[str, Any]:
        """The columns of some edges but their sources, by name: what a block with other edges is made with.

        Args:
            chosen: positions, or a mask of all edges.
        """
        columns = {name: getattr(self, name) for name in ("weight", "edge_type", "edge_attr")}
        return {name: None if column is None else column[chosen] for name, column in columns.items()}

    def edge_dst(self) -> Int[Tensor, "E"]:
        """Local index of the destination of every edge, int64."""
        counts = self.indptr[1:] - self.indptr[:-1]
        return torch.repeat_interleave(torch.arange(self.num_dst, device=counts.device), counts)

    def dst_types(self) -> Int64[Tensor, "D"]:
        """Number of the type of every destination; 0 in untyped graphs."""
        if self.node_types is None:
            return torch.zeros(self.num_dst, dtype=torch.int64, device=self.dst.device)
        return torch.from_numpy(self.node_types.of(self.dst.cpu().numpy())).to(self.dst.device)

    def edge_index(self) -> Int[Tensor, "2 E"]:
        """``edge_index`` as PyG's bipartite layers take it: row 0 sources, row 1 destinations, both local."""
        if self.src is None:
            raise ValueError("the sources of this block were not de-duplicated")
        return torch.stack([self.indices.long(), self.edge_dst()])


@dataclass(frozen=True, slots=True)
class RowsByType:
    """Input rows of nodes of a typed graph: each type has a width of its own.

    Attributes:
        at: of each type int64 (n), which of the nodes have it, ascending; every node is in one of them.
        rows: of each type (n, F) their rows, also of float16, as they are stored; (n, 0) of types without features.
        head: the first so many nodes are in any order; those behind them are sorted by type.
        numbers: of each type int64 (n), which of all rows of the type they are: learnt rows are found by it. In host
            memory; empty where nothing looks for such.
        pulls: of each type, what the source of learnt rows was asked for them ahead; ``None`` where it was not.
    """

    at: tuple[Int64[Tensor, "_"], ...]
    rows: tuple[Float[Tensor, "_ _"], ...]
    head: int
    numbers: tuple[Int64[Tensor, "_"], ...] = ()
    pulls: tuple[Any, ...] = ()


@runtime_checkable
class LazyRows(Protocol):
    """Input rows that are read only as far as a layer needs them (the input placement of a batch)."""

    @property
    def width(self) -> int:
        """F, the number of columns."""
        ...

    def all(self) -> Float[Tensor, "S F"]:
        """Rows of every source of the block (needs a de-duplicated block)."""
        ...

    def of_destinations(self) -> Float[Tensor, "D F"]:
        """Rows of the destinations."""
        ...

    def aggregate(self, reduce: Reduce) -> Float[Tensor, "D F"]:
        """Sum or mean over the block's edges, straight from where the rows lie. ``block.weight`` applies."""
        ...


TIERS = ("cache", "host", "peers", "hosts")
"""Where a worker gets input rows from: its own cache; its host's memory; another worker of its host; another host."""


def tier_rows(**rows: int) -> tuple[int, ...]:
    """A number for each of :data:`TIERS`, by name; 0 for those that are not named."""
    return tuple(rows.get(tier, 0) for tier in TIERS)


def read_here(rows: Sequence[int]) -> int:
    """Of rows from each of :data:`TIERS`, those that the worker reads itself, for itself or for others."""
    return rows[TIERS.index("cache")] + rows[TIERS.index("host")]


@dataclass(frozen=True, slots=True)
class DiskReads(Adding):
    """What a worker has read of rows that are in files, or got from other hosts, with a look ahead. Adds up with ``+``.

    Attributes:
        asked: rows of announced batches.
        kept: of these, those that were in memory.
        lru_kept: those that would have been, had the cache given up what was used longest ago; of large caches an
            estimate.
        rows: that were read, those for other uses included.
        reads: of files.
        bytes: of all reads.
        milliseconds: that reading a batch's rows took, rounded.
        packing_milliseconds: that it took to read rows of many batches in one pass, and to write them behind another.
    """

    asked: int = 0
    kept: int = 0
    lru_kept: int = 0
    rows: int = 0
    reads: int = 0
    bytes: int = 0
    milliseconds: int = 0
    packing_milliseconds: int = 0


@dataclass(frozen=True, slots=True)
class Counts(Adding):
    """What a batch (or a whole run) cost, in rows and edges. Adds up with ``+``.

    Attributes:
        sampled_edges: edges drawn over all layers.
        computed_destinations: rows computed, per layer, layer 1 (input side) first.
        input_rows_read: distinct input rows, summed over steps and workers.
        row_reads: accesses to input rows, repeated ones included.
        rows_from: rows that each of :data:`TIERS` gave. What a worker reads for others comes from its own ``cache`` and
            ``host``; with them it arrives from ``peers`` and ``hosts``.
    """

    sampled_edges: int
    computed_destinations: tuple[int, ...]
    input_rows_read: int
    row_reads: int
    rows_from: tuple[int, ...] = tier_rows()

    @classmethod
    def zero(cls, layers: int) -> Counts:
        """Nothing done yet in a model of so many layers."""
        return cls(0, (0,) * layers, 0, 0)

    @property
    def layers(self) -> int:
        """How many layers they are of."""
        return len(self.computed_destinations)

    def flat(self) -> list[int]:
        """All numbers in a row, for sums over workers."""
        return [
            self.sampled_edges,
            self.input_rows_read,
            self.row_reads,
            *self.rows_from,
            *self.computed_destinations,
        ]

    @classmethod
    def from_flat(cls, numbers: Sequence[int]) -> Counts:
        """The inverse of :meth:`flat`."""
        edges, rows, reads, *rest = numbers
        return cls(edges, tuple(rest[len(TIERS) :]), rows, reads, tuple(rest[: len(TIERS)]))

    def to_json(self) -> dict[str, Any]:
        """As ``run.json`` shows it."""
        return {
            **Adding.to_json(self),
            "computed_destinations": list(self.computed_destinations),
            "rows_from": dict(zip(TIERS, self.rows_from, strict=True)),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Counts:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError, TypeError, KeyError: it is something else.
        """
        tuples = {
            "computed_destinations": tuple(values["computed_destinations"]),
            "rows_from": tier_rows(**values.get("rows_from", {})),
        }
        return typed(cls, {**values, **tuples})


@dataclass(frozen=True, slots=True)
class Traffic(Adding):
    """Bytes that leave a worker for another one, one direction, without the sizes sent ahead. Adds up with ``+``.

    Attributes:
        ids: node ids, and what travels with them at sampling: edges and their coefficients.
        features: input rows.
        forward: rows between layers.
        backward: their gradients.
    """

    ids: int = 0
    features: int = 0
    forward: int = 0
    backward: int = 0

    @property
    def total(self) -> int:
        """Bytes of all kinds."""
        return sum(self.values())
