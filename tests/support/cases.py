"""Which cases of a test are run by ``make test``: enough that every value of every parameter occurs."""

from __future__ import annotations

from collections.abc import Iterable


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
