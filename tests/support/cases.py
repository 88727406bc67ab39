"""Which tests, and which of their cases, ``make test`` runs: the short ones, with every value of every parameter."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def repeated(cases: Iterable[tuple[str, str]]) -> set[int]:
    """The cases that have no value of their own: each of their values occurs in an earlier case that is kept.

    Args:
        cases: the test and the id of its case, in order. The values are the parts of the id between hyphens, each
            at its place: ``"gat-float32-2"`` is one of three parameters, or of one case that was named so.

    Returns:
        Their places in ``cases``. The first case of a test is never among them.
    """
    met: dict[str, set[tuple[int, str]]] = {}
    found = set()
    for place, (test, case) in enumerate(cases):
        values = set(enumerate(case.split("-")))
        if test in met and values <= met[test]:
            found.add(place)
        met.setdefault(test, set()).update(values)
    return found


def long_tests() -> frozenset[str]:
    """Tests, as ``file::name``, that take so long that ``make test`` leaves them out."""
    found, file = set(), ""
    for line in Path(__file__).with_name("long_tests.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            found.add(f"{file}::{line.strip()}")
        elif not line.startswith("#"):
            file = line.strip()
    return frozenset(found)
