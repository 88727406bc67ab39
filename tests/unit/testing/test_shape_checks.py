"""Wrong tensors are noticed in every test, in the first calls and now and then after them."""

from __future__ import annotations

from dataclasses import dataclass

import jaxtyping
import pytest
import shape_checks
import torch
from jaxtyping import Float32
from torch import Tensor

from partita.nn.initialize import fan_in


def first(x: Float32[Tensor, "N D"]) -> Float32[Tensor, " N"]:
    return x[:, 0]


@dataclass
class Rows:
    x: Float32[Tensor, "N D"]


@pytest.fixture
def checked() -> object:
    return jaxtyping.jaxtyped(first, typechecker=shape_checks.check)


GOOD, WRONG = torch.zeros(3, 2), torch.zeros(3, 2, 2)


def test_the_package_is_checked():
    with pytest.raises(jaxtyping.TypeCheckError):
        fan_in(WRONG.tolist(), "a name")


def test_first_calls(checked):
    for _ in range(shape_checks.FIRST - 1):
        checked(GOOD)
    with pytest.raises(jaxtyping.TypeCheckError):
        checked(WRONG)


def test_later_calls_now_and_then_and_the_next_test(checked):
    refused = 0
    for _ in range(shape_checks.FIRST + 2 * shape_checks.EVERY):
        try:
            checked(WRONG)
        except jaxtyping.TypeCheckError:
            refused += 1
    assert refused == shape_checks.FIRST + 2
    shape_checks.begin_test()
    with pytest.raises(jaxtyping.TypeCheckError):
        checked(WRONG)


def test_what_is_given_back():
    def row(x: Float32[Tensor, "N D"]) -> Float32[Tensor, "D D"]:
        return x

    with pytest.raises(jaxtyping.TypeCheckError):
        jaxtyping.jaxtyped(row, typechecker=shape_checks.check)(GOOD)


def test_dataclasses():
    kind = jaxtyping.jaxtyped(Rows, typechecker=shape_checks.check)
    assert kind(GOOD).x is GOOD
    with pytest.raises(jaxtyping.TypeCheckError):
        kind(WRONG)
