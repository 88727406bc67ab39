"""What a typed graph consists of: types of nodes, and relations that lead from one type to another.

All nodes share one space of ids. Within every part, the nodes of the first type come first, then those of the second,
and so on; within the row of a node, its in-edges are sorted by relation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from jaxtyping import Int64

from partita.core.errors import ConfigError, PartitaError, nearest
from partita.core.relation_names import SEPARATOR, joined, separated
from partita.core.typed import fitting, typed

MOST_RELATIONS = 65_535
MOST_TYPES = 65_535
OTHERS = "*"
"""In place of the name of a relation: all that are not named."""
REVERSE_PREFIX = "rev_"
"""Before the name of a relation: the one whose edges lead the other way."""


@dataclass(frozen=True, slots=True, order=True)
class Relation:
    """Edges of one kind.

    Attributes:
        source: type of the nodes that the edges come from.
        name: what the user calls it.
        target: type of the nodes that the edges lead to.
    """

    source: str
    name: str
    target: str

    def __str__(self) -> str:
        return joined(self.source, self.name, self.target)

    @property
    def reverse(self) -> Relation:
        """The relation of the same edges in the other direction."""
        return Relation(self.target, REVERSE_PREFIX + self.name, self.source)


@dataclass(frozen=True)
class Schema:
    """Types of nodes and relations of a graph, with how many there are of each.

    Attributes:
        node_types: names, in order of ids.
        num_nodes: of each type.
        relations: in order of their numbers in the column ``edge_type``.
        num_edges: of each relation.

    Raises:
        ConfigError: a name is used twice, also with other capitals; that of a type holds a colon; a relation names a
            type that there is not; or there are too many.
    """

    node_types: tuple[str, ...]
    num_nodes: tuple[int, ...]
    relations: tuple[Relation, ...]
    num_edges: tuple[int, ...]

    def __post_init__(self) -> None:
        check_names("node type", self.node_types)
        check_names("relation", map(str, self.relations))
        if not self.node_types or len(self.node_types) != len(self.num_nodes):
            raise ConfigError(f"{len(self.node_types)} node types with {len(self.num_nodes)} sizes", where="schema")
        if len(self.relations) != len(self.num_edges):
            raise ConfigError(f"{len(self.relations)} relations with {len(self.num_edges)} sizes", where="schema")
        if min((*self.num_nodes, *self.num_edges)) < 0:
            raise ConfigError("a size is below 0", where="schema")
        for count, most, what in (
            (len(self.relations), MOST_RELATIONS, "relations"),
            (len(self.node_types), MOST_TYPES, "node types"),
        ):
            if count > most:
                raise ConfigError(f"{count:,} {what}, at most {most:,} are possible", where="schema")
        for relation in self.relations:
            for end in (relation.source, relation.target):
                self.type_number(end, f"relation {relation}")

    @classmethod
    def of_json(cls, values: Mapping[str, Any], where: str, error: type[PartitaError]) -> Schema:
        """The inverse of :meth:`to_json`.

        Raises:
            PartitaError: of the given type; it is something else.
        """
        try:
            with fitting(where, error, "Make the store anew"):
                given = dict(values)
                for name in ("node_types", "num_nodes", "num_edges"):
                    given[name] = tuple(given[name])
                given["relations"] = tuple(typed(Relation, each) for each in given["relations"])
                return typed(cls, given)
        except ConfigError as wrong:  # names that nobody could have given
            what = f"what it says does not fit together ({wrong.what})"
            raise error(what, where=where, fix="Make the store anew") from None

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @cached_property
    def ends(self) -> Int64[np.ndarray, "R 2"]:
        """Numbers of the types that each relation comes from and leads to."""
        number = {name: at for at, name in enumerate(self.node_types)}
        pairs = [(number[each.source], number[each.target]) for each in self.relations]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def reverses(self) -> Int64[np.ndarray, "R"]:
        """Number of the relation with the edges of each the other way round, as its name says; -1 without one."""
        number = {each: at for at, each in enumerate(self.relations)}
        found = np.full(len(self.relations), -1)
        for at, each in enumerate(self.relations):
            other = number.get(each.reverse)
            if other is not None and found[at] < 0 and found[other] < 0:
                found[at], found[other] = other, at
        return found

    @cached_property
    def first_nodes(self) -> tuple[int, ...]:
        """Original index of the first node of each type, and the number of nodes."""
        return tuple(accumulate(self.num_nodes, initial=0))

    @property
    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """Names of types, and of relations with those of their ends: as PyG's ``HeteroData.metadata()``, by number."""
        return list(self.node_types), [(each.source, each.name, each.target) for each in self.relations]

    @property
    def edge_dtype(self) -> np.dtype[Any]:
        """Of the column ``edge_type``: the smallest unsigned integer that fits."""
        return np.dtype(np.uint8 if len(self.relations) <= 256 else np.uint16)

    def type_number(self, name: str, where: str = "node type") -> int:
        """Number of a node type.

        Raises:
            ConfigError: there is no such type.
        """
        if name not in self.node_types:
            raise ConfigError(f"there is no node type '{name}'", where=where, fix=nearest(name, self.node_types))
        return self.node_types.index(name)

    def unreached(self, kinds: Iterable[int], layers: int) -> tuple[list[str], list[str]]:
        """What a model does not look at, however many neighbors are sampled.

        Args:
            kinds: numbers of the types of the seeds.
            layers: of the model; each looks one relation further, against its direction.

        Returns:
            Names of node types and of relations.
        """
        reached, used = set(kinds), set[int]()
        for _ in range(layers):
            used |= {at for at, (_, target) in enumerate(self.ends.tolist()) if target in reached}
            reached |= {self.ends[at, 0] for at in used}
        types = [name for at, name in enumerate(self.node_types) if at not in reached]
        return types, [str(each) for at, each in enumerate(self.relations) if at not in used]

    def by_relation(self, given: Mapping[str, Sequence[int]], where: str) -> tuple[tuple[int, ...], ...]:
        """Numbers for each layer, or hop, and relation, from those that a user has given for names of relations.

        Args:
            given: by name as for :meth:`relation_numbers`, a number for each layer; :data:`OTHERS` stands for all that
                are not named besides. Without it those have 0.
            where: for messages.

        Returns:
            Of each layer a number for every relation.

        Raises:
            ConfigError: there is no such relation, one is given twice, or they have other numbers of layers.
        """
        layers = {len(numbers) for numbers in given.values()}
        if len(layers) != 1:
            what = f"relations have numbers for {' and '.join(map(str, sorted(layers))) or 'no'} layers"
            raise ConfigError(what, where=where, fix="Give every relation a number for each layer; 0 draws nothing")
        found = dict[int, Sequence[int]]()
        for name, numbers in given.items():
            for at in () if name == OTHERS else self.relation_numbers(name, where):
                if at in found:
                    raise ConfigError(
                        f"relation '{self.relations[at]}' is there twice", where=where, fix="Name it once"
                    )
                found[at] = numbers
        others = given.get(OTHERS, (0,) * layers.pop())
        return tuple(zip(*(found.get(at, others) for at in range(len(self.relations))), strict=True))

    @property
    def short_relations(self) -> list[str]:
        """Of each relation its own name, or, where several have it, the whole one."""
        often = Counter(each.name for each in self.relations)
        return [each.name if often[each.name] == 1 else str(each) for each in self.relations]

    def relation_numbers(self, name: str, where: str = "relation") -> list[int]:
        """Numbers of the relations that a user means: one by its whole name, or all with a short one.

        Args:
            name: ``"paper:cites:paper"``, or ``"cites"``.
            where: for messages.

        Raises:
            ConfigError: there is none.
        """
        found = [at for at, each in enumerate(self.relations) if name == str(each)]
        found = found or [at for at, each in enumerate(self.relations) if name == each.name]
        if not found:
            known = dict.fromkeys([*(each.name for each in self.relations), *map(str, self.relations)])
            raise ConfigError(f"there is no relation '{name}'", where=where, fix=nearest(name, known))
        return found

    def metapath(self, names: Sequence[str], where: str) -> tuple[int, ...]:
        """Numbers of relations along which a walk goes, against their direction.

        Args:
            names: of relations, as for :meth:`relation_numbers`; the first leads to where walks begin, and every other
                one to where the one before it comes from.
            where: for messages.

        Raises:
            ConfigError: there is no such relation, a short name is that of several, or one does not follow on another.
        """
        found = list[int]()
        for name in names:
            known = self.relation_numbers(name, where)
            if len(known) > 1:
                raise ConfigError(
                    f"'{name}' is the name of {len(known)} relations, and a walk goes along one",
                    where=where,
                    fix=f"Name one of {', '.join(str(self.relations[at]) for at in known)}",
                )
            if found and self.relations[found[-1]].source != self.relations[known[0]].target:
                before, after = self.relations[found[-1]], self.relations[known[0]]
                raise ConfigError(
                    f"relation '{after}' leads to '{after.target}', and a walk along '{before}' comes to "
                    f"'{before.source}'",
                    where=where,
                    fix="Walks go against the direction of edges: let each relation lead to the type that the one "
                    "before it comes from",
                )
            found.append(known[0])
        return tuple(found)


def check_names(what: str, names: Iterable[str], where: str = "schema") -> None:
    """See that names can be told apart.

    Args:
        what: they name, for messages: a ``"node type"``, or a ``"relation"``, as one word.
        names: of types, or of relations.
        where: they are from.

    Raises:
        ConfigError: one is empty, or there twice, also with other capitals; or that of a type holds a separator.
    """
    seen = dict[str, str]()
    is_type = what == "node type"
    for name in names:
        if not all(map(str.strip, [name] if is_type else separated(name))) or (is_type and SEPARATOR in name):
            rule = f"it must not be empty or hold '{SEPARATOR}'" if is_type else "it must not be empty"
            raise ConfigError(f"'{name}' is no name of a {what}: {rule}", where=where, fix="Choose another name")
        other = seen.setdefault(name.casefold(), name)
        if other is not name and other == name:
            raise ConfigError(f"{what} '{name}' is there twice", where=where, fix="Name each once")
        if other != name:
            raise ConfigError(
                f"{what}s '{other}' and '{name}' differ by capitals only", where=where, fix="Rename one of them"
            )
