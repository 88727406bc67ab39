"""Which column of a table is what, by the names of the columns: the ends of edges, the node ids, masks of splits."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ENDS = (
    ("source", "target"), ("source", "destination"), ("source", "dest"), ("source", "dst"), ("src", "dst"),
    ("src", "tgt"), ("src", "dest"), ("src", "target"), ("from", "to"), ("head", "tail"), ("start", "end"),
    ("citing", "cited"), ("parent", "child"), ("left", "right"), ("follower", "followee"), ("sender", "receiver"),
    ("sender", "recipient"), ("subject", "object"), ("h", "t"), ("u", "v"), ("i", "j"), ("a", "b"), ("0", "1"),
    ("1", "2"),
)  # fmt: skip
"""Words in which the names of two columns differ that are the source and the target of an edge."""

_RELATIONS = frozenset(("relation", "rel", "relationship", "predicate", "property", "r"))
"""Names of columns of relations."""

_ID_NAMES = (
    ("id",), ("node", "id"), ("vertex", "id"), ("nodeid",), ("vertexid",), ("nid",), ("vid",), ("node",), ("vertex",),
    ("ids",), ("node", "ids"), ("index",), ("idx",), ("node", "idx"), ("node", "index"),
)  # fmt: skip
"""Names of columns of node ids, as words; the first one that is there counts."""

_MASKS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def words_of(name: str) -> tuple[str, ...]:
    """The words of a column's name in lower case: ``FromNodeId``, ``from_node_id`` are "from", "node", "id"."""
    found = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+|[^\W\d_]+", name)
    return tuple(word.lower() for word in found)


def is_unnamed(name: str) -> bool:
    """Whether a column of a table with a header has no name, as the index that pandas writes."""
    return not name.strip() or re.fullmatch(r"Unnamed: \d+", name.strip()) is not None


def ends_by_name(names: Sequence[str]) -> tuple[int, int] | None:
    """Positions of the source and the target of edges, where the names of two columns say so.

    Of several pairs (``source_id, source_type, target_id, target_type``) it is the first.
    """
    words = [words_of(name) for name in names]
    for one, mine in enumerate(words):
        for other, its in enumerate(words[one + 1 :], start=one + 1):
            pair = _different(mine, its)
            if pair in _ENDS:
                return one, other
            if pair is not None and pair[::-1] in _ENDS:
                return other, one
    return None


def _different(mine: tuple[str, ...], its: tuple[str, ...]) -> tuple[str, str] | None:
    """The only word in which two names differ."""
    if len(mine) != len(its):
        return None
    found = [(a, b) for a, b in zip(mine, its) if a != b]
    return found[0] if len(found) == 1 else None


def ends_by_position(names: Sequence[str], *, has_header: bool) -> tuple[int, int]:
    """The first two columns, but none without a name where others have one."""
    named = [place for place, name in enumerate(names) if not (has_header and is_unnamed(name))]
    return (named[0], named[1]) if len(named) > 1 else (0, 1)


def triple(
    names: Sequence[str], sample: Sequence[Sequence[str]] = (), *, has_header: bool, sure: bool = False
) -> tuple[int, int, int] | None:
    """Positions of head, tail and relation, where a table holds triples and nothing else; ``None``: it does not.

    With names they say so. Else the middle one of three columns must hold words that are no ids of nodes, fewer than
    there are ids, and the outer ones ids of one kind.

    Args:
        names: of the columns.
        sample: cells of the first rows, without a header.
        has_header: whether the columns have names.
        sure: three columns without names are triples.
    """
    if len(names) != 3:
        return None
    if has_header and (ends := ends_by_name(names)) is not None:
        (other,) = {0, 1, 2} - set(ends)
        is_relation = len(words := words_of(names[other])) == 1 and words[0] in _RELATIONS
        return (*ends, other) if sure or is_relation else None
    if sure:
        return 0, 2, 1
    rows = [row for row in sample if len(row) == 3]
    if has_header or not rows:
        return None
    heads, relations, tails = (set(column) for column in zip(*rows))
    if relations & (heads | tails) or len(relations) >= len(rows) or len(relations) > min(len(heads), len(tails)):
        return None
    if any(cell.lstrip("-").replace(".", "", 1).isdecimal() for cell in relations):
        return None
    numbers = all(cell.isdecimal() for cell in heads | tails)
    alike = numbers or bool(heads & tails) or len({cell[:2] for cell in heads | tails}) == 1  # such as /m/02mjmr, Q42
    return (0, 2, 1) if alike else None


def ids_by_name(names: Sequence[str]) -> int:
    """Position of the node ids among named columns: a column named so, else the only one that ends in "id", else 0."""
    words = [words_of(name) for name in names]
    for wanted in _ID_NAMES:
        if words.count(wanted) == 1:
            return words.index(wanted)
    ending = [place for place, mine in enumerate(words) if len(mine) > 1 and mine[-1] == "id"]
    return ending[0] if len(ending) == 1 else 0


def masks_by_name(names: Sequence[str]) -> dict[str, int]:
    """Positions of the columns named ``train_mask`` and so on, by split; empty without one of training nodes."""
    found: dict[str, int] = {}
    for place, name in enumerate(names):
        words = words_of(name)
        split = _MASKS.get(words[0]) if len(words) == 2 and words[1] == "mask" else None
        if split is not None:
            found.setdefault(split, place)
    return found if "train" in found and len(found) > 1 else {}
