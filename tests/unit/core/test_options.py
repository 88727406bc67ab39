"""Records of options, and functions that take their fields as keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

import partita
from partita.core.errors import ConfigError
from partita.core.options import (
    Options,
    fields_of,
    fractions,
    named_numbers,
    parse_bytes,
    size_of,
    takes,
    whole_numbers,
)


@dataclass(frozen=True, kw_only=True)
class Base(Options):
    seed: Annotated[int, "Of everything."] = 0


@dataclass(frozen=True, kw_only=True)
class Baking(Base):
    flour: Annotated[int | str, "How much.", parse_bytes]
    form: Annotated[Literal["round", "square"] | None, "Of the cake."] = None


@takes(Baking)
def bake(oven: str, options: Baking) -> tuple[str, Baking]:
    """Bake a cake."""
    return oven, options


def test_fields_are_keywords() -> None:
    assert bake("hot", flour="1KiB", form="round") == ("hot", Baking(flour="1KiB", form="round"))
    assert bake(oven="hot", flour=3, seed=4) == ("hot", Baking(flour=3, seed=4))
    assert list(inspect.signature(bake).parameters) == ["oven", "flour", "form", "seed"]
    assert bake.__doc__ is not None
    assert bake.__doc__.startswith("Bake a cake.")
    assert "    form: Of the cake." in bake.__doc__


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flour": 1, "from": "round"}, r"bake: there is no option 'from'\. Did you mean 'form'\?"),
        ({"flour": 1, "form": "rownd"}, r"form: 'rownd' is not a choice\. Did you mean 'round'\?"),
        ({"form": "round"}, r"bake: flour is missing\. How much\."),
    ],
)
def test_a_bad_keyword_is_one_message(given, message) -> None:
    with pytest.raises(ConfigError, match=message):
        bake("hot", **given)


def test_what_a_record_says_of_its_fields() -> None:
    fields = fields_of(Baking)
    assert [(field.kinds, field.choices, field.required) for field in fields.values()] == [
        ((int, str), (), True),
        ((Literal["round", "square"],), ("round", "square"), False),
        ((int,), (), False),
    ]
    assert fields["flour"].read is parse_bytes
    assert fields["seed"].read is None


@pytest.mark.parametrize("name", ["ingest", "partition", "partition_for_memory", "shard", "presample"])
def test_an_unknown_keyword_of_the_python_api_gets_the_nearest_name(name) -> None:
    function: Callable[..., object] = getattr(partita, name)
    known = list(inspect.signature(function).parameters)[-1]
    given = ("a", "b")[: 1 if name == "presample" else 2]
    with pytest.raises(ConfigError, match=f"{name}: there is no option '{known}s'. Did you mean '{known}'"):
        function(*given, **{f"{known}s": 1})


def test_texts_are_read() -> None:
    assert whole_numbers("15,-1") == (15, -1)
    assert fractions("0.5,0.25,0.25") == (0.5, 0.25, 0.25)
    assert named_numbers(["cap=0.1", "rounds=2"]) == {"cap": 0.1, "rounds": 2.0}
    assert (size_of("2KiB", "memory"), size_of(5, "memory")) == (2048, 5)
    for read, text in ((whole_numbers, "1,b"), (fractions, "a,b"), (named_numbers, ["cap"])):
        with pytest.raises(ValueError, match=r"'(1,b|a,b|cap)' is no"):
            read(text)
    for wrong in ("much", 0, -1):
        with pytest.raises(ConfigError, match=r"memory: .*size"):
            size_of(wrong, "memory")
