"""Types of nodes and of edges in arrays by name: ``node_type``, ``edge_type``, and the names of both.

The nodes of one type are numbered one after the other, type after type. Features are named by type: ``x_paper``, or the
parts of a sparse matrix, ``x_paper_indptr`` and so on. A relation leads from one type to one type; where the edges of
one name have several, they are several relations of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64, Integer

from partita.core.errors import ConfigError
from partita.graph.schema import MOST_RELATIONS, Relation, Schema, check_names
from partita.sources.arrays import ArrayFile
from partita.sources.feature_arrays import PARTS, FeatureArrays
from partita.sources.relation_names import ENTITY

NAMES = ("node_type", "node_type_names", "edge_type", "edge_type_names")
_UNNAMED = "to"
"""A relation of a file that names none."""


@dataclass(frozen=True)
class TypedArrays:
    """What a file says of types.

    Attributes:
        path: of the file.
        node_types: names.
        num_nodes: of each; -1 of a single type of which the edges will tell.
        relation_names: in order of the numbers in ``edge_type``.
        edge_type: number of the name of every edge; ``None``: all have the same.
        features: by node type.
        used: names of all arrays that are read here.
        is_plain: there is one type of nodes, and one of edges at most: then the graph is an untyped one.
    """

    path: Path
    node_types: tuple[str, ...]
    num_nodes: tuple[int, ...]
    relation_names: tuple[str, ...]
    edge_type: ArrayFile | None
    features: Mapping[str, FeatureArrays]
    used: frozenset[str]
    is_plain: bool

    @classmethod
    def find(
        cls,
        path: Path,
        arrays: Mapping[str, ArrayFile],
        num_nodes: int | None = None,
        others: Sequence[ArrayFile] = (),
    ) -> TypedArrays | None:
        """What the arrays of a file say; ``None`` where nodes have no types.

        Args:
            path: of the file, or what stands for it in messages.
            arrays: by name.
            num_nodes: as the file says, if it does.
            others: numbers of relations of other edges than ``edge_type`` is of.

        Raises:
            InputError: types are out of order, without a name, or do not fit the features.
            ConfigError: a name is there twice, or cannot be one.
        """
        if "node_type" in arrays:
            sizes = _sizes(arrays["node_type"].expect("iu", 1))
            names = _names(arrays, "node_type_names", len(sizes), "node type")
        elif "edge_type" in arrays and "edge_split" in arrays:
            sizes, names = [-1 if num_nodes is None else num_nodes], (ENTITY,)
        else:
            return None
        sizes += [0] * (len(names) - len(sizes))
        check_names("node type", names, where=f"{path}, array 'node_type_names'")
        features, used = {}, set(NAMES)
        for name, size in zip(names, sizes):
            key = "x" if "x" in arrays and len(names) == 1 else f"x_{name}"
            found = FeatureArrays.find(path, arrays, key)
            if found is None:
                continue
            if found.num_rows != size:
                raise found.first.fail(f"has {found.num_rows:,} rows, but there are {size:,} nodes of type '{name}'")
            features[name] = found
            used |= {key, *(f"{key}_{part}" for part in PARTS)}
        edge_type = arrays["edge_type"].expect("iu", 1) if "edge_type" in arrays else None
        numbers = [each.expect("iu", 1) for each in ([] if edge_type is None else [edge_type, *others])]
        kinds = np.unique(np.concatenate([np.zeros(int(not numbers), np.int64), *map(_kinds, numbers)]))
        relations = _names(arrays, "edge_type_names", int(kinds.max(initial=-1)) + 1, "relation", unnamed=_UNNAMED)
        is_plain = len(names) == 1 and len(kinds) <= 1
        return cls(path, names, tuple(sizes), relations, edge_type, features, frozenset(used), is_plain)

    def relations_of(self, codes: Iterable[int]) -> list[tuple[int, int, int]]:
        """What codes stand for: number of the name, of the type of the sources, and of the destinations."""
        kinds = len(self.node_types)
        return [(code // kinds**2, code // kinds % kinds, code % kinds) for code in codes]

    def code(
        self, src: Integer[np.ndarray, "n"], dst: Integer[np.ndarray, "n"], kind: Integer[np.ndarray, "n"]
    ) -> Int64[np.ndarray, "n"]:
        """One number for what relation an edge is of."""
        if len(self.node_types) == 1:
            return kind.astype(np.int64)
        ends = np.cumsum(self.num_nodes)
        source, target = (np.searchsorted(ends, each, side="right") for each in (src, dst))
        return (kind.astype(np.int64) * len(ends) + source) * len(ends) + target

    def relations(self, found: list[tuple[int, int, int]], reverse: Sequence[bool]) -> tuple[Relation, ...]:
        """What they are called; and behind them those again that have a ``reverse``, the other way round.

        Raises:
            ConfigError: a name is there twice, or cannot be one.
        """
        names = self.node_types
        one_way = [Relation(names[source], self.relation_names[kind], names[target]) for kind, source, target in found]
        where = f"{self.path}, " + ("relations" if self.edge_type is None else "array 'edge_type_names'")
        check_names("relation", map(str, one_way), where=where)
        added = [each.reverse for each, there in zip(one_way, reverse, strict=True) if there]
        if there := [each for each in added if each in one_way]:
            what = f"relation '{there[0]}' is there already, so reverse relations cannot be added"
            raise ConfigError(what, where=where, fix="Leave out --undirected, or write edges in one direction only")
        return (*one_way, *added)

    def schema(self, relations: tuple[Relation, ...], edge_counts: Int64[np.ndarray, "R"], num_nodes: int) -> Schema:
        """All of it; ``num_nodes`` of all types together."""
        sizes = (num_nodes,) if len(self.node_types) == 1 else self.num_nodes
        return Schema(self.node_types, sizes, relations, tuple(edge_counts.tolist()))


def _sizes(node_type: ArrayFile) -> list[int]:
    """Nodes of each type, which must be in order."""
    sizes, last = list[int](), 0
    for start, block in node_type.blocks():
        kinds = block.astype(np.int64)
        falls = np.diff(np.concatenate([[last], kinds])) < 0
        if falls.any() or (len(kinds) and kinds[0] < 0):
            at = int(np.argmax(falls)) if falls.any() else 0
            before = int(kinds[at - 1]) if at else last
            fix = "Sort the nodes by type, and with them labels, splits and the ends of edges"
            raise node_type.fail(f"is not in order: node {start + at} is of type {kinds[at]} after {before}", fix)
        if len(kinds):
            last = int(kinds[-1])
            if last > 65_535:
                raise node_type.fail(f"has type {last}, at most 65,535 types are possible")
            counts = np.bincount(kinds, minlength=last + 1)
            sizes += [0] * (len(counts) - len(sizes))
            sizes = [before + int(count) for before, count in zip(sizes, counts)]
    return sizes


def _kinds(edge_type: ArrayFile) -> Int64[np.ndarray, "R"]:
    """The numbers that there are, ascending."""
    found = np.zeros(MOST_RELATIONS, bool)
    for start, block in edge_type.blocks():
        if len(block) and int(block.min()) < 0:
            raise edge_type.fail(f"has type {int(block.min())} among the edges from {start:,} on")
        if len(block) and int(block.max()) >= MOST_RELATIONS:
            what = f"has type {int(block.max()):,}, at most {MOST_RELATIONS:,} relations are possible"
            raise edge_type.fail(what, "Number them from 0 on")
        found[block] = True
    return np.flatnonzero(found)


def _names(
    arrays: Mapping[str, ArrayFile], key: str, count: int, what: str, unnamed: str | None = None
) -> tuple[str, ...]:
    """Names of types, one for each number at least."""
    if key not in arrays:
        if unnamed is not None and count <= 1:
            return (unnamed,)
        return tuple(f"{what.split()[-1]}_{number}" for number in range(count))
    names = tuple(str(name) for name in arrays[key].expect("U", 1).load())
    if len(names) < count:
        raise arrays[key].fail(f"has {len(names)} names, but there is a {what} of number {count - 1}")
    return names
