"""The edges of a typed source, with the relation that each is of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64, Integer, Shaped, UInt

from partita.core.errors import ConfigError
from partita.graph.schema import MOST_RELATIONS, REVERSE_PREFIX, Relation
from partita.sources.array_graph import ArrayGraph
from partita.sources.batch import Cells
from partita.sources.options import IngestOptions
from partita.sources.typed_arrays import TypedArrays

_CHUNK = 1 << 20
_NOT_TYPED = ("nodes", "features", "missing", "node_features", "standardize", "like")

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
        relations: of the graph, in order of their numbers.
        weighted: whether the edges have weights.
        notes: what is worth saying.
    """

    types: TypedArrays
    found: list[tuple[int, int, int]]
    relations: tuple[Relation, ...]
    weighted: bool
    notes: list[str]

    @classmethod
    def of(cls, graph: ArrayGraph, *, reverse: bool) -> TypedEdges | None:
        """Those of a source; ``None`` where it has no types. Reads all edges once, to find the relations.

        Args:
            graph: the source.
            reverse: every relation becomes another one besides, with its edges the other way round.

        Raises:
            ConfigError: there are too many relations, or a name is there twice.
        """
        types = graph.types
        if types is None:
            return None
        bound = sum(types.num_nodes)

        def pieces() -> Iterator[tuple[Any, Any, Any]]:
            with closing(graph.batches("int")) as batches:
                for batch in batches:
                    src, dst = batch.ints(0), batch.ints(1)
                    known = (src >= 0) & (src < bound) & (dst >= 0) & (dst < bound)  # others are refused later
                    yield src[known], dst[known], kinds_of(types, batch, graph.weighted)[known]

        found = types.relations_of(pieces())
        if len(found) * (1 + reverse) > MOST_RELATIONS:
            what = f"{len(found) * (1 + reverse):,} relations, at most {MOST_RELATIONS:,} are possible"
            raise ConfigError(what, where=str(graph.path))
        relations = types.relations(found, reverse=reverse)
        notes = _notes(types, found)
        if reverse:
            notes.append(f"every relation has one besides, {REVERSE_PREFIX}..., with its edges the other way round")
        return cls(types, found, relations, graph.weighted, notes)

    @property
    def ways(self) -> int:
        """How many edges of the graph one of the source stands for."""
        return len(self.relations) // max(1, len(self.found)) or 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the numbers of relations."""
        return np.dtype(np.uint8 if len(self.relations) <= 256 else np.uint16)

    def both_ways(
        self,
        src: Integer[np.ndarray, "n"],
        dst: Integer[np.ndarray, "n"],
        weight: Float[np.ndarray, "n"] | None,
        batch: Cells,
    ) -> Iterator[_Edges]:
        """Edges with their relations, and then those of the reverse relations, if there are some."""
        kinds = len(self.types.node_types)
        codes = np.array([(kind * kinds + source) * kinds + target for kind, source, target in self.found])
        code = self.types.code(src, dst, kinds_of(self.types, batch, self.weighted))
        relation = np.searchsorted(codes, code).astype(self.dtype)
        yield src, dst, weight, relation
        if len(self.relations) > len(self.found):
            yield dst, src, weight, (relation + len(self.found)).astype(self.dtype)


def kinds_of(types: TypedArrays, batch: Cells, weighted: bool) -> Int64[np.ndarray, "n"]:
    """Numbers of the names of relations of a batch of edges."""
    return np.zeros(len(batch), np.int64) if types.edge_type is None else batch.ints(2 + weighted)


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
