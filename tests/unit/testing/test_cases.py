"""What ``make test`` leaves out."""

from __future__ import annotations

from itertools import product

from cases import repeated


def test_every_value_of_every_test_is_kept() -> None:
    names = ["-".join(values) for values in product(["sage", "gat"], ["1", "2", "3"], ["sum", "mean"])]
    cases = [(test, name) for test in ("a", "b") for name in names]
    kept = [case for place, case in enumerate(cases) if place not in repeated(cases)]
    for position in range(3):
        every = {(test, name.split("-")[position]) for test, name in cases}
        assert {(test, name.split("-")[position]) for test, name in kept} == every
    assert len(kept) < len(cases)


def test_cases_with_names_of_their_own_are_kept() -> None:
    assert repeated([("a", ""), ("b", ""), ("a", "one"), ("a", "two"), ("c", "x"), ("c", "x-y")]) == set()
    assert repeated([("a", "x-1"), ("a", "y-2"), ("a", "x-2"), ("a", "y-1"), ("b", "x-2")]) == {2, 3}
