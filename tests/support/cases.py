"""Which tests, and which of their cases, ``make test`` and ``make test-all`` run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from zlib import crc32

LONG, MANY = "long", "many"


def repeated(cases: Iterable[tuple[str, str]]) -> set[int]:
    """The cases that need not run for every value of every parameter to occur in one that does.

    Those that run are few, and mix the values: the first of a test, then always one with the most values that have
    not occurred, in an order that does not follow that of the parameters.

    Args:
        cases: the test and the id of its case, in order. The values are the parts of the id between hyphens, each
            at its place: ``"gat-float32-2"`` is one of three parameters, or of one case that was named so.

    Returns:
        Their places in ``cases``. The first case of a test is never among them.
    """
    of_test: dict[str, dict[int, set[tuple[int, str]]]] = {}
    order = dict[int, int]()
    for place, (test, case) in enumerate(cases):
        of_test.setdefault(test, {})[place] = set(enumerate(case.split("-")))
        order[place] = crc32(case.encode())
    found = set()
    for values in of_test.values():
        first, *others = values
        met, left = set(values[first]), sorted(others, key=order.__getitem__)
        for wanted in range(max(map(len, values.values())), 0, -1):
            for place in list(left):
                if len(values[place] - met) >= wanted:
                    met |= values[place]
                    left.remove(place)
        found |= set(left)
    return found


def listed_tests() -> Mapping[str, str]:
    """Tests, as ``file::name``, that cannot run whole in ``make test``: :data:`LONG` or :data:`MANY`.

    A long test takes so long that ``make test`` leaves it out. Of many cases, ``make test-all`` runs those that
    ``make test`` does; so it does of long tests, where those are not left out.
    """
    found, file = {}, ""
    for line in Path(__file__).with_name("long_tests.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            name, _, kind = line.strip().partition(" ")
            found[f"{file}::{name}"] = kind or LONG
        elif not line.startswith("#"):
            file = line.strip()
    assert set(found.values()) <= {LONG, MANY}
    return found
