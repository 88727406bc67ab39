"""The edges of a typed source, with the relation that each is of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64, Integer, Shaped, UInt

from partita.core.errors import ConfigError
from partita.graph.schema import MOST_RELATIONS, REVERSE_PREFIX, Relation
from partita.sources.array_graph import ArrayGraph
from partita.sources.batch import Cells
from partita.sources.edges import EdgeTable
from partita.sources.options import IngestOptions
from partita.sources.relation_names import ENTITY, RelationNames
from partita.sources.typed_arrays import TypedArrays

_CHUNK = 1 << 20
_NOT_TYPED = ("nodes", "features", "missing", "node_features", "like")

_Edges = tuple[Integer[np.ndarray, "n"], Integer[np.ndarray, "n"], Float[np.ndarray, "n"] | None, UInt[np.ndarray, "n"]]


def refuse_options(options: IngestOptions, where: str) -> None:
    """See that only such options are given as make sense for a typed graph.

    Raises:
        ConfigError: another one is; names it.
    """
    for name in _NOT_TYPED:
        if getattr(options, name):
            raise ConfigError(f"is for graphs without types, and {where} has types", where=name, fix="Leave it out")
    if options.self_loops == "add":
        fix = "Use keep or drop, or write the self loops into the source as a relation"
        raise ConfigError(f"self loops would be of no relation, and {where} has relations", where="self_loops", fix=fix)


@dataclass(frozen=True)
class TypedEdges:
    """What relation each edge is of.

    Attributes:
        types: of the source.
        found: relations of the source, see :meth:`TypedArrays.relations_of`.
        reversed_as: number of the reverse of each of these; empty: none has one. Those of which all edges are held out
            have none.
        relations: of the graph, in order of their numbers.
        kinds: numbers of the names of relations in a column of a batch.
        notes: what is worth saying.
    """

    types: TypedArrays
    found: list[tuple[int, int, int]]
    reversed_as: Int64[np.ndarray, "R"]
    relations: tuple[Relation, ...]
    kinds: Callable[[Cells, int], Int64[np.ndarray, "n"]]
    notes: list[str]

    @classmethod
    def of(cls, graph: ArrayGraph | EdgeTable, *, reverse: bool) -> TypedEdges | None:
        """Those of a source; ``None`` where it has no types. Reads all edges once, to find the relations.

        Args:
            graph: the source.
            reverse: every relation becomes another one besides, with its edges the other way round.

        Raises:
            ConfigError: there are too many relations, or a name is there twice.
        """
        read = _of_table(graph) if isinstance(graph, EdgeTable) else _of_arrays(graph)
        if read is None:
            return None
        types, found, live, kinds = read
        if len(found) * (1 + reverse) > MOST_RELATIONS:
            what = f"{len(found) * (1 + reverse):,} relations, at most {MOST_RELATIONS:,} are possible"
            raise ConfigError(what, where=str(graph.path))
        relations = types.relations(found, [reverse and each for each in live])
        reversed_as = len(found) - 1 + np.cumsum(np.array(live, np.int64)) if reverse else np.empty(0, np.int64)
        notes = _notes(types, found)
        if reverse:
            notes.append(f"every relation has one besides, {REVERSE_PREFIX}..., with its edges the other way round")
        return cls(types, found, reversed_as, relations, kinds, notes)

    @property
    def ways(self) -> int:
        """How many edges of the graph one of the source stands for."""
        return 1 + bool(len(self.reversed_as))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the numbers of relations."""
        return np.dtype(np.uint8 if len(self.relations) <= 256 else np.uint16)

    def numbers(
        self, src: Integer[np.ndarray, "n"], dst: Integer[np.ndarray, "n"], batch: Cells, column: int
    ) -> UInt[np.ndarray, "n"]:
        """Numbers of the relations of a batch of edges, whose names are in a column of it."""
        kinds = len(self.types.node_types)
        codes = np.array([(kind * kinds + source) * kinds + target for kind, source, target in self.found])
        return np.searchsorted(codes, self.types.code(src, dst, self.kinds(batch, column))).astype(self.dtype)

    def both_ways(
        self,
        src: Integer[np.ndarray, "n"],
        dst: Integer[np.ndarray, "n"],
        weight: Float[np.ndarray, "n"] | None,
        relation: UInt[np.ndarray, "n"],
    ) -> Iterator[_Edges]:
        """Edges with their relations, and then those of the reverse relations, if there are some."""
        yield src, dst, weight, relation
        if len(self.reversed_as):
            yield dst, src, weight, self.reversed_as[relation].astype(self.dtype)

    def only_held_out(self, counts: Int64[np.ndarray, "R"]) -> list[str]:
        """Says which relations have held-out edges only, given the edges of each."""
        idle = [str(each) for each, count in zip(self.relations[: len(self.found)], counts.tolist()) if not count]
        return [f"relations with held-out edges only: {', '.join(idle)}"] if idle else []


