"""Types and relations: what names stand for, and what a model gets to see."""

from __future__ import annotations

import pytest

from partita.core.errors import ConfigError
from partita.core.relation_names import separated
from partita.graph.schema import Relation, Schema

SCHEMA = Schema(
    ("paper", "author", "place"),
    (5, 4, 2),
    (
        Relation("paper", "cites", "paper"),
        Relation("author", "wrote", "paper"),
        Relation("author", "at", "place"),
        Relation("place", "hosts", "author"),
    ),
    (9, 8, 4, 3),
)


@pytest.mark.parametrize(
    ("kinds", "layers", "types", "relations"),
    [
        ([0], 0, ["author", "place"], [*map(str, SCHEMA.relations)]),
        ([0], 1, ["place"], ["author:at:place", "place:hosts:author"]),
        ([0], 2, [], ["author:at:place"]),
        ([0], 3, [], []),
        ([2], 1, ["paper"], ["paper:cites:paper", "author:wrote:paper", "place:hosts:author"]),
        ([2], 9, ["paper"], ["paper:cites:paper", "author:wrote:paper"]),
        ([0, 2], 1, [], ["place:hosts:author"]),
    ],
)  # fmt: skip
def test_layers_look_one_relation_further_each(kinds, layers, types, relations) -> None:
    assert SCHEMA.unreached(kinds, layers) == (types, relations)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cites": (3, 2)}, ((3, 0, 0, 0), (2, 0, 0, 0))),
        ({"cites": (3,), "*": (1,)}, ((3, 1, 1, 1),)),
        ({"author:at:place": (-1,), "hosts": (4,)}, ((0, 0, -1, 4),)),
        ({"*": (7, 5)}, ((7,) * 4, (5,) * 4)),
    ],
)
def test_numbers_by_relation(given, expected) -> None:
    assert SCHEMA.by_relation(given, "fanout") == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sites": (1,)}, "no relation 'sites'"),
        ({"cites": (1,), "at": (1, 2)}, "numbers for 1 and 2 layers"),
        ({}, "numbers for no layers"),
        ({"cites": (1,), "paper:cites:paper": (1,)}, "is there twice"),
    ],
)
def test_numbers_that_fit_no_relation_are_refused(given, message) -> None:
    with pytest.raises(ConfigError, match=message):
        SCHEMA.by_relation(given, "fanout")


@pytest.mark.parametrize("name", ["is:a", "a:b:c", ":", "http://a.org/v#is"])
def test_names_of_relations_hold_colons(name) -> None:
    """Those of types do not, so what is between the first and the last colon is the name."""
    relation = Relation("paper", name, "place")
    schema = Schema(("paper", "place"), (1, 1), (relation, relation.reverse), (1, 1))
    assert separated(str(relation)) == ("paper", name, "place")
    assert schema.relation_numbers(name) == schema.relation_numbers(str(relation)) == [0]
    assert Schema.of_json(schema.to_json(), "here", ConfigError) == schema


def test_a_whole_name_comes_before_a_short_one() -> None:
    relations = (Relation("a", "a:b:a", "a"), Relation("a", "b", "a"))
    schema = Schema(("a",), (1,), relations, (1, 1))
    assert schema.relation_numbers("a:b:a") == [1]
    assert schema.relation_numbers("a:a:b:a:a") == [0]


@pytest.mark.parametrize(
    ("types", "name", "message"),
    [
        (("pa:per",), "cites", "'pa:per' is no name of a node type: it must not be empty or hold ':'"),
        (("paper",), " ", "'paper: :paper' is no name of a relation: it must not be empty"),
        (("paper",), "", "'paper::paper' is no name of a relation: it must not be empty"),
    ],
)
def test_names_that_are_none_are_refused(types, name, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Schema(types, (1,), (Relation(types[0], name, types[0]),), (1,))