_Read = tuple[TypedArrays, list[tuple[int, int, int]], list[bool], Callable[[Cells, int], Int64[np.ndarray, "n"]]]
"""Types, relations, which of these have edges that are not held out, and numbers of their names in a batch."""


def _of_arrays(graph: ArrayGraph) -> _Read | None:
    types = graph.types
    if types is None:
        return None
    bound, several = sum(types.num_nodes), len(types.node_types) > 1

    def kinds(batch: Cells, column: int) -> Int64[np.ndarray, "n"]:
        return np.zeros(len(batch), np.int64) if types.edge_type is None else batch.ints(column)

    live, idle = set[int](), set[int]()
    for batch, column, there in _all(graph):
        src, dst = batch.ints(0), batch.ints(1)
        known = (src >= 0) & (src < bound) & (dst >= 0) & (dst < bound)  # others are refused later
        known |= not several
        code = types.code(src[known], dst[known], kinds(batch, column)[known])
        live |= set(np.unique(code[there[known]]).tolist())
        idle |= set(np.unique(code[~there[known]]).tolist())
    codes = sorted(live | idle)
    return types, types.relations_of(codes), [code in live for code in codes], kinds


def _all(graph: ArrayGraph) -> Iterator[tuple[Cells, int, Bool[np.ndarray, "n"]]]:
    """Edges and held-out edges, each batch with the column of the relations, and which of them are not held out."""
    with closing(graph.batches("int")) as batches:
        for batch in batches:
            split = graph.split_of(batch)
            yield batch, graph.kind_column, np.ones(len(batch), bool) if split is None else split == 0
    for _, batch in graph.held_batches("int"):
        yield batch, 2, np.zeros(len(batch), bool)


def _of_table(table: EdgeTable) -> _Read | None:
    """Relations that a column names; ``None`` where there is one at most: then the graph is an untyped one."""
    if not table.has_relations:
        return None
    names, live = RelationNames(), 0
    for each in (table, *table.held.values()):
        with closing(each.relations()) as batches:
            for batch in batches:
                names.add(batch, 0)
        live = live or len(names)
    found = [(number, 0, 0) for number in range(len(names))]
    types = TypedArrays(table.path, (ENTITY,), (-1,), tuple(names), None, {}, frozenset(), is_plain=len(found) <= 1)
    return None if types.is_plain else (types, found, [number < live for number, *_ in found], names.numbers)


def count_types(edge_type: Shaped[np.ndarray, "E"], count: int) -> Int64[np.ndarray, "R"]:
    """Edges of each relation."""
    found = np.zeros(count, np.int64)
    for start in range(0, len(edge_type), _CHUNK):
        found += np.bincount(edge_type[start : start + _CHUNK], minlength=count)
    return found


def _notes(types: TypedArrays, found: list[tuple[int, int, int]]) -> list[str]:
    notes = []
    names = [types.relation_names[kind] for kind, *_ in found]
    for name in sorted({name for name in names if names.count(name) > 1}):
        notes.append(f"the edges of '{name}' join several pairs of types, so they are {names.count(name)} relations")
    if idle := [name for name in types.relation_names if name not in names]:
        notes.append(f"relations without edges were left out: {', '.join(idle)}")
    if empty := [name for name, size in zip(types.node_types, types.num_nodes) if not size]:
        notes.append(f"node types without nodes: {', '.join(empty)}")
    if bare := [name for name in types.node_types if name not in types.features]:
        notes.append(f"node types without features: {', '.join(bare)}")
    return notes
